"""The message and exit code of the launcher after its ranks have ended."""

import signal

import pytest

from paceline.launching.failures import conclude
from paceline.launching.outcomes import Report

STOPPED = Report(rank=0, host="here", time=1.0, exit_code=143, message="")
WAITED = Report(rank=1, host="here", time=1.0, exit_code=143, message="stopped while rank 1 was waiting")
LOST = Report(rank=0, host="here", time=2.0, exit_code=1, message="the connection was lost", follows=True)
FAILED = Report(rank=1, host="here", time=1.0, exit_code=3, message="the loss is nan")


def test_a_torchrun_that_was_killed_is_named(capsys):
    assert conclude(-signal.SIGKILL, [], "") == 1
    assert capsys.readouterr().err.startswith("paceline: torchrun was killed by SIGKILL (out of memory?")


def test_nodes_that_torchrun_could_not_bring_together_are_named(capsys):
    log = "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError\n"
    assert conclude(1, [], log, waiting="node 0 was waiting for node 1 at a:1") == 1
    assert capsys.readouterr().err.startswith(
        "paceline: the nodes did not connect: node 0 was waiting for node 1 at a:1\n"
    )


@pytest.mark.parametrize(
    ("code", "reports", "ending", "said"),
    [
        pytest.param(0, [], 0, "", id="finished before the signal reached them"),
        pytest.param(
            -15, [], 130, "paceline: stopped before the ranks could save a checkpoint\n", id="ended too early to save"
        ),
        pytest.param(1, [STOPPED], 130, "", id="saved and stopped"),
        pytest.param(1, [WAITED, WAITED], 130, "paceline: stopped while rank 1 was waiting\n", id="waited for another"),
        pytest.param(
            1, [WAITED, LOST], 130, "paceline: stopped while rank 1 was waiting\n", id="lost one that stopped"
        ),
        pytest.param(1, [FAILED, LOST], 3, "paceline: the loss is nan\n", id="lost one that failed"),
        pytest.param(1, [FAILED], 3, "paceline: the loss is nan\n", id="failed on the way"),
    ],
)
def test_a_signal_is_the_exit_code_only_where_it_ended_the_ranks(capsys, code, reports, ending, said):
    assert conclude(code, reports, "", stopped_by=signal.SIGINT) == ending
    assert capsys.readouterr().err == said


def summary(*, first: str, other: str) -> str:
    """Return what torchrun prints after ranks have failed; each failure is given by its rank and exit code."""

    def failure(ending: str) -> str:
        rank, code = ending.split()
        return f"  host      : here\n  rank      : {rank} (local_rank: {rank})\n  exitcode  : {code} (pid: 40{rank})\n"

    return f"Failures:\n[1]:\n{failure(other)}---\nRoot Cause (first observed failure):\n[0]:\n{failure(first)}===\n"


@pytest.mark.parametrize("log", [summary(first="1 -9", other="0 1"), summary(first="0 1", other="1 -9")])
def test_a_killed_rank_is_named_even_if_torchrun_saw_the_rank_that_lost_it_first(capsys, log):
    assert conclude(1, [LOST], log) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("paceline: rank 1 on ")
    assert "(process 401) was killed by SIGKILL" in first
    assert second == "  then rank 0 on here: lost its connection to a rank that had exited"


@pytest.mark.parametrize(
    ("log", "reports"),
    [
        pytest.param(summary(first="1 3", other="0 -9"), [FAILED], id="one was killed after another had failed"),
        pytest.param(summary(first="1 3", other="0 -15"), [FAILED], id="torchrun ended the other"),
    ],
)
def test_a_rank_that_was_killed_later_is_not_the_first_failure(capsys, log, reports):
    assert conclude(1, reports, log) == 3
    assert capsys.readouterr().err.startswith("paceline: the loss is nan\n")
