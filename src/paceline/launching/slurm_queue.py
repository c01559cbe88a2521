"""Submitting a job to Slurm, following it, requeueing it: the only module that runs sbatch, squeue and scontrol."""

import os
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from paceline.core.errors import PacelineError
from paceline.core.messages import say
from paceline.core.units import plural
from paceline.parallel.detect import slurm_requeues

SECONDS_BETWEEN_LOOKS = 2.0
PATIENCE = 30
"""Number of failing squeue calls in a row to tolerate, as while a controller restarts."""
FINAL = frozenset({
    "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "PREEMPTED",
    "REVOKED", "GONE",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class JobState:
    """The states of a job's tasks, and the reason why it waits."""

    states: tuple[str, ...]
    reason: str = ""

    @property
    def is_final(self) -> bool:
        """Tell whether the job is over."""
        return all(state in FINAL for state in self.states)

    @property
    def is_good(self) -> bool:
        """Tell whether every task succeeded; a job that Slurm no longer knows counts as successful."""
        return all(state in {"COMPLETED", "GONE"} for state in self.states)

    def __str__(self) -> str:
        counts = Counter(self.states)
        text = ", ".join(state if len(self.states) == 1 else f"{number} {state}" for state, number in counts.items())
        return f"{text} ({self.reason})" if self.reason and "PENDING" in counts else text


def submit_job(script: str) -> str:
    """Submit a script with sbatch and return the job id."""
    if shutil.which("sbatch") is None:
        raise PacelineError(
            "sbatch was not found on this machine",
            hint="run it on a login node of the cluster; to print the job script only: --dry-run",
        )
    answer = subprocess.run(["sbatch", "--parsable"], input=script, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        problem = answer.stderr.strip().removeprefix("sbatch: error: ")
        raise PacelineError(f"sbatch refused the job: {problem}", hint="to see the job script: --dry-run")
    return answer.stdout.strip().partition(";")[0]


def read_state(job: str) -> JobState | None:
    """Return the state of a job; None if Slurm does not answer."""
    args = ["squeue", "--noheader", "--array", "--states=all", f"--jobs={job}", "--format=%T|%r"]
    answer = subprocess.run(args, capture_output=True, text=True, check=False)
    if "Invalid job id" in answer.stderr:
        return JobState(("GONE",))
    if answer.returncode != 0:
        return None
    lines = [line.split("|", 1) for line in answer.stdout.splitlines() if "|" in line]
    if not lines:
        return JobState(("GONE",))
    reasons = {reason for _, reason in lines} - {"None"}
    return JobState(tuple(state for state, _ in lines), ", ".join(sorted(reasons)))


def changes(
    job: str, look: Callable[[str], JobState | None] = read_state, pause: float = SECONDS_BETWEEN_LOOKS
) -> Iterator[JobState | None]:
    """Yield the job's state whenever it has changed, and None at every other poll, until it is over."""
    before = None
    silent = 0
    while before is None or not before.is_final:
        state = look(job)
        silent = silent + 1 if state is None else 0
        if silent > PATIENCE:
            raise PacelineError(
                f"Slurm has not answered {plural(silent, 'time')} in a row",
                hint=f"the job may still be running; to check: squeue -j {job}",
            )
        yield None if state == before else state
        before = state or before
        if before is None or not before.is_final:
            time.sleep(pause)


class Tail:
    """Reads the lines added to a file since the last read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._place = 0

    def read(self) -> str:
        """Return the new complete lines; empty if there is no file."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._place)
                text = file.read()
        except OSError:
            return ""
        whole = text[: text.rfind(b"\n") + 1]
        self._place += len(whole)
        return whole.decode(errors="replace")


def requeue_job(job: str, *, max_requeues: int) -> None:
    """Requeue this job, at most `max_requeues` times: a job that makes no progress must end."""
    turns = slurm_requeues(os.environ)
    try:
        if turns >= max_requeues:
            problem = f"it was requeued {plural(turns, 'time')}, and --max-requeues is {max_requeues}"
        else:
            answer = subprocess.run(["scontrol", "requeue", job], capture_output=True, text=True, check=False)
            problem = answer.stderr.strip()
    except OSError as cause:
        problem = f"scontrol: {cause.strerror}"
    if problem:
        say(f"job {job} was not requeued: {problem}")
