"""Records as lines of text: the same on the terminal and in log.txt."""

from paceline.core.score_text import score_text
from paceline.core.units import count, duration, escape_controls, plural, rate, step_time
from paceline.records.entries import Entry, EpochRecord, EvalRecord, Note, Pulse, StepRecord
from paceline.trackers.base import RunInfo


def as_line(entry: Entry, run: RunInfo) -> str | None:
    """Return the line for a record, or None if it has none."""
    match entry:
        case Note():
            return escape_controls(f"warning: {entry.text}" if entry.level == "warning" else entry.text)
        case StepRecord():
            ends_epoch = entry.step % run.steps_per_epoch == 0  # its line follows at once
            return None if ends_epoch else _step(entry, run)
        case EpochRecord():
            return _epoch(entry, run)
        case EvalRecord():
            return _evaluation(entry)
        case _:
            return None


def left_text(entry: Pulse | StepRecord, run: RunInfo) -> str:
    """Return the speed of training, and the time that the rest of the run takes at this speed."""
    left = (run.total_steps - entry.step) * run.config.global_batch / max(entry.samples_per_s, 1e-9)
    return f"{rate(entry.samples_per_s)} samples/s  run: {duration(left)} left"


def progress_text(entry: Pulse | StepRecord, run: RunInfo) -> str:
    """Return the current step as a line that the next one replaces."""
    epochs = -(-run.total_steps // run.steps_per_epoch)
    scores = score_text(entry.score.by_name, most=2)
    return f"epoch {entry.epoch}/{epochs}  step {entry.step}/{run.total_steps}  {scores}  {left_text(entry, run)}"


def _step(entry: StepRecord, run: RunInfo) -> str:
    time = step_time(run.config.global_batch / max(entry.samples_per_s, 1e-9))
    scores = score_text(entry.score.by_name, most=2)
    return f"step {entry.step}/{run.total_steps}  {scores}  lr {entry.lr:.4g}  {time}/step  {left_text(entry, run)}"


def _epoch(entry: EpochRecord, run: RunInfo) -> str:
    total = -(-run.total_steps // run.steps_per_epoch)
    valid = "" if entry.valid is None else f"  |  valid {score_text(entry.valid.by_name)}"
    star = "  *" if entry.is_best else ""
    seconds = entry.train.samples / max(entry.samples_per_s, 1e-9)
    skipped = f"  |  {plural(entry.num_unreadable, 'image')} unreadable" if entry.num_unreadable else ""
    return (
        f"epoch {entry.epoch}/{total}  train {score_text(entry.train.by_name, most=2)}{valid}"
        f"  |  {rate(entry.samples_per_s)} samples/s, {duration(seconds)}{skipped}{star}"
    )


def _evaluation(entry: EvalRecord) -> str:
    star = "  *" if entry.is_best else ""
    some = f"{count(entry.score.samples)} of " if entry.score.samples < entry.split_samples else ""
    samples = some + plural(entry.split_samples, "sample")
    which = " (best checkpoint)" if entry.split == "test" else ""
    return f"{entry.split} at step {entry.step}{which}: {score_text(entry.score.by_name)}  over {samples}{star}"
