"""The batch plan: every sample of a global batch belongs to exactly one rank and one part, at any world size."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.batch_plan import BatchPlan
from paceline.core.config import Config
from paceline.core.errors import ConfigError


@st.composite
def plans(draw):
    num_samples = draw(st.integers(1, 400))
    batch = draw(st.integers(1, num_samples))
    config = Config(
        global_batch=batch,
        accumulate=draw(st.integers(1, batch)),
        epochs=draw(st.integers(1, 4)),
        steps=draw(st.none() | st.integers(1, 30)),
    )
    return BatchPlan.make(config, num_samples=num_samples, world_size=draw(st.integers(1, min(17, batch))))


def flattened(ranges):
    return [place for each in ranges for place in each]


def parts_of_ranks(plan, batch_size):
    return [list(plan.micro_batches(batch_size, rank).values()) for rank in range(plan.world_size)]


@given(plans(), st.integers(0, 1000))
def test_the_micro_batches_of_all_ranks_are_the_global_batch_in_order(plan, step):
    parts = parts_of_ranks(plan, plan.batch_size(step))
    assert flattened(flattened(parts)) == list(range(plan.batch_size(step)))
    sizes = [len(flattened(mine)) for mine in parts]
    assert max(sizes) - min(sizes) <= 1


@given(plans(), st.integers(0, 1000))
def test_micro_batches_of_a_rank_are_nearly_equal_and_never_empty(plan, step):
    for parts in parts_of_ranks(plan, plan.batch_size(step)):
        assert all(parts)
        assert len(parts) <= plan.accumulate
        assert not parts or max(map(len, parts)) - min(map(len, parts)) <= 1


@given(st.integers(1, 300), st.integers(1, 12), st.data())
def test_fixed_shards_are_the_same_at_every_world_size(num_samples, shards, data):
    config = Config(global_batch=num_samples, batch_norm="ghost", shards=shards)
    world_size = data.draw(st.integers(1, min(shards, num_samples)))
    alone, spread = (BatchPlan.make(config, num_samples=num_samples, world_size=size) for size in (1, world_size))
    in_batch = data.draw(st.integers(1, num_samples))
    ranks = [spread.micro_batches(in_batch, rank) for rank in range(world_size)]
    assert {number: part for mine in ranks for number, part in mine.items()} == alone.micro_batches(in_batch, 0)
    assert sum(map(len, ranks)) == len(alone.micro_batches(in_batch, 0)) <= min(shards, in_batch)
    assert len(alone.micro_batches(num_samples, 0)) == min(shards, num_samples)


def test_a_small_last_batch_has_shards_of_two_samples_where_all_others_have():
    of_16, of_15 = (
        BatchPlan.make(Config(global_batch=batch, batch_norm="ghost", shards=8), num_samples=100, world_size=1)
        for batch in (16, 15)
    )
    assert [of_16.num_shards(size) for size in (16, 15, 5, 2, 1)] == [8, 7, 2, 1, 1]
    assert [of_15.num_shards(size) for size in (15, 5, 1)] == [8, 5, 1]
    assert of_16.micro_batches(5, 0) == {0: range(3), 1: range(3, 5)}


def test_more_ranks_than_samples_or_shards_are_refused():
    with pytest.raises(ConfigError, match="too small for 5 ranks"):
        BatchPlan.make(Config(global_batch=4), num_samples=100, world_size=5)
    with pytest.raises(ConfigError, match="5 ranks are more than the 4 shards of the batch"):
        BatchPlan.make(Config(batch_norm="ghost", shards=4, global_batch=8), num_samples=100, world_size=5)


@given(plans())
def test_an_epoch_covers_every_sample_once(plan):
    assert sum(plan.batch_size(step) for step in range(plan.steps_per_epoch)) == plan.num_samples


@given(plans(), st.integers(0, 100))
def test_samples_done_is_the_sum_of_the_batches_before(plan, step):
    assert plan.samples_done(step) == sum(plan.batch_size(earlier) for earlier in range(step))


@given(plans())
def test_the_world_size_changes_only_which_samples_a_rank_computes(plan):
    config = Config(global_batch=plan.global_batch, accumulate=plan.accumulate, steps=plan.total_steps)
    alone = BatchPlan.make(config, num_samples=plan.num_samples, world_size=1)
    for step in range(plan.steps_per_epoch):
        assert alone.batch_size(step) == plan.batch_size(step)
        everyone = flattened(flattened(parts_of_ranks(plan, plan.batch_size(step))))
        assert flattened(alone.micro_batches(alone.batch_size(step), 0).values()) == everyone


def test_a_batch_larger_than_the_data_is_refused_with_a_number_that_can_be_typed():
    with pytest.raises(
        ConfigError, match=r"^--global-batch 5,000 is larger than the 1,293 training samples(?m:$)"
    ) as caught:
        BatchPlan.make(Config(global_batch=5000), num_samples=1293, world_size=1)
    assert caught.value.hint == "use --global-batch 1293 or less"
    assert BatchPlan.make(Config(global_batch=1293), num_samples=1293, world_size=1).steps_per_epoch == 1


@pytest.mark.parametrize(
    ("world_size", "accumulate", "text"),
    [
        (1, 1, "128 samples/step, 11 steps/epoch, 22 steps in total"),
        (1, 4, "128 samples/step in 4 micro-batches, 11 steps/epoch, 22 steps in total"),
        (4, 1, "128 samples/step = 4 ranks × 32, 11 steps/epoch, 22 steps in total"),
    ],
)
def test_the_plan_reads_as_a_sentence(world_size, accumulate, text):
    plan = BatchPlan.make(Config(accumulate=accumulate, epochs=2), num_samples=1293, world_size=world_size)
    assert str(plan) == text


def test_a_plan_with_shards_says_how_many_there_are():
    config = Config(exact="bitwise", shards=8, global_batch=50, epochs=1)
    assert str(BatchPlan.make(config, num_samples=100, world_size=3)).startswith(
        "50 samples/step on 3 ranks in 8 shards, "
    )
    assert str(BatchPlan.make(config, num_samples=100, world_size=1)).startswith("50 samples/step in 8 shards, ")


def test_one_step_is_not_plural():
    plan = BatchPlan.make(Config(global_batch=1293, epochs=1), num_samples=1293, world_size=1)
    assert re.search(r"1,293 samples/step, 1 step/epoch, 1 step in total$", str(plan))


@pytest.mark.parametrize(("steps", "samples"), [(1, 100), (9, 900), (10, None), (11, None), (None, None)])
def test_a_trial_is_a_run_that_ends_within_its_first_epoch(steps, samples):
    for world_size in (1, 4):
        plan = BatchPlan.make(Config(global_batch=100, steps=steps, epochs=1), num_samples=1000, world_size=world_size)
        assert plan.trial_samples == samples


@given(st.integers(1, 6), st.integers(6, 24), st.data())
def test_balanced_shards_are_all_computed_and_no_slower(world_size, shards, data):
    seconds = data.draw(st.lists(st.floats(0.1, 10), min_size=world_size, max_size=world_size))
    config = Config(global_batch=200, exact="bitwise", shards=shards)
    plan = BatchPlan.make(config, num_samples=200, world_size=world_size)
    balanced = plan.balanced(seconds)
    owned = [balanced.micro_batch_indices(rank) for rank in range(world_size)]
    assert flattened(owned) == list(range(shards))
    assert all(owned)

    def slowest(of):
        return max(len(of.micro_batch_indices(rank)) * each for rank, each in enumerate(seconds))

    assert slowest(balanced) <= slowest(plan)
    assert balanced.balanced(seconds) == balanced, "the same speeds change nothing more"


@pytest.mark.parametrize(
    ("seconds", "shards"),
    [([1, 2], (4, 2)), ([1, 5], (5, 1)), ([3, 1], (1, 5)), ([1, 1], None), ([1, 1.2], None)],
)
def test_a_rank_of_half_the_speed_gets_half_the_shards(seconds, shards):
    config = Config(global_batch=60, exact="bitwise", shards=6)
    assert BatchPlan.make(config, num_samples=60, world_size=2).balanced(seconds).shards_by_rank == shards
