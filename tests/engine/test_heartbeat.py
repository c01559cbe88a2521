"""The state file of a rank, which a thread rewrites while the run goes on."""

import threading

import pytest

from paceline.core.stopping import StopRequest
from paceline.core.world import World
from paceline.engine import heartbeat as module
from paceline.engine.clock import Clock
from paceline.engine.heartbeat import Heartbeat
from paceline.engine.progress import Progress
from paceline.records.attempt import take_over
from paceline.records.entries import State
from paceline.records.folder import RunFolder
from paceline.records.reader import read_rank
from paceline.records.writer import write_rank
from tests.conftest import LONGEST

WORLD = World()


class WatchedLock:
    """A lock that tells when another thread waits for it."""

    def __init__(self):
        self.is_awaited = threading.Event()
        self._lock = threading.Lock()

    def __enter__(self):
        while not self._lock.acquire(timeout=0.01):
            self.is_awaited.set()

    def __exit__(self, *_):
        self._lock.release()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "seconds_between_beats", lambda _world_size: 0.001)
    return RunFolder(tmp_path)


def test_a_beat_that_waits_while_the_end_is_written_does_not_write_over_it(folder, monkeypatch):
    heartbeat = Heartbeat(folder, WORLD, Progress(), Clock())
    lock = WatchedLock()
    monkeypatch.setattr(heartbeat, "_lock", lock)
    with heartbeat.beating(StopRequest()):
        heartbeat.note(State.TRAINING)
        with lock:
            lock.is_awaited.clear()
            assert lock.is_awaited.wait(LONGEST)
            heartbeat._state = State.FINISHED
            write_rank(folder.rank(0), WORLD, State.FINISHED)
    ended = read_rank(folder.rank(0))
    assert ended is not None
    assert ended["state"] == State.FINISHED


def test_a_failure_is_the_last_state_with_its_reason(folder):
    with (
        pytest.raises(ValueError, match="broken"),
        Heartbeat(folder, WORLD, Progress(), Clock()).beating(StopRequest()),
    ):
        raise ValueError("broken")
    ended = read_rank(folder.rank(0))
    assert ended is not None
    assert (ended["state"], ended["detail"]) == (State.FAILED, "ValueError: broken")


def test_a_lead_that_was_cut_off_asks_itself_to_stop(folder):
    folder.rank(0).parent.mkdir()
    stop = StopRequest()
    heartbeat = Heartbeat(take_over(folder), WORLD, Progress(), Clock())
    with heartbeat.beating(stop):
        heartbeat.note(State.TRAINING)
        assert not stop.asked
        take_over(folder)
        thread = next(thread for thread in threading.enumerate() if thread.name == "heartbeat")
        thread.join(LONGEST)
        assert stop.asked
