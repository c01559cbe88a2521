"""Data sets from elsewhere that lie: links in circles, FIFOs, devices, bombs, labels of no class, and random bytes.

`FUZZ=100000` in the environment draws that many inputs for each reader.
"""

import gzip
import io
import json
import os
import struct
import tarfile
import zlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from paceline.core.errors import DataError
from paceline.data.decode import BadImageError, as_ppm, decode, image_size
from paceline.data.pack_format import ENTRY, HEADER_SIZE, parse_header
from paceline.data.pack_reader import count_damaged, open_packed, read_index
from paceline.data.pack_writer import write_pack
from paceline.data.sources import fashion
from paceline.data.sources.image_folder import ImageFiles, list_images
from paceline.data.sources.imagenet import TRAIN_TAR, VAL_TAR, list_nested, list_tar
from tests.data.imagenet_tars import CLASSES, add, write_tars
from tests.data.packs import JPEG, open_source, silent
from tests.data.pictures import encoded, picture, write_classes

many = settings(
    max_examples=int(os.environ.get("FUZZ", "60")),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.mark.parametrize("target", ["..", ".", "../dog", "../.."])
def test_a_link_to_a_folder_that_is_listed_already_is_refused_with_its_name(tmp_path, target):
    root = write_classes(tmp_path / "data" / "train", ["cat", "dog"])
    assert len(list_images(root).names) == 6
    (root / "cat" / "link").symlink_to(target)
    if target == "../..":
        (root.parent / "outside").mkdir()  # two ways to the same place
    with pytest.raises(DataError, match=r"cat/link\S* is a symbolic link to a folder that is listed already"):
        list_images(root)


def test_a_link_to_images_elsewhere_is_followed(tmp_path):
    root = write_classes(tmp_path / "train", ["cat"])
    elsewhere = write_classes(tmp_path / "elsewhere", ["more"])
    (root / "cat" / "link").symlink_to(elsewhere / "more")
    assert len(list_images(root).names) == 6


def test_a_fifo_and_a_device_are_unreadable_images(tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "zero.jpg").symlink_to("/dev/zero")
    (tmp_path / "whole.jpg").write_bytes(b"whole")
    files = ImageFiles(tmp_path, ["pipe.jpg", "zero.jpg", "whole.jpg"])
    for index in (0, 1):
        with pytest.raises(BadImageError, match="not a file"):
            files.read(index)
    assert files.read(2) == b"whole"


def test_an_image_bomb_is_refused_before_it_is_decoded(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100 * 50)
    bomb = encoded(Image.new("RGB", (400, 400)))
    with pytest.raises(BadImageError, match="400×400 pixels"):
        decode(bomb)
    assert decode(bomb, at_least=(50, 50)).shape == (50, 50, 3), "a smaller scale is decoded cheaply"
    assert decode(encoded(Image.new("RGB", (90, 90)))).shape == (90, 90, 3)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert decode(bomb).shape == (400, 400, 3), "the user has asked for no limit"


def test_a_gzip_bomb_is_read_no_further_than_the_data_set_is_long(tmp_path, monkeypatch):
    monkeypatch.setattr(fashion, "LARGEST_FILE", 1000)
    folder = tmp_path / "fashion-mnist"
    folder.mkdir()
    (folder / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(bytes(10**7)))
    with pytest.raises(DataError, match="more than 1,000 bytes"):
        fashion.open_fashion_mnist(tmp_path)


@pytest.mark.parametrize("target", ["n01440764.tar", "nowhere.tar", "/etc/passwd"])
def test_links_in_a_tar_are_not_followed(tmp_path, target):
    root = write_tars(tmp_path / "imagenet")
    with tarfile.open(root / TRAIN_TAR, "a") as outer:
        link = tarfile.TarInfo("n01440764.tar" if target == "n01440764.tar" else "link.tar")
        link.type, link.linkname = tarfile.SYMTYPE, target
        outer.addfile(link)
    assert len(list(list_nested(root / TRAIN_TAR))) == 6


def test_names_in_a_tar_may_have_any_bytes(tmp_path):
    from paceline.data.sources.imagenet import TarImages

    with tarfile.open(tmp_path / VAL_TAR, "w", format=tarfile.GNU_FORMAT) as tar:
        add(tar, "ä\udcff.JPEG", b"bytes")
    images = TarImages(tmp_path / VAL_TAR, list(list_tar(tmp_path / VAL_TAR)))
    assert images.read(0) == b"bytes"
    assert images.name(0).endswith(".JPEG")


@pytest.fixture
def packed(tmp_path):
    write_classes(tmp_path / "data" / "train", ["cat", "dog"])
    write_classes(tmp_path / "data" / "test", ["cat", "dog"])
    write_pack(open_source(tmp_path / "data"), tmp_path / "set.pack", JPEG, silent)
    return tmp_path / "set.pack"


def forge(path, change):
    """Rewrite index and notes of a pack, with checksums that match."""
    content = path.read_bytes()
    header = parse_header(content[:HEADER_SIZE])
    assert header is not None
    index, notes = content[header.index_start : header.notes_start], content[header.notes_start :]
    entries = np.frombuffer(index, ENTRY).copy()
    index, notes = change(entries, json.loads(notes))
    start = header.index_start
    forged = replace(header, notes_start=start + len(index), file_size=start + len(index) + len(notes),
                     crc=zlib.crc32(index + notes))  # fmt: skip
    path.write_bytes(forged.pack() + content[HEADER_SIZE:start] + index + notes)


def with_entry(name, value):
    def change(entries, notes):
        entries[name][1] = value
        return entries.tobytes(), json.dumps(notes).encode()

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (with_entry("label", 99), "image 1 has a label that is not between 0 and 1"),
        (with_entry("label", -100), "image 1 has a label that is not between 0 and 1"),
        (with_entry("split", 7), "image 1 has an unknown split"),
        (with_entry("start", 2**64 - 1), "image 1 has bytes outside of the images"),
        (with_entry("length", 2**32 - 1), "image 1 has bytes outside of the images"),
        (lambda entries, notes: (entries.tobytes(), b"[]"), "its notes or its index are wrong"),
        (lambda entries, notes: (entries.tobytes(), b"[" * 10**5), "its notes or its index are wrong"),
        (lambda entries, notes: (entries.tobytes()[:-1], json.dumps(notes).encode()), "its notes or its index are"),
        (lambda entries, notes: (entries.tobytes(), json.dumps(notes | {"size": -1}).encode()), "its notes or its"),
        (lambda entries, notes: (entries.tobytes(), json.dumps(notes | {"mean": [0]}).encode()), "3 channels"),
    ],
)
def test_a_pack_whose_index_lies_is_refused_although_its_checksums_match(packed, change, says):
    assert count_damaged(packed) == 0
    forge(packed, lambda entries, notes: (entries.tobytes(), json.dumps(notes).encode()))
    read_index(packed)  # the control: forging alone changes nothing
    forge(packed, change)
    with pytest.raises(DataError, match=says):
        read_index(packed)


REAL = [encoded(picture(24, 32), form) for form in ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP")]
REAL.append(as_ppm(np.zeros((4, 5, 3), np.uint8)))
edits = st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=4)), max_size=4)


def edit(data: bytes, changes: list[tuple[float, bytes]]) -> bytes:
    for place, new in changes:
        at = int(place * len(data))
        data = data[:at] + new + data[at + len(new) :]
    return data


@many
@given(st.sampled_from(REAL) | st.binary(max_size=64), edits, st.floats(0, 1))
def test_any_bytes_are_an_image_or_a_bad_image(data, changes, length):
    data = edit(data, changes)
    for part in (data, data[: int(length * len(data))]):
        try:
            decode(part)
            image_size(part)
        except BadImageError:
            pass


@many
@given(st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=8)), min_size=1, max_size=4))
def test_any_bytes_are_a_pack_or_refused(tmp_path, changes):
    path = tmp_path / "data" / "set.pack"
    if not path.exists():
        write_classes(path.parent / "train", ["cat", "dog"], num=1)
        write_classes(path.parent / "test", ["cat", "dog"], num=1)
        write_pack(open_source(path.parent), path, JPEG, silent)
        path.with_suffix(".copy").write_bytes(path.read_bytes())
    path.write_bytes(edit(path.with_suffix(".copy").read_bytes(), changes))
    try:
        open_packed(path)
    except DataError as problem:
        assert str(path) in problem.message  # noqa: PT017


@many
@given(edits)
def test_any_bytes_are_a_tar_or_refused(tmp_path, changes):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as inner:
        add(inner, "a.JPEG", b"image")
    path = tmp_path / TRAIN_TAR
    with tarfile.open(path, "w") as outer:
        add(outer, f"{CLASSES[0]}.tar", buffer.getvalue())
    path.write_bytes(edit(path.read_bytes(), changes))
    try:
        list(list_nested(path))
    except DataError as problem:
        assert str(path) in problem.message  # noqa: PT017


@many
@given(st.binary(max_size=64) | st.integers(0, 2**32 - 1).map(lambda n: struct.pack(">II", 0x803, n) + b"0" * 20))
def test_any_bytes_are_an_idx_file_or_refused(tmp_path, content):
    try:
        fashion.parse_idx(content, tmp_path / "file")
    except DataError as problem:
        assert "file" in problem.message  # noqa: PT017
