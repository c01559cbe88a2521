"""Training loops of a user: the same result at every world size, exact resumes, and mistakes that are named."""

from pathlib import Path
from typing import Any

import pytest
import torch

import paceline
from paceline.core.config import Config
from paceline.core.errors import DivergedError, PacelineError
from paceline.core.start import Start
from paceline.core.stopping import StopRequest
from paceline.engine.own_start import load_loop, started_on
from paceline.engine.rank import Startup
from paceline.parallel.team import Team
from paceline.records.entries import RunResult
from paceline.records.folder import RunFolder
from tests.ranks import own_loops
from tests.ranks.runs import StopAt, scores, unequal
from tests.states import differences, final_state

GAN = Path(__file__).parents[2] / "examples/gan.py"
ROUNDING = 1e-10
"""Relative difference that another order of additions may make in double precision."""


def run_loop_on(
    team: Team, settings: dict[str, Any], resume: Path | None = None, stop_at: int | None = None
) -> RunResult:
    """Train with the loop of the settings as one rank of the pool; one rank alone asks to stop, after some steps."""
    is_asked = stop_at is not None and team.world.rank == team.world.size - 1
    stop = StopAt(stop_at or 0) if is_asked else StopRequest()
    startup = Startup(Config(**settings), team, Start())
    with started_on(startup, stop, None if resume is None else RunFolder(resume)) as run:
        assert run.config.loop is not None
        load_loop(run.config.loop)(run)
    assert run.result is not None
    return run.result


@pytest.fixture
def settings(tmp_path):
    """Return a function that gives settings: 40 samples in batches of 11 leave seven for the fourth step."""

    def of(loop: str, **others: Any) -> dict[str, Any]:
        name = loop if ":" in loop else f"{own_loops.__file__}:{loop}"
        usual = {"loop": name, "global_batch": 11, "epochs": 2, "log_every": 1, "threads": 1, "track": ()}
        return usual | {"device": "cpu", "runs_dir": tmp_path / "runs"} | others

    return of


@pytest.fixture
def train(ranks):
    """Return a function that trains with a loop on some ranks of the pool, and returns the run folder."""

    def on(world_size: int, settings: dict[str, Any], *more: Any) -> Path:
        results = ranks(world_size).run(run_loop_on, settings, *more)
        assert {result.folder for result in results} == {results[0].folder}
        return results[0].folder

    return on


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return final_state(folder)["model"]


def largest_difference(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> float:
    assert first.keys() == second.keys()
    return max(float((first[key] - second[key]).abs().max() / second[key].abs().max()) for key in first)


def plain_words(steps: int) -> dict[str, torch.Tensor]:
    """Return the weights after some steps of the same loop in plain PyTorch: whole batches in one process."""
    net = own_loops.Words().double()
    net.load_state_dict(initial_words().state_dict())
    opt = torch.optim.AdamW(net.parameters(), 0.01)
    schedule = torch.optim.lr_scheduler.StepLR(opt, step_size=3, gamma=0.5)
    order = paceline.Order(num_samples=40, global_batch=11, seed=0)
    while order.step < steps:
        for ids in order:
            tokens = own_loops.pad([own_loops.SENTENCES[index] for index in ids])
            words, length = own_loops.sums_of_losses(net, tokens)
            opt.zero_grad()
            (words / own_loops.num_words(tokens) + length / len(ids)).backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
            schedule.step()
            order.step += 1
    return {f"net.{key}": value for key, value in net.state_dict().items()}


def initial_words() -> torch.nn.Module:
    """Return the network with the weights that a run of seed 0 starts with."""
    from paceline.core.keys import mix
    from paceline.data.seeding import seed_generators
    from paceline.engine.model_setup import INITIAL_WEIGHTS

    seed_generators(mix(0, INITIAL_WEIGHTS), torch.device("cpu"))
    return own_loops.Words().double()


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_loop_computes_what_plain_pytorch_does_with_the_whole_batch(train, settings, accumulate):
    expected = plain_words(8)
    folders = [train(size, settings("words", accumulate=accumulate)) for size in (1, 2, 3)]
    for folder in folders:
        assert largest_difference(weights(folder), expected) < ROUNDING
    evaluated = [[each["valid_right"] for each in scores(folder) if each["kind"] == "epoch"] for folder in folders]
    assert len(evaluated[0]) == 2
    assert evaluated[0] == evaluated[1] == evaluated[2]


def test_a_mean_of_means_depends_on_the_world_size(train, settings):
    one, two = (train(size, settings("mean_of_means")) for size in (1, 2))
    assert largest_difference(weights(one), weights(two)) > 1e-3


def test_two_optimizers_get_the_same_gradients_at_every_world_size(train, settings):
    one, *others = (train(size, settings("gan", accumulate=k)) for size, k in ((1, 1), (2, 1), (3, 1), (2, 2)))
    for other in others:
        assert largest_difference(weights(other), weights(one)) < ROUNDING
        for first, second in zip(scores(one), scores(other), strict=True):
            assert {"real", "fake", "g", "radius", "loss"} <= {key.removeprefix("train_") for key in first}
            assert first.pop("kind") == second.pop("kind")
            assert first == pytest.approx(second, rel=1e-9)


def test_the_example_has_the_same_bits_at_every_world_size(train, settings):
    exact = settings(f"{GAN}:train", global_batch=130, exact="bitwise", shards=4)
    one, two, three = (train(size, exact) for size in (1, 2, 3))
    assert unequal(one, two) == []
    assert unequal(one, three) == []


def test_without_bitwise_the_example_differs_between_world_sizes(train, settings):
    one, two = (train(size, settings(f"{GAN}:train", global_batch=130)) for size in (1, 2))
    assert unequal(one, two)


@pytest.mark.parametrize(("loop", "world_size"), [("words", 1), ("words", 2), ("gan", 2)])
def test_a_resumed_loop_equals_one_without_interruption(train, settings, loop, world_size):
    whole = train(world_size, settings(loop))
    stopped = train(world_size, settings(loop), None, 5)
    assert 4 < final_state(stopped)["progress"]["step"] < 8  # in the second epoch; ranks may learn of it a step later
    assert train(world_size, settings(loop), stopped) == stopped
    assert unequal(whole, stopped) == []


def test_a_bitwise_loop_resumes_on_another_number_of_ranks(train, settings):
    exact = settings(f"{GAN}:train", global_batch=130, exact="bitwise", shards=4)
    whole, stopped = train(1, exact), train(3, exact, None, 2)
    assert differences(final_state(whole), final_state(stopped))
    train(2, exact, stopped)
    assert unequal(whole, stopped) == []


MISTAKES = {
    "plain_backward": "micro-batch 1 of 1 of step 1 had no run.backward",
    "never_applied": "the gradient of opt was never applied in step 1",
    "applied_twice": r"run.step\(opt\) without a gradient",
    "outside": "run.backward outside of batch.micro_batches",
    "no_total": "run.backward needs the total that the sum is divided by",
    "no_sum": r"loss is of shape \(11, 1\), not one number",
    "detached": "the loss does not depend on any parameter of opt",
    "nothing_to_count": "step 1 has nothing to learn from: the count is 0 in all 11 samples",
    "bad_count": "count returned -3 in step 1, rank 0",
    "sum_in_pass": "run.sum inside of a loop over micro-batches",
    "foreign_optimizer": "run.step got an optimizer that was not set up",
    "foreign_parameters": "opt has parameters of no module that was set up",
    "shared_parameters": "other and opt both have net",
    "same_name": "two parts are called net",
    "no_state": "number is a count, which has no state_dict",
    "no_optimizer": "the loop has set up no optimizer before run.batches",
    "late_setup": r"run.setup\(late\) after run.batches",
    "no_batches": "the loop never called run.batches",
    "ragged": "do not stack",
    "no_such_score": "there is no score acuracy",
    "bad_score": r"accuracy of score is not a pair \(sum, count\)",
}


@pytest.mark.parametrize("loop", MISTAKES)
def test_a_mistake_in_a_loop_is_named(ranks, settings, loop):
    with pytest.raises(PacelineError, match=MISTAKES[loop]) as problem:
        ranks(1).run(run_loop_on, settings(loop))
    assert problem.value.exit_code == 2
    assert problem.value.hint


def test_a_loop_that_leaves_its_micro_batches_early_is_named(ranks, settings):
    with pytest.raises(PacelineError, match="the micro-batches of opt was left early in step 1"):
        ranks(1).run(run_loop_on, settings("left_early", accumulate=2))


def test_a_loss_that_is_not_a_number_ends_the_run(ranks, settings):
    with pytest.raises(DivergedError, match="the loss became nan"):
        ranks(1).run(run_loop_on, settings("not_a_number"))


MISTAKES_OF_ONE_RANK = {
    "plain_backward": "had no run.backward",
    "twice_on_one_rank": "rank 1 called run.backward 2 times per micro-batch in step 1, rank 0 1 time",
    "other_weights": "rank 1 starts net with other weights than rank 0",
    "other_names": "the scores changed at step 1: length is missing on rank 0",
    "other_data": "the number of samples",
}


@pytest.mark.parametrize("exact", ["order", "bitwise"])
@pytest.mark.parametrize("loop", MISTAKES_OF_ONE_RANK)
def test_a_mistake_of_one_rank_is_named(ranks, settings, loop, exact):
    with pytest.raises(PacelineError, match=MISTAKES_OF_ONE_RANK[loop]) as problem:
        ranks(2).run(run_loop_on, settings(loop, exact=exact))
    assert problem.value.exit_code == 2


@pytest.mark.parametrize("exact", ["order", "bitwise"])
def test_the_loop_without_a_mistake_runs(train, settings, exact):
    assert len(scores(train(2, settings("right", exact=exact)))) == 10


def test_a_resume_needs_the_parts_of_the_checkpoint(train, ranks, settings):
    stopped = train(1, settings("words"), None, 3)
    with pytest.raises(PacelineError, match="the checkpoint has net, opt, schedule, but schedule is not set up here"):
        ranks(1).run(run_loop_on, settings("mean_of_means"), stopped)
