"""Running the ranks of this node: start them, pass signals on, bring everything down, say what went wrong first."""

import os
import re
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import psutil

from paceline.core.errors import ExitCode, RanksError, StoppedError
from paceline.core.limits import need_open_files
from paceline.core.messages import say, say_if_slow
from paceline.core.stopping import handled_by, interruptible
from paceline.launching.agent import agent_for, stop_with_parent
from paceline.launching.echo import place_to_print
from paceline.launching.plan import LaunchPlan
from paceline.parallel.ports import wait_for_listener
from paceline.records.reports import VARIABLE, Report, read_reports

STDERR = "_PACELINE_STDERR"
SECONDS_TO_STOP = 45
SECONDS_TO_FAIL = 5


def run_ranks(plan: LaunchPlan, words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Start the ranks of this node, wait for them, and return the exit code that tells how they ended."""
    need_open_files(plan.world_size)
    with interruptible(plan.waiting):
        wait_for_meeting(plan)
        return _run(plan, words, environ)


def _run(plan: LaunchPlan, words: Sequence[str], environ: Mapping[str, str]) -> int:
    temporary = tempfile.TemporaryDirectory(prefix="paceline-", ignore_cleanup_errors=True)
    with temporary as name, place_to_print() as place:
        folder = Path(name)
        ours = {
            VARIABLE: name,
            STDERR: place.stderr,
            "OMP_NUM_THREADS": environ.get("OMP_NUM_THREADS", str(plan.threads)),
            "TORCH_CPP_LOG_LEVEL": environ.get("TORCH_CPP_LOG_LEVEL", "ERROR"),
        }
        if plan.max_restarts or plan.rendezvous is not None:
            # In torchrun's own store, ranks that it starts again read addresses of dead ones. Where they are started
            # once, that store spares them a port that another program may take before they do.
            ours["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        agent = agent_for(place.stdout)
        watch = _Watch(agent.process, folder, max_restarts=plan.max_restarts)
        with watch.over_ranks():
            agent.begin(plan.torchrun_words(words, folder), dict(environ) | ours, plan.nodes)
            code = watch.wait()
        if watch.first_signal is not None and watch.stopped_early:
            raise StoppedError(watch.first_signal, plan.waiting)
        return conclude(code, read_reports(folder), agent.said(), stopped_by=watch.first_signal, waiting=plan.waiting)


class _Watch:
    """Waits for torchrun and passes signals on: the first politely, the second Ctrl-C for good."""

    def __init__(self, agent: subprocess.Popen[bytes], reports: Path, *, max_restarts: int) -> None:
        self._agent = agent
        self._reports = reports
        self._max_restarts = max_restarts
        self.first_signal: int | None = None
        self.stopped_early = False
        """Whether the first signal came before torchrun had started a rank."""
        self._stopping_since: float | None = None
        self._failing_since: float | None = None
        self._started: set[psutil.Process] = set()

    @contextmanager
    def over_ranks(self) -> Iterator[None]:
        """Pass signals on while the block runs, and leave no process behind."""
        with handled_by(self._pass_on):
            try:
                yield
            finally:
                self._end_all()
                self._agent.wait()

    def wait(self) -> int:
        turn = 0
        while True:
            try:
                return self._agent.wait(timeout=0.5)
            except subprocess.TimeoutExpired:
                turn += 1
                if turn % 10 == 0:  # it reads all of /proc, and no core is idle
                    self._remember()
                self._give_up_if_late()

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        self._remember()
        if number == signal.SIGUSR1 and self._started:  # torchrun would die of it; its ranks save and stop
            for process in self._started:
                _send(process, signal.SIGUSR1)
            return
        if self._stopping_since is not None and number == signal.SIGINT:
            self._end_all()
            return
        if self.first_signal is None:
            self.first_signal, self.stopped_early = number, not self._started
        self._stopping_since = self._stopping_since or time.monotonic()
        self._agent.terminate()

    def _give_up_if_late(self) -> None:
        """End what does not end by itself: torchrun waits 30 s for a rank that hangs while others have failed."""
        now = time.monotonic()
        last = [report for report in read_reports(self._reports) if report.attempt == self._max_restarts]
        if self._failing_since is None and any(report.exit_code <= 128 for report in last):
            self._failing_since = now
        late_stop = self._stopping_since is not None and now - self._stopping_since > SECONDS_TO_STOP
        late_failure = self._failing_since is not None and now - self._failing_since > SECONDS_TO_FAIL
        if late_stop or late_failure:
            self._end_all()

    def _remember(self) -> None:
        """Keep track of every process that torchrun started: each is the leader of a session of its own."""
        try:
            self._started.update(psutil.Process(self._agent.pid).children(recursive=True))
        except psutil.NoSuchProcess:
            return

    def _end_all(self) -> None:
        """Leave no process of this launch behind, not even one that is stopped or hangs."""
        self._remember()
        for process in self._started:
            _send(process, signal.SIGKILL)
        if self._agent.poll() is None:
            self._agent.kill()


def _send(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return


def conclude(
    code: int, reports: list[Report], log: str, *, stopped_by: int | None = None, waiting: str = "starting the ranks"
) -> int:
    """Say what went wrong first and what followed from it, and return the exit code.

    `stopped_by` is the signal that the launcher was sent. Its ranks get SIGTERM, whatever it was. `waiting` is what the
    launcher did before it had started ranks.
    """
    attempt = max((report.attempt for report in reports), default=0)
    stops = [report for report in reports if report.exit_code > 128]
    failures = [report for report in reports if report.exit_code <= 128 and report.attempt == attempt]
    if stopped_by is not None:  # a rank that stopped broke the connection of another
        failures = [report for report in failures if not report.follows]
    if code == 0 or (stops and not failures):
        if not stops:
            return ExitCode.FINISHED
        if stops[0].message:
            _tell(stops[0])
        return stops[0].exit_code if stopped_by is None else 128 + stopped_by
    if stopped_by is not None and not failures:
        say("stopped before the ranks could save")
        return 128 + stopped_by
    killed = _killed_first(log)
    if killed is not None:  # a rank that was killed leaves no report: what the others saw followed from it
        say(killed)
        _tell_consequences(failures)
        return ExitCode.FAILED
    if not failures:
        say(_unexplained(code, log, waiting))
        return ExitCode.FAILED
    _tell(failures[0])
    _tell_consequences([report for report in failures[1:] if report.message != failures[0].message])
    return failures[0].exit_code


def _tell(first: Report) -> None:
    if first.trace is None:
        say(first.message + (f"\n  hint: {first.hint}" if first.hint else ""))
    else:
        where = f" ({first.where.partition(', ')[2]})" if ", " in first.where else ""
        say(f"rank {first.rank} on {first.host} failed{where}: {first.message}\n{first.trace.rstrip()}")


def _tell_consequences(reports: list[Report]) -> None:
    for report in reports:
        say(f"  then rank {report.rank} on {report.host}: {_first_line(report)}", prefix="")


def _first_line(report: Report) -> str:
    if report.follows:
        return "lost its connection to a rank that had gone"
    return report.message.splitlines()[0][:200]


def _killed_first(log: str) -> str | None:
    """Return a sentence about the rank that a signal ended before any other failed, from torchrun's summary."""
    root_cause = log.partition("Root Cause (first observed failure)")[2]
    found = re.search(r"rank\s*:\s*(\d+) \(local_rank.*?exitcode\s*:\s*-(\d+) \(pid: (\d+)\)", root_cause, re.DOTALL)
    if found is None or int(found[2]) == signal.SIGTERM:
        return None
    rank, number, pid = found[1], int(found[2]), found[3]
    return f"rank {rank} on {socket.gethostname()} (process {pid}) {_ended_by(number)}"


def _ended_by(number: int) -> str:
    reason = "; out of memory? see dmesg" if number == signal.SIGKILL else ""
    return f"was ended by {signal.Signals(number).name}{reason}"


def _unexplained(code: int, log: str, waiting: str) -> str:
    """Return what torchrun itself had to say when no rank left word."""
    if code < 0:
        return f"torchrun, and its ranks with it, {_ended_by(-code)}"
    if "RendezvousConnectionError" in log or "RendezvousTimeoutError" in log or "DistNetworkError" in log:
        hint = "start every node with the same --rendezvous, which all can reach; --timeout waits longer"
        return f"the nodes did not connect: {waiting}\n  hint: {hint}"
    tail = "\n".join(log.strip().splitlines()[-15:])
    return f"the ranks ended without a word; torchrun said:\n{tail}"


def wait_for_meeting(plan: LaunchPlan) -> None:
    """Make sure that the meeting place is free (on node 0) or answers (on others), or say what is wrong with it."""
    if plan.rendezvous is None:
        return
    if plan.node_rank is None:
        say(f"this node joins --nnodes {plan.nnodes} at {plan.rendezvous}, and waits up to {plan.timeout:g} s")
        return
    host, _, port = plan.rendezvous.rpartition(":")
    if plan.node_rank == 0:
        _refuse_taken(int(port))
        say(f"node 0 waits up to {plan.timeout:g} s for {plan.other_nodes} at {plan.rendezvous}")
        return
    try:
        with say_if_slow(f"node {plan.node_rank} waits up to {plan.timeout:g} s for node 0 at {plan.rendezvous}"):
            wait_for_listener(host, int(port), plan.timeout)
    except OSError as cause:
        raise RanksError(
            f"node {plan.node_rank} waited {plan.timeout:g} s for node 0 at {plan.rendezvous}: {cause}",
            hint="start node 0 with the same --rendezvous, and check that the port is open",
        ) from cause
    print(f"node {plan.node_rank} joins node 0 at {plan.rendezvous}, which shows the progress", flush=True)  # noqa: T201


def _refuse_taken(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as cause:
            raise RanksError(
                f"port {port} on {socket.gethostname()} is taken",
                hint="is node 0 running already? give every node its own --node-rank, or choose another port",
            ) from cause


def become_rank(environ: Mapping[str, str]) -> None:
    """Settle in as a rank of a launcher: go when torchrun goes, and speak where the launcher speaks."""
    stop_with_parent()
    try:
        handle = os.open(environ[STDERR], os.O_WRONLY | os.O_APPEND)
    except (KeyError, OSError):
        return
    os.dup2(handle, 2)
    os.close(handle)
