"""Fashion-MNIST: idx files, compressed or not, and damaged ones. The files here are small fakes."""

import gzip
import hashlib
import struct

import numpy as np
import pytest

from paceline.core.errors import DataError
from paceline.data.sources import fashion
from paceline.data.sources.fashion import find_fashion_mnist, open_fashion_mnist


def idx(array):
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


RNG = np.random.default_rng(0)
ARRAYS = {
    "train-images-idx3-ubyte": RNG.integers(0, 256, (7, 28, 28), dtype=np.uint8),
    "train-labels-idx1-ubyte": np.arange(7, dtype=np.uint8),
    "t10k-images-idx3-ubyte": RNG.integers(0, 256, (3, 28, 28), dtype=np.uint8),
    "t10k-labels-idx1-ubyte": np.arange(3, dtype=np.uint8),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    sums = {name: ("", hashlib.md5(idx(array)).hexdigest()) for name, array in ARRAYS.items()}
    monkeypatch.setattr(fashion, "_MD5", sums)
    monkeypatch.setattr(fashion, "_DEBIAN", tmp_path / "nothing")
    return tmp_path


def write(folder, *, compressed=True, arrays=ARRAYS):
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        if compressed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
        else:
            (folder / name).write_bytes(idx(array))


@pytest.mark.parametrize("subfolder", ["", "fashion-mnist", "FashionMNIST/raw"])
@pytest.mark.parametrize("compressed", [True, False])
def test_the_files_are_found_and_read_compressed_or_not(folder, subfolder, compressed):
    write(folder / subfolder, compressed=compressed)
    data = open_fashion_mnist(folder)
    assert data.image_shape == (1, 28, 28)
    assert data.train.fetch(np.arange(7), None).labels.tolist() == list(range(7))
    assert np.array_equal(data.train.images.numpy()[:, 0], ARRAYS["train-images-idx3-ubyte"])  # pyright: ignore[reportAttributeAccessIssue]
    assert find_fashion_mnist(folder) == folder / subfolder


def test_a_label_file_shorter_than_its_images_is_named(folder, monkeypatch):
    short = ARRAYS | {"train-labels-idx1-ubyte": np.arange(5, dtype=np.uint8)}
    monkeypatch.setattr(fashion, "_MD5", {n: ("", hashlib.md5(idx(a)).hexdigest()) for n, a in short.items()})
    write(folder, arrays=short)
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte.gz is damaged: it has 5 labels for 7 images"):
        open_fashion_mnist(folder)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda content: content[:-5], "its header says"),
        (lambda content: b"PK" + content, "does not start like an idx file"),
        (lambda content: content[:-1] + bytes([content[-1] ^ 1]), "the md5 of its content is"),
        (lambda _: b"", "does not start like an idx file"),
    ],
)
def test_damaged_files_are_named_with_what_is_wrong(folder, damage, says):
    write(folder, compressed=False)
    path = folder / "t10k-images-idx3-ubyte"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=says) as caught:
        open_fashion_mnist(folder)
    assert str(path) in caught.value.message
    assert "paceline data fetch fashion-mnist" in (caught.value.hint or "")


def test_a_compressed_file_that_ends_early_is_named(folder):
    write(folder)
    path = folder / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte.gz is damaged"):
        open_fashion_mnist(folder)


def test_nothing_there_says_how_to_fetch_it(folder):
    with pytest.raises(DataError, match="fashion-mnist is not in") as caught:
        open_fashion_mnist(folder)
    assert "paceline data fetch fashion-mnist" in (caught.value.hint or "")
