"""The profile of a run is read back as it was written, and a damaged one says what to do."""

import json

import pytest

from paceline.core.errors import RunError
from paceline.records.folder import RunFolder
from paceline.records.profile import Bucket, LinkPoint, Profile, RankSteps, read_profile, write_profile

STEPS = RankSteps(
    data=(0.1, 0.1), copy=(0.0, 0.0), forward=(1.0, 1.2), backward=(2.0, 2.0),
    exchange=(0.5, 0.7), update=(0.1, 0.1), step=(3.7, 4.1),
)  # fmt: skip
PROFILE = Profile(
    world_size=2,
    ranks_per_node=(1, 1),
    mode="ddp",
    backend="gloo",
    device="cpu",
    model="resnet20",
    precision="fp32",
    compress="none",
    parameters=10,
    gradient_bytes=40,
    global_batch=8,
    images_per_rank=4,
    accumulate=1,
    threads=1,
    free=(STEPS, STEPS),
    real=(STEPS, STEPS),
    buckets=(Bucket(bytes=40, ready=1.5, ready_real=1.6, done_real=2.5),),
    link=(LinkPoint(bytes=4, in_flight=1, samples=(0.1, 0.3, 0.2)),),
    latency=0.1,
    bandwidth=1e6,
)


def test_a_profile_is_read_back_as_it_was_written(tmp_path):
    write_profile(RunFolder(tmp_path), PROFILE)
    assert read_profile(RunFolder(tmp_path)) == PROFILE


def test_what_a_rank_does_alone_is_the_step_without_the_exchange():
    assert PROFILE.compute_means == pytest.approx((3.3, 3.3))
    assert PROFILE.compute_spreads == pytest.approx((0.1, 0.1))
    assert PROFILE.link[0].seconds == 0.2


def test_a_missing_profile_says_how_to_measure_one(tmp_path):
    with pytest.raises(RunError, match="has no profile") as problem:
        read_profile(RunFolder(tmp_path))
    assert "paceline profile" in str(problem.value.hint)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text[: len(text) // 2],
        lambda _: "[]",
        lambda _: "{}",
        lambda text: text.replace('"latency"', '"delay"'),
        lambda text: json.dumps(json.loads(text) | {"buckets": [{"bytes": 4}]}),
        lambda text: json.dumps(json.loads(text) | {"link": 3}),
    ],
)
def test_a_damaged_profile_is_refused(tmp_path, spoil):
    folder = RunFolder(tmp_path)
    write_profile(folder, PROFILE)
    folder.profile.write_text(spoil(folder.profile.read_text()))
    with pytest.raises(RunError, match="is damaged"):
        read_profile(folder)


def test_a_profile_of_another_version_is_refused(tmp_path):
    folder = RunFolder(tmp_path)
    write_profile(folder, PROFILE)
    folder.profile.write_text(folder.profile.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(RunError, match="version 2"):
        read_profile(folder)
