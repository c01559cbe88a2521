"""Lines wait while the disk is full, and none is lost or torn when there is room again."""

import errno
import os

import pytest

from paceline.trackers.base import Guarded
from paceline.trackers.line_file import LineFile


@pytest.fixture
def room(monkeypatch):
    """Let only so many bytes be written; return the list whose only item is that number."""
    left, write = [10**9], os.write

    def limited(handle, data):
        if left[0] == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = write(handle, bytes(data[: left[0]]))
        left[0] -= done
        return done

    monkeypatch.setattr("paceline.trackers.line_file.os.write", limited)
    return left


def test_lines_of_a_full_disk_are_written_when_there_is_room(tmp_path, room):
    file = LineFile(tmp_path / "lines")
    file.write("first")
    room[0] = 3  # in the middle of a line
    for line in ("second", "third"):
        with pytest.raises(OSError, match="No space left"):
            file.write(line)
    room[0] = 10**9
    file.write("fourth")
    file.close()
    assert (tmp_path / "lines").read_text().split() == ["first", "second", "third", "fourth"]


def test_a_full_disk_does_not_switch_a_tracker_off(tmp_path, room):
    class Lines:
        name = "lines.txt"

        def open(self, run):
            self.file = LineFile(tmp_path / self.name)

        def record(self, entry):
            self.file.write(entry)

        def close(self, result):
            self.file.close()

    said = []
    tracker = Guarded(Lines(), said.append)
    tracker.open(None)  # pyright: ignore[reportArgumentType]
    for line, bytes_left in (("a", 99), ("b", 0), ("c", 0), ("d", 99)):
        room[0] = bytes_left
        tracker.record(line)  # pyright: ignore[reportArgumentType]
    tracker.close(None)
    assert said == [
        "lines.txt waits until there is room on the disk: No space left on device",
        "lines.txt continues: there is room on the disk again",
    ]
    assert (tmp_path / "lines.txt").read_text().split() == ["a", "b", "c", "d"]
