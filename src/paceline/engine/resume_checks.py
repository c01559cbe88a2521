"""What a resumed run is refused for, and what has changed since its checkpoint."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from paceline.core.config import Config
from paceline.core.errors import FinishedError
from paceline.engine.progress import Progress
from paceline.engine.recorded_job import RecordedJob
from paceline.parallel.team import Team
from paceline.records.entries import Note
from paceline.records.folder import RunFolder

CHOSEN = ("accumulate", "sample_order")
"""Settings that a run chooses where they say auto, and that a resume keeps."""


def refuse_finished(folder: RunFolder, progress: Progress, job: RecordedJob) -> None:
    """Refuse to resume a run that has nothing left to do; one that was killed after its last step is still tested."""
    done, asked = round(progress.step / job.plan.steps_per_epoch, 2), job.plan.total_steps
    if progress.stopped_early:
        raise FinishedError(f"{folder.path} has finished: it stopped early after {done:g} epochs")
    if progress.step >= asked:
        more = f"--steps {2 * progress.step}" if job.config.steps else f"--epochs {2 * round(done) or 2}"
        over = f", more than the {asked} steps asked for" if progress.step > asked else ""
        raise FinishedError(
            f"{folder.path} has {'trained' if over else 'finished:'} {done:g} epochs, {progress.step} steps{over}",
            hint=f"to train longer, add {more}; to start over, use --config {folder.config}",
        )


def changes_since(before: dict[str, Any], job: RecordedJob) -> Iterator[Note]:
    """Yield what has changed since a checkpoint with these settings was saved."""
    if any(before.get(name) != job.config.as_dict().get(name) for name in ("epochs", "steps")):
        yield Note(text="the length of the run has changed: from here on the learning rate follows the new schedule")
    promised = before.get("exact", "order")
    if promised != job.config.exact:
        yield Note(text=f"--exact was {promised} until here, and is {job.config.exact} from here on")


def chosen_by_lead(config: Config, team: Team) -> Config:
    """Return the settings with the lead's choice where they say auto: it alone may have read a run to resume.

    Collective: every rank must call it.
    """
    chosen = team.from_lead({name: getattr(config, name) for name in CHOSEN})
    return replace(config, **{name: value for name, value in chosen.items() if getattr(config, name) == "auto"})
