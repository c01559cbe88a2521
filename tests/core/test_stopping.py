"""Waits for other processes: their result, their failure, and the signal that ends them."""

import os
import signal
import sys
import threading
import time

import pytest

from paceline.core.errors import RanksError, StoppedError
from paceline.core.stopping import STOPPING, handled_by, interruptible, is_still_waiting, wait_interruptibly


def test_a_wait_returns_the_result_of_the_work():
    assert wait_interruptibly(lambda: 42, "waiting") == 42
    assert not is_still_waiting()


def test_a_wait_that_fails_raises_its_own_error():
    def fail():
        raise RanksError("rank 1 did not come")

    with pytest.raises(RanksError, match="rank 1 did not come"):
        wait_interruptibly(fail, "waiting")


@pytest.mark.parametrize("number", STOPPING)
def test_a_signal_ends_a_wait_and_gives_the_handlers_back(number):
    before = [signal.getsignal(other) for other in STOPPING]
    end = threading.Event()

    def work():
        os.kill(os.getpid(), number)
        end.wait()

    with pytest.raises(StoppedError, match="stopped while rank 0 was waiting") as caught:
        wait_interruptibly(work, "rank 0 was waiting")
    assert (caught.value.signal, caught.value.exit_code) == (number, 128 + number)
    assert [signal.getsignal(other) for other in STOPPING] == before
    assert is_still_waiting()
    end.set()


def test_a_signal_that_was_caught_before_the_wait_ends_it_too():
    with pytest.raises(StoppedError) as caught:
        wait_interruptibly(lambda: 42, "waiting", lambda: signal.SIGTERM)
    assert caught.value.exit_code == 143


def test_another_thread_waits_by_itself_and_catches_nothing():
    answers = []

    def wait():
        with interruptible("waiting"):
            answers.append(wait_interruptibly(threading.get_ident, "waiting"))

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    assert answers == [thread.ident]


def test_a_signal_at_the_end_of_a_wait_is_not_lost():
    """The earlier handler gets what comes too late for the wait to raise it."""
    earlier, looks = [], []

    def asked() -> int | None:
        looks.append(None)
        if len(looks) > 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return None

    with handled_by(lambda number, _frame: earlier.append(number)):
        try:
            wait_interruptibly(lambda: None, "waiting", asked)
        except StoppedError as stopped:  # on a busy machine the signal may come within the wait
            earlier.append(stopped.signal)
    assert earlier == [signal.SIGTERM]


class Receives:
    """Receives a signal while Python ignores exceptions."""

    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)


def receive_and_wait():
    Receives()
    for _ in range(1000):
        time.sleep(0.01)


def test_a_signal_during_a_callback_that_ignores_exceptions_still_ends_the_block(capsys):
    hook = sys.unraisablehook
    with pytest.raises(StoppedError, match="while testing"), interruptible("testing"):
        receive_and_wait()
    assert sys.unraisablehook is hook
    assert capsys.readouterr().err == ""


def test_other_ignored_exceptions_are_still_shown(monkeypatch):
    class Raises:
        def __del__(self):
            raise ValueError("ignored")

    shown = []
    monkeypatch.setattr(sys, "unraisablehook", lambda ignored: shown.append(str(ignored.exc_value)))
    with interruptible("testing"):
        Raises()
    assert shown == ["ignored"]
