"""The faults that `lab.chaos` draws on a real Slurm: jobs that are warned, queued again, cancelled, or lose a rank."""

import re
import secrets
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lab.chaos_faults import MARK, Target
from lab.chaos_trial import Trial, differences
from lab.environment import child_environment
from lab.runs import PACELINE
from paceline.records.reader import run_state

if TYPE_CHECKING:
    from lab.chaos import Campaign

MOST_JOBS = 3
SECONDS_PER_JOB = 150
"""Longest time of a job, with the minute that Slurm takes to queue one again and to notice its end."""
Strike = Callable[["Job"], str | None]


class Job:
    """A training that Slurm runs."""

    def __init__(self, campaign: "Campaign", target: Target) -> None:
        assert campaign.slurm is not None
        self.slurm, self.target, self.random = campaign.slurm, target, campaign.random
        self.environment = child_environment(SLURM_CONF=str(self.slurm.folder / "slurm.conf"), **{MARK: target.token})
        self.number = ""

    def submit(self, *words: object) -> None:
        """Submit the training."""
        command = (*PACELINE, "submit", "--nodes=2", "--no-follow", "--", "train", *words)
        answer = self.slurm.run(*command, cwd=self.target.folder, env=self.environment)
        found = re.search(r"^submitted job (\d+)$", answer.stdout, re.MULTILINE)
        assert found is not None, answer
        self.number = found[1]

    def scontrol(self, *words: str) -> None:
        """Run a command of Slurm about the job."""
        self.slurm.run(*words, self.number)

    def is_over(self) -> bool:
        """Tell whether the job has ended and will not run again."""
        self.slurm.start_waiting_jobs()
        return self.slurm.is_in(self.number, "COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT")


def slurm_trial(campaign: "Campaign", name: str) -> Trial:
    """Submit a training, strike once, submit it again where it has ended early, and check the end."""
    trial = Trial(name=name, after=campaign.random.uniform(0, campaign.seconds))
    folder = campaign.folder / secrets.token_hex(4)
    folder.mkdir()
    target = Target(folder, secrets.token_hex(8), None)
    job = Job(campaign, target)
    job.submit(*campaign.work)
    time.sleep(trial.after)
    while trial.did is None and not job.is_over():
        trial.did = ON_SLURM[name](job)
        time.sleep(0.2)
    _finish(trial, job, campaign.work)
    if not trial.problems:
        assert target.run is not None
        trial.problems += differences(campaign.undisturbed, target.run)
    trial.problems += ["traceback"] if "Traceback" in _outputs(folder) else []
    deadline = time.monotonic() + 15
    while target.processes() and time.monotonic() < deadline:
        time.sleep(0.2)
    trial.problems += [f"orphan: {' '.join(each.cmdline())[:80]}" for each in target.processes()]
    return trial


def _finish(trial: Trial, job: Job, work: Sequence[str]) -> None:
    """Wait for the job, and submit the training again until the run has finished."""
    run = None
    while True:
        deadline = time.monotonic() + SECONDS_PER_JOB
        while not job.is_over() and time.monotonic() < deadline:
            time.sleep(0.5)
        if not job.is_over():
            trial.problems.append(f"job {job.number} is not over: {job.slurm.state(job.number)}")
            job.scontrol("scancel")
            return
        run = job.target.run
        if run is not None and run_state(run) == "FINISHED":
            return
        if trial.starts == MOST_JOBS:
            trial.problems.append(f"not finished after {MOST_JOBS} jobs: {_outputs(job.target.folder)[-400:]}")
            return
        trial.starts += 1
        job.submit(*(["--resume", run.path] if run else work))


def _outputs(folder: Path) -> str:
    return "\n".join(path.read_text(errors="replace") for path in folder.glob("*.out"))


def _runs(job: Job) -> bool:
    return "RUNNING" in job.slurm.state(job.number)


def notice(job: Job) -> str | None:
    """Warn the job of its time limit: it saves, and queues itself again."""
    if not _runs(job):
        return None
    job.scontrol("scancel", "--signal=USR1")
    return "SIGUSR1 to the job"


def requeue(job: Job) -> str | None:
    """Queue the job again, as an operator or a job of higher priority does."""
    if not _runs(job):
        return None
    job.scontrol("scontrol", "requeue")
    return "queued again"


def cancel(job: Job) -> str | None:
    """Cancel the job."""
    job.scontrol("scancel")
    return "cancelled"


def kill_a_rank(job: Job) -> str | None:
    """Kill one rank."""
    ranks = [each for each in job.target.processes() if "SLURM_PROCID" in each.environ() and "python" in each.name()]
    if not ranks:
        return None
    job.random.choice(ranks).send_signal(signal.SIGKILL)
    return "SIGKILL to a rank"


ON_SLURM: dict[str, Strike] = {
    "slurm: notice": notice,
    "slurm: queued again": requeue,
    "slurm: cancelled": cancel,
    "slurm: kill a rank": kill_a_rank,
}
