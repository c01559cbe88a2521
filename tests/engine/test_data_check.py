"""The check of the data at the start: samples that change, and samples that are not those of a checkpoint."""

import shutil

import pytest

import paceline
from paceline.core.errors import DataError, RunError
from paceline.core.setting_types import Interval
from paceline.engine import data_check
from paceline.engine.data_check import check_data
from paceline.engine.job import build_job
from paceline.records.folder import RunFolder

DATA = """
import numpy as np
import torch
from torch.utils.data import Dataset, TensorDataset

NUM_SAMPLES = 200

class Noisy(Dataset):
    num_classes = 10

    def __init__(self, draw):
        self.draw = draw

    def __len__(self):
        return NUM_SAMPLES

    def __getitem__(self, index):
        return torch.full((1, 8, 8), 0.1 * index) + torch.as_tensor(self.draw(index), dtype=torch.float32), index % 10

def from_numpy():
    rng = np.random.default_rng(0)
    return Noisy(lambda index: rng.normal())

def from_torch():
    generator = torch.Generator().manual_seed(0)
    return Noisy(lambda index: torch.rand((), generator=generator))

def unseeded():
    rng = np.random.default_rng()
    return Noisy(lambda index: rng.normal())

def from_globals():
    return Noisy(lambda index: np.random.normal() + torch.rand(()).item())

def by_index():
    return Noisy(lambda index: np.random.default_rng(index).normal())

def fixed():
    labels = torch.arange(NUM_SAMPLES) % 10
    return TensorDataset(torch.linspace(0, 1, NUM_SAMPLES)[:, None, None, None].expand(-1, 1, 8, 8), labels)
"""


@pytest.fixture
def own_data(tmp_path):
    path = tmp_path / "data.py"
    path.write_text(DATA)
    return path


@pytest.mark.parametrize("name", ["from_numpy", "from_torch", "unseeded"])
def test_data_with_its_own_randomness_is_refused_bitwise_and_warned_of_otherwise(small_config, alone, own_data, name):
    data = f"{own_data}:{name}"
    with pytest.raises(
        DataError, match=rf"data.py:{name} has its own randomness: sample 0 of the train split"
    ) as caught:
        build_job(small_config(data=data, exact="bitwise"), alone)
    assert caught.value.hint is not None
    assert "seeded with the index" in caught.value.hint
    (warning,) = build_job(small_config(data=data), alone).data.warnings
    assert f"data.py:{name} has its own randomness" in warning


@pytest.mark.parametrize("name", ["from_globals", "by_index", "fixed"])
def test_data_whose_randomness_is_seeded_for_each_sample_is_accepted(small_config, alone, own_data, name):
    job = build_job(small_config(data=f"{own_data}:{name}", exact="bitwise"), alone)
    assert job.data.warnings == ()
    assert check_data(job.splits, job.config, alone) == job.data


def stopped_run(small_config, own_data, **settings):
    """Return a finished run without all checkpoints but its first, as after a kill."""
    config = small_config(
        data=f"{own_data}:fixed", steps=4, global_batch=50, save_every=Interval(2, "step"), **settings
    )
    folder = RunFolder(paceline.train(config).folder)
    shutil.rmtree(folder.checkpoint(4))
    return folder


@pytest.mark.parametrize("change", [("= 200", "= 190"), ("linspace(0, 1,", "linspace(0, 2,")])
def test_a_bitwise_run_is_not_resumed_with_other_data_and_another_run_warns(small_config, own_data, change):
    bitwise, plain = (stopped_run(small_config, own_data, exact=exact, name=exact) for exact in ("bitwise", "order"))
    own_data.write_text(DATA.replace(*change))
    with pytest.raises(RunError, match=r"cannot resume bitwise: .* are not those of the checkpoint"):
        paceline.train(resume=bitwise.path)
    paceline.train(resume=plain.path)
    assert "are not those of the checkpoint" in plain.log.read_text()


def test_one_changed_label_among_samples_in_memory_is_noticed(small_config, own_data, monkeypatch):
    bitwise = stopped_run(small_config, own_data, exact="bitwise")
    own_data.write_text(DATA.replace("% 10\n    return Tensor", "% 10\n    labels[57] = 0\n    return Tensor"))
    with pytest.raises(RunError, match=r"all of train: other values"):
        paceline.train(resume=bitwise.path)
    monkeypatch.setattr(data_check, "LARGEST_HELD", 0)
    paceline.train(resume=bitwise.path)  # the few samples that are compared of other sets do not show it


def test_a_run_is_resumed_with_the_same_data_without_a_warning(small_config, own_data):
    bitwise = stopped_run(small_config, own_data, exact="bitwise")
    paceline.train(resume=bitwise.path)
    assert "checkpoint (" not in bitwise.log.read_text()
