"""The cost of an all-reduce: rings, trees and hierarchies, worked out by hand."""

import numpy as np
import pytest

from paceline.core.errors import ConfigError
from paceline.predict.fabric import Fabric, Link, parse_intra_link, parse_link

MB = 1e6


def test_latency_counts_for_every_hop_of_a_ring_and_few_of_a_tree():
    link = Link(bandwidth=1e12, latency=1.0)
    ring = Fabric(inter=link).cost(8.0, 64)
    tree = Fabric(inter=link, algorithm="tree").cost(8.0, 64)
    assert (ring.wait, tree.wait) == (126.0, 12.0)
    assert Fabric(inter=link, algorithm="auto").cost(8.0, 64) == tree


def test_a_ring_goes_at_the_pace_of_its_slowest_link():
    fabric = Fabric(inter=Link(bandwidth=1 * MB), intra=Link(bandwidth=100 * MB), per_node=8)
    assert fabric.cost(MB, 8).wire == pytest.approx(2 * 7 / 8 / 100)
    assert fabric.cost(MB, 16).wire == pytest.approx(2 * 15 / 16)


def test_a_hierarchy_pays_for_both_levels():
    fabric = Fabric(inter=Link(bandwidth=MB), intra=Link(bandwidth=2 * MB), per_node=4, algorithm="hierarchical")
    assert fabric.cost(MB, 16).wire == pytest.approx(2 * 3 / 4 / 2 + 2 * 3 / 4)


def test_one_rank_sends_nothing():
    cost = Fabric(inter=Link(bandwidth=1.0, latency=1.0)).cost(MB, 1)
    assert (cost.wait, cost.wire) == (0.0, 0.0)


def test_the_quicker_of_ring_and_tree_is_taken_for_every_sample():
    link = Link(bandwidth=MB, latency=np.array([0.0, 1.0]))  # without latency a ring sends less
    fabrics = [Fabric(inter=link, algorithm=name) for name in ("ring", "tree", "auto")]
    (ring, ring_late), (tree, tree_late), auto = (np.asarray(one.cost(MB, 64).seconds) for one in fabrics)
    assert ring < tree
    assert tree_late < ring_late
    assert list(auto) == [ring, tree_late]


def test_more_nodes_get_less_of_the_bandwidth_between_them():
    fabric = Fabric(inter=Link(bandwidth=MB), intra=Link(bandwidth=4 * MB), per_node=8, crowding=0.5)
    assert fabric.slowest(8).bandwidth == 4 * MB
    assert fabric.slowest(16).bandwidth == MB
    assert fabric.slowest(64).bandwidth == pytest.approx(MB / 2), "8 nodes, four times as many"


def test_a_node_that_is_not_full_counts_as_a_node():
    fabric = Fabric(inter=Link(bandwidth=MB), per_node=8)
    assert [fabric.nodes(ranks) for ranks in (1, 8, 9, 17)] == [1, 1, 2, 3]


@pytest.mark.parametrize(
    ("text", "gbit", "transport"),
    [
        ("100mbit", 0.0956, "tcp"),
        ("1gbit", 0.9556, "tcp"),
        ("10 Gb/s", 8.77, "tcp"),
        ("25gbit rdma", 22.0, "rdma"),
        ("100gbit-ib", 88.0, "rdma"),
        ("EDR", 88.0, "rdma"),
        ("4xEDR", 352.0, "rdma"),
        ("nvlink", 680.0, "local"),
        ("12GB/s", 21.4, "tcp"),
    ],
)
def test_links_have_the_names_people_give_them(text, gbit, transport):
    link = parse_link(text)
    assert float(link.link.bandwidth) * 8e-9 == pytest.approx(gbit, rel=0.01)
    assert link.transport == transport


def test_a_rate_inside_a_node_is_what_it_says():
    assert parse_intra_link("10 GB/s").link.bandwidth == 10e9
    assert parse_intra_link("nvlink") == parse_link("nvlink")
    with pytest.raises(ConfigError, match="no link"):
        parse_intra_link("wire")


@pytest.mark.parametrize("text", ["fast", "", "10", "gbit", "10gbit pigeon", "0gbit", "10 parsec"])
def test_what_is_no_link_is_refused_with_what_would_be(text):
    with pytest.raises(ConfigError) as refused:
        parse_link(text)
    assert "10gbit" in (refused.value.hint or "")


@pytest.mark.parametrize(("text", "latency"), [("10gbit", 30e-6), ("EDR", 8e-6), ("pcie", 4e-6)])
def test_latency_follows_the_transport_unless_it_is_given(text, latency):
    assert parse_link(text).link.latency == latency
    assert parse_link(text, latency=1e-3).link.latency == 1e-3


def test_tcp_is_limited_by_the_host_and_less_certain_on_a_fast_link():
    slow, fast = parse_link("1gbit"), parse_link("400gbit")
    assert 20e9 < 8 * fast.link.bandwidth < 22e9
    assert fast.nominal == 50e9
    assert slow.uncertainty < fast.uncertainty


def test_a_misspelt_name_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match='there is no link "nvlnk"') as refused:
        parse_link("nvlnk")
    assert (refused.value.hint or "").startswith("did you mean nvlink")
