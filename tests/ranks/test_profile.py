"""A profile of real ranks: what is exchanged, what is not, and what the buckets and the link show of it."""

import time

import pytest
import torch

from paceline.core.config import Config
from paceline.core.errors import ConfigError
from paceline.core.start import Start
from paceline.core.world import World
from paceline.engine.profile import ProfiledSteps, measure_profile, watched_job
from paceline.engine.rank import Beginning, profile_rank
from paceline.engine.signals import StopRequest
from paceline.parallel import buckets
from paceline.parallel.team import Team
from paceline.records.folder import RunFolder
from paceline.records.profile import Profile, read_profile
from tests.engine.conftest import differences, final_state

DELAY = 0.03


def settings(tmp_path, **more):
    usual = {"model": "cnn", "runs_dir": tmp_path / "runs", "track": (), "threads": 1, "device": "cpu"}
    return usual | more


def profiled(team: Team, values: dict, delay: float) -> Profile:
    """Profile with a link that is late by `delay` for every bucket."""
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        install = buckets.BucketWatch.install

        def slow_install(watch, model, hook, state):
            def slow(state, bucket):
                future = hook(state, bucket)
                return future.then(lambda done: (time.sleep(delay), done.value())[1])

            install(watch, model, slow, state)

        patch.setattr(buckets.BucketWatch, "install", slow_install)
        with watched_job(Config(**values), team, nproc=None) as (job, watch):
            return measure_profile(job, team, watch, num_pairs=4)


@pytest.mark.parametrize("more", [{}, {"compress": "fp16"}, {"accumulate": 2}], ids=str)
def test_only_real_steps_wait_for_the_link(ranks, tmp_path, more):
    profile, other = ranks(2).run(profiled, settings(tmp_path, **more), DELAY)
    assert profile == other
    assert profile.world_size == len(profile.free) == len(profile.real) == 2
    assert profile.ranks_per_node == (2,)
    for free, real in zip(profile.free, profile.real, strict=True):
        assert len(free.step) == len(real.step) == 4
        # an all-reduce that has ended before the hook returns is late inside the backward pass
        assert min(map(sum, zip(real.backward, real.exchange, strict=True))) >= DELAY
        assert min(free.exchange) < DELAY
    for bucket in profile.buckets:
        assert bucket.ready > 0
        assert bucket.done_real - bucket.ready_real >= DELAY
    assert sum(bucket.bytes for bucket in profile.buckets) == profile.gradient_bytes == 4 * profile.parameters
    assert [point.in_flight for point in profile.link] == [1, 1, 1, 2]
    assert profile.latency > 0
    assert profile.bandwidth > 0


def gradients_of_free_steps(team: Team, values: dict) -> list[float]:
    torch.set_num_threads(1)
    with watched_job(Config(**values), team, nproc=None) as (job, watch):
        steps = ProfiledSteps(job, team, watch)
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
def test_what_has_no_buckets_is_refused(tmp_path, more):
    setting, value = next(iter(more.items()))
    with pytest.raises(ConfigError, match=f"--{setting} {value} has none"):
        profile_rank(Config(**settings(tmp_path, **more)), World())


def trained(team: Team, values: dict) -> str:
    torch.set_num_threads(1)
    return str(Beginning(Config(**values), team, Start()).run(StopRequest(), None).folder)


def test_measuring_first_does_not_change_what_is_trained(ranks, tmp_path):
    values = settings(tmp_path, epochs=1, compress="powersgd", global_batch=64)
    plain, *_ = ranks(2).run(trained, values)
    measured, *_ = ranks(2).run(trained, values | {"profile": True})
    assert read_profile(RunFolder(tmp_path / measured)).compress == "powersgd"
    assert differences(final_state(tmp_path / plain), final_state(tmp_path / measured)) == []
