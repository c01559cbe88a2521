"""Facts for a page: results and settings side by side, and the numbers of every run."""

from dataclasses import replace

from paceline.report.page import render
from paceline.report.page_tables import audit_section, comparison, environment_section, measurements, unlike_runs
from paceline.report.pages import page_of_run
from tests.bench.sample_bench import make_bench
from tests.report.sample_runs import make_run, make_split


def rows_by_name(table):
    return {name: values for name, *values in table.rows}


def test_runs_of_the_same_work_are_compared_by_speed_and_devices():
    one = make_run("one", split=make_split(ranks=1, communication=0, straggler=0))
    two = make_run("two", split=make_split(ranks=2, backward=10, communication=0, straggler=0))
    rows = rows_by_name(comparison([one, two]))
    assert rows["world"] == ["1 rank", "2 ranks"]
    assert rows["speed-up"] == ["1.00×", "2.00× (2.00–2.00)"]
    assert rows["efficiency"] == ["100%", "100%"]
    assert rows["samples/s"] == ["1,000", "1,000"]


def test_runs_of_different_work_have_no_speed_up():
    runs = [make_run("a"), make_run("b", model="resnet56")]
    rows = rows_by_name(comparison(runs))
    assert unlike_runs(*runs)
    assert "speed-up" not in rows
    assert rows["model"] == ["resnet20", "resnet56"]


def test_settings_that_are_equal_or_about_records_are_left_out():
    rows = rows_by_name(comparison([make_run("a", lr=0.1, name="x"), make_run("b", lr=0.2, name="y")]))
    assert rows["lr"] == ["0.1", "0.2"]
    assert not {"name", "momentum"} & set(rows)


def test_another_batch_is_still_the_same_work():
    assert unlike_runs(make_run(global_batch=128), make_run(global_batch=256)) == []


def test_the_last_start_of_a_run_is_its_environment():
    run = make_run("mine")
    moved = replace(run, environments=[*run.environments, {"host": "node7", "packages": {"torch": "2.9"}}])
    environment, settings = environment_section([moved]).facts
    assert environment.facts == [("host", "node7"), ("torch", "2.9")]
    assert (environment.title, settings.title) == ("Environment", "Settings")
    assert ("model", "resnet20") in settings.facts
    assert environment_section([run, moved]).facts[0].title == "mine: Environment"


def test_every_run_of_a_benchmark_has_a_row():
    table = measurements(make_bench({0: [100.0, 98.0], 1: [180.0, 176.0]}, devices=[1, 2]))
    assert len(table.rows) == 4
    assert table.rows[3] == ["ddp 2", "strong", "2", "176", "727.27", "0.5", "0.9000"]


def test_findings_of_an_audit_are_a_section_of_a_page():
    finding = {"level": "wrong", "rule": "same-order", "file": "train.py", "line": 7, "seen": "twice <the> same",
               "effect": "repeats", "fix": "set_epoch"}  # fmt: skip
    values = {"steps": [12, 12], "ending": "", "findings": [finding]}
    section = audit_section(values)
    assert section.intro == ["Audited 12 steps on 2 ranks: 1 finding."]
    assert section.tables[0].rows == [["wrong", "same-order", "train.py:7", "twice <the> same", "repeats", "set_epoch"]]
    html = render(page_of_run(replace(make_run("observed"), audit=values)))
    assert "Mistakes in the script" in html
    assert "twice &lt;the&gt; same" in html
    assert "Mistakes in the script" not in render(page_of_run(make_run("observed")))
    assert audit_section(values | {"findings": []}).tables == []
