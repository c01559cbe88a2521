"""The link that doctor measured."""

import json

import pytest

from paceline.core.errors import ConfigError
from paceline.predict.sweep import read_sweep

POINTS = [
    {"bytes": 1024, "seconds": 2e-4, "bus_bandwidth": 1e6},
    {"bytes": 1 << 20, "seconds": 1e-3, "bus_bandwidth": 9e8},
    {"bytes": 1 << 26, "seconds": 0.56, "bus_bandwidth": 1.2e8},
]


def written(path, *, hosts, points=POINTS):
    path.write_text(json.dumps({"ranks": [{"host": host} for host in hosts], "sweep": points}))
    return path


def test_the_largest_all_reduce_gives_the_bandwidth_and_the_smallest_the_latency(tmp_path):
    """A shaped link lets a megabyte pass in a burst."""
    swept = read_sweep(written(tmp_path / "a.json", hosts=["n0", "n1", "n2"]))
    assert swept.link.bandwidth == 1.2e8
    assert swept.link.latency == pytest.approx(2e-4 / 4)
    assert not swept.is_inside
    assert read_sweep(written(tmp_path / "a.json", hosts=["n0", "n0"])).is_inside


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"sweep": 3, "ranks": 4}'])
def test_a_file_without_a_sweep_is_refused(tmp_path, text):
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(ConfigError, match=r"bad.json has no results") as refused:
        read_sweep(tmp_path / "bad.json")
    assert "paceline doctor --json > doctor.json" in (refused.value.hint or "")


def test_a_sweep_of_one_rank_and_a_missing_file_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="made with one rank"):
        read_sweep(written(tmp_path / "one.json", hosts=["n0"]))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_sweep(tmp_path / "nowhere.json")
