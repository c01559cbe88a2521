"""The terminal: a progress bar for people, one clean line per interval for log files."""

from collections.abc import Callable
from logging import INFO, WARNING
from typing import Any, TextIO

from paceline.core.messages import log, shows_progress
from paceline.core.score_text import score_text
from paceline.records.entries import Entry, Note, Pulse, RunResult, StepRecord
from paceline.trackers.base import RunInfo
from paceline.trackers.lines import as_line, left_text, progress_text

WIDE = 90
"""Columns of a terminal from which the bar also shows the scores."""


class Plain:
    """Lines to a file or pipe."""

    name = "console"

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._run: RunInfo

    def open(self, run: RunInfo) -> None:
        """Store the facts about the run."""
        self._run = run

    def record(self, entry: Entry) -> None:
        """Write the record's line at once, so that a follower of the file sees it."""
        log_record(entry, self._run, self._show)

    def _show(self, line: str) -> None:
        print(line, file=self._stream, flush=True)

    def close(self, result: RunResult | None) -> None:
        """Do nothing."""


class Quiet(Plain):
    """Warnings, and one line with the result."""

    def record(self, entry: Entry) -> None:
        """Write the line of a warning only."""
        if isinstance(entry, Note) and entry.level == "warning":
            super().record(entry)

    def close(self, result: RunResult | None) -> None:
        """Write the result; a failed run ends with its error."""
        if result is not None:
            print(str(result).strip("<>").removeprefix("RunResult "), file=self._stream, flush=True)


class Notebook(Plain):
    """Lines in a notebook, the last of which shows the current step; a notebook obeys carriage returns."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._width = 0

    def record(self, entry: Entry) -> None:
        """Rewrite the last line, or print a line above it."""
        if isinstance(entry, Pulse | StepRecord) and shows_progress():
            self._rewrite(progress_text(entry, self._run))
        else:
            super().record(entry)

    def close(self, result: RunResult | None) -> None:
        """Remove the last line."""
        self._rewrite("")

    def _show(self, line: str) -> None:
        self._rewrite("")
        super()._show(line)

    def _rewrite(self, text: str) -> None:
        if text or self._width:
            print(f"\r{' ' * self._width}\r{text}", end="", file=self._stream, flush=True)
        self._width = len(text)


class Live:
    """A progress bar over the epoch, with the log lines above it."""

    name = "console"

    def __init__(self) -> None:
        self._run: RunInfo
        self._bar: Any = None
        self._console: Any = None
        self._task: Any = None
        self._epoch = -1

    def open(self, run: RunInfo) -> None:
        """Find the terminal."""
        from rich.console import Console  # noqa: PLC0415 - a rank without a terminal never needs it

        self._run = run
        self._console = Console(highlight=False, soft_wrap=True)

    def record(self, entry: Entry) -> None:
        """Move the bar, or print a line above it."""
        if isinstance(entry, Pulse | StepRecord) and shows_progress():
            self._move(entry)
        else:
            log_record(entry, self._run, self._show)

    def _show(self, line: str) -> None:
        style = "yellow" if line.startswith("warning:") else None
        self._console.print(line, style=style, markup=False)

    def close(self, result: RunResult | None) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _move(self, entry: Pulse | StepRecord) -> None:
        bar = self._bar or self._start(entry.epoch)
        first = (entry.epoch - 1) * self._run.steps_per_epoch
        total = min(self._run.steps_per_epoch, self._run.total_steps - first)
        if entry.epoch != self._epoch:
            bar.reset(self._task, total=total)
            self._epoch = entry.epoch
        most = 2 if self._console.width >= WIDE else 0
        text = "  ".join(
            part for part in (score_text(entry.score.by_name, most=most), left_text(entry, self._run)) if part
        )
        bar.update(self._task, completed=entry.step - first, epoch=entry.epoch, text=text, refresh=True)

    def _start(self, epoch: int) -> Any:
        from rich import progress  # noqa: PLC0415 - see open

        epochs = -(-self._run.total_steps // self._run.steps_per_epoch)
        bar = progress.Progress(
            progress.TextColumn(f"epoch {{task.fields[epoch]}}/{epochs}"),
            progress.BarColumn(bar_width=24 if self._console.width >= WIDE else 8),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[text]}"),
            console=self._console,
            auto_refresh=False,
            transient=True,
        )
        self._task = bar.add_task("train", total=self._run.steps_per_epoch, epoch=epoch, text="")
        bar.start()
        self._bar = bar
        return bar


def log_record(entry: Entry, run: RunInfo, show: Callable[[str], None]) -> None:
    """Log the line of a record, which the console shows with `show`; a logger tells warnings by their level."""
    line = as_line(entry, run)
    if line is not None:
        is_warning = isinstance(entry, Note) and entry.level == "warning"
        log(WARNING if is_warning else INFO, line.removeprefix("warning: ") if is_warning else line, lambda: show(line))


def console_for(stream: TextIO) -> Plain | Live:
    """Return the console for the stream: a progress bar on a terminal, a live line in a notebook, otherwise lines."""
    if type(stream).__module__.startswith("ipykernel."):
        return Notebook(stream)
    return Live() if stream.isatty() else Plain(stream)
