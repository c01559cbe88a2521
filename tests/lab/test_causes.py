"""A cause planted in a real run is named, and its healthy twin is left in peace; `make causes` does it ten times."""

import pytest

from lab.causes import trial


@pytest.mark.quick
def test_a_link_of_100_mbit_is_named_and_a_full_one_is_not(hosts, tmp_path):
    slow, healthy = (trial("link", is_planted=yes, folder=tmp_path, hosts=hosts) for yes in (True, False))
    assert slow[0]["kind"] == "link"
    assert "link" not in [finding["kind"] for finding in healthy]


@pytest.mark.parametrize("cause", ["slow loader", "slow rank", "checkpoint", "threads"])
def test_a_planted_cause_is_named_and_its_healthy_twin_is_not(tmp_path, cause):
    sick, healthy = (trial(cause, is_planted=yes, folder=tmp_path) for yes in (True, False))
    assert sick[0]["kind"] == cause
    assert cause not in [finding["kind"] for finding in healthy]
