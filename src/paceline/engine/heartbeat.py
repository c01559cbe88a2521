"""The state file of a rank, kept fresh by a thread; and what the files of all ranks say when one stops answering."""

import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from paceline.core.errors import RanksError
from paceline.core.world import World
from paceline.engine.clock import Clock
from paceline.engine.lost import explain_loss
from paceline.engine.state import Progress
from paceline.parallel.lost import is_lost
from paceline.records.entries import State
from paceline.records.folder import RunFolder
from paceline.records.reader import read_rank
from paceline.records.writer import write_rank

SECONDS_BETWEEN_BEATS = 1.0
SECONDS_UNTIL_SILENT = 5.0
TIMED_OUT = re.compile(r"timed? ?out", re.IGNORECASE)


class Heartbeat:
    """Says every second where this rank stands; a rank that hangs or is stopped falls silent."""

    def __init__(self, folder: RunFolder, world: World, progress: Progress, clock: Clock) -> None:
        self._path = folder.rank(world.rank)
        self._world = world
        self._progress = progress
        self._clock = clock
        self._state = State.READY
        self._lock = threading.Lock()
        self._end = threading.Event()

    def note(self, state: State, *, detail: str = "") -> None:
        """Write down where this rank stands now."""
        with self._lock:
            self._state = state
            self._write(detail)

    def _write(self, detail: str = "") -> None:
        facts = {"step": self._progress.step, "doing": self._clock.doing, "detail": detail}
        write_rank(self._path, self._world, self._state, **facts)

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Keep the file fresh while the block runs, and leave word in it when the block fails."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self.note(State.READY)
        thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
        except BaseException as problem:
            problem.add_note(f"rank {self._world.rank} on {self._world.host}, after step {self._progress.step}")
            with suppress(OSError):  # a full disk must not hide why the run failed
                self.note(State.FAILED, detail=f"{type(problem).__name__}: {problem}")
            raise
        finally:
            self._end.set()
            thread.join()

    def _beat(self) -> None:
        while not self._end.wait(SECONDS_BETWEEN_BEATS):
            with self._lock, suppress(OSError):  # a full disk: the next beat may get through
                if not self._state.is_final:  # asked within the lock: a beat must not write over the end of the run
                    self._write()


@contextmanager
def silence_explained(folder: RunFolder, world: World, timeout: float) -> Iterator[None]:
    """Turn a collective that timed out into a roll-call of all ranks, and a broken one into who went first."""
    try:
        yield
    except RuntimeError as problem:
        if world.size > 1 and is_lost(str(problem)):
            raise explain_loss(problem, folder, world) from problem
        if world.size == 1 or not TIMED_OUT.search(str(problem)):
            raise
        files = {rank: read_rank(folder.rank(rank)) for rank in range(world.size)}
        raise RanksError(
            f"no answer within {timeout:g} s: {roll_call(files, now=time.time())}",
            hint=f"look at {folder.rank(0).parent}; --timeout waits longer; --resume goes on from the last checkpoint",
        ) from problem


def roll_call(files: Mapping[int, Mapping[str, Any] | None], *, now: float) -> str:
    """Say which rank is where: those who answer grouped by what they do, then those who are silent."""
    groups: dict[str, list[int]] = defaultdict(list)
    for rank, file in files.items():
        if file is None:
            groups["never heard of"].append(rank)
        elif now - file["time"] > SECONDS_UNTIL_SILENT:
            groups[f"silent since step {file['step'] + 1}"].append(rank)
        else:
            groups[f"in {file['doing']} at step {file['step'] + 1}"].append(rank)
    ordered = sorted(groups.items(), key=lambda group: (not group[0].startswith("in "), group[1]))
    return "; ".join(f"{_ranks(ranks)} {place}" for place, ranks in ordered)


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {','.join(map(str, ranks))}"
