"""What ranks leave for the launcher that started them: how each of them ended."""

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

VARIABLE = "_PACELINE_REPORTS"
"""Names the folder for reports; starts with an underscore because it is no setting."""

EVERY_RUN = ("/cyclopts/", "/paceline/cli.py", "/paceline/commands/", "/torch/nn/modules/module.py")


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """The end of one rank."""

    rank: int
    host: str
    time: float
    exit_code: int
    message: str
    """What to tell the user; empty when the rank stopped in good order."""
    hint: str | None = None
    trace: str | None = None
    """The traceback, for problems that are not explained by their message."""
    where: str = ""
    """How far the rank had come."""
    attempt: int = 0
    """How often the ranks had been started again."""
    follows: bool = False
    """Whether it ended because another rank had gone."""


def report_failure(problem: BaseException, environ: Mapping[str, str]) -> bool:
    """Leave word of a failure for the launcher; False when there is none to read it."""
    known = problem if isinstance(problem, PacelineError) else None
    message = f"{type(problem).__name__}: {problem}" if known is None else known.message
    return _leave(
        environ,
        exit_code=ExitCode.FAILED if known is None else known.exit_code,
        message=message,
        hint=None if known is None else known.hint,
        trace=_trace(problem) if known is None else None,
        where=" ".join(getattr(problem, "__notes__", [])),
        follows=isinstance(problem, LostRankError),
    )


def report_stop(signal: int, environ: Mapping[str, str]) -> bool:
    """Leave word that the rank stopped in good order because of a signal."""
    return _leave(environ, exit_code=128 + signal, message="", hint=None, trace=None, where="")


def read_reports(folder: Path) -> list[Report]:
    """Return all reports, the earliest first; those that followed from another rank's come last."""
    reports = [Report(**json.loads(path.read_text(encoding="utf-8"))) for path in folder.glob("*.json")]
    return sorted(reports, key=lambda report: (report.follows, report.time))


def _trace(problem: BaseException) -> str:
    """Return the traceback without the frames that are the same in every run."""
    text = traceback.TracebackException.from_exception(problem)
    frames = [frame for frame in text.stack if not any(part in frame.filename for part in EVERY_RUN)]
    text.stack = traceback.StackSummary.from_list(frames)
    return "".join(text.format())


def _leave(environ: Mapping[str, str], **facts: object) -> bool:
    folder = environ.get(VARIABLE)
    if folder is None or not Path(folder).is_dir():
        return False
    rank = int(environ.get("RANK", "0"))
    attempt = int(environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    values: Any = {"rank": rank, "attempt": attempt, "host": socket.gethostname(), "time": time.time()} | facts
    report = Report(**values)
    path = Path(folder) / f"{rank}-{os.getpid()}.json"
    scratch = path.with_suffix(".partial")
    scratch.write_text(json.dumps(asdict(report)), encoding="utf-8")
    scratch.replace(path)
    return True
