"""The batch plan: every image of a global batch belongs to exactly one rank and one part, at any world size."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.config import Config
from paceline.core.errors import ConfigError
from paceline.core.plan import BatchPlan


@st.composite
def plans(draw):
    images = draw(st.integers(1, 400))
    batch = draw(st.integers(1, images))
    config = Config(
        global_batch=batch,
        accumulate=draw(st.integers(1, batch)),
        epochs=draw(st.integers(1, 4)),
        steps=draw(st.none() | st.integers(1, 30)),
    )
    return BatchPlan.make(config, images=images, world_size=draw(st.integers(1, min(17, batch))))


def flattened(ranges):
    return [place for each in ranges for place in each]


def parts_of_ranks(plan, images):
    return [list(plan.parts(images, rank).values()) for rank in range(plan.world_size)]


@given(plans(), st.integers(0, 1000))
def test_the_parts_of_all_ranks_are_the_global_batch_in_order(plan, step):
    parts = parts_of_ranks(plan, plan.batch_images(step))
    assert flattened(flattened(parts)) == list(range(plan.batch_images(step)))
    sizes = [len(flattened(mine)) for mine in parts]
    assert max(sizes) - min(sizes) <= 1


@given(plans(), st.integers(0, 1000))
def test_a_rank_computes_its_share_in_nearly_equal_parts_none_of_them_empty(plan, step):
    for parts in parts_of_ranks(plan, plan.batch_images(step)):
        assert all(parts)
        assert len(parts) <= plan.accumulate
        assert not parts or max(map(len, parts)) - min(map(len, parts)) <= 1


@given(st.integers(1, 300), st.integers(1, 12), st.data())
def test_fixed_shards_are_the_same_at_every_world_size(images, shards, data):
    config = Config(global_batch=images, batch_norm="ghost", shards=shards)
    world_size = data.draw(st.integers(1, min(shards, images)))
    alone, spread = (BatchPlan.make(config, images=images, world_size=size) for size in (1, world_size))
    in_batch = data.draw(st.integers(1, images))
    ranks = [spread.parts(in_batch, rank) for rank in range(world_size)]
    assert {number: part for mine in ranks for number, part in mine.items()} == alone.parts(in_batch, 0)
    assert sum(map(len, ranks)) == len(alone.parts(in_batch, 0)) <= min(shards, in_batch)
    assert len(alone.parts(images, 0)) == min(shards, images)


def test_a_small_last_batch_has_shards_of_two_images_where_all_others_have():
    of_16, of_15 = (
        BatchPlan.make(Config(global_batch=batch, batch_norm="ghost", shards=8), images=100, world_size=1)
        for batch in (16, 15)
    )
    assert [of_16.num_shards(images) for images in (16, 15, 5, 2, 1)] == [8, 7, 2, 1, 1]
    assert [of_15.num_shards(images) for images in (15, 5, 1)] == [8, 5, 1]
    assert of_16.parts(5, 0) == {0: range(3), 1: range(3, 5)}


def test_shards_are_computed_from_the_ends_of_the_batch_to_its_middle():
    config = Config(global_batch=64, batch_norm="ghost", shards=8)
    orders = {
        size: [BatchPlan.make(config, images=64, world_size=size).part_numbers(rank) for rank in range(size)]
        for size in (1, 2, 3)
    }
    assert orders == {1: [[0, 1, 2, 3, 7, 6, 5, 4]], 2: [[0, 1, 2, 3], [7, 6, 5, 4]], 3: [[0, 1], [2, 3, 4], [7, 6, 5]]}
    few = BatchPlan.make(config, images=64, world_size=2)
    assert (list(few.parts(11, 0)), list(few.parts(11, 1))) == ([0, 1, 2, 3], [4])


def test_more_ranks_than_images_or_shards_are_refused():
    with pytest.raises(ConfigError, match="too small for 5 ranks"):
        BatchPlan.make(Config(global_batch=4), images=100, world_size=5)
    with pytest.raises(ConfigError, match="5 ranks cannot share 4 shards"):
        BatchPlan.make(Config(batch_norm="ghost", shards=4, global_batch=8), images=100, world_size=5)


@given(plans())
def test_an_epoch_covers_every_image_once(plan):
    assert sum(plan.batch_images(step) for step in range(plan.steps_per_epoch)) == plan.images


@given(plans(), st.integers(0, 100))
def test_images_done_is_the_sum_of_the_batches_before(plan, step):
    assert plan.images_done(step) == sum(plan.batch_images(earlier) for earlier in range(step))


@given(plans())
def test_the_world_size_changes_nothing_but_the_shares(plan):
    config = Config(global_batch=plan.global_batch, accumulate=plan.accumulate, steps=plan.total_steps)
    alone = BatchPlan.make(config, images=plan.images, world_size=1)
    for step in range(plan.steps_per_epoch):
        assert alone.batch_images(step) == plan.batch_images(step)
        everyone = flattened(flattened(parts_of_ranks(plan, plan.batch_images(step))))
        assert flattened(alone.parts(alone.batch_images(step), 0).values()) == everyone


def test_a_batch_larger_than_the_data_is_refused_with_a_number_that_can_be_typed():
    with pytest.raises(ConfigError, match=r"^--global-batch 5,000 is larger than the 1,293 training images$") as caught:
        BatchPlan.make(Config(global_batch=5000), images=1293, world_size=1)
    assert caught.value.hint == "use --global-batch 1293 or less"
    assert BatchPlan.make(Config(global_batch=1293), images=1293, world_size=1).steps_per_epoch == 1


@pytest.mark.parametrize(
    ("world_size", "accumulate", "text"),
    [
        (1, 1, "128 images a step, 11 steps an epoch, 22 steps in all"),
        (1, 4, "128 images a step in 4 micro-batches, 11 steps an epoch, 22 steps in all"),
        (4, 1, "128 images a step = 4 ranks × 32, 11 steps an epoch, 22 steps in all"),
    ],
)
def test_the_plan_reads_as_a_sentence(world_size, accumulate, text):
    plan = BatchPlan.make(Config(accumulate=accumulate, epochs=2), images=1293, world_size=world_size)
    assert str(plan) == text


def test_a_plan_with_shards_says_how_many_there_are():
    config = Config(exact="bitwise", shards=8, global_batch=50, epochs=1)
    assert str(BatchPlan.make(config, images=100, world_size=3)).startswith("50 images a step on 3 ranks in 8 shards, ")
    assert str(BatchPlan.make(config, images=100, world_size=1)).startswith("50 images a step in 8 shards, ")


def test_one_step_is_not_plural():
    plan = BatchPlan.make(Config(global_batch=1293, epochs=1), images=1293, world_size=1)
    assert re.search(r"1,293 images a step, 1 step an epoch, 1 step in all$", str(plan))


@pytest.mark.parametrize(("steps", "images"), [(1, 100), (9, 900), (10, None), (11, None), (None, None)])
def test_a_trial_is_a_run_that_ends_within_its_first_epoch(steps, images):
    for world_size in (1, 4):
        plan = BatchPlan.make(Config(global_batch=100, steps=steps, epochs=1), images=1000, world_size=world_size)
        assert plan.trial_images == images
