"""A campaign of random faults: they strike `paceline train` at random times, and the run must end with the same bits.

    python -m lab.chaos --faults 100 --seed 7          # as root, for a small disk and several hosts

A trial ends well if the run finishes, restarted by its launcher or with `--resume`; its last checkpoint has the bits of
an undisturbed run; its records count every sample of every epoch once; no process and no partial file is left; and no
wait exceeded the timeout by more than ten seconds beyond the time that an undisturbed run takes.
"""

import argparse
import contextlib
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from lab import cluster
from lab.chaos_faults import ELASTIC, MARK, ON_ONE_HOST, ON_TWO_HOSTS, Fault, Target, is_root, undo
from lab.chaos_slurm import ON_SLURM, slurm_trial
from lab.chaos_trial import Trial, differences, line_of
from lab.cluster import Slurm
from lab.environment import child_environment
from lab.hosts import Hosts, why_not
from lab.runs import PACELINE
from paceline.records.folder import RunFolder
from paceline.records.reader import read_rank, run_state

TIMEOUT = 10
"""Seconds of --timeout: a hang is noticed after it."""
SLACK = 10
MOST_STARTS = 4
LATE = 120
"""Seconds beyond the limit after which a run counts as hung; before, it is late, as on a busy machine."""
PATIENCE = 30
"""Seconds that nodes of an elastic job wait for each other and for their store, which start on a busy machine."""
LATEST = 0.7
"""The latest time of a fault, as a fraction of an undisturbed run: later ones would often find nothing to strike."""
DISK = "24m"
WORK = (
    "--model=mlp", "--data=digits", "--exact=bitwise", "--steps=600", "--save-every=20 steps", "--threads=1",
    "--device=cpu", "--track=none", "--log-every=50", f"--timeout={TIMEOUT}",
)  # fmt: skip


class Campaign:
    """Trains once undisturbed, then strikes the same training again and again."""

    work = WORK

    def __init__(self, folder: Path, random: Random, hosts: Hosts | None) -> None:
        self.folder, self.random, self.hosts = folder, random, hosts
        self.slurm: Slurm | None = None
        self.undisturbed, self.seconds = self._undisturbed()

    def _undisturbed(self) -> tuple[RunFolder, float]:
        target = Target(self.folder / "undisturbed", secrets.token_hex(8), None)
        target.folder.mkdir()
        began = time.monotonic()
        code, _, output = self._wait(target, self._start(target, resume=False), began + 300)
        assert code == 0, output
        assert target.run is not None
        return target.run, time.monotonic() - began

    def trial(self, name: str, fault: Fault, *, latest: float = LATEST) -> Trial:
        """Train, strike once, resume until the run has finished, and check the end.

        `latest` is the latest time of the fault, as a fraction of an undisturbed run.
        """
        trial = Trial(name=name, after=self.random.uniform(0, latest * self.seconds))
        hosts = self.hosts if name in ON_TWO_HOSTS | ELASTIC else None
        with _small_disk(self.folder / secrets.token_hex(4)) as folder:
            target = Target(folder, secrets.token_hex(8), hosts, is_elastic=name in ELASTIC)
            try:
                self._survive(trial, target, fault)
                if not trial.problems:
                    assert target.run is not None
                    trial.problems += differences(self.undisturbed, target.run)
            finally:
                for process in target.processes():
                    trial.problems.append(f"process {process.pid} was left")
                    process.kill()
        return trial

    def _survive(self, trial: Trial, target: Target, fault: Fault) -> None:
        processes = self._start(target, resume=False)
        time.sleep(trial.after)
        struck, before = time.monotonic(), _lead(target)
        while trial.did is None and any(process.poll() is None for process in processes):
            struck, before = time.monotonic(), _lead(target)
            trial.did = fault(target, self.random)
            time.sleep(0.1)
        limit = 2 * self.seconds + TIMEOUT + SLACK + (PATIENCE if target.is_elastic else 0)
        while True:
            code, trained, output = self._wait(target, processes, struck + limit, before)
            if trained is not None and trial.recovery is None and trial.did is not None:
                trial.recovery = trained - struck
            undo(target)
            self._check_wait(trial, target, processes if code is None else [], output)
            if trial.problems or (target.run is not None and run_state(target.run) == "FINISHED"):
                return
            if trial.starts == MOST_STARTS:
                trial.problems.append(f"not finished after {MOST_STARTS} starts: {output[-400:]}")
                return
            trial.starts += 1
            struck, before = time.monotonic(), _lead(target)
            processes = self._start(target, resume=target.run is not None)

    def _check_wait(self, trial: Trial, target: Target, late: list[subprocess.Popen], output: str) -> None:
        """Note launchers that exceed the limit, a traceback, and processes that outlive their launcher by 10 s."""
        if late:
            began = time.monotonic()
            while any(process.poll() is None for process in late) and time.monotonic() < began + LATE:
                time.sleep(0.1)
            trial.late = time.monotonic() - began
            if any(process.poll() is None for process in late):
                trial.problems.append(f"hung: {output[-400:]}")
        if "Traceback" in output:
            trial.problems.append(f"traceback: {output[-600:]}")
        if target.store is not None and (target.run is None or run_state(target.run) != "FINISHED"):
            target.store.terminate()  # it waits for nodes to come back
        deadline = time.monotonic() + SLACK
        while target.processes() and time.monotonic() < deadline:
            time.sleep(0.1)
        trial.problems += [f"orphan: {' '.join(each.cmdline())[:80]}" for each in target.processes()]

    def _start(self, target: Target, *, resume: bool) -> list[subprocess.Popen]:
        """Start the launcher, or one on each host."""
        args: list[object] = [*PACELINE, "train"]
        args += ["--resume", target.run.path, f"--timeout={TIMEOUT}"] if resume and target.run else [*WORK]
        target.log = Path(target.log.name).open("ab")  # noqa: SIM115 - closed when the processes have ended
        options = {
            "cwd": target.folder, "env": child_environment(**{MARK: target.token}),
            "stdout": target.log, "stderr": subprocess.STDOUT, "start_new_session": True,
        }  # fmt: skip
        if target.hosts is None:
            processes = [subprocess.Popen([*map(str, args), "--nproc=2", "--max-restarts=1"], **options)]
        elif target.is_elastic:
            processes = self._start_elastic(target, args, options)
        else:
            port = self.random.randint(20000, 30000)
            nodes = ["--nnodes=2", f"--rendezvous={target.hosts.address(1)}:{port}"]
            processes = [
                target.hosts.start(node + 1, *args, *nodes, f"--node-rank={node}", text=False, **options)
                for node in range(2)
            ]
        target.launchers = [process.pid for process in processes]
        target.log_start = target.log.tell()
        return processes

    def _start_elastic(self, target: Target, args: list[object], options: dict[str, Any]) -> list[subprocess.Popen]:
        """Start a store outside of the nodes, and a node on each host."""
        hosts = target.hosts
        assert hosts is not None
        outside = f"{hosts.address(0)}:{self.random.randint(20000, 30000)}"
        args = [arg for arg in args if not str(arg).startswith("--timeout=")]
        args += ["--nnodes=1:3", f"--rendezvous={outside}", "--max-restarts=3", f"--timeout={PATIENCE}"]
        processes: list[subprocess.Popen] = []

        def start_node(host: int) -> None:
            processes.append(hosts.start(host, *args, text=False, **options))

        store = hosts.start(0, *PACELINE, "rendezvous", outside, text=False, **options)
        for host in range(1, hosts.number + 1):
            start_node(host)
        target.start_node, target.store = start_node, store
        return processes

    def _wait(
        self, target: Target, processes: list[subprocess.Popen], deadline: float, before: object = None
    ) -> tuple[int | None, float | None, str]:
        """Return the highest exit code, None after the deadline; when a new lead trained; and the output."""
        trained = None
        while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
            if trained is None and (lead := _lead(target)) is not None and lead != before:
                trained = time.monotonic()
            time.sleep(0.05)
        codes = [process.poll() for process in processes]
        target.log.close()
        output = Path(target.log.name).read_bytes()[target.log_start :].decode(errors="replace")
        return None if None in codes else max(abs(code) for code in codes if code is not None), trained, output


def _lead(target: Target) -> object:
    """Return the identity of the process that leads the training; None before it trains."""
    lead = None if target.run is None else read_rank(target.run.rank(0))
    return (lead["pid"], lead.get("pid_start")) if lead is not None and lead["state"] == "TRAINING" else None


@contextlib.contextmanager
def _small_disk(folder: Path) -> Iterator[Path]:
    """Give a trial a file system that a fault can fill."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def why_no_chaos() -> str | None:
    """Return the reason why this machine cannot run the campaign, if there is one."""
    if not is_root():
        return "needs root"
    with tempfile.TemporaryDirectory() as name:
        try:
            with _small_disk(Path(name) / "disk"):
                return None
        except (OSError, subprocess.CalledProcessError) as problem:
            return f"cannot mount a tmpfs: {problem}"


def run_campaign(
    num_faults: int, seed: int, *, with_hosts: bool, with_slurm: bool = False, only: str | None = None
) -> Iterator[Trial]:
    """Yield the trials of a seed: every kind of fault once in random order, then again."""
    random = Random(seed)
    with tempfile.TemporaryDirectory(prefix="chaos-") as name, contextlib.ExitStack() as stack:
        hosts = stack.enter_context(Hosts(3, Path(name) / "hosts")) if with_hosts else None
        campaign = Campaign(Path(name), random, hosts)
        campaign.slurm = stack.enter_context(Slurm(hosts, Path(name) / "slurm")) if hosts and with_slurm else None
        kinds: dict[str, Any] = ON_ONE_HOST | (ON_TWO_HOSTS | ELASTIC if with_hosts else {})
        kinds |= ON_SLURM if campaign.slurm else {}
        kinds = {kind: fault for kind, fault in kinds.items() if only is None or kind.startswith(only)}
        drawn: list[str] = []
        while len(drawn) < num_faults:
            drawn += random.sample(sorted(kinds), len(kinds))
        for kind in drawn[:num_faults]:
            yield slurm_trial(campaign, kind) if kind in ON_SLURM else campaign.trial(kind, kinds[kind])


def _show(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - the table is the answer


def main() -> int:
    """Run the campaign, print a row per trial, and return 1 if one went wrong."""
    parser = argparse.ArgumentParser(description="Strike training with random faults, and check how it ends.")
    parser.add_argument("--faults", type=int, default=34)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 31))
    parser.add_argument("--only", help="draw only the faults whose name begins so")
    options = parser.parse_args()
    reason = why_no_chaos()
    if reason is not None:
        sys.exit(f"no faults can be drawn here: {reason}")
    _show(
        f"seed {options.seed}\n\n| fault | what happened | after | starts | recovery | end |\n|---|---|---|---|---|---|"
    )
    bad = late = 0
    places = {"with_hosts": why_not() is None, "with_slurm": cluster.why_not() is None}
    for trial in run_campaign(options.faults, options.seed, only=options.only, **places):
        _show(line_of(trial))
        bad += bool(trial.problems)
        late += trial.late is not None
    _show(f"\n{options.faults} faults, {bad} with a problem, {late} late")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
