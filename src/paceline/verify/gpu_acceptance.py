"""Acceptance of a machine with GPUs: every mode for a few steps, each in new processes, as one table."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from paceline.core.errors import ConfigError
from paceline.core.stopping import KILL_VARIABLE
from paceline.launching.child import inherited, run_child
from paceline.records.folder import RunFolder
from paceline.records.phases import PhaseRecord, read_phases
from paceline.records.profile import ProfiledBucket, read_profile
from paceline.records.reader import read_environments

SHORT = {"--data": "digits", "--model": "cnn", "--steps": "6", "--global-batch": "64", "--track": "none"}
CLOCK_TOLERANCE = 0.05
"""Relative difference allowed between the time after the start and the sum of a rank's phases."""
HANG = """
import os, time
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.linear, self.calls = nn.Linear(64, num_classes), 0

    def forward(self, images):
        self.calls += self.training
        if self.calls == 3 and os.environ.get("RANK") == "1":
            time.sleep(3600)
        return self.linear(images.flatten(1))

def build(num_classes):
    return Net(num_classes)
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What one check found."""

    name: str
    problem: str | None
    seconds: float
    detail: str = ""
    """What was measured."""


class Acceptance:
    """Runs checks in a separate folder."""

    def __init__(self, folder: Path, environ: Mapping[str, str], device: str) -> None:
        self.folder = folder
        self.environ = inherited(environ)
        self.device = device
        self._details: dict[str, str] = {}

    def train(self, name: str, *more: str, **variables: str) -> tuple[int, str]:
        """Train for a few steps, and return the exit code and the output."""
        usual = [word for flag, value in SHORT.items() if flag not in more for word in (flag, value)]
        args = [
            "train",
            *usual,
            "--device",
            self.device,
            "--runs-dir",
            str(self.folder / "runs"),
            "--name",
            name,
            *more,
        ]
        log = self.folder / f"{name}-{variables.get('CUDA_VISIBLE_DEVICES', 'all')}.log"  # one per process
        return run_child(args, self.environ | variables, log)

    def must_train(self, name: str, *more: str) -> str | None:
        """Return the problem of a run that should finish."""
        code, output = self.train(name, *more)
        return None if code == 0 else f"exit code {code}: {_last_line(output)}"

    def same_bits(self) -> str | None:
        """Train bitwise on one GPU and on two, and compare every bit."""
        for number in ("1", "2"):
            problem = self.must_train(f"bitwise-{number}", "--exact", "bitwise", "--nproc", number)
            if problem is not None:
                return problem
        runs = [str(self.folder / "runs" / f"bitwise-{number}") for number in ("1", "2")]
        code, output = run_child(["compare", *runs], self.environ, self.folder / "compare.log")
        return None if code == 0 else f"the runs differ: {_last_line(output)}"

    def one_visible_each(self) -> str | None:
        """Start two ranks by hand, each of which sees one GPU, as with Slurm's --gpus-per-task=1."""
        address = f"file://{self.folder / 'rendezvous'}"

        def rank(index: int) -> tuple[int, str]:
            place = ("--rank", str(index), "--world-size", "2", "--init-method", address, "--local-rank", str(index))
            visible = self.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")[index]
            return self.train("visible", *place, CUDA_VISIBLE_DEVICES=visible)

        with ThreadPoolExecutor(2) as both:
            found = list(both.map(rank, range(2)))
        failed = [f"exit code {code}: {_last_line(output)}" for code, output in found if code]
        return failed[0] if failed else None

    def killed(self) -> str | None:
        """Kill rank 1 when it saves; the others must end, and the output must name it."""
        save = ("--save-every", "3 steps", "--nproc", "2", "--timeout", "60")
        code, output = self.train("killed", *save, **{KILL_VARIABLE: "1:3"})
        return None if code and "rank 1" in output else f"exit code {code}, and rank 1 is not named"

    def hung(self) -> str | None:
        """Let rank 1 hang in its third step; the others must end, and the output must name it."""
        (self.folder / "hang.py").write_text(HANG, encoding="utf-8")
        model = ("--model", f"{self.folder / 'hang.py'}:build")
        code, output = self.train("hung", *model, "--nproc", "2", "--timeout", "20")
        return None if code and "rank 1" in output else f"exit code {code}, and rank 1 is not named"

    def versions(self) -> str | None:
        """Return no problem if a run names its GPU and the libraries that it uses."""
        problem = self.must_train("versions")
        if problem is not None:
            return problem
        environment = read_environments(self._run("versions"))[-1]
        facts = {"torch": environment["packages"]["torch"]} | (environment.get("gpu") or {})
        self._details["versions"] = ", ".join(f"{name} {value}" for name, value in facts.items())
        missing = [name for name in ("device", "CUDA", "cuDNN", "NCCL") if not facts.get(name)]
        return f"environment.json has no {', '.join(missing)}" if missing else None

    def overlapped(self) -> str | None:
        """Measure whether gradients are averaged while the backward pass still computes."""
        problem = self.must_train("overlap", "--nproc", "2", "--profile", "--bucket-mb", "0.02")
        if problem is not None:
            return problem
        buckets = read_profile(self._run("overlap")).buckets
        self._details["overlap"] = _overlap_text(buckets)
        if len(buckets) < 2:
            return "the gradients are in one bucket"
        late = buckets[0].done_real - buckets[-1].ready_real
        return None if late < 0 else f"the first bucket was averaged {late * 1e3:.1f} ms after the last was ready"

    def clock_agrees(self) -> str | None:
        """Compare the phases of each rank, which events on the device measure, with the clock of the host."""
        problem = self.must_train("clock", "--nproc", "2", "--steps", "60")
        if problem is not None:
            return problem
        records = [record for record in read_phases(self._run("clock")) if isinstance(record, PhaseRecord)]
        if not records:
            return "phases.jsonl has no phases"
        found = [_measured_and_elapsed(records, rank) for rank in range(2)]
        self._details["clock"] = ", ".join(f"phases {measured:.2f} s of {elapsed:.2f} s" for measured, elapsed in found)
        wrong = [pair for pair in found if abs(pair[0] - pair[1]) > CLOCK_TOLERANCE * pair[1]]
        return f"the phases differ from the time by more than {CLOCK_TOLERANCE:.0%}" if wrong else None

    def _run(self, name: str) -> RunFolder:
        return RunFolder(self.folder / "runs" / name / "001")

    def checks(self) -> dict[str, Callable[[], str | None]]:
        """Return all checks by name."""
        two = ("--nproc", "2")
        settings = {
            "single": (),
            "fp16": ("--precision", "fp16"),
            "bf16": ("--precision", "bf16"),
            "ddp": (*two, "--check-replicas", "1"),
            "sync": (*two, "--batch-norm", "sync"),
            "ghost": (*two, "--batch-norm", "ghost"),
            "compress": (*two, "--compress", "bf16"),
            "profile": (*two, "--profile"),
            "dp": ("--mode", "dp", *two),
            "fsdp": ("--mode", "fsdp", *two),
        }
        runs = {name: _bound(self.must_train, name, more) for name, more in settings.items()}
        others = {
            "bitwise": self.same_bits,
            "visible": self.one_visible_each,
            "overlap": self.overlapped,
            "clock": self.clock_agrees,
            "kill": self.killed,
            "hang": self.hung,
        }
        return {"versions": self.versions} | runs | others

    def run(self, names: Sequence[str]) -> Iterator[Outcome]:
        """Run some checks, or all."""
        checks = self.checks()
        unknown = next((name for name in names if name not in checks), None)
        if unknown is not None:
            raise ConfigError(f"there is no check {unknown}", hint=f"checks are {', '.join(checks)}")
        for name in names or checks:
            start = time.monotonic()
            problem = checks[name]()
            detail = self._details.get(name, "")
            yield Outcome(name=name, problem=problem, seconds=time.monotonic() - start, detail=detail)


def outcome_line(outcome: Outcome) -> str:
    """Return a line of the table, which is printed while the checks run."""
    detail = f" ({outcome.detail})" if outcome.detail else ""
    return f"{outcome.name:10} {outcome.seconds:5.0f} s  {outcome.problem or 'ok'}{detail}"


def refuse_too_few(gpus: int) -> None:
    """Refuse a machine with fewer than two GPUs."""
    if gpus < 2:
        raise ConfigError(f"--gpu needs two GPUs, but {gpus} are visible", hint="use paceline doctor without --gpu")


def _overlap_text(buckets: Sequence[ProfiledBucket]) -> str:
    last = max((bucket.ready_real for bucket in buckets), default=0.0)
    hidden = sum(bucket.done_real < last for bucket in buckets)
    return f"{hidden} of {len(buckets)} buckets averaged before the last gradient"


def _measured_and_elapsed(records: Sequence[PhaseRecord], rank: int) -> tuple[float, float]:
    """Return the seconds of all phases of a rank, and those of the host's clock, both without the start."""
    phases = sum(each[rank] for record in records for name, each in record.phases.items() if name != "start")
    start = sum(record.phases["start"][rank] for record in records)
    return phases, sum(record.seconds[rank] for record in records) - start


def _bound(check: Callable[..., str | None], name: str, more: Sequence[str]) -> Callable[[], str | None]:
    return lambda: check(name, *more)


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip() and not line.strip().startswith("hint:")]
    return lines[-1] if lines else "no output"
