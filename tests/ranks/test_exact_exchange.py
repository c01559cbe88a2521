"""How gradients of `--exact bitwise` go over the ranks: no sum is missing, no rank waits forever, no byte too many."""

import gc
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist
from torch import nn

from paceline.core.batch_plan import BatchPlan
from paceline.core.config import Config
from paceline.parallel.exact.bucket import Bucket
from paceline.parallel.exact.exchange import Route, Stream, finish, middle_ranks
from paceline.parallel.exact.reducer import Reducer
from paceline.parallel.team import Team
from tests.ranks.runs import exact_settings, train_rank


def sums_of_few_shards(team: Team) -> list[torch.Tensor]:
    """Return the gradient of steps of one shard, of two, and so on up to eight."""
    plan = BatchPlan.make(Config(exact="bitwise", shards=8), num_samples=1000, world_size=team.world.size)
    owned = [plan.micro_batch_indices(rank) for rank in range(team.world.size)]
    torch.manual_seed(0)
    model = nn.Linear(300, 300)
    images = [torch.randn(5, 300) * 10.0 ** (shard % 3) for shard in range(8)]
    reducer = Reducer(model, team, owned)
    found = []
    for num_shards in range(1, 9):
        with reducer.step(num_shards):
            for shard in owned[team.world.rank]:
                if shard < num_shards:
                    with reducer.micro_batch(1 / 8):
                        model(images[shard]).square().sum().backward()
        assert model.weight.grad is not None
        found.append(model.weight.grad.clone())
        model.zero_grad()
    return found


def test_ranks_without_a_shard_forward_the_sums_of_others(ranks):
    """A last batch of few samples has fewer shards than there are ranks."""
    (alone,) = ranks(1).run(sums_of_few_shards)
    for world_size in (2, 3, 4, 5):
        for rank, found in enumerate(ranks(world_size).run(sums_of_few_shards)):
            equal = [torch.equal(one, other) for one, other in zip(alone, found, strict=True)]
            assert equal == [True] * 8, f"rank {rank} of {world_size}"


def ahead_in_different_streams(team: Team) -> list[float]:
    """Exchange two pieces by each of the two roots, 1 and 2, and return what came out.

    Rank 2 waits for everything from the start on. Rank 1 first adds up a piece as the root, and begins to wait when the
    ranks at the ends have not yet sent the others.
    """
    rank = team.world.rank
    first, second = (Stream(Route(team, root)) for root in middle_ranks(4))
    others = team.group([0, 1, 3], "all but rank 2")
    pieces = [torch.full((4,), float(rank + 1)) for _ in range(4)]

    def start(stream: Stream, piece: torch.Tensor) -> None:
        stream.start(([piece], []) if rank < 2 else ([], [piece]), piece, num_busy=4)

    start(first, pieces[0])
    if rank != 2:
        while not first.is_folded:
            first.go_on()
        dist.barrier(group=others)
    start(first, pieces[1])
    start(second, pieces[2])
    start(second, pieces[3])
    finish([first, second])
    return [float(piece.sum()) for piece in pieces]


def test_two_roots_do_not_wait_for_each_other(ranks):
    """Rank 1 needs the second piece from rank 2, which may not wait before that for what rank 1 has to send on."""
    assert ranks(4).run(ahead_in_different_streams) == [[4 * (1 + 2 + 3 + 4.0)] * 4] * 4


def sums_where_lanes_open_late(team: Team) -> list[torch.Tensor]:
    """Return the same sums where the first use of a lane waits for its other rank, as with NCCL."""
    move, opened = Route._move, set()

    def opening(self, numbers, source, target):
        lane = (self.root, source, target)
        if lane not in opened:
            opened.add(lane)
            dist.barrier(group=self._lanes[source, target])
        return move(self, numbers, source, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Route, "_move", opening)
        return sums_of_few_shards(team)


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_ranks_do_not_wait_for_each_other_on_different_lanes(ranks, world_size):
    (alone,) = ranks(1).run(sums_of_few_shards)
    for found in ranks(world_size).run(sums_where_lanes_open_late):
        assert all(torch.equal(one, other) for one, other in zip(alone, found, strict=True))


def threads_after(team: Team, settings: dict[str, Any]) -> int:
    """Train, and return how many threads this process has then; each connection has one."""
    train_rank(team, settings)
    gc.collect()
    return psutil.Process().num_threads()


def test_a_run_that_is_over_keeps_no_connection(ranks, tmp_path):
    settings = exact_settings(tmp_path, model="cnn", steps=2)
    numbers = [ranks(3).run(threads_after, settings) for _ in range(4)]
    more = [late - early for early, late in zip(numbers[1], numbers[3], strict=True)]
    assert max(more) < 6, "two runs kept less than the connections of one, which are six or twelve"


def counted(team: Team, settings: dict[str, Any]) -> tuple[int, int, int]:
    """Train, and return the numbers that this rank sent, how many gradients it had memory for, and the size of one."""
    sent, allocated = [], []
    send, allocate = Route.send, Bucket._allocate

    def counting_send(self, numbers, *where):
        sent.append(len(numbers))
        return send(self, numbers, *where)

    def counting_allocate(self):
        allocated.append(self.size)
        return allocate(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Route, "send", counting_send)
        patch.setattr(Bucket, "_allocate", counting_allocate)
        train_rank(team, settings)
    assert len(set(allocated)) == 1
    return sum(sent), len(allocated), allocated[0]


@pytest.mark.parametrize("shards", [4, 6, 8])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_all_ranks_together_send_what_a_ring_sends(ranks, tmp_path, world_size, shards):
    """However many shards a rank has. benchmarks.exact counts the bytes at the interfaces: 0.997 to 1.001."""
    settings = exact_settings(tmp_path, model="cnn", shards=shards, global_batch=64, steps=3)
    sent, memory, sizes = zip(*ranks(world_size).run(counted, settings), strict=True)
    assert sum(sent) == 3 * 2 * (world_size - 1) * sizes[0]
    assert {memory[0], memory[-1]} == {2 if world_size == 1 else 1}
    assert max(memory) <= max(2, -(-shards // world_size))
