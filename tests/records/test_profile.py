"""The profile of a run is read back as it was written, and a damaged one is refused with a hint."""

import json

import pytest

from paceline.core.errors import RunError
from paceline.records.folder import RunFolder
from paceline.records.profile import read_profile, write_profile
from tests.records.sample_profile import PROFILE


def test_a_profile_is_read_back_as_it_was_written(tmp_path):
    write_profile(RunFolder(tmp_path), PROFILE)
    assert read_profile(RunFolder(tmp_path)) == PROFILE


def test_what_a_rank_does_alone_is_the_step_without_gradient_sync():
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
