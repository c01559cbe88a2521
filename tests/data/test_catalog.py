"""Names become data sets, with the augmentation and the image size that the settings ask for."""

import numpy as np
import pytest
import torch

from paceline.core.config import Config
from paceline.core.errors import DataError, SettingError
from paceline.data.catalog import open_data, split_data
from paceline.data.in_memory import InMemory
from paceline.data.on_demand import OnDemand
from paceline.data.pack_writer import PackOptions, write_pack
from paceline.data.sources.image_folder import ImageOptions, open_image_folder
from tests.data.pictures import write_classes

IDS = np.arange(6)


@pytest.fixture
def pictures(tmp_path):
    """Return a folder with two classes of small photographs."""
    for split in ("train", "test"):
        write_classes(tmp_path / "pictures" / split, ["cat", "dog"], num=4)
    return tmp_path / "pictures"


def test_digits_are_left_alone_unless_a_policy_is_given():
    plain, changed = (open_data(Config(augment=augment)).train for augment in ("standard", "crop1,flip,erase0.5"))
    assert isinstance(plain, InMemory)
    assert isinstance(changed, InMemory)
    assert plain.augmentation is None
    assert torch.equal(plain.fetch(IDS, 3).images, changed.fetch(IDS, None).images)
    assert not torch.equal(plain.fetch(IDS, 3).images, changed.fetch(IDS, 3).images)


@pytest.mark.parametrize("augment", ["none", "", " , "])
def test_no_policy_leaves_the_short_way_open(augment):
    train = open_data(Config(augment=augment)).train
    assert isinstance(train, InMemory)
    assert train.augmentation is None


def test_the_seed_decides_the_augmentation():
    first, same, other = (open_data(Config(augment="crop1", seed=seed)).train.fetch(IDS, 0) for seed in (1, 1, 2))
    assert torch.equal(first.images, same.images)
    assert not torch.equal(first.images, other.images)


def test_images_held_out_are_not_augmented_when_they_are_evaluated():
    plain, changed = (split_data(open_data(Config(augment=text)), valid_split=0.1) for text in ("none", "crop1"))
    assert torch.equal(plain.valid.fetch(IDS, None).images, changed.valid.fetch(IDS, None).images)


def test_a_folder_is_cut_to_224_pixels_or_to_the_size_asked_for(pictures):
    data = open_data(Config(data=f"folder:{pictures}"))
    assert (data.image_shape, data.classes) == ((3, 224, 224), ("cat", "dog"))
    assert open_data(Config(data=f"folder:{pictures}", image_size=32)).image_shape == (3, 32, 32)


def test_what_to_do_about_bad_images_reaches_the_folder(pictures):
    (pictures / "train" / "cat" / "0.jpeg").write_bytes(b"no image")
    settings = {"data": f"folder:{pictures}", "image_size": 16, "augment": "none"}
    with pytest.raises(DataError, match="cannot be decoded"):
        open_data(Config(**settings)).train.fetch(IDS, None)
    train = open_data(Config(**settings, bad_images="skip")).train
    assert isinstance(train, OnDemand)
    assert len(train.fetch(IDS, None).images) == 6
    assert len(train.unreadable()) == 1


def test_a_pack_gives_what_its_folder_gives(pictures, tmp_path):
    file = tmp_path / "set.pack"
    write_pack(open_image_folder(pictures, ImageOptions(size=16)), file, PackOptions(size=None), lambda *_: None)
    batches = [
        open_data(Config(data=name, image_size=16)).train.fetch(IDS, 2)
        for name in (f"folder:{pictures}", f"packed:{file}")
    ]
    assert torch.equal(batches[0].images, batches[1].images)


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "cinic10", "fashion-mnist", "imagenet"])
def test_a_published_set_that_is_not_there_says_where_it_belongs(name, tmp_path, monkeypatch):
    monkeypatch.setattr("paceline.data.sources.fashion._DEBIAN", tmp_path / "debian")
    with pytest.raises(DataError, match=f"^{name} is not in ") as caught:
        open_data(Config(data=name, data_dir=tmp_path))
    assert str(tmp_path / name) in str(caught.value.hint)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("cifar-10", "did you mean cifar10?"),
        ("fashion_mnist", "did you mean fashion-mnist?"),
        ("folder", "did you mean folder:PATH?"),
        ("imagnet", "did you mean imagenet?"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(name, hint):
    with pytest.raises(DataError, match=f"there is no data set {name}") as caught:
        open_data(Config(data=name, name="x"))
    assert str(caught.value.hint).startswith(hint)


def test_a_folder_without_a_path_is_refused():
    with pytest.raises(DataError, match="has no path"):
        open_data(Config(data="folder:", name="x"))


def test_a_size_is_refused_for_images_that_have_one():
    with pytest.raises(SettingError, match=r"^--image-size is set, but the images of digits have a fixed size"):
        open_data(Config(image_size=32))


def test_a_policy_is_refused_for_data_that_augments_itself():
    with pytest.raises(
        SettingError, match=r"^--augment is crop4, but these steps do not fit the samples of my.py:build"
    ):
        open_data(Config(data="my.py:build", augment="crop4"))


def test_nothing_is_chosen_where_nothing_is_held_out(monkeypatch):
    """To order all images of a large set takes seconds."""
    data = open_data(Config())
    monkeypatch.setattr("paceline.data.catalog.held_out", None)
    splits = split_data(data, valid_split=0)
    assert (splits.train, splits.valid, splits.test) == (data.train, data.test, data.test)
    assert splits.valid_is_test
