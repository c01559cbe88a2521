"""What limits a run: each cause is named when it is there, and none when it is not."""

from dataclasses import replace

import numpy as np
import pytest

from paceline.analysis.explain import explain
from paceline.analysis.phases import TimeSplit, split_time
from paceline.analysis.remedies import exchange_of
from paceline.core.config import Config
from paceline.core.interval import Interval
from paceline.records.phases import PHASES, PhaseRecord
from paceline.records.profile import Bucket, LinkPoint, Profile, RankSteps
from tests.analysis.test_phases import facts

STEPS = 20
HEALTHY = {"data": 0.001, "copy": 0.0005, "forward": 0.03, "backward": 0.06, "communication": 0.004, "update": 0.002}
CONFIG = Config(global_batch=8, save_every=Interval(10, "step"))


def a_run(ranks=2, *, about=None, **own) -> TimeSplit:
    """Return a run of steps with these phases, a number or one for every rank; stragglers follow from them."""
    step = {phase: np.broadcast_to(own.get(phase, HEALTHY.get(phase, 0.0)), ranks).astype(float) for phase in PHASES}
    alone = step["data"] + step["copy"] + step["forward"] + step["backward"]
    step["straggler"] = alone.max() - alone
    seconds = np.sum(list(step.values()), axis=0)
    starved = np.broadcast_to(own.get("starved", 0.0), ranks) * seconds * STEPS
    cpu = np.broadcast_to(own.get("cpu", 0.05), ranks) * STEPS
    often = own.get("last", 1.0) * STEPS  # steps in which the slowest rank is the last; in the others it is rank 0
    last = [often * (rank == alone.argmax()) + (STEPS - often) * (rank == 0) for rank in range(ranks)]
    records = [
        PhaseRecord(
            step=number * STEPS, steps=STEPS, seconds=(seconds * STEPS).tolist(),
            phases={phase: (values * STEPS).tolist() for phase, values in step.items()},
            last=last, cpu=cpu.tolist(), starved=starved.tolist(),
        )
        for number in (1, 2, 3)
    ]  # fmt: skip
    split = split_time([facts(ranks, **(about or {})), *records])
    assert split is not None
    return split


def causes(split, config=CONFIG, profile=None):
    return [finding.cause for finding in explain(split, config, profile)]


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_a_healthy_run_is_left_in_peace(ranks):
    assert causes(a_run(ranks)) == []


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_slow_rank_is_named_with_its_host(ranks):
    backward = [0.06] * (ranks - 1) + [0.12]
    split = a_run(ranks, backward=backward, about={"hosts": ["a"] * (ranks - 1) + ["b"]})
    (finding,) = explain(split, CONFIG)
    assert finding.cause == "slow rank"
    assert f"rank {ranks - 1} on b computes 152 ms a step, 1.6× as long" in finding.sentence
    assert finding.remedies[0].gain == pytest.approx(0.1575 / 0.0975, rel=0.01)


@pytest.mark.parametrize(("often", "named"), [(0.6, []), (0.9, ["slow rank"])])
def test_a_rank_that_was_disturbed_for_a_while_is_not_called_slow(often, named):
    assert causes(a_run(backward=[0.06, 0.12], last=often)) == named


def test_why_a_rank_is_slow_follows_from_its_use_of_the_cpu():
    def reason(**own):
        (finding,) = explain(a_run(backward=[0.06, 0.12], **own), CONFIG)
        return finding.sentence.rpartition("; ")[2]

    assert "1.8× the CPU time" in reason(cpu=[0.05, 0.09])
    assert "no core for" in reason(starved=[0.0, 0.4])
    assert "something of its own" in reason()


def test_all_ranks_of_a_slow_host_are_named_together():
    split = a_run(6, forward=[0.03] * 4 + [0.08] * 2, about={"hosts": ["a"] * 4 + ["b"] * 2})
    (finding,) = explain(split, CONFIG)
    assert "ranks 4, 5 on b compute" in finding.sentence
    assert len(finding.remedies) == 1
    slower = a_run(6, forward=[0.03] * 4 + [0.16] * 2)
    (finding,) = explain(slower, CONFIG)
    assert finding.remedies[1].words == "train on the other 4"
    assert finding.remedies[1].gain == pytest.approx(0.2275 / (0.0925 * 6 / 4 + 0.005), rel=0.02)


def test_a_slow_loader_of_one_rank_is_told_from_slow_data_of_all():
    assert causes(a_run(data=[0.001, 0.05])) == ["slow loader"]
    (finding,) = explain(a_run(data=0.05), CONFIG)
    assert finding.cause == "data"
    assert finding.remedies[0].words == "--workers 1"
    busy = explain(a_run(data=0.2), replace(CONFIG, workers=1))
    assert busy[0].remedies[0].words == "--workers 4"  # one worker takes 0.2965 s for what is used in 0.0965


def test_a_slow_link_is_named_with_what_each_remedy_brings():
    split = a_run(communication=0.36, about={"gradient_bytes": 44_700_000})
    (finding,) = explain(split, CONFIG)
    assert finding.cause == "link"
    assert finding.sentence.startswith("2 ranks are slower than one because 44.7 MB of gradients")
    assert "993 Mbit/s" in finding.sentence
    gains = {remedy.words: remedy.gain for remedy in finding.remedies}
    compute = 0.0935 - 0.002
    assert gains["--global-batch 32 --accumulate 4"] == pytest.approx(4 * 0.4535 / (4 * compute + 0.362), rel=0.01)
    assert gains["--compress fp16"] == pytest.approx(0.4535 / 0.2735, rel=0.01)
    assert gains["a link of 9.93 Gbit/s"] == pytest.approx(0.4535 / 0.1295, rel=0.01)
    assert list(gains.values()) == sorted(gains.values(), reverse=True)


def test_what_hides_behind_the_backward_pass_comes_from_the_profile():
    split = a_run(communication=0.26, about={"gradient_bytes": 44_700_000})
    (finding,) = explain(split, CONFIG, profile_of(bandwidth=44.7e6 / 0.36))
    assert "44.7 MB of gradients per step need 360 ms on this link (993 Mbit/s)" in finding.sentence
    assert "100 ms of it hides behind the backward pass" in finding.sentence
    assert any(remedy.words.startswith("--bucket-mb") for remedy in finding.remedies) or finding.remedies


def test_a_profile_that_does_not_fit_the_run_is_not_believed():
    split = a_run(communication=0.26, about={"gradient_bytes": 44_700_000})
    assert exchange_of(split, CONFIG, profile_of(bandwidth=44.7e6 / 0.36)).from_profile
    assert not exchange_of(split, CONFIG, profile_of(bandwidth=44.7e6 / 0.03)).from_profile
    assert not exchange_of(split, CONFIG, replace(profile_of(bandwidth=44.7e6 / 0.36), world_size=4)).from_profile


def test_a_profile_of_several_parts_waits_for_gradients_once():
    split, plain = a_run(communication=0.26, about={"gradient_bytes": 44_700_000}), profile_of(bandwidth=44.7e6 / 0.36)
    names = ("data", "copy", "forward", "backward")
    twice = {name: tuple(2 * value for value in getattr(plain.free[0], name)) for name in names}
    rank = replace(plain.free[0], **twice, step=(0.665,) * 4)
    parts = replace(plain, accumulate=2, free=(rank, rank), images_per_rank=8, global_batch=16)
    one, two = (exchange_of(split, CONFIG, profile) for profile in (plain, parts))
    assert two.from_profile
    assert two.exposed == pytest.approx(one.exposed)
    assert two.seconds == pytest.approx(one.seconds + 0.3315)
    assert two.with_work(more=2) == pytest.approx(one.with_work(more=4))


def test_threads_beyond_the_cores_are_blamed_and_otherwise_other_programs():
    crowded = a_run(starved=0.4, about={"threads": [8, 8], "cores": [8, 8]})
    (finding,) = explain(crowded, CONFIG)
    assert finding.cause == "threads"
    assert finding.sentence.startswith("16 threads share the 8 cores of a: 40% of the time")
    assert finding.remedies[0].words == "--threads 4"
    assert finding.remedies[0].gain == pytest.approx(1 / 0.6)
    assert causes(a_run(starved=0.4, about={"threads": [4, 4], "cores": [8, 8]})) == ["cores"]
    assert causes(a_run(starved=0.15, about={"threads": [4, 4], "cores": [8, 8]})) == []
    assert causes(a_run(starved=0.01, about={"threads": [8, 8], "cores": [8, 8]})) == []


@pytest.mark.parametrize(
    ("phase", "cause"), [("save", "checkpoint"), ("evaluate", "evaluation"), ("record", "records")]
)
def test_pauses_between_steps_are_named(phase, cause):
    assert causes(a_run(2, **{phase: [0.03, 0.03]})) == [cause]
    assert causes(a_run(2, **{phase: [0.003, 0.003]})) == []


def test_checkpoints_have_two_remedies():
    (finding,) = explain(a_run(save=0.1), CONFIG)
    assert [remedy.words for remedy in finding.remedies] == ["--save-async", '--save-every "20 steps"']
    (finding,) = explain(a_run(save=0.1), replace(CONFIG, save_async=True))
    assert [remedy.words for remedy in finding.remedies] == ['--save-every "20 steps"']


def test_the_dearest_cause_comes_first_but_threads_before_all():
    assert causes(a_run(save=0.03, communication=0.1)) == ["link", "checkpoint"]
    crowded = {"threads": [8, 8], "cores": [8, 8]}
    assert causes(a_run(save=0.03, communication=0.1, starved=0.15, about=crowded)) == ["threads", "link", "checkpoint"]


def profile_of(*, bandwidth: float) -> Profile:
    """Return a profile of the run above, in which half of the gradients are ready after a third of the backward."""
    rank = RankSteps(
        data=(0.001,) * 4, copy=(0.0005,) * 4, forward=(0.03,) * 4, backward=(0.3,) * 4, exchange=(0.0,) * 4,
        update=(0.002,) * 4, step=(0.3335,) * 4,
    )  # fmt: skip
    half = 22_350_000
    return Profile(
        world_size=2, ranks_per_node=(1, 1), mode="ddp", backend="gloo", device="cuda", model="m", precision="fp32",
        compress="none", parameters=4 * half, gradient_bytes=2 * half, global_batch=8, images_per_rank=4, accumulate=1,
        threads=1, free=(rank, rank), real=(rank, rank),
        buckets=(
            Bucket(bytes=half, ready=0.2, ready_real=0.2, done_real=0.38),
            Bucket(bytes=half, ready=0.3, ready_real=0.3, done_real=0.56),
        ),
        link=(LinkPoint(bytes=half, in_flight=2, samples=(0.1,)),), latency=0.0, bandwidth=bandwidth,
    )  # fmt: skip
