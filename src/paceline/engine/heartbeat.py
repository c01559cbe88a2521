"""The state file of a rank, rewritten every second by a thread: other ranks and `paceline runs` read it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from paceline.core.world import World
from paceline.engine.clock import Clock
from paceline.engine.progress import Progress
from paceline.records.entries import State
from paceline.records.folder import RunFolder
from paceline.records.writer import write_rank

SECONDS_BETWEEN_BEATS = 1.0


class Heartbeat:
    """Writes the state of this rank every second; a rank that hangs or is stopped stops writing."""

    def __init__(self, folder: RunFolder, world: World, progress: Progress, clock: Clock) -> None:
        self._path = folder.rank(world.rank)
        self._world = world
        self._progress = progress
        self._clock = clock
        self._state = State.READY
        self._lock = threading.Lock()
        self._end = threading.Event()

    def note(self, state: State, *, detail: str = "") -> None:
        """Write the current state."""
        with self._lock:
            self._state = state
            self._write(detail)

    def _write(self, detail: str = "") -> None:
        facts = {"step": self._progress.step, "doing": self._clock.doing, "detail": detail}
        write_rank(self._path, self._world, self._state, **facts)

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Keep the file fresh while the block runs, and record a failure of the block in it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self.note(State.READY)
        thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
        except BaseException as problem:
            problem.add_note(f"rank {self._world.rank} on {self._world.host}, after step {self._progress.step}")
            with suppress(OSError):  # a full disk must not hide the failure of the run
                self.note(State.FAILED, detail=f"{type(problem).__name__}: {problem}")
            raise
        finally:
            self._end.set()
            thread.join()

    def _beat(self) -> None:
        while not self._end.wait(SECONDS_BETWEEN_BEATS):
            with self._lock, suppress(OSError):  # a full disk: the next heartbeat may succeed
                if not self._state.is_final:  # read within the lock: a heartbeat must not write over the end of the run
                    self._write()
