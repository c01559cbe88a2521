"""phases.jsonl: few ranks write every interval, many ranks longer ones, and nothing is lost."""

import json

import pytest

from paceline.records.folder import RunFolder
from paceline.records.phases import PHASES, PhaseRecord, RankFacts, read_phases
from paceline.trackers.base import RunInfo
from paceline.trackers.files import PhaseLines
from tests.conftest import make_small_config


def info(folder, first_step=0):
    config = make_small_config(folder)
    return RunInfo(folder=RunFolder(folder), config=config, total_steps=99, steps_per_epoch=9, first_step=first_step)


def facts(ranks, first_step=0):
    return RankFacts(
        first_step=first_step, hosts=["a"] * ranks, threads=[1] * ranks, cores=[2] * ranks, mode="ddp", device="cpu",
        parameters=1, gradient_bytes=4, global_batch=8,
    )  # fmt: skip


def interval(step, steps, ranks):
    return PhaseRecord(
        step=step, steps=steps, seconds=[1.0] * ranks, phases={phase: [0.1] * ranks for phase in PHASES},
        last=[steps] + [0] * (ranks - 1), cpu=[0.5] * ranks, cpu_wait=[0.0] * ranks,
    )  # fmt: skip


def written(folder, ranks, entries, first_step=0, now=lambda: 0.0):
    lines = PhaseLines(now=now)
    lines.open(info(folder, first_step))
    lines.record(facts(ranks, first_step))
    for entry in entries:
        lines.record(entry)
    lines.close(None)
    return list(read_phases(RunFolder(folder)))


@pytest.mark.parametrize(("ranks", "expected"), [(2, [1, 1, 1, 1, 1, 0]), (50, [3, 2, 0])])
def test_intervals_of_many_ranks_are_longer_and_hold_the_same_sum(tmp_path, ranks, expected):
    entries = [interval(step, 1, ranks) for step in range(1, 6)] + [interval(5, 0, ranks)]
    found = [record for record in written(tmp_path, ranks, entries) if isinstance(record, PhaseRecord)]
    assert [record.steps for record in found] == expected
    assert sum(record.seconds[0] for record in found) == pytest.approx(6)
    assert sum(record.phases["copy"][-1] for record in found) == pytest.approx(0.6)
    assert sum(record.last[0] for record in found) == 5


def test_intervals_of_a_long_run_become_longer_and_hold_the_same_sum(tmp_path, monkeypatch):
    monkeypatch.setattr("paceline.trackers.files.LINES_PER_LENGTH", 4)
    entries = [interval(step, 1, 1) for step in range(1, 26)] + [interval(25, 0, 1)]
    found = [record for record in written(tmp_path, 1, entries) if isinstance(record, PhaseRecord)]
    assert [record.steps for record in found] == [1, 1, 1, 2, 2, 2, 2, 4, 4, 4, 2, 0]
    assert sum(record.phases["copy"][0] for record in found) == pytest.approx(2.6)
    assert found[-1].step == 25


@pytest.mark.parametrize(("ranks", "expected"), [(1, [2, 4, 4, 3, 0]), (100, [5, 5, 3, 0])])
def test_an_interval_is_written_after_some_seconds_though_it_is_not_long_enough(tmp_path, monkeypatch, ranks, expected):
    monkeypatch.setattr("paceline.trackers.files.LINES_PER_LENGTH", 1)
    monkeypatch.setattr("paceline.trackers.files.SECONDS_PENDING", 3.0)
    moment = 0.0

    def intervals():
        nonlocal moment
        for step in range(1, 14):
            yield interval(step, 1, ranks)
            moment += 1.0
        yield interval(13, 0, ranks)

    entries = written(tmp_path, ranks, intervals(), now=lambda: moment)
    assert [entry.steps for entry in entries if isinstance(entry, PhaseRecord)] == expected


def test_a_resumed_run_drops_what_was_lost_and_says_who_goes_on(tmp_path):
    written(tmp_path, 2, [interval(5, 5, 2), interval(10, 5, 2)])
    found = written(tmp_path, 3, [interval(8, 3, 3)], first_step=5)
    assert [type(entry).__name__ for entry in found] == ["RankFacts", "PhaseRecord", "RankFacts", "PhaseRecord"]
    assert [entry.step for entry in found if isinstance(entry, PhaseRecord)] == [5, 8]


def test_lines_that_a_crash_cut_off_are_left_out(tmp_path):
    written(tmp_path, 2, [interval(5, 5, 2)])
    path = RunFolder(tmp_path).phases
    path.write_text(path.read_text() + json.dumps({"kind": "phases", "step": 3}) + '\n[]\n{"kind": "ph')
    assert len(list(read_phases(RunFolder(tmp_path)))) == 2
