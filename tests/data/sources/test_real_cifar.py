"""The real CIFAR-10, where CIFAR10_DATA_DIR names a folder that has its binary batches; skipped elsewhere."""

import os
import pickle
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from paceline.data.in_memory import InMemory
from paceline.data.sources.cifar import CIFAR10, TEN, open_cifar, open_cifar10

PLACE = os.environ.get("CIFAR10_DATA_DIR", "")
pytestmark = pytest.mark.skipif(not PLACE, reason="CIFAR10_DATA_DIR does not name a folder with the real CIFAR-10")
UNCHECKED = replace(
    CIFAR10, contents={}, remotes=tuple(replace(remote, md5=None) for remote in CIFAR10.remotes), alternatives=()
)
"""What is known about CIFAR-10, but for the checksums: our pickles have no file names in them."""


@pytest.fixture(scope="module")
def binary():
    return open_cifar10(Path(PLACE))


def test_every_class_has_as_many_images_and_the_statistics_are_as_stated(binary):
    assert torch.bincount(binary.train.labels).tolist() == [5000] * 10
    assert torch.bincount(binary.test.labels).tolist() == [1000] * 10
    pixels = binary.train.images.double() / 255
    assert pixels.mean(dim=(0, 2, 3)).numpy().round(4).tolist() == list(binary.train.mean)
    assert pixels.std(dim=(0, 2, 3)).numpy().round(4).tolist() == list(binary.train.std)


@pytest.mark.parametrize("archived", [False, True])
def test_the_python_version_holds_the_same_images(binary, tmp_path, archived):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    images = torch.cat([binary.train.images, binary.test.images]).reshape(6, 10_000, -1).numpy()
    labels = torch.cat([binary.train.labels, binary.test.labels]).reshape(6, 10_000).tolist()
    for name, *arrays in zip([*TEN, "test_batch"], images, labels, strict=True):
        (folder / name).write_bytes(pickle.dumps(dict(zip((b"data", b"labels"), arrays, strict=True)), protocol=2))
    meta = {b"label_names": [name.encode() for name in binary.classes]}
    (folder / "batches.meta").write_bytes(pickle.dumps(meta, protocol=2))
    if archived:
        with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz", compresslevel=1) as tar:
            tar.add(folder, folder.name)
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
    found = open_cifar(UNCHECKED, tmp_path, None)
    assert found.classes == binary.classes
    assert found.classes[:3] == ("airplane", "automobile", "bird")
    for one, other in ((found.train, binary.train), (found.test, binary.test)):
        assert isinstance(one, InMemory)
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.labels, other.labels)
    assert torch.equal(found.test.fetch(np.arange(9), None).images, binary.test.fetch(np.arange(9), None).images)
