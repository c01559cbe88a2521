"""A prediction from one profile comes near what another link then gives; `make predictions` measures how near."""

import pytest

from benchmarks.predictions import PROFILED, Lab, outcomes


@pytest.mark.timeout(280)
def test_two_other_links_are_predicted_from_one_profile(hosts, tmp_path):
    lab = Lab(hosts, tmp_path, "emulated")
    try:
        bandwidth, (slow, fast) = outcomes(lab, [(2, 150), (2, 600)], pairs=3)
    finally:
        for host in (1, 2):
            hosts.unlimit(host)
    assert 80e6 < 8 * bandwidth < 105e6, "100 Mbit/s, of which 95.6 are payload"
    assert fast.measured < 0.7 * slow.measured, "the link decides"
    assert abs(slow.error) < 0.25, "loose: the machine may be busy with other tests"
    assert abs(fast.error) < 0.4


@pytest.mark.timeout(280)
def test_the_gain_of_accumulating_on_a_slow_link_is_predicted(hosts, tmp_path):
    """Four micro-batches per step and four times the samples: one exchange where there were four."""
    lab = Lab(hosts, tmp_path, "emulated")
    try:
        run = lab.run("profile", "profile", *PROFILED, "--pairs=3")
        plain, parts = (lab.predict(run, *PROFILED, f"--accumulate={number}") for number in (1, 4))
        measured = 4 * lab.measure(*PROFILED) / lab.measure(*PROFILED, accumulate=4)
    finally:
        for host in (1, 2):
            hosts.unlimit(host)
    predicted = parts["throughput"]["value"] / plain["throughput"]["value"]
    assert measured > 1.5, "computing takes a quarter of a second, the exchange a whole one"
    assert predicted == pytest.approx(measured, rel=0.25), "loose: the machine may be busy with other tests"


@pytest.mark.timeout(280)
def test_a_profile_of_one_rank_and_a_sweep_of_the_link_predict_two_ranks(hosts, tmp_path):
    lab = Lab(hosts, tmp_path, "emulated")
    try:
        run = lab.run("profile", "alone", 1, 150, "--pairs=3")
        predicted = lab.predict_swept(run, 2, lab.sweep(2, 150))
        measured = lab.measure(2, 150)
    finally:
        for host in (1, 2):
            hosts.unlimit(host)
    assert predicted["exposed"]["value"] > 0.2 * measured, "the link decides"
    assert predicted["step"]["value"] == pytest.approx(measured, rel=0.25), "loose: the machine may be busy"
