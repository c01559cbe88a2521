"""Bandwidth and latency from timed all-reduces. Real links: tests/ranks/test_profiler."""

import pytest
import torch

from paceline.core.world import World
from paceline.parallel.link_sweep import link_bandwidth, link_latency, sweep_link
from paceline.parallel.team import Team
from paceline.records.profile import LinkPoint

POINTS = (
    LinkPoint(bytes=4096, in_flight=1, samples=(0.0012, 0.0006)),
    LinkPoint(bytes=5_000_000, in_flight=2, samples=(1.2, 1.0, 1.1)),
)


def test_a_link_is_what_its_best_large_all_reduces_say():
    assert link_bandwidth(POINTS, 2) == pytest.approx(10e6)
    assert link_bandwidth(POINTS, 4) == pytest.approx(15e6), "each of 4 ranks sends 6/4 of the buffer"


def test_latency_is_that_of_one_message_of_the_ring():
    assert link_latency(POINTS, 2) == pytest.approx(0.0003)
    assert link_latency(POINTS, 4) == pytest.approx(0.0001)


def test_a_lone_rank_has_no_link():
    assert sweep_link(Team(World(), torch.device("cpu"))) == ()
    assert link_bandwidth((), 1) == link_latency((), 1) == 0.0
