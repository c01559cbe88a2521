"""ImageNet from folders and from the official tars; the tars here are small fakes of the same structure."""

import base64
import io
import tarfile

import numpy as np
import pytest
import torch

from paceline.core.errors import DataError
from paceline.data.sources.folder import ImageOptions
from paceline.data.sources.imagenet import TRAIN_TAR, VAL_TAR, find_imagenet, open_imagenet
from paceline.data.sources.imagenet_labels import DEVKIT, LABEL_FILES, META, TRUTH
from paceline.data.sources.matfile import read_table
from tests.data.pictures import encoded, picture, write_classes

CLASSES = ["n01440764", "n01443537"]
OPTIONS = ImageOptions(size=24)

META_MAT = base64.b64decode(
    """
    TUFUTEFCIDUuMCBNQVQtZmlsZSBQbGF0Zm9ybTogcG9zaXgsIENyZWF0ZWQgb246IE1vbiBOb3YgMTYgMDA6MDY6MTQgMjAyNgAA
    AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAABSU0PAAAAMAAAAHic42NgYAgAYjYg5oDS
    IMAK5TMCMTOUBonll2SkFgFpTiCWYEAHH+yhDAcAiwQEPA8AAABxAQAAeJzlU8FOwjAYLggIRgmevewBPAw2HQcjJHiQxBiiiR6X
    hpW1CXRJ24XwBt68+BI+hy/EI9iygqMZYujRL/nTfN/2fe3f/G0CiWMAanKpyyqDDFXNj2SVdMnfAF9QjgSX3yvgXOtvsoYPzy9P
    g47b7oTDOxXw+pitG8wTFvG8EE8TviXQdBaOMZlGDNGVsEXWGRSJECMSY6EtgkFCQzKDMeKgKcUu+OmnZvRTypVCQ+sZlj3l7+f8
    lQJ/I+dvaU7dtu97V16gdZUz2pNzYeQoHifTaEI4vnQGkEHOScodmDIoUr7J7e7JrRu5ikPnRkXf2t1Ptr/7i3+NvL/o3Ifse7B/
    9NG33L9vNRducO3v6KMop2rkKC4QHWPt33eOU8N/JmvCEMdzKBBzvj5t7xP80zm4f7eYA4l24Ls7+ijKqRk5iiMqiFj8bQ5ODL/i
    AkPhzDFZDZPtfRa8iyJ/2fC3NvZlL59z+Dk82/cNvgGV+VZ7
    """
)
"""A meta.mat of three rows as scipy.io.savemat writes it: class 1 is n01443537, class 2 is n01440764."""


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


def write_devkit(root, truth="1\n2\n1\n", meta=META_MAT):
    with tarfile.open(root / f"{DEVKIT}.tar.gz", "w:gz") as tar:
        add(tar, META, meta)
        add(tar, TRUTH, truth.encode())


@pytest.mark.parametrize("unpacked", [True, False])
def test_the_development_kit_tells_the_classes_of_the_validation_images(tmp_path, unpacked):
    root = write_tars(tmp_path / "imagenet", labels=False)
    write_devkit(root)
    if unpacked:
        with tarfile.open(root / f"{DEVKIT}.tar.gz") as tar:
            tar.extractall(root, filter="data")
        (root / f"{DEVKIT}.tar.gz").unlink()
    data = open_imagenet(tmp_path, OPTIONS)
    labels = data.test.fetch(np.arange(3), None).labels.tolist()
    assert [data.classes[label] for label in labels] == ["n01443537", "n01440764", "n01443537"]


@pytest.mark.parametrize(
    ("kit", "message"),
    [
        ({"truth": "1\n2\n"}, "has labels for 2 of 3 images"),
        ({"truth": "1\n2\n7\n"}, "class 7 is not in its meta.mat"),
        ({"truth": "1\ntwo\n1\n"}, "does not hold what it should: invalid literal"),
        ({"meta": META_MAT[:-40]}, "does not hold what it should: it (is damaged|ends in the middle)"),
        ({"meta": b"text"}, "it is no MATLAB file of level 5"),
    ],
)
def test_a_development_kit_with_a_fault_is_named(tmp_path, kit, message):
    write_devkit(write_tars(tmp_path / "imagenet", labels=False), **kit)
    with pytest.raises(DataError, match=rf"{DEVKIT}.tar.gz.*{message}"):
        open_imagenet(tmp_path, OPTIONS)


def test_a_damaged_archive_of_the_development_kit_is_named(tmp_path):
    root = write_tars(tmp_path / "imagenet", labels=False)
    (root / f"{DEVKIT}.tar.gz").write_bytes(b"no archive")
    with pytest.raises(DataError, match=rf"{DEVKIT}.tar.gz"):
        open_imagenet(tmp_path, OPTIONS)


def test_a_table_of_matlab_is_read_column_by_column():
    rows = read_table(META_MAT, "synsets")
    assert [(row["ILSVRC2012_ID"], row["WNID"], row["num_children"]) for row in rows] == [
        (1, "n01443537", 0),
        (2, "n01440764", 0),
        (1001, "n00001740", 2),
    ]
    assert (rows[0]["words"], rows[1]["gloss"]) == ("goldfish, Carassius auratus", "freshwater é")
    with pytest.raises(ValueError, match="it has no table classes"):
        read_table(META_MAT, "classes")


@pytest.mark.parametrize("length", range(100, len(META_MAT), 23))
def test_a_table_that_was_cut_short_is_refused(length):
    with pytest.raises(ValueError, match="it "):
        read_table(META_MAT[:length], "synsets")


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
