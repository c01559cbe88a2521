"""Pages say what the run says, the same way every time, whatever its name."""

import csv
import io
import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from urllib.parse import unquote

import pytest

from paceline.bench.statistics import compare_variants
from paceline.report.bench_data import BenchData
from paceline.report.page import render
from paceline.report.pages import page_of_bench, page_of_run, page_of_runs
from paceline.report.run_data import Forecast
from tests.bench.sample_bench import make_bench
from tests.report.sample_runs import make_profile, make_run, make_split

VOID = {"meta", "link", "path", "br", "img"}


class Balance(HTMLParser):
    """Finds tags that are not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag


def headline(text: str) -> str:
    found = re.search(r"<h1>(.*?)</h1>", text, re.DOTALL)
    assert found is not None
    return unescape(found[1])


def rows_of(text: str, name: str) -> list[list[str]]:
    found = re.search(rf'download="{name}\.csv" href="data:text/csv;charset=utf-8,([^"]*)"', text)
    assert found is not None, name
    return list(csv.reader(io.StringIO(unquote(unescape(found[1])))))


def test_the_page_of_a_run_has_every_part_and_closes_every_tag():
    text = render(page_of_run(make_run(profile=make_profile())))
    balance = Balance()
    balance.feed(text)
    assert balance.open == []
    titles = re.findall(r"<h2>(.*?)</h2>", text)
    assert titles == [
        "Where the time goes", "What to try", "One step", "Learning curves", "Environment and settings", "The numbers",
    ]  # fmt: skip
    assert len(re.findall(r'role="img" aria-label="[^"]{10,}"', text)) == 6
    assert text.startswith("<!doctype html>")
    assert "<script" not in text


def test_the_verdict_is_the_one_of_explain():
    run = make_run(profile=None)
    assert run.bottlenecks[0].kind == "link"
    assert headline(render(page_of_run(run))).lower() == run.bottlenecks[0].sentence.lower()
    healthy = make_run(split=make_split(communication=1))
    assert healthy.bottlenecks == ()
    text = render(page_of_run(healthy))
    assert headline(text) == "98.6% of the test samples right, 1,000 samples/s on 2 ranks"
    assert "No bottleneck costs 10% of the training time" in text


def test_a_score_over_some_of_the_samples_says_so():
    whole = make_run(split=make_split(communication=1))
    score = {"loss": 0.1, "top1": 0.5, "top5": 1.0, "samples": 1536, "split_samples": 15_000, "epoch": 1}
    trial = replace(whole, summary=replace(whole.summary, test=score))
    assert headline(render(page_of_run(trial))).startswith("50.0% of 1,536 of the test samples right")


def test_the_same_run_gives_the_same_bytes():
    pages = {render(page_of_run(make_run(profile=make_profile()))) for _ in range(3)}
    assert len(pages) == 1


def test_names_cannot_break_the_page():
    label = '<script>alert("x")</script> & "more"'
    text = render(page_of_runs([make_run(label), make_run("other")]))
    assert "<script" not in text
    assert "&lt;script&gt;alert(" in text
    balance = Balance()
    balance.feed(text)
    assert balance.open == []


def test_tables_come_as_csv_with_every_rank():
    text = render(page_of_run(make_run(split=make_split(ranks=300, hosts=10))))
    ranks = rows_of(text, "ranks")
    assert len(ranks) == 301
    assert ranks[0][:4] == ["rank", "host", "step_ms", "data_ms"]
    assert ranks[300][:2] == ["299", "node10"]
    assert len(rows_of(text, "epochs")) == 6
    assert text.count("<td>") < 4000, "on the page itself a part is enough"


def test_runs_side_by_side_name_the_phase_that_differs():
    one = make_run("one rank", split=make_split(ranks=1, communication=0, straggler=0))
    two = make_run("two hosts", split=make_split(ranks=2, hosts=2, communication=300))
    text = render(page_of_runs([one, two]))
    assert headline(text) == (
        "Two hosts: 5.5× slower per sample than one rank (95% interval 5.49–5.49×); "
        "exposed communication is 300 of 374 ms per step (98% of the slowdown)"
    )
    assert "2 ranks on 2 nodes" in text
    assert "0.18×" in text, "the speed-up stands in the table"


def test_a_gain_is_measured_against_the_devices_of_both_runs():
    one = make_run("one", split=make_split(ranks=1, communication=0, straggler=0))
    quick = make_split(ranks=1, forward=12, backward=30, communication=0, straggler=0)
    two = make_run("two", split=replace(quick, facts=replace(quick.facts, mode="dp", num_devices=2)))
    text = render(page_of_runs([one, two]))
    assert headline(text).startswith(
        "Two: 1.51× as fast as one on 2× the devices (95% interval 1.51–1.51×), 76% efficient"
    )
    assert "2 devices of one process" in text


def test_runs_of_different_work_are_shown_but_not_compared():
    text = render(page_of_runs([make_run("a"), make_run("b", model="resnet56")]))
    assert headline(text) == (
        "These runs did different work, so their speeds are not compared: --model is resnet20 in one and resnet56 in "
        "the other"
    )
    assert "speed-up" not in text
    assert "A step, run by run" not in text
    assert "A step, run by run" in render(page_of_runs([make_run("a"), make_run("b")]))


def test_a_benchmark_is_drawn_against_the_ideal_and_the_prediction():
    bench = make_bench({0: [100, 98, 102, 101, 99], 1: [180, 176, 184, 182, 178]}, devices=[1, 2])
    group = compare_variants(bench, "strong")
    assert group is not None
    predicted = {"strong": Forecast(label="predicted", efficiency={1: (1, 1, 1), 2: (0.92, 0.88, 0.95)})}
    text = render(page_of_bench(BenchData("bench/001", bench, [group], [], 0.05, predicted)))
    assert headline(text).startswith("ddp 2 is fastest: 1.80×")
    for label in ("ideal", "ddp", "predicted"):
        assert re.search(rf'class="end [^"]*"[^>]*>{label} ', text), label
    assert 'class="band"' in text
    assert 'class="whiskers"' in text
    assert len(rows_of(text, "measurements")) == 11
    assert "differences below about 5% cannot be detected" in text


@pytest.mark.parametrize("missing", ["records", "split", "both"])
def test_a_run_that_has_hardly_begun_has_a_page_too(missing):
    from dataclasses import replace

    run = make_run()
    if missing in {"records", "both"}:
        run = replace(run, records=[])
    if missing in {"split", "both"}:
        run = replace(run, split=None)
    text = render(page_of_run(run))
    assert "Environment and settings" in text
    assert ("Learning curves" in text) == (missing == "split")
    assert ("Where the time goes" in text) == (missing == "records")
