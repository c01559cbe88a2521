"""Folders of images: how classes and splits are found, and which folders are refused."""

import os

import numpy as np
import pytest
import torch

from paceline.core.errors import DataError
from paceline.data.sources.image_folder import ImageFiles, ImageOptions, list_images, open_image_folder
from tests.data.pictures import encoded, picture, write_classes

SMALL = ImageOptions(size=24)
CLASSES = ["cat", "dog", "fox"]


@pytest.fixture
def root(tmp_path):
    write_classes(tmp_path / "train", CLASSES, num=4)
    write_classes(tmp_path / "val", CLASSES, num=2, form="PNG")
    return tmp_path


def test_train_and_val_folders_give_classes_in_the_order_of_their_names(root):
    data = open_image_folder(root, SMALL)
    assert data.classes == ("cat", "dog", "fox")
    assert data.image_shape == (3, 24, 24)
    assert len(data.train) == 12
    batch = data.test.fetch(np.arange(6), None)
    assert batch.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert batch.images.shape == (6, 3, 24, 24)


def test_one_folder_is_split_always_the_same_way(tmp_path):
    write_classes(tmp_path, CLASSES, num=5)
    one, other = open_image_folder(tmp_path, SMALL), open_image_folder(tmp_path, SMALL)
    assert (len(one.train), len(one.test)) == (12, 3)
    assert torch.equal(one.test.fetch(np.arange(3), None).images, other.test.fetch(np.arange(3), None).images)


def test_webp_and_upper_case_endings_and_sub_folders_count_and_other_files_do_not(tmp_path):
    write_classes(tmp_path, CLASSES, num=2, form="WEBP")
    (tmp_path / "cat" / "deep").mkdir()
    (tmp_path / "cat" / "deep" / "A.JPEG").write_bytes(encoded(picture(30, 30)))
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    (tmp_path / "cat" / "._0.jpg").write_text("what a Mac leaves behind")
    listing = list_images(tmp_path)
    assert listing.labels.tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert "cat/deep/A.JPEG" in listing.names


def test_an_empty_class_folder_is_named(root):
    (root / "train" / "bee").mkdir()
    with pytest.raises(DataError, match="train/bee has no image") as caught:
        open_image_folder(root, SMALL)
    assert "rmdir" in (caught.value.hint or "")


def test_classes_that_differ_between_train_and_test_are_named(root):
    write_classes(root / "val", ["owl"], num=1)
    with pytest.raises(DataError, match=r"differ: owl only in .*val"):
        open_image_folder(root, SMALL)


def test_half_a_data_set_and_no_data_set_are_told_apart(root, tmp_path):
    (root / "val").rename(root / "other")
    with pytest.raises(DataError, match="has train but not test, val or valid"):
        open_image_folder(root, SMALL)
    with pytest.raises(DataError, match="does not exist"):
        open_image_folder(tmp_path / "nowhere", SMALL)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no class folders"):
        open_image_folder(tmp_path / "empty", SMALL)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_without_permission_is_named(root):
    (root / "train" / "cat").chmod(0)
    try:
        with pytest.raises(DataError, match="train/cat cannot be read: Permission denied"):
            open_image_folder(root, SMALL)
    finally:
        (root / "train" / "cat").chmod(0o755)


def test_a_folder_that_the_system_refuses_is_named(root, monkeypatch):
    monkeypatch.setattr(
        "paceline.data.sources.image_folder.os.walk",
        lambda folder, onerror, **_: onerror(PermissionError(13, "Permission denied", str(folder))),
    )
    with pytest.raises(DataError, match="train/cat cannot be read: Permission denied") as caught:
        open_image_folder(root, SMALL)
    assert "ls -ld" in (caught.value.hint or "")


def test_names_beyond_ascii_survive(tmp_path):
    files = ImageFiles(tmp_path, ["cat/été.png", "cat/x.png", "dog/雪.png"])
    assert [files.name(index) for index in range(3)] == [
        str(tmp_path / n) for n in ("cat/été.png", "cat/x.png", "dog/雪.png")
    ]
