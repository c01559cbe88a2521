"""Pack files: the same images as their folder, and never trusted when damaged."""

import pickle
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
import torch

from paceline.core.errors import DataError
from paceline.data.in_memory import InMemory
from paceline.data.on_demand import OnDemand
from paceline.data.pack_format import HEADER_SIZE
from paceline.data.pack_reader import count_damaged, open_packed, read_index
from paceline.data.pack_writer import PackOptions, write_pack
from tests.data.packs import JPEG, POLICY, open_source, silent
from tests.data.pictures import write_classes

CLASSES = ["cat", "dog"]


def test_a_pack_of_whole_files_gives_the_same_images_as_the_folder(root, out):
    reported = []
    done = write_pack(open_source(root), out, JPEG, lambda *values: reported.append(values))
    assert (done.num_images, done.num_bad, done.num_bytes) == (14, 0, out.stat().st_size)
    assert reported == [(done, 14) for done in range(1, 15)]
    folder, packed = open_source(root), open_packed(out, 32, POLICY)
    assert packed.classes == ("cat", "dog")
    for split, num in (("train", 10), ("test", 4)):
        for epoch in (None, 3):
            one, other = (getattr(data, split).fetch(np.arange(num), epoch) for data in (folder, packed))
            assert torch.equal(one.images, other.images)
            assert torch.equal(one.labels, other.labels)
    assert count_damaged(out) == 0
    assert sorted(path.name for path in out.parent.iterdir()) == ["set.pack", "set.pack.lock"]


def test_pixels_are_kept_at_their_size_and_live_in_memory_when_small(root, out, monkeypatch):
    write_pack(open_source(root), out, PackOptions(size=24, keep="pixels"), silent)
    data = open_packed(out, augmentation=POLICY)
    assert isinstance(data.train, InMemory)
    assert data.image_shape == (3, 24, 24)
    monkeypatch.setattr("paceline.data.pack_reader.IN_MEMORY_BYTES", 0)
    mapped = open_packed(out)
    assert isinstance(mapped.train, OnDemand)
    assert torch.equal(mapped.train.fetch(np.arange(10), None).images, data.train.fetch(np.arange(10), None).images)
    resized = open_packed(out, 16)
    assert resized.train.fetch(np.arange(3), None).images.shape == (3, 3, 16, 16)


def test_a_worker_process_maps_the_file_itself(root, out):
    write_pack(open_source(root), out, JPEG, silent)
    train = open_packed(out, 32, POLICY).train
    before = train.fetch(np.arange(10), 1)
    sent = pickle.dumps(train)
    assert len(sent) < 20_000
    assert torch.equal(pickle.loads(sent).fetch(np.arange(10), 1).images, before.images)


@pytest.mark.parametrize(
    ("options", "usual"),
    [
        (PackOptions(size=None), 224),
        (PackOptions(size=48), 48),
        (PackOptions(size=256), 224),
        (PackOptions(size=24, keep="pixels"), 24),
        (PackOptions(size=240, keep="pixels"), 240),
    ],
)
def test_the_usual_size_is_that_of_pixels_or_at_most_224(root, out, options, usual):
    write_pack(open_source(root), out, options, silent)
    assert open_packed(out).image_shape == (3, usual, usual)


@pytest.fixture
def packed(root, out):
    write_pack(open_source(root), out, JPEG, silent)
    return out


def damage(path, position, xor=1):
    content = bytearray(path.read_bytes())
    content[position] ^= xor
    path.write_bytes(content)


@pytest.mark.parametrize("cut", [1, 100, 5000])
def test_a_truncated_pack_is_refused(packed, cut):
    packed.write_bytes(packed.read_bytes()[:-cut])
    with pytest.raises(DataError, match=r"is damaged: it has .* bytes instead of"):
        open_packed(packed, 32)


def test_a_pack_of_another_version_is_told_from_a_damaged_one(packed):
    content = bytearray(packed.read_bytes())
    content[8:12] = struct.pack("<I", 7)
    packed.write_bytes(content)
    with pytest.raises(DataError, match="is a pack of version 7; this Paceline reads version 1") as caught:
        open_packed(packed, 32)
    assert "pack the data set again" in (caught.value.hint or "")


@pytest.mark.parametrize(("position", "says"), [(20, "its header is wrong"), (-10, "checksum of its index")])
def test_a_flipped_bit_in_header_or_index_is_noticed_when_opening(packed, position, says):
    damage(packed, position)
    with pytest.raises(DataError, match=says):
        open_packed(packed, 32)


def test_a_flipped_bit_in_an_image_is_noticed_when_it_is_read(packed):
    entries = read_index(packed).entries
    damage(packed, int(entries[3]["start"]) + 500)
    assert count_damaged(packed) == 1
    train = open_packed(packed, 32).train
    train.fetch(np.array([0, 1, 2, 4]), None)
    with pytest.raises(DataError, match="image 3 cannot be decoded: its checksum is wrong"):
        train.fetch(np.array([3]), None)
    skipping = open_packed(packed, 32, bad_images="skip").train
    assert isinstance(skipping, OnDemand)
    skipping.fetch(np.arange(10), None)
    assert len(skipping.unreadable()) == 1


def test_a_flipped_bit_in_pixels_that_live_in_memory_is_noticed_when_opening(root, out):
    write_pack(open_source(root), out, PackOptions(size=24, keep="pixels"), silent)
    damage(out, HEADER_SIZE + 100)
    with pytest.raises(DataError, match="image 0: its checksum is wrong"):
        open_packed(out)


def test_other_files_and_missing_files_are_told_apart(tmp_path):
    (tmp_path / "x").write_bytes(b"something else entirely" * 10)
    with pytest.raises(DataError, match="is not a pack file"):
        open_packed(tmp_path / "x", 32)
    with pytest.raises(DataError, match="cannot be read: No such file"):
        open_packed(tmp_path / "y", 32)
    (tmp_path / "z").write_bytes(b"\0" * 200)
    with pytest.raises(DataError, match="is not a pack file"):
        open_packed(tmp_path / "z", 32)


def test_the_checksum_is_the_crc32_that_other_tools_compute(packed):
    entry = read_index(packed).entries[0]
    start, length = int(entry["start"]), int(entry["length"])
    assert zlib.crc32(packed.read_bytes()[start : start + length]) == int(entry["crc"])


MEMORY = """
import sys
from pathlib import Path
import numpy as np
from paceline.data.pack_reader import open_packed

def anonymous():
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1])

train = open_packed(Path(sys.argv[1]), 32).train
order = np.arange(len(train))
for batch in np.array_split(order, 10):
    train.fetch(batch, None)
before = anonymous()
for epoch in range(3):
    for batch in np.array_split(order, 10):
        train.fetch(batch, None)
print(anonymous() - before)
"""


@pytest.mark.long
def test_memory_does_not_grow_over_epochs_of_a_set_larger_than_a_batch(tmp_path, out):
    write_classes(tmp_path / "big", CLASSES, num=60, size=(200, 200), form="PNG")
    done = write_pack(open_source(tmp_path / "big"), out, PackOptions(size=200, keep="pixels"), silent)
    assert done.num_bytes > 14_000_000
    result = subprocess.run(
        [sys.executable, "-c", MEMORY, str(out)], capture_output=True, text=True, check=True, timeout=120
    )
    assert int(result.stdout) < 6_000  # kB; the set has 14,000
