"""`paceline doctor`: for people, for programs, and with ranks of its own."""

import json

import pytest


def test_one_rank_is_looked_at(run):
    answer = run("doctor", "--device=cpu")
    assert answer.code == 0
    assert "backends gloo" in answer.out
    assert "folder runs" in answer.out


def test_a_problem_gives_exit_code_1(run):
    answer = run("doctor", "--device=cpu", "--runs-dir=/proc/nothing")
    assert answer.code == 1
    assert "cannot write to /proc/nothing" in answer.out


@pytest.mark.slow
def test_its_own_ranks_measure_their_links(command):
    answer = command("doctor", "--device=cpu", "--nproc=2", "--largest=1MiB", "--json")
    assert answer.code == 0
    facts = json.loads(answer.out)
    assert [rank["rank"] for rank in facts["ranks"]] == [0, 1]
    assert [point["bytes"] for point in facts["sweep"]] == [4**power * 1024 for power in range(6)]
    assert all(point["bus_bandwidth"] > 0 for point in facts["sweep"])


def test_a_size_that_is_none_is_refused(run):
    assert run("doctor", "--largest=much").message == '--largest is "much", but must be a size such as 64MiB'
    assert run("doctor", "--largest=10").code == 2
