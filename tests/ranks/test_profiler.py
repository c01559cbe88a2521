"""A profile of real ranks: what is exchanged, what is not, and what the buckets and the link show of it."""

import time

import pytest
import torch

from paceline.core.config import Config
from paceline.core.errors import ConfigError
from paceline.core.world import World
from paceline.engine.profiler import ProfiledSteps, measure_profile, profiled_job
from paceline.engine.rank import profile_rank
from paceline.parallel import ddp_hooks
from paceline.parallel.team import Team
from paceline.records.folder import RunFolder
from paceline.records.profile import Profile, read_profile
from tests.conftest import small_settings
from tests.ranks.runs import train
from tests.states import differences, final_state

DELAY = 0.03


def settings(tmp_path, **more):
    return small_settings(tmp_path / "runs", **({"model": "cnn"} | more))


def profiled(team: Team, values: dict, delay: float) -> Profile:
    """Profile with a link that is late by `delay` for every bucket."""
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        install = ddp_hooks.BucketTimer.install

        def slow_install(timer, model, hook, state):
            def slow(state, bucket):
                future = hook(state, bucket)
                return future.then(lambda done: (time.sleep(delay), done.value())[1])

            install(timer, model, slow, state)

        patch.setattr(ddp_hooks.BucketTimer, "install", slow_install)
        with profiled_job(Config(**values), team, nproc=None) as (job, timer):
            return measure_profile(job, team, timer, num_pairs=4)


@pytest.mark.parametrize("more", [{}, {"compress": "fp16"}, {"accumulate": 2}], ids=str)
def test_only_real_steps_wait_for_the_link(ranks, tmp_path, more):
    profile, other = ranks(2).run(profiled, settings(tmp_path, **more), DELAY)
    assert profile == other
    assert profile.world_size == len(profile.free) == len(profile.real) == 2
    assert profile.ranks_per_node == (2,)
    for free, real in zip(profile.free, profile.real, strict=True):
        assert len(free.step) == len(real.step) == 4
        # an all-reduce that has ended before the hook returns is late inside the backward pass
        assert min(map(sum, zip(real.backward, real.grad_sync, strict=True))) >= DELAY
        assert min(free.grad_sync) < DELAY
    for bucket in profile.buckets:
        assert bucket.ready > 0
        assert bucket.done_real - bucket.ready_real >= DELAY
    assert sum(bucket.bytes for bucket in profile.buckets) == profile.gradient_bytes == 4 * profile.parameters
    assert [point.in_flight for point in profile.link] == [1, 1, 1, 2]
    assert profile.latency > 0
    assert profile.bandwidth > 0


def gradients_of_free_steps(team: Team, values: dict) -> list[float]:
    torch.set_num_threads(1)
    with profiled_job(Config(**values), team, nproc=None) as (job, timer):
        steps = ProfiledSteps(job, team, timer)
        sums = []
        for is_free in (False, True):
            steps._step([], [], is_free=is_free)
            sums.append(float(sum(parameter.double().sum() for parameter in job.model.parameters())))
        return sums


def test_a_free_step_exchanges_nothing_and_a_real_one_does(ranks, tmp_path):
    (same, own), (same_too, own_too) = ranks(2).run(gradients_of_free_steps, settings(tmp_path))
    assert same == same_too
    assert own != own_too


def test_a_lone_rank_has_buckets_too_and_no_link(tmp_path, one_thread):
    folder, profile = profile_rank(Config(**settings(tmp_path, steps=2)), World(), num_pairs=3, trace=True)
    assert profile == read_profile(folder)
    assert (profile.mode, profile.backend, profile.link, profile.bandwidth) == ("single", "none", (), 0.0)
    assert sum(bucket.bytes for bucket in profile.buckets) == profile.gradient_bytes
    assert folder.trace(0).stat().st_size > 0
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize("more", [{"mode": "dp"}, {"exact": "bitwise", "batch_norm": "ghost"}], ids=str)
def test_modes_without_buckets_are_refused(tmp_path, more):
    setting, value = next(iter(more.items()))
    with pytest.raises(ConfigError, match=f"--{setting} {value} has none"):
        profile_rank(Config(**settings(tmp_path, **more)), World())


def test_measuring_first_does_not_change_what_is_trained(ranks, tmp_path):
    values = settings(tmp_path, epochs=1, compress="fp16", global_batch=64)
    plain = train(ranks, 2, values)
    measured = train(ranks, 2, values | {"profile": True})
    assert read_profile(RunFolder(measured)).compress == "fp16"
    assert differences(final_state(plain), final_state(measured)) == []
