"""Restoring a checkpoint on real ranks: the same bits as without a stop, and no second copy of it in memory."""

import contextlib
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.tensor import DTensor, Shard, distribute_tensor, init_device_mesh

import paceline.engine.rank
from paceline.core.config import Config
from paceline.core.errors import CheckpointError, RunError
from paceline.engine import capture, checkpoint_folder
from paceline.engine.capture import Receiver, describe_state, restore_model, restore_optimizer
from paceline.engine.checkpoint import Checkpoints, load_checkpoint
from paceline.engine.checkpoint_folder import Captured
from paceline.engine.clock import clock_for
from paceline.engine.job import build_job
from paceline.engine.progress import Progress
from paceline.engine.rank import check_shared
from paceline.engine.run import JobRun
from paceline.engine.saved_tensor import SavedTensor
from paceline.engine.state_tree import change_leaves
from paceline.parallel.replicas import check_replicas
from paceline.parallel.team import Team
from paceline.records.attempt import take_over
from paceline.records.entries import RunResult
from paceline.records.folder import RunFolder
from paceline.records.manifest import read_manifest
from tests.ranks.pool import RankPool
from tests.ranks.runs import rank_settings, train, train_rank
from tests.states import differences, final_state

PLAIN = """
from torch import nn

def small(num_classes):
    return nn.Sequential(nn.Conv2d(1, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(180, num_classes))

def large(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(),
                         nn.Linear(4096, num_classes))
"""
"""Models without batch norm, whose buffers are averaged once more when a run stops."""

LARGE_WEIGHTS = 4 * (64 * 4096 + 4096 * 4096 + 4096 * 10)
"""Bytes of the matrices of the large model."""


def plain(tmp_path: Path, name: str = "small", **settings: Any) -> dict[str, Any]:
    path = tmp_path / "plain.py"
    path.write_text(PLAIN)
    return rank_settings(tmp_path, model=f"{path}:{name}", schedule="constant", lr=0.01, **settings)


def seen_by_lead(team: Team, settings: dict[str, Any], resume: Path | None = None) -> RunResult:
    """Train as ranks do that have no access to the checkpoints, except for the lead and with fsdp."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("only the lead may read a checkpoint")

    with contextlib.ExitStack() as patches:
        if not team.is_lead and settings.get("mode") != "fsdp":
            patches.enter_context(patch("paceline.engine.checkpoint.open_checkpoint", refuse))
        return train_rank(team, settings, resume)


MODES = {
    "single": (1, {}),
    "ddp": (2, {"mode": "ddp"}),
    "bitwise": (2, {"exact": "bitwise", "shards": 4}),
    "fsdp": (2, {"mode": "fsdp"}),
}
STATES = {
    "sgd": {"optimizer": "sgd"},
    "sgd without momentum": {"optimizer": "sgd", "momentum": 0.0},
    "adamw": {"optimizer": "adamw"},
    "loss scaling": {"precision": "fp16"},
    "average": {"ema": 0.9, "optimizer": "adamw"},
}


def hashes(folder: Path) -> dict[str, Any]:
    """Return the hash of every tensor of the last checkpoint of a run."""
    parts = read_manifest(Checkpoints(folder / "checkpoints", keep=1).named("last"))["parts"]
    return {part: {name: each["hash"] for name, each in held["tensors"].items()} for part, held in parts.items()}


@pytest.mark.parametrize("save_async", [False, True])
def test_shards_of_two_ranks_are_read_by_three_and_by_one_and_keep_their_hashes(ranks, tmp_path, save_async):
    settings = plain(tmp_path, optimizer="adamw", exact="bitwise", shards=6, save_async=save_async)
    folder = train(ranks, 2, settings | {"mode": "fsdp", "steps": 2})
    last = Checkpoints(folder / "checkpoints", keep=1).named("last")
    assert [path.name for path in sorted((last / "model").iterdir())] == [
        "shard-00000-of-00002.safetensors", "shard-00001-of-00002.safetensors",
    ]  # fmt: skip
    assert hashes(folder) == hashes(train(ranks, 1, settings | {"steps": 2}))
    alone = hashes(train(ranks, 1, settings | {"steps": 3}))
    for mode, world_size in (("fsdp", 3), ("single", 1), ("ddp", 2)):
        copy = tmp_path / f"{mode}-{world_size}"
        shutil.copytree(folder, copy)
        assert hashes(train(ranks, world_size, settings | {"mode": mode, "steps": 3}, copy)) == alone


def read_by_torch(_team: Team, folder: Path) -> list[str]:
    """Return the tensors that torch.distributed.checkpoint reads otherwise than this package."""
    state = load_checkpoint(folder)["model"]
    read = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    dcp.load(read, storage_reader=dcp.HuggingFaceStorageReader(str(folder / "model")))
    return differences(read, state)


def test_torch_reads_shards_too(ranks, tmp_path):
    folder = train(ranks, 2, plain(tmp_path, mode="fsdp", steps=1))
    assert ranks(2).run(read_by_torch, Checkpoints(folder / "checkpoints", keep=1).named("last")) == [[], []]


def save_on_two_disks(team: Team, folder: Path) -> None:
    """Save shards as ranks do of which each sees only its own disk."""
    own = folder / f"rank-{team.world.rank}"
    own.mkdir()
    mesh = init_device_mesh("cpu", (team.world.size,))
    captured = Captured.of({"model": {"w": distribute_tensor(torch.ones(4, 2), mesh, [Shard(0)])}})
    honest = checkpoint_folder.write_tensors

    def write(path: Path, pieces: Any) -> Any:
        return honest(own / path.relative_to(folder / "rank-0"), pieces)

    with patch.object(checkpoint_folder, "write_tensors", write):
        Checkpoints(own, keep=1).save(captured, team, step=1, best_step=None)


def test_a_rank_that_does_not_see_the_folder_of_its_shards_is_named(ranks, tmp_path):
    with pytest.raises(CheckpointError, match=r"rank 1 on .* cannot write its shard: .* does not exist there"):
        ranks(2).run(save_on_two_disks, tmp_path)


def check_with_own_disks(team: Team, folder: Path, mode: str) -> str:
    """Check the run folder as ranks do of which only the lead sees it, and return the error."""
    opened = team.from_lead(take_over(RunFolder(folder)) if team.is_lead else RunFolder(folder))
    own = opened if team.is_lead else replace(opened, path=folder / "elsewhere")
    job: Any = SimpleNamespace(choice=SimpleNamespace(mode=mode))
    try:
        check_shared(own, job, team)
    except RunError as problem:
        return problem.message
    return ""


def test_fsdp_names_a_rank_that_does_not_see_the_run_folder_before_it_trains(ranks, tmp_path):
    found = ranks(2).run(check_with_own_disks, tmp_path, "fsdp")
    assert all(re.match(r"rank 1 on .* does not see the run folder", each) for each in found), found
    assert ranks(2).run(check_with_own_disks, tmp_path, "ddp") == ["", ""]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("state", STATES)
def test_a_resumed_run_ends_with_the_same_bits(ranks, tmp_path, mode, state):
    world_size, settings = MODES[mode][0], plain(tmp_path, **(MODES[mode][1] | STATES[state]))
    whole = ranks(world_size).run(seen_by_lead, settings | {"steps": 6})[0].folder
    stopped = ranks(world_size).run(seen_by_lead, settings | {"steps": 3})[0].folder
    resumed = ranks(world_size).run(seen_by_lead, settings | {"steps": 6}, stopped)[0].folder
    ends = [final_state(folder) for folder in (whole, resumed)]
    assert ends[0]["progress"]["step"] == ends[1]["progress"]["step"] == 6
    for part in ("model", "optimizer", "scaler", "ema"):
        assert differences(ends[0][part], ends[1][part], part) == []


def open_run(team: Team, folder: Path, settings: dict[str, Any]) -> JobRun:
    job = build_job(Config(**settings), team)
    return JobRun(job, Progress(), team, RunFolder(folder), clock=clock_for(team, began=None))


def best_loaded(team: Team, folder: Path, settings: dict[str, Any]) -> tuple[int, list[str], list[str]]:
    """Return the step of the best checkpoint, and in which tensors the evaluated model and the other one differ."""
    run = open_run(team, folder, settings)
    step = run.load_best()
    best = load_checkpoint(Checkpoints(folder / "checkpoints", keep=1).named("best"))
    assert check_replicas(run.job.evaluated.state_dict().items(), team) == []
    return (
        step,
        differences(run.job.evaluated.state_dict(), best["ema"]),
        differences(run.job.model.state_dict(), best["model"]),
    )


def test_the_best_checkpoint_is_loaded_as_far_as_it_is_evaluated_and_names_its_step(ranks, tmp_path):
    settings = plain(tmp_path, ema=0.9, steps=4)
    folder = train(ranks, 2, settings)
    best = final_state(folder)["progress"]["best_step"]
    for step, evaluated, trained in ranks(2).run(best_loaded, folder, settings):
        assert step == best > 0
        assert evaluated == []
        assert trained, "the weights that are not evaluated stay as they were"


def received_of_every_kind(team: Team, chunk: int) -> list[str]:
    """Return the tensors that did not arrive as the lead had them."""
    torch.manual_seed(7)
    tensors = {
        "matrix": torch.randn(7, 5),
        "channels last": torch.randn(5, 3, 3, 2).to(memory_format=torch.channels_last),
        "bf16": torch.randn(4, 3).bfloat16(),
        "bool": torch.rand(9) > 0.5,
        "complex": torch.randn(3, 2, dtype=torch.complex64),
        "counter": torch.tensor(2**40),
        "one": torch.randn(1, 4),
        "no rows": torch.zeros(0, 3),
        "no columns": torch.zeros(3, 0),
    }
    saved = describe_state(tensors if team.is_lead else {}, team)
    mesh = init_device_mesh("cpu", (team.world.size,))
    wrong = []
    with patch.object(capture, "CHUNK", chunk):
        receiver = Receiver(team)
        for name, tensor in tensors.items():
            contiguous = torch.zeros(tensor.shape, dtype=tensor.dtype)
            targets = [contiguous, torch.zeros_like(tensor)]
            if tensor.dim() and tensor.numel() and not tensor.is_complex():
                targets.append(distribute_tensor(contiguous.clone(), mesh, [Shard(0)]))
            for target in targets:
                receiver.fill(target, saved[name])
                found = target.full_tensor() if isinstance(target, DTensor) else target
                wrong += [] if torch.equal(found, tensor) else [f"{name} into {type(target).__name__}"]
    return wrong


@pytest.mark.parametrize("chunk", [1, 24, 1 << 20])
def test_tensors_of_every_kind_arrive_in_chunks_of_any_size(ranks, chunk):
    for world_size in (2, 3):
        assert ranks(world_size).run(received_of_every_kind, chunk) == [[]] * world_size


def restored_in_part(team: Team) -> dict[str, Any]:
    """Return the state of an optimizer after a restore from one that has seen some of the parameters only."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()  # what it remembers of this must go
    saved = {"weight": {"momentum_buffer": torch.full((2, 3), 5.0)}, "bias": {"momentum_buffer": None}}
    restore_optimizer(optimizer, model, describe_state(saved if team.is_lead else {}, team), team)
    assert [group["momentum"] for group in optimizer.param_groups] == [0.9]
    return {name: optimizer.state[parameter] for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("world_size", [1, 2])
def test_optimizer_state_that_does_not_exist_yet_stays_so(ranks, world_size):
    for state in ranks(world_size).run(restored_in_part):
        assert state["weight"]["momentum_buffer"].tolist() == [[5.0] * 3] * 2
        assert state["bias"] == {"momentum_buffer": None}


class Halved(nn.Linear):
    """Saves half of its weight, and doubles what it loads."""

    def __init__(self) -> None:
        super().__init__(2, 2, bias=False)
        self.register_state_dict_post_hook(lambda _, state, *__: state.update(weight=state["weight"] / 2))
        self.register_load_state_dict_pre_hook(lambda _, state, *__: state.update(weight=state["weight"] * 2))


def restored_with_hooks(team: Team) -> list[list[float]]:
    model = Halved()
    saved = {"weight": torch.ones(2, 2)}
    restore_model(model, describe_state(saved if team.is_lead else {}, team), team)
    return model.weight.tolist()


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_model_with_state_dict_hooks_is_restored_through_them(ranks, world_size):
    assert ranks(world_size).run(restored_with_hooks) == [[[2.0, 2.0], [2.0, 2.0]]] * world_size


def memory(field: str) -> int:
    """Return a number of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


@contextlib.contextmanager
def measured(into: list[tuple[int, int]]) -> Iterator[None]:
    """Note by how much the memory of this process grew at most: all of it, and what is not mapped from a file.

    The second has no peak in /proc: it is looked at after every tensor.
    """
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    whole, own = memory("VmRSS"), memory("RssAnon")
    peaks = [own]
    honest = Receiver.fill

    def fill(self: Receiver, target: torch.Tensor, saved: torch.Tensor) -> None:
        honest(self, target, saved)
        peaks.append(memory("RssAnon"))

    with patch.object(Receiver, "fill", fill):
        yield
    into.append((memory("VmHWM") - whole, max(*peaks, memory("RssAnon")) - own))


def growth(team: Team, settings: dict[str, Any]) -> dict[str, Any]:
    """Train, resume, and return by how much memory grew when the best checkpoint was loaded and when it resumed."""
    loads: list[tuple[int, int]] = []
    resumes: list[tuple[int, int]] = []
    saves: list[tuple[int, int]] = []
    load_best, restore, save = JobRun.load_best, paceline.engine.rank.restore, Checkpoints.save

    def measured_load(self: JobRun) -> int:
        with measured(loads):
            return load_best(self)

    def measured_restore(*args: Any) -> Progress:
        with measured(resumes):
            return restore(*args)

    def measured_save(*args: Any, **facts: Any) -> None:
        with measured(saves):
            save(*args, **facts)

    with (
        patch.object(JobRun, "load_best", measured_load),
        patch("paceline.engine.rank.restore", measured_restore),
        patch.object(Checkpoints, "save", measured_save),
    ):
        folder = train_rank(team, settings).folder
        train_rank(team, settings | {"steps": 4}, folder)
    files = Checkpoints(folder / "checkpoints", keep=1).named("last").glob("**/*.safetensors")
    size = sum(path.stat().st_size for path in files)
    return {"loads": loads, "resumes": resumes, "saves": saves, "checkpoint": size}


@contextlib.contextmanager
def sent_as_a_whole() -> Iterator[None]:
    """Restore as one does who sends a checkpoint as one object."""

    def share(state: dict[str, Any], team: Team) -> dict[str, Any]:
        return team.from_lead(change_leaves(state, SavedTensor, lambda saved: saved.whole().clone()))

    with patch("paceline.engine.run.describe_state", share), patch("paceline.engine.rank.describe_state", share):
        yield


def growth_as_a_whole(team: Team, settings: dict[str, Any]) -> dict[str, Any]:
    with sent_as_a_whole():
        return growth(team, settings)


@pytest.fixture(scope="module")
def fresh():
    """Return ranks that have freed nothing yet: memory that a process keeps for itself would hide growth."""
    with RankPool() as pool:
        yield pool.of


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["single", "ddp", "fsdp"])
def test_saving_and_loading_take_far_less_memory_than_a_checkpoint(fresh, tmp_path, mode):
    settings = plain(tmp_path, "large", mode=mode, optimizer="adamw", steps=2, global_batch=16, keep=1)
    needed = 2 * LARGE_WEIGHTS // (2 if mode == "fsdp" else 1)  # by the optimizer, which has no state before it resumes
    for rank, found in enumerate(fresh(1 if mode == "single" else 2).run(growth, settings)):
        little = min(64 << 20, found["checkpoint"] // 3)
        reads = rank == 0 or mode == "fsdp"  # and so has pages of files in memory, which the kernel may drop
        assert len(found["saves"]) >= 2
        for whole, _ in found["saves"]:
            assert whole < little
        for whole, own in found["loads"]:
            assert own < little
            assert reads or whole < little
        for whole, own in found["resumes"]:
            assert own - needed < little
            assert reads or whole - needed < little


@pytest.mark.long
def test_a_checkpoint_sent_as_a_whole_takes_several_times_its_size(fresh, tmp_path):
    """The control of the test above."""
    settings = plain(tmp_path, "large", optimizer="adamw", steps=2, global_batch=16, keep=1)
    found = fresh(2).run(growth_as_a_whole, settings)[1]
    for whole, _ in found["loads"] + found["resumes"]:
        assert whole > 2 * found["checkpoint"]
