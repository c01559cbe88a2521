"""What became of a rank that this one has lost: read from the state files that all ranks keep."""

import time
from collections.abc import Mapping
from typing import Any

from paceline.core.errors import LostRankError
from paceline.core.world import World
from paceline.parallel.lost import is_lost, peer_of
from paceline.records.entries import State
from paceline.records.folder import RunFolder
from paceline.records.reader import is_alive, read_rank

SECONDS_TO_LOOK = 3.0
"""Long enough for a rank that lives to beat once more, so that one that does not has gone."""
Files = Mapping[int, dict[str, Any]]


def explain_loss(problem: RuntimeError, folder: RunFolder, world: World) -> LostRankError:
    """Return the error that names the rank that went first, and why, as far as the files tell."""
    first = files = _read(folder, world)
    deadline = time.monotonic() + SECONDS_TO_LOOK
    while (cause := _first_cause(files)) is None and time.monotonic() < deadline:
        time.sleep(0.1)
        files = _read(folder, world)
    silent = [file for rank, file in files.items() if _lives(file) and file["time"] == first.get(rank, file)["time"]]
    cause = cause or (_gone(silent[0]) if silent else None)
    return LostRankError(
        cause or f"the connection to {peer_of(str(problem))} was lost",
        hint=f"look at what it printed, and at {folder.rank(0).parent}; --resume goes on from the last checkpoint",
    )


def _read(folder: RunFolder, world: World) -> Files:
    found = {rank: read_rank(folder.rank(rank)) for rank in range(world.size) if rank != world.rank}
    return {rank: file for rank, file in found.items() if file is not None}


def _lives(file: dict[str, Any]) -> bool:
    return not State(file["state"]).is_final


def _first_cause(files: Files) -> str | None:
    """Return what a rank failed of that did not itself lose another, or which one has died on this host."""
    for file in files.values():
        if file["state"] == State.FAILED and not is_lost(file["detail"]):
            return f"rank {file['rank']} on {file['host']} failed after step {file['step']}: {file['detail']}"
    return next((_gone(file) for file in files.values() if _lives(file) and not is_alive(file)), None)


def _gone(file: dict[str, Any]) -> str:
    place = f"rank {file['rank']} on {file['host']} (process {file['pid']})"
    return f"{place} has gone without a word after step {file['step']}; killed, or out of memory?"
