"""Running the ranks of this node: start them, forward signals, end every process, report the first failure."""

import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TextIO

import psutil

from paceline.core.errors import RanksError, StoppedError
from paceline.core.limits import need_open_files
from paceline.core.messages import log, say, say_if_slow, shows_progress
from paceline.core.processes import end_with_parent
from paceline.core.stopping import handled_by, interruptible
from paceline.launching.agent import Agent
from paceline.launching.failures import conclude
from paceline.launching.launch_plan import LaunchPlan
from paceline.launching.outcomes import REPORTS_VARIABLE, STDERR, read_reports
from paceline.launching.reaper import SECONDS_TO_END, SECONDS_TO_STOP, end_descendants, send
from paceline.launching.stopped import StoppedProcesses
from paceline.parallel.network import peer_address
from paceline.parallel.ports import wait_for_listener

SECONDS_TO_FAIL = 5


def run_ranks(plan: LaunchPlan, args: Sequence[str], environ: Mapping[str, str]) -> int:
    """Start the ranks of this node, wait for them, and return their exit code."""
    need_open_files(plan.world_size)
    with interruptible(plan.waiting):
        check_rendezvous(plan)
        return _run(plan, args, environ)


def _run(plan: LaunchPlan, args: Sequence[str], environ: Mapping[str, str]) -> int:
    temporary = tempfile.TemporaryDirectory(prefix="paceline-", ignore_cleanup_errors=True)
    with temporary as name, place_to_print() as place:
        folder = Path(name)
        ours = {
            REPORTS_VARIABLE: name,
            STDERR: place.stderr,
            "OMP_NUM_THREADS": environ.get("OMP_NUM_THREADS", str(plan.threads)),
            "TORCH_CPP_LOG_LEVEL": environ.get("TORCH_CPP_LOG_LEVEL", "ERROR"),
        }
        args = plan.torchrun_args(args, folder)
        watch = _Watch(folder, max_restarts=plan.max_restarts, timeout=plan.timeout)
        with watch.over_ranks():  # signals are handled before torchrun starts, so none of them can leave it behind
            agent = Agent(args, dict(environ) | ours, nodes=plan.nodes, stdout=place.stdout)
            code = watch.wait(agent.process)
        if watch.first_signal is not None and watch.stopped_early:
            raise StoppedError(watch.first_signal, plan.waiting)
        return conclude(code, read_reports(folder), agent.output(), stopped_by=watch.first_signal, waiting=plan.waiting)


class _Watch:
    """Waits for torchrun and forwards signals: the first one asks to stop, a second Ctrl-C kills."""

    def __init__(self, reports: Path, *, max_restarts: int, timeout: float) -> None:
        self._agent: subprocess.Popen[bytes] | None = None
        self._reports = reports
        self._max_restarts = max_restarts
        self._stopped = StoppedProcesses(timeout)
        self.first_signal: int | None = None
        self.stopped_early = False
        """Whether the first signal arrived before torchrun had started a rank."""
        self._stopping_since: float | None = None
        self._failing_since: float | None = None

    @contextmanager
    def over_ranks(self) -> Iterator[None]:
        """Forward signals while the block runs, and leave no process behind."""
        with handled_by(self._pass_on):
            try:
                yield
            finally:
                self._end_all()
                if self._agent is not None:
                    self._agent.wait()

    def wait(self, agent: subprocess.Popen[bytes]) -> int:
        """Wait for torchrun to end, and return its exit code."""
        self._agent = agent
        if self.first_signal is not None:  # it arrived while torchrun was being started
            agent.terminate()
        while True:
            try:
                return agent.wait(timeout=0.5)
            except subprocess.TimeoutExpired:
                self._give_up_if_late()
                self._stopped.end_below(agent.pid)

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        ranks = self._ranks()
        if number == signal.SIGUSR1 and ranks:  # it would kill torchrun; its ranks save and stop
            for process in ranks:
                send(process, signal.SIGUSR1)
            return
        if self._stopping_since is not None and number == signal.SIGINT:
            self._end_all()
            return
        if self.first_signal is None:
            self.first_signal, self.stopped_early = number, not ranks
        self._stopping_since = self._stopping_since or time.monotonic()
        if self._agent is not None:
            self._agent.terminate()

    def _give_up_if_late(self) -> None:
        """Kill ranks that hang after others have failed: torchrun would wait 30 s for them."""
        now = time.monotonic()
        last = [report for report in read_reports(self._reports) if report.attempt == self._max_restarts]
        if self._failing_since is None and any(report.exit_code <= 128 for report in last):
            self._failing_since = now
        late_stop = self._stopping_since is not None and now - self._stopping_since > SECONDS_TO_STOP
        late_failure = self._failing_since is not None and now - self._failing_since > SECONDS_TO_FAIL
        if late_stop or late_failure:
            self._end_all()

    def _ranks(self) -> list[psutil.Process]:
        """Return the processes that torchrun, the child of our child, has started."""
        if self._agent is None:
            return []
        try:
            return [rank for torchrun in psutil.Process(self._agent.pid).children() for rank in torchrun.children()]
        except psutil.NoSuchProcess:
            return []

    def _end_all(self) -> None:
        """Kill every remaining process of this launch, including stopped and hanging ones."""
        if self._agent is not None and self._agent.poll() is None:
            end_descendants(self._agent.pid)
            self._agent.kill()


def check_rendezvous(plan: LaunchPlan) -> None:
    """Say where this node waits for the others, and check that the rendezvous answers (nodes other than 0)."""
    if plan.rendezvous is None:
        return
    if plan.node_rank is None:
        say(f"this node joins --nnodes {plan.nnodes} at {plan.rendezvous}, and waits up to {plan.timeout:g} s")
        return
    host, _, port = plan.rendezvous.rpartition(":")
    if plan.node_rank == 0:
        say(f"node 0 waits up to {plan.timeout:g} s for {plan.other_nodes} at {plan.rendezvous}")
        return
    try:
        with say_if_slow(f"node {plan.node_rank} waits up to {plan.timeout:g} s for node 0 at {plan.rendezvous}"):
            wait_for_listener(peer_address(host), int(port), plan.timeout)
    except OSError as cause:
        raise RanksError(
            f"node {plan.node_rank} waited {plan.timeout:g} s for node 0 at {plan.rendezvous}: {cause}",
            hint="start node 0 with the same --rendezvous, and check that the port is open",
        ) from cause
    text = f"node {plan.node_rank} joins node 0 at {plan.rendezvous}, which shows the progress"
    log(logging.INFO, text, lambda: print(text, flush=True))  # noqa: T201 - where the progress would be


def become_rank(environ: Mapping[str, str]) -> None:
    """Set up this process as a rank of a launcher: exit when torchrun exits, and print where the launcher prints."""
    end_with_parent()
    try:
        handle = os.open(environ[STDERR], os.O_WRONLY | os.O_APPEND)
    except (KeyError, OSError):
        return
    os.dup2(handle, 2)
    os.close(handle)


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """The destination of the ranks' output."""

    stdout: int | None
    """Their stdout; None to inherit it."""
    stderr: str
    """The path that a rank opens as its stderr, instead of torchrun's redirection."""


@contextmanager
def place_to_print() -> Iterator[Place]:
    """Give ranks our stdout and stderr, or a pipe whose lines are logged here."""
    if sys.stdout is sys.__stdout__ and shows_progress():
        yield Place(stdout=None, stderr=f"/proc/{os.getpid()}/fd/2")
        return
    reading, writing = os.pipe()
    with os.fdopen(reading, encoding="utf-8", errors="replace") as lines:
        thread = threading.Thread(target=_copy, args=(lines, sys.stdout), name="echo", daemon=True)
        thread.start()
        try:
            yield Place(stdout=writing, stderr="/proc/self/fd/1")
        finally:
            os.close(writing)
            thread.join(SECONDS_TO_END)


def _copy(lines: TextIO, shown: TextIO) -> None:
    """Show the lines of ranks as messages of our logger, which each rank has formatted."""

    def show(line: str) -> None:
        shown.write(line)
        shown.flush()

    for line in lines:
        log(logging.INFO, line.rstrip("\n"), partial(show, line))
