"""`--accumulate auto`: as few micro-batches as fit, the result of that number, and the same on every rank."""

from typing import Any

import pytest

import paceline
from paceline.core.errors import ConfigError, RunError
from paceline.engine.fit_memory import MemoryTrial, fit_memory
from paceline.records.folder import RunFolder
from paceline.records.reader import read_config, read_metrics
from tests.engine.narrow_model import NARROW


@pytest.fixture
def narrow(tmp_path):
    """Return a function that writes a model with memory for this many samples."""

    def write(most: int) -> str:
        path = tmp_path / f"narrow{most}.py"
        path.write_text(NARROW.replace("MOST samples", "a few samples").replace("MOST", str(most)), encoding="utf-8")
        return f"{path}:Narrow"

    return write


def scores(folder) -> list[dict]:
    """Return the losses and scores of a run."""
    kept = ("loss", "top1", "train_loss", "valid_loss", "valid_top1")
    return [{key: record.get(key) for key in kept} for record in read_metrics(RunFolder(folder))]


def test_micro_batches_shrink_until_they_fit_and_the_result_is_that_of_the_number(small_run, narrow):
    found = small_run(model=narrow(40), accumulate="auto")
    assert read_config(RunFolder(found.folder)).accumulate == 4
    assert "--accumulate auto: 4 micro-batches of 32 samples fit" in RunFolder(found.folder).log.read_text()
    given = small_run(model=narrow(40), accumulate=4)
    assert scores(found.folder) == scores(given.folder), "trying leaves no trace: no gradient, no random number"
    with pytest.raises(RunError, match="ran out of memory with 64 samples per micro-batch"):
        small_run(model=narrow(40), accumulate=2)


def test_a_batch_that_fits_is_not_divided(small_run, narrow):
    found = small_run(model=narrow(128), accumulate="auto", steps=1)
    assert read_config(RunFolder(found.folder)).accumulate == 1


def test_memory_for_less_than_a_sample_is_refused(small_run, narrow):
    with pytest.raises(RunError, match="not even one sample per micro-batch fits into memory"):
        small_run(model=narrow(0), accumulate="auto")


def test_a_resume_keeps_the_number_that_was_found(run_paceline, narrow):
    first = run_paceline(model=narrow(40), accumulate="auto", epochs=1)
    again = run_paceline(model=narrow(40), accumulate="auto", epochs=2, resume=first.folder)
    assert read_config(RunFolder(again.folder)).accumulate == 4


@pytest.fixture
def run_paceline(small_config, one_thread):
    return lambda resume=None, **settings: paceline.train(small_config(**settings), resume=resume)


@pytest.mark.parametrize("settings", [{"mode": "fsdp"}, {"batch_norm": "sync"}])
def test_modes_whose_ranks_compute_a_pass_together_are_refused(small_config, settings):
    trial: Any = MemoryTrial(small_config(accumulate="auto", **settings), *[None] * 3)  # pyright: ignore
    with pytest.raises(ConfigError, match="--accumulate auto cannot be combined with --"):
        fit_memory(trial, *[None] * 2)  # pyright: ignore


def test_fixed_shards_are_no_micro_batches(small_config):
    with pytest.raises(ConfigError, match="--accumulate auto cannot be combined with --exact bitwise"):
        small_config(accumulate="auto", exact="bitwise")
