"""One table of phases: what the clock measures, what profiles hold and what pages draw all follow it."""

import dataclasses
import json
import re
from importlib.resources import files

import pytest

from paceline.records.folder import RunFolder
from paceline.records.phases import (
    CLOCK_PHASES,
    CLOCK_STEP_PHASES,
    OTHER_PHASES,
    PHASES,
    STEP_PHASES,
    PhaseRecord,
    phases_as_json,
    read_phases,
)
from paceline.records.profile import RankSteps
from paceline.records.reader import read_metrics


def test_every_phase_is_of_a_step_or_around_it():
    assert (*STEP_PHASES, *OTHER_PHASES) == tuple(PHASES)


def test_a_clock_measures_communication_and_straggler_as_one():
    expected = ("data", "copy", "forward", "backward", "grad_sync", "update")
    assert expected == CLOCK_STEP_PHASES
    assert (*expected, *OTHER_PHASES) == CLOCK_PHASES


def test_a_profile_has_the_phases_of_a_step():
    assert tuple(field.name for field in dataclasses.fields(RankSteps)) == (*CLOCK_STEP_PHASES, "step")


@pytest.mark.parametrize("name", PHASES)
def test_a_page_has_a_colour_for_every_phase(name):
    style = (files("paceline.report") / "templates" / "style.css").read_text(encoding="utf-8")
    css_class = PHASES[name].css_class
    assert re.search(rf"\.{css_class} {{ background: var\(--{css_class}\); }}", style)


def test_phases_cover_the_interval_and_starting_up_does_not_slow_the_first_one(small_run):
    folder = RunFolder(small_run(log_every=4).folder)
    steps = [record for record in read_metrics(folder) if record["kind"] == "step"]
    for record in steps:
        assert sum(record["phases"].values()) == pytest.approx(record["seconds"], abs=1e-4)
        training = sum(record["phases"][phase] for phase in STEP_PHASES)
        assert record["samples_per_s"] == pytest.approx(record["samples"] / training, rel=0.01)
    assert [record["phases"]["start"] > 0 for record in steps] == [True] + [False] * (len(steps) - 1)


def test_a_record_is_read_back_from_the_keys_of_earlier_versions(tmp_path):
    record = PhaseRecord(
        step=5, steps=5, seconds=[1.0], phases={name: [0.1] for name in PHASES}, last=[0], cpu=[0.5], cpu_wait=[0.25]
    )
    today = json.dumps(phases_as_json(record)) + "\n"
    RunFolder(tmp_path).phases.write_text(today.replace('"cpu_wait"', '"starved"'))
    assert '"starved"' in RunFolder(tmp_path).phases.read_text()
    assert list(read_phases(RunFolder(tmp_path))) == [record]
