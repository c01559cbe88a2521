"""`--exact bitwise`: the same bits at every world size, through stops and resumes; and what would break it."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from paceline.core.config import Config
from paceline.core.errors import ConfigError, ModelError, RanksError, RunError
from paceline.core.keys import mix
from paceline.core.plan import BatchPlan
from paceline.core.start import Start
from paceline.engine.rank import Beginning
from paceline.parallel.exact.exchange import Stream, finish
from paceline.parallel.exact.reducer import Reducer
from paceline.parallel.exact.route import Route, middle_ranks
from paceline.parallel.team import Team
from paceline.records.folder import RunFolder
from paceline.records.reader import read_metrics
from tests.campaign.inside import RingExchange
from tests.engine.conftest import differences, final_state
from tests.ranks.test_training import StopAt

VARYING = {"images_per_s", "seconds", "phases", "utilisation", "time"}

MODELS = '''
import torch
from torch import nn

def plain(num_classes, image_shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.GELU(), nn.LayerNorm(48), nn.Linear(48, num_classes))

def dropped(num_classes, image_shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Dropout(0.3), nn.Linear(48, num_classes))

class Partly(nn.Module):
    """Uses one of two branches, by what it sees: parameters that some shards leave without a gradient."""

    def __init__(self, num_classes):
        super().__init__()
        self.inner = nn.ModuleList([nn.Linear(64, num_classes) for _ in range(2)])

    def forward(self, images):
        flat = images.flatten(1)
        return self.inner[int(flat.sum() > 0)](flat)

class Careless(nn.Module):
    """Uses an operation that torch does not promise to repeat."""

    def __init__(self, num_classes):
        super().__init__()
        self.linear = nn.Linear(64, num_classes)

    def forward(self, images):
        flat = images.flatten(1).contiguous()
        return self.linear(flat.put_(torch.tensor([0]), torch.tensor([1.0])))

class Shuffling(nn.Module):
    """Draws random numbers of its own in training."""

    def __init__(self, num_classes):
        super().__init__()
        self.linear = nn.Linear(64, num_classes)

    def forward(self, images):
        flat = images.flatten(1)
        return self.linear(flat + 0.1 * torch.randn_like(flat) if self.training else flat)
'''


@pytest.fixture(scope="session")
def models(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("models") / "models.py"
    path.write_text(MODELS)
    return path


def exact(tmp_path: Path, **settings: Any) -> dict[str, Any]:
    """Return settings of a run of a few steps; 1,293 images in batches of 215 leave three for the seventh."""
    usual = {"model": "mlp", "steps": 9, "global_batch": 215, "lr": 0.05, "track": (), "log_every": 4}
    return usual | {"exact": "bitwise", "shards": 4, "threads": 1, "runs_dir": tmp_path / "runs"} | settings


def live(team: Team, settings: dict[str, Any], resume: Path | None = None, stop_at: int | None = None) -> str:
    torch.set_num_threads(settings["threads"])
    stop = StopAt(stop_at is not None and team.world.rank == team.world.size - 1)
    stop.at = stop_at or 0
    try:
        result = Beginning(Config(**settings), team, Start()).run(stop, None if resume is None else RunFolder(resume))
    finally:
        torch.set_num_threads(1)
    return str(result.folder)


def train(ranks, world_size: int, settings: dict[str, Any], *more: Any) -> Path:
    return Path(ranks(world_size).run(live, settings, *more)[0])


def records(folder: Path) -> list[dict[str, Any]]:
    """Return what a run wrote down of losses and scores, without what depends on the time."""
    return [
        {key: value for key, value in record.items() if key not in VARYING}
        for record in read_metrics(RunFolder(folder))
        if record["kind"] in {"step", "epoch", "eval"}
    ]


def unequal(first: Path, second: Path) -> list[str]:
    """Return where two runs differ: parameters, buffers, optimizer, progress, and every loss on the way."""
    states = differences(final_state(first), final_state(second))
    return states + differences(records(first), records(second), "/records")


CASES = {
    "no batch norm": {"model": "plain", "shards": 4},
    "dropout, adamw": {"model": "dropped", "shards": 6, "optimizer": "adamw", "lr": 0.002, "clip": 0.5},
    "batch norm and dropout": {"model": "cnn", "shards": 8, "ema": 0.9, "global_batch": 127},
    "batch norm, adamw, clipped": {"model": "cnn", "shards": 6, "optimizer": "adamw", "clip": 1.0, "lr": 0.002},
    "parameters without gradient": {"model": "Partly", "shards": 8, "global_batch": 24, "steps": 55},
    "random numbers of its own": {"model": "Shuffling", "shards": 4},
}


@pytest.mark.parametrize("name", CASES)
def test_every_bit_is_the_same_at_every_world_size(ranks, tmp_path, models, name):
    settings = exact(tmp_path, **CASES[name])
    if settings["model"] not in {"cnn", "mlp"}:
        settings["model"] = f"{models}:{settings['model']}"
    alone = train(ranks, 1, settings)
    assert len(records(alone)) > 3
    for world_size in (2, 3, 4):
        assert unequal(alone, train(ranks, world_size, settings)) == [], f"{world_size} ranks"


def sums_of_few_shards(team: Team) -> list[torch.Tensor]:
    """Return the gradient of steps of one shard, of two, and so on up to eight."""
    plan = BatchPlan.make(Config(exact="bitwise", shards=8), images=1000, world_size=team.world.size)
    owned = [plan.part_numbers(rank) for rank in range(team.world.size)]
    torch.manual_seed(0)
    model = nn.Linear(300, 300)
    images = [torch.randn(5, 300) * 10.0 ** (shard % 3) for shard in range(8)]
    reducer = Reducer(model, team, owned, middle=plan.middle)
    found = []
    for num_shards in range(1, 9):
        with reducer.step(num_shards):
            for shard in owned[team.world.rank]:
                if shard < num_shards:
                    with reducer.shard(1 / 8):
                        model(images[shard]).square().sum().backward()
        assert model.weight.grad is not None
        found.append(model.weight.grad.clone())
        model.zero_grad()
    return found


def test_ranks_without_a_shard_pass_on_what_others_have(ranks):
    """A last batch of few images has fewer shards than there are ranks."""
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


def in_many_buckets(team: Team, settings: dict[str, Any]) -> str:
    return planted("paceline.parallel.exact.bucket", "LARGEST", 2048, team, settings)


def test_where_buckets_end_changes_no_bit(ranks, tmp_path):
    """Small buckets go over the ranks while the backward pass runs; the one of a whole model after it."""
    settings = exact(tmp_path, model="cnn", shards=8, steps=14)
    alone = train(ranks, 1, settings)
    for world_size in (1, 2, 3, 4):
        assert unequal(alone, Path(ranks(world_size).run(in_many_buckets, settings)[0])) == [], f"{world_size} ranks"


def counted(team: Team, settings: dict[str, Any]) -> tuple[int, int, int]:
    """Train, and return the numbers that this rank sent, how many gradients it had memory for, and the size of one."""
    from paceline.parallel.exact.bucket import Bucket
    from paceline.parallel.exact.route import Route

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
        live(team, settings)
    assert len(set(allocated)) == 1
    return sum(sent), len(allocated), allocated[0]


@pytest.mark.parametrize("shards", [4, 6, 8])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_all_ranks_together_send_what_a_ring_sends(ranks, tmp_path, world_size, shards):
    """However many shards a rank has. benchmarks.exact counts the bytes at the interfaces: 0.999 to 1.002."""
    settings = exact(tmp_path, model="cnn", shards=shards, global_batch=64, steps=3)
    sent, memory, sizes = zip(*ranks(world_size).run(counted, settings), strict=True)
    assert sum(sent) == 3 * 2 * (world_size - 1) * sizes[0]
    assert {memory[0], memory[-1]} == {2 if world_size == 1 else 1}
    assert max(memory) <= max(2, -(-shards // world_size))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_every_bit_is_the_same_in_16_bit_arithmetic(ranks, tmp_path, precision):
    settings = exact(tmp_path, model="cnn", precision=precision, steps=4, global_batch=96)
    assert unequal(train(ranks, 1, settings), train(ranks, 3, settings)) == []


def test_workers_that_prepare_batches_change_no_bit(ranks, tmp_path):
    settings = exact(tmp_path, model="cnn", augment="crop1,flip")
    assert unequal(train(ranks, 1, settings | {"workers": 2}), train(ranks, 3, settings)) == []


@pytest.mark.parametrize(("first", "second"), [(3, 2), (1, 4), (4, 1)])
def test_a_run_stopped_at_one_world_size_goes_on_at_another_to_the_same_bits(ranks, tmp_path, first, second):
    settings = exact(tmp_path, model="cnn", optimizer="adamw", lr=0.002, ema=0.9)
    whole = train(ranks, 1, settings)
    stopped = train(ranks, first, settings, None, 3)
    assert final_state(stopped)["progress"]["step"] in {3, 4}
    resumed = train(ranks, second, settings, stopped)
    assert differences(final_state(whole), final_state(resumed)) == []


def test_bitwise_and_order_differ_by_rounding_only(ranks, tmp_path, models):
    """Ragged shards are weighted: the gradient is that of the whole batch, as with one part."""
    settings = exact(tmp_path, model=f"{models}:plain", log_every=1)
    curves = [
        [record["loss"] for record in records(train(ranks, size, settings | {"exact": kind})) if "lr" in record]
        for size, kind in ((1, "order"), (3, "bitwise"))
    ]
    assert curves[0] == pytest.approx(curves[1], rel=1e-5)
    assert curves[0] != curves[1]


def ring(team: Team, settings: dict[str, Any]) -> str:
    return planted("paceline.parallel.exact.exchange", "Exchange", RingExchange, team, settings)


def random_by_rank(team: Team, settings: dict[str, Any]) -> str:
    """Let every rank consume random numbers of its own."""
    import paceline.engine.loop as place

    honest = place.seed_random
    stream = iter(range(10**6))
    return planted(
        "paceline.engine.loop",
        "seed_random",
        lambda device, _key: honest(device, mix(team.world.rank, next(stream))),
        team,
        settings,
    )


def unweighted(team: Team, settings: dict[str, Any]) -> str:
    """Take the mean of the means of ranks, as scripts do."""
    from paceline.engine.loop import Training

    honest = Training.places

    def places(self, images):
        parts = honest(self, images)
        return [part._replace(weight=1 / (len(parts) * team.world.size)) for part in parts]

    Training.places = places
    try:
        return live(team, settings)
    finally:
        Training.places = honest


def planted(module: str, name: str, fault: Any, team: Team, settings: dict[str, Any]) -> str:
    """Train with something replaced."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{module}.{name}", fault)
        return live(team, settings)


@pytest.mark.parametrize("fault", [ring, random_by_rank, unweighted])
def test_a_planted_fault_shows_at_three_ranks(ranks, tmp_path, fault):
    settings = exact(tmp_path, model="cnn", shards=6)
    alone = Path(ranks(1).run(fault, settings)[0])
    assert unequal(train(ranks, 1, settings), train(ranks, 3, settings)) == []
    assert any(place.startswith("/model") for place in unequal(alone, Path(ranks(3).run(fault, settings)[0])))


def test_two_threads_give_other_bits_which_is_why_they_are_part_of_the_fingerprint(ranks, tmp_path):
    settings = exact(tmp_path, model="cnn")
    one, two = (train(ranks, 1, settings | {"threads": threads}) for threads in (1, 2))
    assert any(place.startswith("/model") for place in unequal(one, two))
    with pytest.raises(RunError, match="threads, which was 1 and is 2 here") as refused:
        train(ranks, 2, settings | {"threads": 2, "steps": 12}, one)
    assert "--threads 1" in (refused.value.hint or "")
    train(ranks, 2, settings | {"threads": 2, "steps": 12, "exact": "order", "batch_norm": "ghost"}, one)


def one_has_two_threads(team: Team, settings: dict[str, Any]) -> str:
    return live(team, settings | {"threads": 1 + team.world.rank})


def test_ranks_with_different_threads_are_refused(ranks, tmp_path):
    with pytest.raises(ConfigError, match="threads is 1 on rank 0 and 2 on rank 1"):
        ranks(2).run(one_has_two_threads, exact(tmp_path))


def flipped(team: Team, settings: dict[str, Any]) -> str:
    from paceline.parallel.exact.bucket import Bucket

    honest = Bucket.give

    def give(self):
        honest(self)
        if team.world.rank == 1:
            self.parameters[0].grad.view(-1)[:1].view(torch.int32).bitwise_xor_(1 << 20)

    return planted("paceline.parallel.exact.bucket.Bucket", "give", give, team, settings)


def test_one_flipped_bit_on_one_rank_is_caught(ranks, tmp_path):
    with pytest.raises(RanksError, match="no longer hold the same model after step 1"):
        ranks(3).run(flipped, exact(tmp_path, check_replicas=1))


def test_an_operation_that_is_not_deterministic_is_refused(ranks, tmp_path, models):
    with pytest.raises(ModelError, match="put_ gives other bits each time it runs"):
        train(ranks, 1, exact(tmp_path, model=f"{models}:Careless"))
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_norm": "sync"},
        {"mode": "fsdp"},
        {"mode": "dp"},
        {"compile": True},
        {"compress": "bf16"},
        {"accumulate": 2},
    ],
)
def test_what_cannot_be_exact_is_refused_with_the_reason(settings):
    with pytest.raises(ConfigError, match="--exact bitwise") as refused:
        Config(exact="bitwise", **settings)
    assert refused.value.hint
