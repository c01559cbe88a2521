"""The user's own data: what my.py:build may return, and what is refused."""

import random

import numpy as np
import pytest
import torch

from paceline.core.errors import DataError
from paceline.data.sources.user import open_user_data
from paceline.data.sources.user_images import uneven_classes

PLUGIN = """
import random, torch
from torch.utils.data import TensorDataset

IMAGES, LABELS = torch.rand(20, 1, 4, 4), torch.arange(20) % 4


class Noisy:
    num_classes = 4

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return IMAGES[index] + random.random(), index % 4


class Bytes(Noisy):
    def __getitem__(self, index):
        return (IMAGES[index] * 255).byte(), 0


class TooFew(Noisy):
    num_classes = 3


class Broken(Noisy):
    def __getitem__(self, index):
        raise KeyError("gone")


class Sentences:
    task, vocab_size, facts = "language", 50, {"context": 8}

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return torch.arange(index % 5 + 1)

    def collate(self, samples):
        return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)


class Scenes(Noisy):
    task = "segmentation"

    def __getitem__(self, index):
        return {"image": IMAGES[index], "mask": IMAGES[index, 0] > 0.5}


def masks(): return TensorDataset(IMAGES, IMAGES[:, 0].long())
def pair(): return TensorDataset(IMAGES, LABELS), TensorDataset(IMAGES[:5], LABELS[:5])
def one(): return TensorDataset(IMAGES, LABELS)
def three(): return [one(), one(), one()]
def nothing(): return None
def empty(): return []
"""


@pytest.fixture
def open_named(tmp_path):
    (tmp_path / "mine.py").write_text(PLUGIN)
    path = tmp_path / "mine.py"
    return lambda name, seed=0, **own: open_user_data(f"{path}:{name}", data_dir=tmp_path, seed=seed, **own)


def test_a_pair_is_used_for_training_and_testing(open_named):
    data = open_named("pair")
    assert (len(data.train), len(data.test), data.num_classes, data.image_shape) == (20, 5, 4, (1, 4, 4))
    assert data.train.fetch(np.array([3, 0]), 1).labels.tolist() == [3, 0]


def test_a_tenth_of_a_single_data_set_is_held_out_for_testing(open_named):
    data = open_named("one")
    assert (len(data.train), len(data.test)) == (18, 2)


def test_the_random_numbers_of_the_function_do_not_depend_on_process_or_seed(open_named):
    random.seed(1)
    torch.manual_seed(1)
    first = open_named("one", seed=1).train.fetch(np.arange(18), None).images
    assert torch.equal(first, open_named("one", seed=2).train.fetch(np.arange(18), None).images)


def test_a_transform_draws_by_seed_epoch_and_sample_and_not_by_batch(open_named):
    train, other_seed = open_named("Noisy").train, open_named("Noisy", seed=1).train
    whole = train.fetch(np.arange(18), 2).images
    assert torch.equal(train.fetch(np.array([7, 2]), 2).images, whole[[7, 2]])
    assert not torch.equal(train.fetch(np.arange(18), 3).images, whole)
    assert not torch.equal(other_seed.fetch(np.arange(18), 2).images, whole)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("three", "returned 3 data sets"),
        ("empty", "returned 0 data sets"),
        ("nothing", r"returned NoneType, which has no len\(\) and \[index\]"),
        ("Bytes", "the image of item 0 is torch.uint8, not floating point"),
        ("Broken", "reading item 0 raised KeyError: 'gone'"),
    ],
)
def test_data_that_cannot_be_used_is_named(open_named, name, says):
    with pytest.raises(DataError, match=rf"mine.py:{name}:? {says}"):
        open_named(name)


def test_a_label_beyond_the_classes_is_named(open_named):
    train = open_named("TooFew").train
    with pytest.raises(DataError, match=r"item \d+ has label 3, but there are 3 classes") as caught:
        train.fetch(np.arange(18), None)
    assert "labels must be between 0 and 2" in str(caught.value.hint)


def test_a_data_set_names_its_task_its_facts_and_its_collate(open_named):
    data = open_named("Sentences")
    assert (data.task, data.facts) == ("language", {"vocab_size": 50, "context": 8})
    assert data.test.fetch(np.array([0]), None).dim() == 2
    assert data.train.fetch(np.arange(18), 0).shape == (18, 5)


def test_a_collate_of_the_run_replaces_that_of_the_data_set(open_named):
    data = open_named("Sentences", collate=lambda samples: [len(sample) for sample in samples])
    assert data.train.fetch(np.arange(3), 0) == data.train.fetch(np.arange(3), 1)
    assert isinstance(data.train.fetch(np.arange(3), 0), list)


def test_samples_of_other_tasks_may_have_any_structure(open_named):
    batch = open_named("Scenes").train.fetch(np.array([1, 2]), None)
    assert (batch["image"].shape, batch["mask"].dtype) == ((2, 1, 4, 4), torch.bool)
    data = open_named("masks", task="segmentation")
    images, masks = data.train.fetch(np.array([1, 2]), None)
    assert (images.shape, masks.shape, data.facts["image_shape"]) == ((2, 1, 4, 4), (2, 4, 4), (1, 4, 4))


def test_an_item_without_a_label_is_not_a_labelled_image(open_named):
    with pytest.raises(DataError, match=r"item 0 is not a pair \(image, label\)") as caught:
        open_named("Scenes", task="classification")
    assert "--task" in str(caught.value.hint)


def test_classes_without_images_and_uneven_classes_are_named():
    labels = [1] * 90 + [2] * 9
    assert list(uneven_classes("my.py:data", labels, 4)) == [
        "my.py:data: no image of 4 classes has label 0, 3; labels start at 0",
        "my.py:data: classes have between 9 and 90 images: 0, 90, 9, 0",
    ]
    assert list(uneven_classes("my.py:data", [0, 1, 0, 1, 1], 2)) == []
