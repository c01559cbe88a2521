"""What the launcher prints when ranks fail: the first failure, then its consequences.

The ranks' side of this is `parallel.lost_ranks`.
"""

import re
import signal
import socket

from paceline.core.errors import ExitCode
from paceline.core.messages import say
from paceline.launching.outcomes import Report

ENDED_BY_SIGNAL = re.compile(r"rank\s*:\s*(\d+) \(local_rank[^)]*\)\s*exitcode\s*:\s*-(\d+) \(pid: (\d+)\)")


def conclude(
    code: int, reports: list[Report], log: str, *, stopped_by: int | None = None, waiting: str = "starting the ranks"
) -> int:
    """Print the first failure and its consequences, and return the exit code.

    `stopped_by` is the signal that the launcher received; its ranks get SIGTERM for any signal. `waiting` describes
    what the launcher did before it had started ranks.
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
            _print_first(stops[0])
        return stops[0].exit_code if stopped_by is None else 128 + stopped_by
    if stopped_by is not None and not failures:
        say("stopped before the ranks could save a checkpoint")
        return 128 + stopped_by
    killed = _killed_first(log, failures)
    if killed is not None:  # a killed rank leaves no report: the failures of other ranks followed from it
        say(killed)
        _print_consequences(failures)
        return ExitCode.FAILED
    if not failures:
        say(_unexplained(code, log, waiting))
        return ExitCode.FAILED
    _print_first(failures[0])
    _print_consequences([report for report in failures[1:] if report.message != failures[0].message])
    return failures[0].exit_code


def _print_first(first: Report) -> None:
    if first.trace is None:
        say(first.message + (f"\n  hint: {first.hint}" if first.hint else ""))
    else:
        where = f" ({first.where.partition(', ')[2]})" if ", " in first.where else ""
        hint = f"\n  hint: {first.hint}" if first.hint else ""
        say(f"rank {first.rank} on {first.host} failed{where}: {first.message}\n{first.trace.rstrip()}{hint}")


def _print_consequences(reports: list[Report]) -> None:
    for report in reports:
        say(f"  then rank {report.rank} on {report.host}: {_first_line(report)}", prefix="")


def _first_line(report: Report) -> str:
    if report.follows:
        return "lost its connection to a rank that had exited"
    return report.message.splitlines()[0][:200]


def _killed_first(log: str, failures: list[Report]) -> str | None:
    """Return a sentence about the rank that a signal killed before any other failed, from torchrun's summary.

    If torchrun sees two ranks ended at once, it may take the one that lost its connection for the first.
    """
    others, _, root_cause = log.partition("Root Cause (first observed failure)")
    may_be_first = root_cause if any(not report.follows for report in failures) else root_cause + others
    for rank, number, pid in ENDED_BY_SIGNAL.findall(may_be_first):
        if int(number) != signal.SIGTERM:
            return f"rank {rank} on {socket.gethostname()} (process {pid}) {_killed_by(int(number))}"
    return None


def _killed_by(number: int) -> str:
    reason = " (out of memory? see dmesg)" if number == signal.SIGKILL else ""
    return f"was killed by {signal.Signals(number).name}{reason}"


def _unexplained(code: int, log: str, waiting: str) -> str:
    """Return an error with torchrun's output, if no rank reported an error."""
    if code < 0:
        return f"torchrun {_killed_by(-code)}; all its ranks were stopped"
    if "RendezvousConnectionError" in log or "RendezvousTimeoutError" in log or "DistNetworkError" in log:
        hint = "give every node the same --rendezvous, which all of them can reach; to wait longer, raise --timeout"
        return f"the nodes did not connect: {waiting}\n  hint: {hint}"
    tail = "\n".join(log.strip().splitlines()[-15:])
    return f"the ranks exited without an error report; last output of torchrun:\n{tail}"
