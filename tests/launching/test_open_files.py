"""The limit of open files: raised where the system allows it, else named before any rank connects to another."""

import resource

import pytest

from tests.conftest import LONGEST
from tests.launching.conftest import SETTINGS, finish, free_port, no_rank_left

TOO_FEW = 16
"""With so few, two ranks cannot connect: each needs sixteen at the least, and opens modules besides."""


def limited(*, soft: int, hard: int):
    """Return what a child does first to have these limits of open files."""
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def hard_limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def by_hand(rank: int, port: int) -> list[str]:
    return ["--rank", str(rank), "--world-size", "2", "--init-method", f"tcp://127.0.0.1:{port}"]


@pytest.mark.slow
def test_a_launcher_and_its_ranks_raise_a_low_soft_limit(start):
    finish([start("train", *SETTINGS, "--nproc", "2", preexec_fn=limited(soft=TOO_FEW, hard=hard_limit()))])


@pytest.mark.long
def test_ranks_started_by_hand_raise_a_low_soft_limit(start):
    low, port = limited(soft=TOO_FEW, hard=hard_limit()), free_port()
    finish([start("train", *SETTINGS, *by_hand(rank, port), preexec_fn=low) for rank in (0, 1)])


@pytest.mark.parametrize("words", [["--nproc", "2"], by_hand(0, free_port())], ids=["launcher", "by hand"])
def test_a_hard_limit_that_is_too_low_is_named_with_what_to_type(start, elsewhere, words):
    process = start("train", *SETTINGS, *words, preexec_fn=limited(soft=TOO_FEW, hard=TOO_FEW))
    _, errors = process.communicate(timeout=LONGEST)
    assert process.returncode == 1
    assert errors == (
        "paceline: 2 ranks need 68 open files in each process, but the limit is 16\n"
        "  hint: run ulimit -n 68; if that is refused, raise nofile in /etc/security/limits.conf\n"
    )
    assert no_rank_left(elsewhere)


def test_a_limit_too_low_to_start_a_process_is_named_too(start):
    process = start("train", "--nproc", "2", preexec_fn=limited(soft=7, hard=7))
    _, errors = process.communicate(timeout=LONGEST)
    assert process.returncode == 1
    assert errors.startswith("paceline: 2 ranks need 68 open files in each process, but the limit is 7\n")
