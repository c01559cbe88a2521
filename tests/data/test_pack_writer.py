"""Writing a pack: resumed after an interruption, with the same bytes, in time proportional to its images."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from paceline.core.errors import DataError
from paceline.data import pack_writer
from paceline.data.decode import image_size
from paceline.data.on_demand import OnDemand
from paceline.data.pack_format import ENTRY
from paceline.data.pack_reader import open_packed
from paceline.data.pack_writer import PackOptions, write_pack
from paceline.data.sources.digits import open_digits
from tests.data.packs import JPEG, open_source, silent


@pytest.mark.parametrize("stop_after", [1, 5, 13])
@pytest.mark.parametrize("every", [1, 4])
def test_an_interrupted_pack_is_resumed_and_ends_with_the_same_bytes(root, out, monkeypatch, stop_after, every):
    monkeypatch.setattr(pack_writer, "JOURNAL_EVERY", every)
    write_pack(open_source(root), out, JPEG, silent)
    expected = out.read_bytes()
    out.unlink()

    def interrupt(done, _):
        if done == stop_after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_pack(open_source(root), out, JPEG, interrupt)
    assert not out.exists()
    reported = []
    write_pack(open_source(root), out, JPEG, lambda done, _: reported.append(done))
    assert out.read_bytes() == expected
    assert reported[0] == stop_after + 1


def test_a_pack_that_was_killed_in_the_middle_of_a_write_is_resumed(root, out):
    write_pack(open_source(root), out, JPEG, silent)
    expected = out.read_bytes()
    out.unlink()

    def interrupt(done, _):
        if done == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_pack(open_source(root), out, JPEG, interrupt)
    partial, journal = (out.with_name(out.name + end) for end in (".partial", ".journal"))
    partial.write_bytes(partial.read_bytes()[:-50])
    journal.write_bytes(journal.read_bytes()[:-5])
    write_pack(open_source(root), out, JPEG, silent)
    assert out.read_bytes() == expected


KILLED = """
import os, signal, sys
from pathlib import Path
from paceline.data import pack_writer
from paceline.data.pack_writer import PackOptions, write_pack
from paceline.data.sources.image_folder import ImageOptions, open_image_folder

pack_writer.JOURNAL_EVERY = 4
data = open_image_folder(Path(sys.argv[1]), ImageOptions(size=32), None)
progress = lambda done, _: done == int(sys.argv[3]) and os.kill(os.getpid(), signal.SIGKILL)
write_pack(data, Path(sys.argv[2]), PackOptions(size=None), progress)
"""


def test_a_pack_whose_process_was_killed_is_resumed_after_the_last_flush(root, out):
    write_pack(open_source(root), out, JPEG, silent)
    expected = out.read_bytes()
    out.unlink()
    for position in (10, 11):  # the second time before anything new is entered into the journal
        args = [sys.executable, "-c", KILLED, str(root), str(out), str(position)]
        assert subprocess.run(args, timeout=120, check=False).returncode == -signal.SIGKILL
    reported = []
    write_pack(open_source(root), out, JPEG, lambda done, _: reported.append(done))
    assert reported[0] == 9
    assert out.read_bytes() == expected


@pytest.mark.parametrize("step", ["write", "flush"])
def test_a_flush_that_was_interrupted_enters_no_image_twice(root, out, monkeypatch, step):
    monkeypatch.setattr(pack_writer, "JOURNAL_EVERY", 4)
    write_pack(open_source(root), out, JPEG, silent)
    expected = out.read_bytes()
    out.unlink()
    writer = pack_writer._Writer

    def interrupt(self):
        self._journal = InterruptedFile(self._journal, step)
        return self

    with monkeypatch.context() as patch:
        enter = writer.__enter__
        patch.setattr(writer, "__enter__", lambda self: interrupt(enter(self)))
        with pytest.raises(KeyboardInterrupt):
            write_pack(open_source(root), out, JPEG, silent)
    write_pack(open_source(root), out, JPEG, silent)
    assert out.read_bytes() == expected


class InterruptedFile:
    """A file at which the user presses Ctrl-C once, right after its first call of one kind."""

    def __init__(self, file, step):
        self._file, self._step = file, step

    def __getattr__(self, name):
        called = getattr(self._file, name)
        if name != self._step:
            return called

        def interrupted(*args):
            self._step = None
            called(*args)
            raise KeyboardInterrupt

        return interrupted


def test_the_work_of_writing_a_pack_grows_with_its_images_and_not_faster(tmp_path, monkeypatch):
    copied, flushed, written = [], [], []
    concatenate, fsync = np.concatenate, os.fsync

    def counting(arrays):
        copied.append(sum(map(len, arrays)))
        return concatenate(arrays)

    monkeypatch.setattr(np, "concatenate", counting)
    monkeypatch.setattr(os, "fsync", lambda file: (flushed.append(file), fsync(file)))

    def work(num):
        for counts in (copied, flushed):
            counts.clear()
        with pack_writer._Writer(tmp_path / f"{num}.pack", "plan") as writer:
            for label in range(num):
                writer.add(np.array([(0, 0, 0, label, 0)], ENTRY), b"image")
            writer._flush()
            written.append((tmp_path / f"{num}.pack.journal").stat().st_size)
            assert writer.done == num
            writer.finish(b"{}")
        return sum(copied), len(flushed)

    every = pack_writer.JOURNAL_EVERY
    sizes = [10 * every, 20 * every, 40 * every]
    assert [work(num) for num in sizes] == [(2 * num, num // every + 1) for num in sizes]
    assert written == [len("plan") + num * ENTRY.itemsize for num in sizes]


def test_another_plan_does_not_resume_an_interrupted_pack(root, out):
    def interrupt(done, _):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_pack(open_source(root), out, JPEG, interrupt)
    reported = []
    write_pack(open_source(root), out, PackOptions(size=24, keep="pixels"), lambda done, _: reported.append(done))
    assert reported[0] == 1


def test_kept_jpeg_files_are_made_smaller_and_small_ones_left_alone(root, out):
    write_pack(open_source(root), out, PackOptions(size=48), silent)
    train, test = open_packed(out, 32).train, open_packed(out, 32).test
    assert isinstance(train, OnDemand)
    assert isinstance(test, OnDemand)
    assert image_size(train.encoded.read(0)) == (48, 72)
    assert test.encoded.read(0) == (root / "val" / "cat" / "0.png").read_bytes()
    one, other = (data.train.fetch(np.arange(10), None).images for data in (open_source(root), open_packed(out, 32)))
    assert (one - other).abs().mean() < 0.2


def test_a_bad_image_stops_the_pack_or_is_left_out_and_counted(root, out):
    (root / "train" / "cat" / "2.jpeg").write_bytes(b"broken")
    with pytest.raises(DataError, match=r"cat/2.jpeg cannot be decoded"):
        write_pack(open_source(root), out, JPEG, silent)
    done = write_pack(open_source(root), out, PackOptions(size=None, bad_images="skip"), silent)
    assert (done.num_images, done.num_bad) == (13, 1)
    assert open_packed(out, 32).train.fetch(np.arange(9), None).labels.tolist() == [0] * 4 + [1] * 5


def test_a_set_in_memory_and_pixels_without_a_size_are_refused(root, out):
    with pytest.raises(DataError, match="is always kept in memory"):
        write_pack(open_digits(), out, JPEG, silent)
    with pytest.raises(DataError, match="--keep pixels needs --size"):
        write_pack(open_source(root), out, PackOptions(size=None, keep="pixels"), silent)
