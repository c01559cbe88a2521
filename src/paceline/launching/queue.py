"""Handing a job to Slurm and following it: the only module that runs sbatch and squeue."""

import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from paceline.core.errors import PacelineError
from paceline.core.units import plural

SECONDS_BETWEEN_LOOKS = 2.0
PATIENCE = 30
"""How many failing squeue calls in a row to forgive: a controller that restarts is away for a while."""
FINAL = frozenset({
    "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "PREEMPTED",
    "REVOKED", "GONE",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class JobState:
    """Where a job stands: the states of its tasks, and why it waits."""

    states: tuple[str, ...]
    reason: str = ""

    @property
    def is_final(self) -> bool:
        """Tell whether nothing more will happen."""
        return all(state in FINAL for state in self.states)

    @property
    def is_good(self) -> bool:
        """Tell whether every task ended well; a job that has left Slurm's memory is believed to have."""
        return all(state in {"COMPLETED", "GONE"} for state in self.states)

    def __str__(self) -> str:
        counts = Counter(self.states)
        text = ", ".join(state if len(self.states) == 1 else f"{number} {state}" for state, number in counts.items())
        return f"{text} ({self.reason})" if self.reason and "PENDING" in counts else text


def submit_job(script: str) -> str:
    """Give a script to sbatch and return the number of the job."""
    if shutil.which("sbatch") is None:
        raise PacelineError(
            "sbatch is not on this machine, so there is no Slurm to submit to",
            hint="log in to the cluster and run it there; --dry-run prints the job's text anywhere",
        )
    answer = subprocess.run(["sbatch", "--parsable"], input=script, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        problem = answer.stderr.strip().removeprefix("sbatch: error: ")
        raise PacelineError(f"sbatch refused the job: {problem}", hint="--dry-run shows what was submitted")
    return answer.stdout.strip().partition(";")[0]


def read_state(job: str) -> JobState | None:
    """Ask Slurm where a job stands; None when it does not answer just now."""
    words = ["squeue", "--noheader", "--array", "--states=all", f"--jobs={job}", "--format=%T|%r"]
    answer = subprocess.run(words, capture_output=True, text=True, check=False)
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
    """Yield the job's state whenever it is another one, and None at every other look, until it is over."""
    before = None
    silent = 0
    while before is None or not before.is_final:
        state = look(job)
        silent = silent + 1 if state is None else 0
        if silent > PATIENCE:
            raise PacelineError(
                f"Slurm has not answered {plural(silent, 'time')} in a row",
                hint=f"the job may still run: squeue -j {job}",
            )
        yield None if state == before else state
        before = state or before
        if before is None or not before.is_final:
            time.sleep(pause)


class Tail:
    """What a growing file has gained since the last look."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._place = 0

    def read(self) -> str:
        """Return the new text, whole lines only, nothing while there is no file."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._place)
                text = file.read()
        except OSError:
            return ""
        whole = text[: text.rfind(b"\n") + 1]
        self._place += len(whole)
        return whole.decode(errors="replace")
