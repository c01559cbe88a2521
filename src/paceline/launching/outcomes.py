"""Files in which ranks report to their launcher how they ended: failures, stops, and the result of a run."""

import json
import os
import socket
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paceline.core.errors import ExitCode, LostRankError, PacelineError
from paceline.core.first_cause import VERBOSE_VARIABLE, describe_exception, first_cause
from paceline.core.metrics import Scores
from paceline.parallel.detect import torchrun_rank
from paceline.records.entries import RunResult, State
from paceline.records.writer import replacing, write_json

REPORTS_VARIABLE = "_PACELINE_REPORTS"
"""Names the folder for reports; starts with an underscore because it is not a setting."""

STDERR = "_PACELINE_STDERR"
"""Names the file that ranks and the agent open as their standard error."""

SHOW_ALL = "--verbose shows the whole traceback"

EVERY_RUN = ("/cyclopts/", "/paceline/cli.py", "/paceline/commands/", "/torch/nn/modules/module.py")


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """How one rank ended."""

    rank: int
    host: str
    time: float
    exit_code: int
    message: str
    """The message for the user; empty if the rank saved and stopped."""
    hint: str | None = None
    trace: str | None = None
    """The lines of the user's code, or the traceback, for problems that are not explained by their message."""
    where: str = ""
    """The rank and its last step."""
    attempt: int = 0
    """Number of restarts of the ranks so far."""
    follows: bool = False
    """Whether it ended because another rank was lost."""


def report_failure(problem: BaseException, environ: Mapping[str, str]) -> bool:
    """Report a failure to the launcher; False if there is no launcher."""
    known = problem if isinstance(problem, PacelineError) else None
    message = describe_exception(problem) if known is None else known.message
    hint, trace = (None, _trace(problem)) if known is None else (known.hint, None)
    cause = first_cause(problem) if known is None and VERBOSE_VARIABLE not in environ else None
    if cause is not None:
        hint, trace = SHOW_ALL, "\n".join(f"  {place}" for place in cause.places)
    return _write_report(
        environ,
        exit_code=ExitCode.FAILED if known is None else known.exit_code,
        message=message,
        hint=hint,
        trace=trace,
        where=" ".join(note for note in getattr(problem, "__notes__", []) if not note.startswith("hint: ")),
        follows=isinstance(problem, LostRankError),
    )


def report_stop(signal: int, environ: Mapping[str, str]) -> bool:
    """Report to the launcher that the rank saved and stopped because of a signal."""
    return _write_report(environ, exit_code=128 + signal, message="", hint=None, trace=None, where="")


def read_reports(folder: Path) -> list[Report]:
    """Return all reports, the earliest first; consequences of another rank's failure come last."""
    reports = [Report(**json.loads(path.read_text(encoding="utf-8"))) for path in folder.glob("*.json")]
    return sorted(reports, key=lambda report: (report.follows, report.time))


def forget_stops(folder: Path) -> None:
    """Remove the reports of ranks that stopped: they have started again, on other nodes."""
    for path in folder.glob("*.json"):
        if json.loads(path.read_text(encoding="utf-8"))["exit_code"] > 128:
            path.unlink()


def _trace(problem: BaseException) -> str:
    """Return the traceback without the frames that are the same in every run."""
    text = traceback.TracebackException.from_exception(problem)
    frames = [frame for frame in text.stack if not any(part in frame.filename for part in EVERY_RUN)]
    text.stack = traceback.StackSummary.from_list(frames)
    return "".join(text.format())


def _write_report(environ: Mapping[str, str], **facts: object) -> bool:
    folder = environ.get(REPORTS_VARIABLE)
    if folder is None or not Path(folder).is_dir():
        return False
    rank, attempt = torchrun_rank(environ)
    values: Any = {"rank": rank, "attempt": attempt, "host": socket.gethostname(), "time": time.time()} | facts
    report = Report(**values)
    path = Path(folder) / f"{rank}-{os.getpid()}.json"
    with replacing(path, durable=False) as scratch:
        scratch.write_text(json.dumps(asdict(report)), encoding="utf-8")
    return True


def write_result(path: Path, result: RunResult) -> None:
    """Write a result so that `read_result` gives it back."""
    write_json(path, asdict(result) | {"folder": str(result.folder)})


def read_result(path: Path) -> RunResult:
    """Read the result that the lead wrote."""
    values = json.loads(path.read_text(encoding="utf-8"))
    scores = {key: None if values[key] is None else Scores.from_dict(values[key]) for key in ("best", "test")}
    return RunResult(**(values | scores | {"folder": Path(values["folder"]), "state": State(values["state"])}))
