"""Auditing a command: run it for a few steps with the evidence attached, then judge."""

import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from paceline.audit.evidence import Evidence
from paceline.audit.finding import Finding
from paceline.audit.judge import judge_evidence
from paceline.core.errors import PacelineError
from paceline.core.units import duration, plural
from paceline.observe.attachment import Attachment, end_processes, run_attached
from paceline.observe.journals import CommandJournals, ProcessJournal, read_journals

ATTACHED = Path(__file__).parent / "attached"
LAUNCHERS = frozenset({"torchrun", "torch.distributed.run", "torch.distributed.launch"})
NPROC = re.compile(r"--nproc[-_]per[-_]node(=.*)?$")
ERROR = re.compile(r"(\[rank\d+\]: )?([\w.]*(Error|Exception)\b|\S+: error: )")
"""The line of a traceback, or of argparse, that says what is wrong."""
CONSEQUENCE = "ChildFailedError"
"""What torchrun says after any failure of a rank."""
SECONDS_OF_HANG = 4.0
SECONDS_BETWEEN_LOOKS = 2.0
LARGEST_OUTPUT = 50_000_000
TAIL = 16_000


class CannotAuditError(PacelineError):
    """The command never reached a training step, so there is nothing to judge."""

    exit_code = 2


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """How much of a script to run, and for how long."""

    ranks: int = 2
    batches: int = 6
    limit: float = 300.0
    """Seconds."""
    on_cpu: bool | None = None
    """Run CUDA calls on the CPU; None if the script mentions CUDA."""
    compare: bool = False
    """Run the command with one rank too."""
    batch_factor: int = 1
    """What the batch size of every loader is multiplied by."""


@dataclass(frozen=True, kw_only=True)
class AuditedRun:
    """What an audit found."""

    command: Sequence[str]
    code: int
    ending: str
    """Why the command was ended or failed; empty if it ran to the end of the audit."""
    steps: list[int]
    findings: list[Finding]
    num_silenced: int
    evidence: Evidence
    output: str


def audit(command: Sequence[str], options: AuditOptions, tell: Callable[[str], None]) -> AuditedRun:
    """Run a command for a few steps and judge what it did; `tell` receives the progress."""
    command = with_ranks(command, options.ranks)
    journals = Path(tempfile.mkdtemp(prefix="paceline-audit-"))
    try:
        with tempfile.TemporaryFile() as output:
            watch = _Watch(journals, options.limit, output, tell)
            on_cpu = _mentions_cuda(command) if options.on_cpu is None else options.on_cpu
            environ = _environment(journals, options, on_cpu=on_cpu)
            code = run_attached(command, environ, output=output, watch=watch)
            end_processes(journals)
            text = _tail(output)
        evidence = Evidence(journals=read_journals(journals), code=code, folder=str(Path.cwd()))
    finally:
        end_processes(journals)
        shutil.rmtree(journals, ignore_errors=True)
    return _audited(command, evidence, watch.ending or failure(evidence), text)


def _audited(command: Sequence[str], evidence: Evidence, ending: str, text: str) -> AuditedRun:
    judgement = judge_evidence(evidence)
    run = AuditedRun(
        command=command,
        code=evidence.code,
        ending=ending,
        steps=evidence.steps,
        findings=judgement.findings,
        num_silenced=judgement.num_silenced,
        evidence=evidence,
        output=text,
    )
    if not any(run.steps) and not any(finding.level == "wrong" for finding in run.findings):
        raise CannotAuditError(*_why_nothing(run))
    return run


def with_ranks(command: Sequence[str], ranks: int) -> list[str]:
    """Return the command with this number of ranks: a script alone is started by torchrun."""
    if command[0].endswith(".py"):
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        return [*launcher, f"--nproc-per-node={ranks}", *command]
    words = list(command)
    place = next((i for i, word in enumerate(words) if Path(word).name in LAUNCHERS), None)
    if place is None:
        return words
    for i, word in enumerate(words):
        found = NPROC.match(word)
        if found and found[1] is None and i + 1 < len(words):
            return [*words[: i + 1], str(ranks), *words[i + 2 :]]
        if found:
            return [*words[:i], f"{word.partition('=')[0]}={ranks}", *words[i + 1 :]]
    return [*words[: place + 1], f"--nproc-per-node={ranks}", *words[place + 1 :]]


def _mentions_cuda(command: Sequence[str]) -> bool:
    """Tell whether the script, or a Python file beside it, mentions CUDA or NCCL."""
    script = next((Path(word) for word in command if word.endswith(".py")), None)
    files = [Path(script)] if script is not None else []
    files += list((script.parent if script is not None else Path()).glob("*.py"))[:50]
    texts = (file.read_text(encoding="utf-8", errors="replace") for file in files if file.is_file())
    return script is None or any(word in text for text in texts for word in ("cuda", "nccl", "torch.accelerator"))


def _environment(journals: Path, options: AuditOptions, *, on_cpu: bool) -> dict[str, str]:
    variables = {
        "_PACELINE_PART": "paceline_audit.collectors",
        "_PACELINE_EARLY": "paceline_audit.early",
        "_PACELINE_BATCHES": str(options.batches),
        "_PACELINE_DEVICES": str(options.ranks),
        "_PACELINE_BATCH_FACTOR": str(options.batch_factor),
        "_PACELINE_ON_CPU": "1" if on_cpu else "",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "PYTHONUNBUFFERED": "1",
    }
    return Attachment(journals=journals, variables=variables, folders=[ATTACHED]).environment(os.environ)


@dataclass
class _Watch:
    """Ends a command that hangs, takes too long or prints without end; tells how far it is."""

    journals: Path
    limit: float
    output: IO[bytes]
    tell: Callable[[str], None]
    ending: str = ""
    _start: float = field(default_factory=time.monotonic)
    _looked: float = 0.0
    _hanging_since: float | None = None

    def __call__(self) -> bool:
        now = time.monotonic()
        if now - self._looked < SECONDS_BETWEEN_LOOKS:
            return False
        self._looked = now
        seconds, found = now - self._start, read_journals(self.journals)
        steps = max((len(rank.of("step")) for rank in found.ranks.values()), default=0)
        self.tell(f"{duration(seconds)}: {plural(len(found.ranks), 'rank')}, {plural(steps, 'step')}")
        self._note_hang(found, now)
        if seconds > self.limit:
            self.ending = f"ended after --limit {self.limit:g} seconds"
        elif os.fstat(self.output.fileno()).st_size > LARGEST_OUTPUT:
            self.ending = f"ended because it printed more than {LARGEST_OUTPUT // 10**6} MB"
        elif self._hanging_since is not None and now - self._hanging_since > SECONDS_OF_HANG:
            self.ending = "ended because its ranks wait for each other"
        return bool(self.ending)

    def _note_hang(self, found: CommandJournals, now: float) -> None:
        """Note since when every rank is stuck or gone."""
        ends = [_is_waiting(rank) for rank in found.ranks.values()]
        is_hanging = bool(ends) and None not in ends and True in ends
        self._hanging_since = (self._hanging_since or now) if is_hanging else None


def _is_waiting(rank: ProcessJournal) -> bool | None:
    """Tell whether a rank waits for others (True), has ended (False) or works (None)."""
    kinds = [line["kind"] for line in rank.lines if line["kind"] in {"stuck", "unstuck", "failed", "exit", "done"}]
    if not kinds or kinds[-1] == "unstuck":
        return None
    return kinds[-1] == "stuck"


def _tail(output: IO[bytes]) -> str:
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - TAIL))
    return output.read().decode(errors="replace")


def failure(evidence: Evidence) -> str:
    """Return how the script failed, empty if it did not."""
    lines = [line for lines in evidence.of("failed") for line in lines]
    if lines:
        line = min(lines, key=lambda line: line["time"])
        place = f" at {Path(line['stack'][0]).name}" if line["stack"] else ""
        message = line["message"].strip().splitlines()
        return f"the script failed with {line['error']}{place}: {message[0][:120] if message else ''}"
    return "" if evidence.code == 0 else f"the command ended with exit code {evidence.code}"


def _why_nothing(run: AuditedRun) -> tuple[str]:
    """Return why there is nothing to judge, with the last lines of the output."""
    journals: Mapping[int, ProcessJournal] = run.evidence.ranks
    if run.ending:
        reason = run.ending
    elif not journals and not run.evidence.journals.others:
        reason = "no Python process imported torch"
    else:
        reason = "the script ended without a step of an optimizer of torch.optim"
    lines = [line for line in run.output.strip().splitlines() if line.strip()]
    errors = [line for line in lines if ERROR.match(line) and CONSEQUENCE not in line]
    last = (list(dict.fromkeys(errors)) or lines)[-5:]
    shown = "".join(f"\n  | {line[:160]}" for line in last)
    return (f"no training step was seen: {reason}{shown}",)
