"""ImageNet from folders and from the official tars; the tars here are small fakes of the same structure."""

import os
import subprocess
import tarfile

import numpy as np
import pytest
import torch

from paceline.core.errors import DataError
from paceline.data.sources.image_folder import ImageOptions
from paceline.data.sources.imagenet import DEVKIT, KAGGLE, SYNSETS, TRAIN_TAR, find_imagenet, open_imagenet
from tests.data.imagenet_tars import CLASSES, add, write_tars
from tests.data.pictures import encoded, picture, write_classes

OPTIONS = ImageOptions(size=24)


@pytest.mark.parametrize("table", [True, False])
def test_validation_labels_come_from_either_file_in_the_order_of_the_names(tmp_path, table):
    root = write_tars(tmp_path / "imagenet", labels=not table)
    if table:
        rows = [f"ILSVRC2012_val_0000000{index},{CLASSES[index % 2]} 1 2 3 4 " for index in (3, 1, 2)]
        (root / KAGGLE).write_text("\n".join(["ImageId,PredictionString", *rows]))
    test = open_imagenet(tmp_path, OPTIONS).test
    assert test.fetch(np.arange(3), None).labels.tolist() == [1, 0, 1]


def test_a_label_file_shorter_than_the_images_is_named(tmp_path):
    root = write_tars(tmp_path / "imagenet")
    (root / SYNSETS).write_text("n01440764\n")
    with pytest.raises(DataError, match="has labels for 1 of 3 images"):
        open_imagenet(tmp_path, OPTIONS)


def test_a_table_without_the_expected_columns_is_named(tmp_path):
    root = write_tars(tmp_path / "imagenet", labels=False)
    (root / KAGGLE).write_text("image,class\nILSVRC2012_val_00000001,n01440764\n")
    with pytest.raises(DataError, match=rf"{KAGGLE} has unexpected contents: 'ImageId'"):
        open_imagenet(tmp_path, OPTIONS)


def test_tars_without_labels_say_which_file_to_add_and_where_it_comes_from(tmp_path):
    root = write_tars(tmp_path / "imagenet", labels=False)
    with pytest.raises(DataError, match="has no class labels") as caught:
        open_imagenet(tmp_path, OPTIONS)
    assert caught.value.hint == (
        "put LOC_val_solution.csv (kaggle.com/c/imagenet-object-localization-challenge) "
        "or imagenet_2012_validation_synset_labels.txt (github.com/tensorflow/models, research/slim/datasets) "
        f"into {root}"
    )


SCIPY = """
def loadmat(path, squeeze_me):
    assert open(path).read() == "meta" and squeeze_me
    return {"synsets": [(1, "n01443537", "goldfish"), (2, "n01440764", "tench"), (1001, "n00001740", "entity")]}
"""
"""Stands in for scipy.io, with the rows of meta.mat in the order of its columns."""


def write_devkit(root, *, unpacked):
    archive = root / f"{DEVKIT}.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        add(tar, f"{DEVKIT}/data/meta.mat", b"meta")
        add(tar, f"{DEVKIT}/data/ILSVRC2012_validation_ground_truth.txt", b"1\n2\n1\n")
    if unpacked:
        with tarfile.open(archive) as tar:
            tar.extractall(root, filter="data")
        archive.unlink()


@pytest.mark.parametrize("unpacked", [True, False])
def test_a_development_kit_alone_is_answered_with_the_command_that_converts_it(tmp_path, unpacked):
    root = write_tars(tmp_path / "imagenet", labels=False)
    write_devkit(root, unpacked=unpacked)
    kit = DEVKIT if unpacked else f"{DEVKIT}.tar.gz"
    with pytest.raises(DataError, match=rf"{kit} has the classes of .* as MATLAB data, but a text file is") as caught:
        open_imagenet(tmp_path, OPTIONS)
    files, _, command = (caught.value.hint or "").partition("; or convert it with scipy: ")
    assert files.startswith(f"put {KAGGLE} (kaggle.com")
    (tmp_path / "scipy").mkdir()
    (tmp_path / "scipy" / "__init__.py").touch()  # a package without it loses to an installed scipy
    (tmp_path / "scipy" / "io.py").write_text(SCIPY)
    subprocess.run(command, shell=True, check=True, timeout=60, env=os.environ | {"PYTHONPATH": str(tmp_path)})
    assert (root / SYNSETS).read_text().split() == ["n01443537", "n01440764", "n01443537"]
    assert open_imagenet(tmp_path, OPTIONS).test.fetch(np.arange(3), None).labels.tolist() == [1, 0, 1]


def test_a_text_file_wins_over_the_development_kit(tmp_path):
    root = write_tars(tmp_path / "imagenet")
    write_devkit(root, unpacked=False)
    assert open_imagenet(tmp_path, OPTIONS).test.fetch(np.arange(3), None).labels.tolist() == [1, 0, 1]


OPTIONS = ImageOptions(size=24)


def test_tars_give_the_same_images_as_the_unpacked_folders(tmp_path):
    write_tars(tmp_path / "imagenet")
    for class_index, name in enumerate(CLASSES):
        folder = tmp_path / "unpacked" / "train" / name
        folder.mkdir(parents=True)
        for index in range(3):
            (folder / f"{name}_{index}.JPEG").write_bytes(encoded(picture(40, 50, seed=100 * class_index + index)))
    write_classes(tmp_path / "unpacked" / "val", CLASSES)
    tars, folders = (open_imagenet(tmp_path / folder, OPTIONS) for folder in ("", "unpacked"))
    assert tars.classes == folders.classes == tuple(CLASSES)
    ids = np.arange(6)
    one, other = tars.train.fetch(ids, None), folders.train.fetch(ids, None)
    assert torch.equal(one.images, other.images)
    assert torch.equal(one.labels, other.labels)


def test_a_truncated_tar_is_named(tmp_path):
    root = write_tars(tmp_path / "imagenet")
    path = root / TRAIN_TAR
    path.write_bytes(path.read_bytes()[: 512 + 700])
    with pytest.raises(DataError, match=f"{TRAIN_TAR} (is damaged|cannot be read)"):
        open_imagenet(tmp_path, OPTIONS)


def test_without_files_the_owner_s_page_and_the_md5_are_named(tmp_path):
    assert find_imagenet(tmp_path) is None
    with pytest.raises(DataError, match="imagenet is not in") as caught:
        open_imagenet(tmp_path, OPTIONS)
    hint = caught.value.hint or ""
    assert "image-net.org" in hint
    assert "1d675b47d978889d74fa0da5fadfb00e" in hint
