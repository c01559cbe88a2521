"""Writing a pack: continued after an interruption, with the same bytes, in time that grows with its images."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from paceline.data import pack as pack_module
from paceline.data.pack import PackOptions, pack
from paceline.data.packfile import ENTRY
from tests.data.test_pack import JPEG, open_source, silent


@pytest.mark.parametrize("stop_after", [1, 5, 13])
@pytest.mark.parametrize("every", [1, 4])
def test_an_interrupted_pack_is_continued_and_ends_with_the_same_bytes(root, out, monkeypatch, stop_after, every):
    monkeypatch.setattr(pack_module, "JOURNAL_EVERY", every)
    pack(open_source(root), out, JPEG, silent)
    expected = out.read_bytes()
    out.unlink()

    def interrupt(done, _):
        if done == stop_after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(open_source(root), out, JPEG, interrupt)
    assert not out.exists()
    told = []
    pack(open_source(root), out, JPEG, lambda done, _: told.append(done))
    assert out.read_bytes() == expected
    assert told[0] == stop_after + 1


def test_a_pack_that_was_killed_in_the_middle_of_a_write_is_continued(root, out):
    pack(open_source(root), out, JPEG, silent)
    expected = out.read_bytes()
    out.unlink()

    def interrupt(done, _):
        if done == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(open_source(root), out, JPEG, interrupt)
    partial, journal = (out.with_name(out.name + end) for end in (".partial", ".journal"))
    partial.write_bytes(partial.read_bytes()[:-50])
    journal.write_bytes(journal.read_bytes()[:-5])
    pack(open_source(root), out, JPEG, silent)
    assert out.read_bytes() == expected


KILLED = """
import os, signal, sys
from pathlib import Path
from paceline.data import pack as pack_module
from paceline.data.pack import PackOptions, pack
from paceline.data.sources.folder import ImageOptions, open_folder

pack_module.JOURNAL_EVERY = 4
data = open_folder(Path(sys.argv[1]), ImageOptions(size=32), None)
progress = lambda done, _: done == int(sys.argv[3]) and os.kill(os.getpid(), signal.SIGKILL)
pack(data, Path(sys.argv[2]), PackOptions(size=None), progress)
"""


def test_a_pack_whose_process_was_killed_is_continued_after_the_last_flush(root, out):
    pack(open_source(root), out, JPEG, silent)
    expected = out.read_bytes()
    out.unlink()
    for place in (10, 11):  # the second time before anything new is entered into the journal
        words = [sys.executable, "-c", KILLED, str(root), str(out), str(place)]
        assert subprocess.run(words, timeout=120, check=False).returncode == -signal.SIGKILL
    told = []
    pack(open_source(root), out, JPEG, lambda done, _: told.append(done))
    assert told[0] == 9
    assert out.read_bytes() == expected


@pytest.mark.parametrize("step", ["write", "flush"])
def test_a_flush_that_was_interrupted_enters_no_image_twice(root, out, monkeypatch, step):
    monkeypatch.setattr(pack_module, "JOURNAL_EVERY", 4)
    pack(open_source(root), out, JPEG, silent)
    expected = out.read_bytes()
    out.unlink()
    writer = pack_module._Writer

    def interrupt(self):
        self._journal = InterruptedFile(self._journal, step)
        return self

    with monkeypatch.context() as patch:
        enter = writer.__enter__
        patch.setattr(writer, "__enter__", lambda self: interrupt(enter(self)))
        with pytest.raises(KeyboardInterrupt):
            pack(open_source(root), out, JPEG, silent)
    pack(open_source(root), out, JPEG, silent)
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
        with pack_module._Writer(tmp_path / f"{num}.pack", "plan") as writer:
            for label in range(num):
                writer.add(np.array([(0, 0, 0, label, 0)], ENTRY), b"image")
            writer._flush()
            written.append((tmp_path / f"{num}.pack.journal").stat().st_size)
            assert writer.done == num
            writer.finish(b"{}")
        return sum(copied), len(flushed)

    every = pack_module.JOURNAL_EVERY
    sizes = [10 * every, 20 * every, 40 * every]
    assert [work(num) for num in sizes] == [(2 * num, num // every + 1) for num in sizes]
    assert written == [len("plan") + num * ENTRY.itemsize for num in sizes]


def test_another_plan_does_not_continue_an_interrupted_pack(root, out):
    def interrupt(done, _):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(open_source(root), out, JPEG, interrupt)
    told = []
    pack(open_source(root), out, PackOptions(size=24, keep="pixels"), lambda done, _: told.append(done))
    assert told[0] == 1
