"""Requests are computed when they are needed: an epoch of a billion samples is entered without memory for its ids."""

import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from paceline.core.batch_plan import BatchPlan
from paceline.core.config import Config
from paceline.core.world import World
from paceline.data.catalog import Splits, split_data
from paceline.data.order import epoch_order
from paceline.data.requests import BlockRequests, EpochRequests, RequestGroups
from paceline.data.split import DataSet, Ids, ImageBatch
from paceline.engine.loop import Training
from paceline.engine.run_steps import RunSteps
from paceline.parallel.team import Team

BILLION = 10**9


class Numbers:
    """A split whose images are their ids."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __len__(self) -> int:
        return self.number

    def fetch(self, ids: Ids, epoch: int | None) -> ImageBatch:
        return ImageBatch(torch.from_numpy(ids).float().view(-1, 1, 1, 1), torch.from_numpy(ids % 10))


def splits_of(number: int, config: Config) -> Splits:
    numbers = Numbers(number)
    data = DataSet(train=numbers, test=numbers, classes=tuple("0123456789"), image_shape=(1, 1, 1))
    return split_data(data, valid_split=config.valid_split, order=config.sample_order)


def training_of(number: int, *, step: int, rank: int = 0, world_size: int = 1, **settings) -> Training:
    """Return the loop over so many samples, with no more of a job than reading batches needs."""
    config = Config(global_batch=256, **settings)
    splits = splits_of(number, config)
    plan = BatchPlan.make(config, num_samples=len(splits.train), world_size=world_size)
    job = SimpleNamespace(
        config=config, splits=splits, plan=plan, device=torch.device("cpu"), reducer=None, gradient_weight=world_size
    )
    team = Team(World(rank=rank, size=world_size), torch.device("cpu"))
    loop = object.__new__(Training)
    loop.plan, loop.balance, loop.team = plan, None, team
    loop.job, loop.progress = job, SimpleNamespace(step=step)  # pyright: ignore[reportAttributeAccessIssue]
    loop.steps = object.__new__(RunSteps)
    loop.steps.progress, loop.steps._plan, loop.steps._config = loop.progress, plan, config
    loop.steps._device = job.device
    return loop


def bytes_to_enter(**arguments) -> int:
    """Return the peak of memory from opening the split until the first batch."""
    tracemalloc.start()
    try:
        next(training_of(**arguments).batches_of_epoch())
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_an_epoch_of_a_billion_samples_is_entered_with_a_megabyte():
    assert bytes_to_enter(number=BILLION, step=3 * 10**6 + 12345, rank=5, world_size=8) < 1e6


def test_the_count_of_bytes_would_notice_an_order_in_memory():
    assert bytes_to_enter(number=1 << 18, step=0, sample_order="argsort") > 2e6


@pytest.mark.parametrize("sample_order", ["argsort", "feistel"])
@pytest.mark.parametrize("step", [0, 3])
def test_the_ranks_together_read_every_sample_of_the_rest_of_an_epoch_once(sample_order, step):
    def read(world_size: int) -> list[list[float]]:
        loops = [
            training_of(3000, step=step, rank=rank, world_size=world_size, sample_order=sample_order, accumulate=2)
            for rank in range(world_size)
        ]
        steps = zip(*(loop.batches_of_epoch() for loop in loops), strict=True)
        return [sorted(x for _, parts in ranks for part in parts for x in part.batch.images.flatten().tolist())
                for ranks in steps]  # fmt: skip

    alone, together = read(1), read(3)
    assert alone == together
    assert len(alone) == 11 - step
    seen = [x for batch in alone for x in batch]
    assert len(set(seen)) == len(seen) == 2700 - 256 * step


def test_training_and_validation_samples_of_a_billion_never_meet():
    splits = splits_of(BILLION, Config())
    assert (len(splits.train), len(splits.valid)) == (9 * BILLION // 10, BILLION // 10)
    train, valid = (
        split.fetch(np.arange(0, len(split), len(split) // 1000), None).labels.numel()
        for split in (splits.train, splits.valid)
    )
    assert train >= 1000
    assert valid >= 1000
    kept, held = splits.train._ids, splits.valid._ids  # pyright: ignore[reportAttributeAccessIssue]
    assert kept.has(kept[:5000]).all()
    assert not held.has(kept[:5000]).any()
    assert not kept.has(held[:5000]).any()


def epoch_requests(**changes) -> EpochRequests:
    facts = {
        "order": epoch_order(seed=1, epoch=2, num_samples=100), "epoch": 2, "global_batch": 30, "batches": range(1, 4),
        "slices": [range(15), range(15, 30)], "last_slices": [range(5)],
    }  # fmt: skip
    return EpochRequests(**(facts | changes))


def test_requests_by_index_are_the_slices_of_the_order():
    requests, order = epoch_requests(), epoch_order(seed=1, epoch=2, num_samples=100)
    assert len(requests) == 5
    expected = [order[30:45], order[45:60], order[60:75], order[75:90], order[90:95]]
    assert all(np.array_equal(requests[index][0], ids) for index, ids in enumerate(expected))
    assert len(epoch_requests(batches=range(0))) == 0


def test_a_group_stays_within_its_limit():
    groups = RequestGroups.make(epoch_requests(), 40)
    assert [[len(ids) for ids, _ in group] for group in groups] == [[15, 15], [15, 15], [5]]
    listed = [(np.arange(700), 0), (np.arange(10), 0), (np.arange(700), 0)]
    assert [len(group) for group in RequestGroups.make(listed, 512)] == [1, 1, 1]
    assert list(RequestGroups.make([], 512)) == []


@pytest.mark.parametrize("scored", [None, np.arange(0, 1000, 3)])
def test_blocks_cover_the_samples_to_score(scored):
    number = 1000 if scored is None else len(scored)
    blocks = BlockRequests(num_samples=number, scored=scored, blocks=range(-(-number // 256)), largest=256)
    ids = np.concatenate([blocks[index][0] for index in range(len(blocks))])
    assert np.array_equal(ids, np.arange(1000) if scored is None else scored)
    assert blocks.num_ids(len(blocks)) == number
