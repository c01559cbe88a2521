"""The state file of a rank, rewritten every second by a thread: other ranks and `paceline runs` read it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial

from paceline.core.errors import OvertakenError, RunError
from paceline.core.limits import seconds_between_beats
from paceline.core.stopping import StopRequest
from paceline.core.world import World
from paceline.engine.clock import Clock
from paceline.engine.progress import Progress
from paceline.records.attempt import fenced
from paceline.records.entries import State
from paceline.records.folder import RunFolder
from paceline.records.writer import write_rank


class Heartbeat:
    """Writes the state of this rank every second; a rank that hangs or is stopped stops writing."""

    def __init__(self, folder: RunFolder, world: World, progress: Progress, clock: Clock) -> None:
        self._path = folder.rank(world.rank)
        self._fence = partial(fenced, folder) if world.is_lead else nullcontext  # others may not see the lead's disk
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
        write_rank(self._path, self._world, self._state, fence=self._fence, **facts)

    @contextmanager
    def beating(self, stop: StopRequest) -> Iterator[None]:
        """Keep the file fresh while the block runs, and record a failure of the block in it.

        `stop` is asked to stop the run when a newer attempt has started.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self.note(State.READY)
        thread = threading.Thread(target=self._beat, args=(stop,), name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
        except BaseException as problem:
            problem.add_note(f"rank {self._world.rank} on {self._world.host}, after step {self._progress.step}")
            with suppress(OSError, RunError):  # a full disk must not hide the failure of the run
                self.note(State.FAILED, detail=f"{type(problem).__name__}: {problem}")
            raise
        finally:
            self._end.set()
            thread.join()

    def _beat(self, stop: StopRequest) -> None:
        while not stop.is_overtaken and not self._end.wait(seconds_between_beats(self._world.size)):
            try:
                with self._lock:
                    if not self._state.is_final:  # read within the lock: do not write over the end of the run
                        self._write()
            except OvertakenError:
                stop.is_overtaken = True
            except (OSError, RunError):  # a full disk: the next heartbeat may succeed
                continue
