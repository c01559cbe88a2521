"""Room for checkpoints: how large one becomes and whether the disk has space for it, known before the first step."""

import shutil
from pathlib import Path

from paceline.core.config import Config
from paceline.core.errors import RunError
from paceline.core.units import size
from paceline.engine.checkpoint_folder import Captured
from paceline.engine.job import Job
from paceline.engine.progress import Progress
from paceline.engine.tensor_files import piece_of
from paceline.parallel.team import Team
from paceline.records.entries import Note
from paceline.records.folder import RunFolder, leftover_checkpoints, list_checkpoints


def check_room(job: Job, progress: Progress, team: Team, resume: RunFolder | None) -> list[Note]:
    """Refuse a run whose next checkpoint does not fit on the disk; return its size and a warning for later ones.

    Collective: every rank must call it.
    """
    needed = checkpoint_bytes(job, progress, team)
    folder = resume.path if resume is not None else job.config.runs_dir
    free, occupied = team.from_lead(_space(folder, resume) if team.is_lead else (0, 0))
    if free < needed:
        raise RunError(
            f"the disk of {folder} has {size(free)} available, but a checkpoint of this run takes {size(needed)}",
            hint="free some space, or choose another --runs-dir",
        )
    notes = [Note(text=f"disk     {size(needed)} per checkpoint, {size(free)} available")]
    most = job.config.keep + 2
    if free + occupied < most * needed:
        notes.append(
            Note(
                text=f"the disk of {folder} has {size(free)} available, but --keep {job.config.keep}, the best "
                f"checkpoint and one being written can take {size(most * needed)}; use a smaller --keep, or another "
                "--runs-dir",
                level="warning",
            )
        )
    return notes


def checkpoint_bytes(job: Job, progress: Progress, team: Team) -> int:
    """Return the size of all tensors of a checkpoint, those included that the optimizer creates in its first step.

    Collective: every rank must call it.
    """
    captured = Captured.of(job.capture(progress))
    pieces = [piece for part in captured.parts for piece in captured.owned(part, is_lead=team.is_lead).values()]
    parameters = [each for group in job.optimizer.param_groups for each in group["params"]]
    future = [piece_of(each) for each in parameters if not job.optimizer.state.get(each)]
    future = [piece for piece in future if piece.is_shard or team.is_lead]
    copies = _copies_per_parameter(job.config)
    own = sum(piece.local.nbytes for piece in pieces) + copies * sum(piece.local.nbytes for piece in future)
    return team.total(own, sum)


def _copies_per_parameter(config: Config) -> int:
    """Return how many tensors of its shape the optimizer keeps for a parameter."""
    return int(config.momentum > 0) if config.optimizer == "sgd" else 2


def _space(folder: Path, resume: RunFolder | None) -> tuple[int, int]:
    """Return the bytes available for a checkpoint, and those of the checkpoints that are there.

    What an interrupted save has left counts as available: the next save removes it first.
    """
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if resume is None:
        return free, 0
    left = sum(map(_bytes_below, leftover_checkpoints(resume.checkpoints)))
    return free + left, sum(map(_bytes_below, list_checkpoints(resume.checkpoints)))


def _bytes_below(path: Path) -> int:
    return sum(each.stat().st_size for each in [path, *path.rglob("*")] if each.is_file())
