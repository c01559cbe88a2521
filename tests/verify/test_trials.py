"""What verify tries and how it judges, without a process."""

from random import Random

import pytest
import torch

from paceline.compare.contents import Contents
from paceline.compare.sections import parts_of
from paceline.verify.trials import Trial, judge_trial, plan_trials, reference_of


def contents(**changes) -> Contents:
    state = {"w": torch.tensor([1.0, 2.0]), "b": torch.tensor([0.5])} | changes
    parts, _ = parts_of({"model": state, "optimizer": {"w": {"momentum": torch.zeros(2)}}, "progress": {"step": 3}})
    return Contents(name="x", parts=parts)


def judged(pairs, tolerance=None):
    return judge_trial(Trial(world_size=2), list(pairs), pairs.__getitem__, tolerance=tolerance)


def test_the_first_step_that_differs_is_named_with_its_tensor():
    good, bad = (contents(), contents()), (contents(), contents(b=torch.tensor([0.75])))
    found = judged({1: good, 2: bad, 3: bad})
    assert found.first is not None
    assert (found.num_steps, found.first.step, found.first.part, found.first.entry.name) == (2, 2, "weights", "b")
    assert judged({1: good, 2: good}).first is None


def test_a_tolerance_forgives_rounding_in_tensors_but_not_more():
    near, far = (
        (contents(), contents(w=torch.tensor([1.0, 2.0001]))),
        (contents(), contents(w=torch.tensor([1.0, 2.1]))),
    )
    assert judged({1: near}).first is not None
    assert judged({1: near}, tolerance=1e-3).first is None
    assert judged({1: near}, tolerance=1e-3).worst == pytest.approx(5e-5, rel=1e-2)
    assert judged({1: near, 2: far}, tolerance=1e-3).first is not None


@pytest.mark.parametrize("seed", range(40))
def test_kills_leave_a_checkpoint_to_go_on_from_at_another_world_size(seed):
    trials = plan_trials((1, 2, 4), steps=8, kills=2, random=Random(seed))
    assert [trial.world_size for trial in trials[:3]] == [1, 2, 4]
    for trial in trials[3:]:
        kill = trial.kill
        assert kill is not None
        assert kill.step <= 8
        assert kill.step % kill.save_every == 0
        assert kill.step // kill.save_every >= 2
        assert kill.rank < trial.world_size != kill.resume_size
    assert trials == plan_trials((1, 2, 4), steps=8, kills=2, random=Random(seed))


def test_every_trial_has_a_folder_of_its_own_even_if_two_are_the_same():
    trials = plan_trials((1, 2), steps=2, kills=9, random=Random(0))
    assert len({str(trial) for trial in trials}) < len(trials)
    assert len({trial.name for trial in trials}) == len(trials)


def test_a_kill_is_judged_at_its_own_world_size_where_the_number_of_ranks_matters():
    trials = plan_trials((1, 2), steps=8, kills=4, random=Random(0))
    assert [reference_of(trial, (1, 2), ()) for trial in trials] == [(trial, trials[0]) for trial in trials]
    for trial in trials[2:]:
        judged, reference = reference_of(trial, (1, 2), ("batch norm",))
        assert judged.kill is not None
        assert judged.kill.resume_size == judged.world_size == reference.world_size
        assert reference.kill is None
