"""Phases added up: the last start of a run counts, and a thousand ranks are read in little memory."""

import json
import subprocess
import sys

import numpy as np
import pytest

from paceline.explain.explain_text import heading, nothing_found
from paceline.explain.time_split import REMAINDER, split_time
from paceline.records.folder import RunFolder
from paceline.records.phases import PHASES, phases_as_json, read_phases
from tests.explain.sample_phases import CONFIG, facts, interval


def test_the_first_interval_and_the_end_are_not_steady():
    found = split_time([
        facts(), interval(10, start=[9.0, 9.0], forward=[5.0, 5.0]), interval(20, forward=[1.0, 2.0]),
        interval(30, forward=[1.0, 2.0]), interval(30, steps=0, evaluate=[3.0, 3.0]),
    ])  # fmt: skip
    assert found is not None
    assert found.steady_state.steps == 20
    assert found.steady_state.per_step("forward") == pytest.approx([0.1, 0.2])
    assert found.steady_state.step == pytest.approx([0.1, 0.2])
    assert found.total.phases["evaluate"] == pytest.approx([3.0, 3.0])
    assert found.total.phases[REMAINDER] == pytest.approx([2.0, 2.0])
    assert sum(found.total.phases.values()) == pytest.approx(found.total.seconds)
    assert found.evaluating == 0.0


def test_only_the_last_start_that_got_anywhere_counts():
    first = [facts(), interval(10), interval(20)]
    resumed = [facts(3, first_step=20), interval(30, ranks=3)]
    found = split_time([*first, *resumed])
    assert found is not None
    assert (found.world_size, found.total.steps) == (3, 10)
    crashed = split_time([*first, facts(4)])
    assert crashed is not None
    assert (crashed.world_size, crashed.total.steps) == (2, 20)
    crashed_twice = split_time([*first, facts(4), facts(4)])
    assert crashed_twice is not None
    assert (crashed_twice.world_size, crashed_twice.total.steps) == (2, 20)


def test_a_record_without_some_phase_is_left_out(tmp_path):
    records = [phases_as_json(entry) for entry in (facts(), interval(10), interval(20))]
    del records[1]["phases"]["update"]
    folder = RunFolder(tmp_path)
    folder.phases.write_text("".join(json.dumps(record) + "\n" for record in records))
    found = split_time(read_phases(folder))
    assert found is not None
    assert found.total.steps == 10


def test_a_run_without_records_has_no_split():
    assert split_time([]) is None
    assert split_time([facts()]) is None
    assert split_time([interval(3)]) is None


MEASURE = """
import resource, sys
from pathlib import Path
from paceline.explain.time_split import split_time
from paceline.records.folder import RunFolder
from paceline.records.phases import read_phases
found = split_time(read_phases(RunFolder(Path(sys.argv[1]))))
used = resource.getrusage(resource.RUSAGE_SELF)
print(found.total.steps, found.world_size, used.ru_maxrss / 1e6)
"""


def test_a_thousand_ranks_and_ten_thousand_steps_are_read_in_little_memory(tmp_path):
    ranks, random = 1000, np.random.default_rng(0)
    with (tmp_path / "phases.jsonl").open("w") as file:
        file.write(json.dumps(phases_as_json(facts(ranks))) + "\n")
        times = {phase: np.round(random.random(ranks) * 10, 6).tolist() for phase in PHASES}
        line = json.dumps(phases_as_json(interval(50, 50, ranks, **times)))
        for number in range(200):
            file.write(line.replace('"step": 50', f'"step": {50 * (number + 1)}') + "\n")
    words = [sys.executable, "-c", MEASURE, str(tmp_path)]
    steps, size, gigabytes = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    assert (int(steps), int(size)) == (10_000, 1000)
    assert float(gigabytes) < 1


def test_a_run_without_a_bottleneck_still_names_what_its_figure_shows():
    split = split_time([facts(), *(interval(10 * n, start=[9.0 * (n == 1)] * 2) for n in (1, 2, 3))])
    assert split is not None
    assert nothing_found(split).startswith("no bottleneck costs 10% of the training time; start-up takes ")
    short = split_time([facts(), interval(10)])
    assert short is not None
    assert nothing_found(short) == "10 steps are too few to name a bottleneck; 20 are needed"


def test_the_last_of_several_starts_is_called_that():
    split = split_time([facts(), interval(10), facts(first_step=10), interval(20), facts(first_step=20)])
    assert split is not None
    assert heading(split, CONFIG).endswith(", 2 ranks; the last of 2 starts, from step 10")
    alone = split_time([facts(), interval(10)])
    assert alone is not None
    assert heading(alone, CONFIG).endswith(", 2 ranks")


def test_noise_between_intervals_is_measured_without_the_first():
    split = split_time([facts(), *(interval(10 * n, forward=[(9.0, 1.0, 3.0)[n - 1]] * 2) for n in (1, 2, 3))])
    assert split is not None
    assert split.num_intervals == 2
    assert split.deviation == pytest.approx(0.1 * 2**0.5)
