"""A sample of the campaign with a seed of the day, and the faults that its checker must flag."""

import os
from dataclasses import replace

import pytest

from paceline.parallel.exact.reducer import Reducer
from tests.campaign import subjects
from tests.campaign.cases import ALONE, BUCKETS, MODULE, Place, make_case
from tests.campaign.check import check
from tests.campaign.inside import FAULTS, FLIPPED_STEP, NUM_SHARDS, replaced, train_case
from tests.campaign.modules import parts_of
from tests.campaign.parts import REFUSED, Averaging, Conv, Dropped, Growing
from tests.ranks.pool import RankPool

SEED = int(os.environ["CAMPAIGN_SEED"])
NUM_SAMPLE = 8


@pytest.fixture(scope="module")
def pool():
    with RankPool() as ranks:
        yield ranks


@pytest.fixture
def three_ranks():
    """Return a case in which everything there is can go wrong: batch norm, dropout, an average, several buckets."""
    place = Place(mode="ddp", world_size=3, workers=0, balance=False)
    wanted = {Conv, Dropped, Averaging, Growing}
    number = next(number for number in range(3000) if wanted <= {*parts_of(0, number)})
    case = make_case(0, number, MODULE)
    assert case.refused is None
    facts = {"place": place, "shards": NUM_SHARDS, "global_batch": 20, "steps": 7, "interruption": None}
    return replace(case, **facts, save_every=FLIPPED_STEP, optimizer="sgd", ema=None, clip=None)


@pytest.mark.parametrize("number", range(NUM_SAMPLE))
def test_a_random_case_has_the_bits_of_one_rank_or_is_refused(pool, tmp_path, number):
    case = make_case(SEED, number)
    assert check(pool, case, tmp_path) == [], f"seed {SEED}: {case}"


@pytest.mark.parametrize(("seed", "number"), [(5, 125)])
def test_a_case_that_once_differed_is_equal(pool, tmp_path, seed, number):
    """5, 125: with one input channel, the strides of a convolution's weights chose another kernel with fsdp.

    And fsdp took no gradients of parameters whose own module is never called.
    """
    assert check(pool, make_case(seed, number, MODULE), tmp_path) == []


@pytest.mark.parametrize("part", REFUSED)
def test_every_kind_of_state_that_cannot_be_reset_is_drawn_and_refused_by_name(pool, tmp_path, part):
    numbers = [number for number in range(3000) if part in make_case(1, number, MODULE).parts]
    case = replace(make_case(1, numbers[0], MODULE), place=ALONE)
    assert check(pool, case, tmp_path) == [], str(case)


@pytest.mark.long
@pytest.mark.parametrize("subject", [*subjects.TASKS, *subjects.LOOPS])
def test_every_task_and_loop_of_the_campaign_has_the_bits_of_one_rank_after_an_interruption(pool, tmp_path, subject):
    numbers = (number for number in range(100) if make_case(3, number, subject).interruption is not None)
    assert check(pool, make_case(3, next(numbers), subject), tmp_path) == []


@pytest.mark.parametrize("fault", ["floating-point sums", "randomness consumed per rank"])
def test_a_fault_planted_into_a_loop_of_a_user_is_flagged(pool, tmp_path, three_ranks, fault):
    case = replace(three_ranks, subject="gan")
    assert any(name.startswith("weights ") for name in check(pool, case, tmp_path, fault=fault))


def test_a_part_that_should_be_refused_and_is_not_is_a_finding(pool, tmp_path, three_ranks, monkeypatch):
    monkeypatch.setattr(Conv, "refused", "conv")
    assert check(pool, replace(three_ranks, place=ALONE), tmp_path) == ["conv was not refused"]


def count_early_starts(team, *words):
    """Train, and return how many buckets left while a backward pass was running."""
    early, honest = [], Reducer._arrived

    def noting(self, *arrival):
        before = self._num_added
        honest(self, *arrival)
        early.append(self._num_added - before)

    with replaced(Reducer, "_arrived", noting):
        train_case(team, *words)
    return sum(early)


@pytest.mark.parametrize("bucket_bytes", BUCKETS)
def test_small_buckets_are_sent_during_the_backward_pass(pool, tmp_path, three_ranks, bucket_bytes):
    """So the campaign is about that, too; large ones leave after it."""
    words = (three_ranks.settings(tmp_path, three_ranks.place), None, None, None, bucket_bytes)
    assert [num > 7 for num in pool.of(3).run(count_early_starts, *words)] == [bucket_bytes != BUCKETS[-1]] * 3


def test_the_case_for_faults_is_equal_without_one(pool, tmp_path, three_ranks):
    assert check(pool, three_ranks, tmp_path) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_flagged(pool, tmp_path, three_ranks, fault):
    found = check(pool, three_ranks, tmp_path, fault=fault)
    if fault == "one flipped bit on one rank":
        (sentence,) = found
        assert "first.weight (ranks 0,2 against rank 1)" in sentence
        assert f"after step {FLIPPED_STEP}" in sentence
    else:
        assert any(name.startswith("weights ") for name in found), found
