"""The doctor across hosts: it measures their links, and names the host that differs from the others."""

import json

from lab.runs import PACELINE, ends


def test_the_doctor_recovers_the_bandwidth_of_a_shaped_link(hosts, on):
    for host in (1, 2):
        hosts.limit(host, "200mbit")
    try:
        meet = ("--nnodes=2", "--rendezvous=10.77.0.1:29400", "--largest=4MiB", "--device=cpu", "--json")
        answers = ends(*[on(node + 1, *PACELINE, "doctor", *meet, "--node-rank", node) for node in range(2)])
    finally:
        for host in (1, 2):
            hosts.unlimit(host)
    facts = json.loads(answers[0][0])
    assert len(answers[1][0].splitlines()) == 1, "node 0 speaks for all"
    assert [rank["host"] for rank in facts["ranks"]] == ["node1", "node2"]
    assert [rank["interface"] for rank in facts["ranks"]] == ["eth0", "eth0"]
    line = facts["sweep"][-1]["bus_bandwidth"] * 8e-6 * 1514 / 1448
    assert 0.75 * 200 < line < 1.1 * 200, "a busy machine may be slower than its link, never much faster"
