"""Copies a run to an object store in the background; training never waits for it, and its end waits only once."""

import threading

from paceline.core.errors import StorageError
from paceline.records.folder import RunFolder
from paceline.records.mirror import Mirror
from paceline.records.storage import Storage

FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0
"""Seconds between two attempts, doubled after each failure."""
LAST_TRIES = 3
"""Attempts when training has ended."""


class Uploader:
    """Copies what is new after each checkpoint. A failure is tried again, and told to the main thread."""

    def __init__(self, folder: RunFolder, address: str) -> None:
        self.address = address
        self._mirror = Mirror(folder, Storage(address))
        self._wake, self._closing = threading.Condition(), False
        self._is_new, self._news = False, list[str]()
        self._failures = 0
        self._thread = threading.Thread(target=self._work, name="upload", daemon=True)
        self._thread.start()

    def notify(self) -> None:
        """Say that there is a new checkpoint. Several of them while one is copied are copied together."""
        with self._wake:
            self._is_new = True
            self._wake.notify()

    def news(self) -> list[str]:
        """Return the warnings since the last call."""
        with self._wake:
            found, self._news = self._news, []
        return found

    def close(self) -> None:
        """Copy the rest, and wait for that."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def _work(self) -> None:
        while not self._is_last_wait():
            self._try()
        self._failures = 0
        while not self._try(ended=True) and self._failures < LAST_TRIES:
            threading.Event().wait(FIRST_WAIT)

    def _is_last_wait(self) -> bool:
        """Wait for a checkpoint, or after a failure until the next attempt is due; tell whether training has ended."""
        with self._wake:
            if self._failures and not self._closing:
                self._wake.wait(min(LONGEST_WAIT, FIRST_WAIT * 2 ** (self._failures - 1)))
            while not (self._is_new or self._closing or self._failures):
                self._wake.wait()
            self._is_new = False
            return self._closing

    def _try(self, *, ended: bool = False) -> bool:
        try:
            self._mirror.update(ended=ended)
        except StorageError as problem:
            self._fail(problem.message, ended=ended)
            return False
        except FileNotFoundError:  # the run removed a file meanwhile
            return True
        except OSError as problem:  # of this machine's disk
            self._fail(f"cannot read the run to copy it: {problem}", ended=ended)
            return False
        self._failures = 0
        return True

    def _fail(self, text: str, *, ended: bool) -> None:
        """Count a failure; warn of the first one, and of the last one."""
        self._failures += 1
        if self._failures == 1 or (ended and self._failures == LAST_TRIES):
            rest = "the newest state is on this machine only" if ended else "trying again in the background"
            with self._wake:
                self._news.append(f"{text}; {rest}")
