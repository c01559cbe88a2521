"""Acceptance of a machine with GPUs: every mode for a few steps, each in new processes, as one table."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from paceline.core.errors import ConfigError
from paceline.core.stopping import KILL_VARIABLE
from paceline.launching.child import inherited, run_child

SHORT = ("--data", "digits", "--model", "cnn", "--steps", "6", "--global-batch", "64", "--track", "none")
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


class Acceptance:
    """Runs checks in a folder of their own."""

    def __init__(self, folder: Path, environ: Mapping[str, str], device: str) -> None:
        self.folder = folder
        self.environ = inherited(environ)
        self.device = device

    def train(self, name: str, *more: str, **variables: str) -> tuple[int, str]:
        """Train for a few steps, and return the exit code and the output."""
        model = () if "--model" in more else SHORT[2:4]
        args = ["train", *SHORT[:2], *model, *SHORT[4:], "--device", self.device]
        args += ["--runs-dir", str(self.folder / "runs"), "--name", name, *more]
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
        others = {"bitwise": self.same_bits, "visible": self.one_visible_each, "kill": self.killed, "hang": self.hung}
        return runs | others

    def run(self, names: Sequence[str]) -> Iterator[Outcome]:
        """Run some checks, or all."""
        checks = self.checks()
        unknown = next((name for name in names if name not in checks), None)
        if unknown is not None:
            raise ConfigError(f"there is no check {unknown}", hint=f"checks are {', '.join(checks)}")
        for name in names or checks:
            start = time.monotonic()
            yield Outcome(name=name, problem=checks[name](), seconds=time.monotonic() - start)


def outcome_line(outcome: Outcome) -> str:
    """Return a line of the table, which is printed while the checks run."""
    return f"{outcome.name:10} {outcome.seconds:5.0f} s  {outcome.problem or 'ok'}"


def refuse_too_few(gpus: int) -> None:
    """Refuse a machine with fewer than two GPUs."""
    if gpus < 2:
        raise ConfigError(f"--gpu needs two GPUs, but {gpus} are visible", hint="use paceline doctor without --gpu")


def _bound(check: Callable[..., str | None], name: str, more: Sequence[str]) -> Callable[[], str | None]:
    return lambda: check(name, *more)


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip() and not line.strip().startswith("hint:")]
    return lines[-1] if lines else "no output"
