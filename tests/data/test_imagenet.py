"""ImageNet from folders and from the official tars; the tars here are small fakes of the same structure."""

import io
import tarfile

import numpy as np
import pytest
import torch

from paceline.core.errors import DataError
from paceline.data.sources.folder import ImageOptions
from paceline.data.sources.imagenet import LABEL_FILES, TRAIN_TAR, VAL_TAR, find_imagenet, open_imagenet
from tests.data.pictures import encoded, picture, write_classes

CLASSES = ["n01440764", "n01443537"]
OPTIONS = ImageOptions(size=24)


def add(tar, name, content):
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))


def write_tars(root, labels=True):
    root.mkdir(exist_ok=True)
    with tarfile.open(root / TRAIN_TAR, "w") as outer:
        for number, name in enumerate(CLASSES):
            buffer = io.BytesIO()
            with tarfile.open(fileobj=buffer, mode="w") as inner:
                for place in range(3):
                    add(inner, f"{name}_{place}.JPEG", encoded(picture(40, 50, seed=100 * number + place)))
            add(outer, f"{name}.tar", buffer.getvalue())
    with tarfile.open(root / VAL_TAR, "w") as tar:
        for place in (2, 1, 3):
            add(tar, f"ILSVRC2012_val_0000000{place}.JPEG", encoded(picture(40, 50, seed=place)))
    if labels:
        (root / LABEL_FILES[1]).write_text("\n".join([CLASSES[1], CLASSES[0], CLASSES[1]]))
    return root


def test_tars_give_the_same_images_as_the_unpacked_folders(tmp_path):
    write_tars(tmp_path / "imagenet")
    for number, name in enumerate(CLASSES):
        folder = tmp_path / "unpacked" / "train" / name
        folder.mkdir(parents=True)
        for place in range(3):
            (folder / f"{name}_{place}.JPEG").write_bytes(encoded(picture(40, 50, seed=100 * number + place)))
    write_classes(tmp_path / "unpacked" / "val", CLASSES)
    tars, folders = (open_imagenet(tmp_path / place, OPTIONS) for place in ("", "unpacked"))
    assert tars.classes == folders.classes == tuple(CLASSES)
    ids = np.arange(6)
    one, other = tars.train.fetch(ids, None), folders.train.fetch(ids, None)
    assert torch.equal(one.images, other.images)
    assert torch.equal(one.labels, other.labels)


@pytest.mark.parametrize("table", [True, False])
def test_validation_labels_come_from_either_file_in_the_order_of_the_names(tmp_path, table):
    root = write_tars(tmp_path / "imagenet", labels=not table)
    if table:
        rows = [f"ILSVRC2012_val_0000000{place},{CLASSES[place % 2]} 1 2 3 4 " for place in (3, 1, 2)]
        (root / LABEL_FILES[0]).write_text("\n".join(["ImageId,PredictionString", *rows]))
    test = open_imagenet(tmp_path, OPTIONS).test
    assert test.fetch(np.arange(3), None).labels.tolist() == [1, 0, 1]


def test_a_label_file_shorter_than_the_images_is_named(tmp_path):
    root = write_tars(tmp_path / "imagenet")
    (root / LABEL_FILES[1]).write_text("n01440764\n")
    with pytest.raises(DataError, match="has labels for 1 of 3 images"):
        open_imagenet(tmp_path, OPTIONS)


def test_tars_without_labels_say_which_file_to_add(tmp_path):
    root = write_tars(tmp_path / "imagenet", labels=False)
    with pytest.raises(DataError, match="does not say which class") as caught:
        open_imagenet(tmp_path, OPTIONS)
    assert LABEL_FILES[0] in (caught.value.hint or "")
    assert str(root) in (caught.value.hint or "")


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
