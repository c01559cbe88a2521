"""Small fakes of the official ImageNet tars, for the tests."""

import io
import tarfile

from paceline.data.sources.imagenet import SYNSETS, TRAIN_TAR, VAL_TAR
from tests.data.pictures import encoded, picture

CLASSES = ["n01440764", "n01443537"]


def add(tar, name, content):
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))


def write_tars(root, labels=True):
    """Write a tar of class tars, a tar of three validation images, and the synset list."""
    root.mkdir(exist_ok=True)
    with tarfile.open(root / TRAIN_TAR, "w") as outer:
        for class_index, name in enumerate(CLASSES):
            buffer = io.BytesIO()
            with tarfile.open(fileobj=buffer, mode="w") as inner:
                for index in range(3):
                    add(inner, f"{name}_{index}.JPEG", encoded(picture(40, 50, seed=100 * class_index + index)))
            add(outer, f"{name}.tar", buffer.getvalue())
    with tarfile.open(root / VAL_TAR, "w") as tar:
        for index in (2, 1, 3):
            add(tar, f"ILSVRC2012_val_0000000{index}.JPEG", encoded(picture(40, 50, seed=index)))
    if labels:
        (root / SYNSETS).write_text("\n".join([CLASSES[1], CLASSES[0], CLASSES[1]]))
    return root
