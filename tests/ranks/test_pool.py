"""The rank pool of the tests: a clean state for each call, errors passed on, and no process left at the end."""

import os
import select
import signal
import subprocess
import sys
import threading
import traceback
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from paceline.core.errors import ConfigError
from tests.ranks.pool import ROOT, RankPool, RanksHang


def who(team, *args):
    total = torch.tensor([float(team.world.rank)])
    if team.world.size > 1:
        dist.all_reduce(total)
    return team.world.rank, team.world.size, total.item(), torch.get_num_threads(), os.getpid(), args


def fail_on(team, rank):
    if team.world.rank == rank:
        raise ConfigError("this rank cannot", hint="use another")
    dist.barrier()


def fail_strangely(team):
    class LocalError(Exception):
        pass

    raise LocalError("cannot be pickled")


def die(team, number=signal.SIGKILL):
    if team.world.rank == 1:
        os.kill(os.getpid(), number)
    dist.barrier()


def hang(team):
    if team.world.rank == 0:
        threading.Event().wait()


def draw(team):
    return torch.rand(3).tolist()


def test_every_world_is_a_fresh_group_on_the_same_living_processes(ranks):
    answers = {size: ranks(size).run(who, "a", size) for size in (2, 1, 3, 2)}
    for size, results in answers.items():
        total = size * (size - 1) / 2
        assert [result[:4] for result in results] == [(rank, size, total, 1) for rank in range(size)]
        assert [result[5] for result in results] == [("a", size)] * size
        assert [result[4] for result in results] == [result[4] for result in answers[3]][:size]


def test_a_call_starts_from_the_same_random_state_on_every_rank(ranks):
    first, second = ranks(2).run(draw), ranks(2).run(draw)
    assert first == second
    assert first[0] == first[1]


def test_the_first_failure_is_raised_with_the_traceback_of_its_rank(ranks):
    with pytest.raises(ConfigError, match="this rank cannot") as caught:
        ranks(3).run(fail_on, 1)
    assert caught.value.hint == "use another"
    shown = "".join(traceback.format_exception(caught.value))
    assert "on rank 1 of 3" in shown
    assert "in fail_on" in shown
    assert len(ranks(3).run(who)) == 3


def test_an_exception_that_cannot_travel_comes_as_text(ranks):
    with pytest.raises(RuntimeError, match="LocalError: cannot be pickled"):
        ranks(1).run(fail_strangely)


def test_hanging_ranks_are_replaced_and_dead_ones_are_named():
    with RankPool(hang_seconds=0.2) as pool:
        with pytest.raises(RanksHang, match=r"no answer from ranks \[0\] in 0.2 s"):
            pool.of(1).run(hang)
        assert pool.living == []
        with pytest.raises(subprocess.TimeoutExpired):
            pool.of(1).run_until_death(0, hang)
        assert pool.living == []
        pool.hang_seconds = 60
        for number in (signal.SIGKILL, signal.SIGILL):
            with pytest.raises(RuntimeError, match=f"rank 1 was ended by {number.name}"):
                pool.of(2).run(die, number)
            assert pool.living == []
        with pytest.raises(RuntimeError, match="rank 0 was to be killed, but went on to the end"):
            pool.of(1).run_until_death(0, who)
        with pytest.raises(RuntimeError, match="LocalError: cannot be pickled"):
            pool.of(2).run_until_death(0, fail_strangely)
        assert len(pool.of(2).run(who)) == 2


HOLDER = """
import os, threading
from tests.ranks.pool import RankPool

def hang(team):
    print(os.getpid(), flush=True)
    threading.Event().wait()

def main():
    with RankPool() as pool:
        pool.of(1).run(hang)
"""


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_no_rank_outlives_the_process_that_started_it(tmp_path: Path, ending: signal.Signals):
    (tmp_path / "holder.py").write_text(HOLDER)
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT), *filter(None, sys.path)])}
    command = [sys.executable, "-c", "import holder; holder.main()"]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as holder:
        assert holder.stdout is not None
        rank = os.pidfd_open(int(holder.stdout.readline()))
        holder.send_signal(ending)
    poller = select.poll()
    poller.register(rank, select.POLLIN)
    gone = poller.poll(30_000)
    os.close(rank)
    assert gone, "a rank is left behind"
