"""Draws of uncertain values, and what measured points do to them."""

from dataclasses import replace

import numpy as np
import pytest

from paceline.predict.fabric import Fabric, Link
from paceline.predict.simulate import Overhead, Workload
from paceline.predict.uncertainty import Case, Uncertainty, draw_case, efficiency_of, estimate, step_of

WORK = Workload(forward=0.1, backward=0.2, update=0.0, ready=(0.5, 1.0), sizes=(1e8, 1e8), samples_per_rank=30)
UNSURE = Uncertainty(loss=1.0, slope=1.0, inter=0.3, overlap=1.0)
CASE = Case(
    workload=WORK,
    fabric=Fabric(inter=Link(bandwidth=5e9), per_node=8, intra=Link(bandwidth=1e11)),
    uncertainty=UNSURE,
    overhead=Overhead(seconds=0.01, fraction=0.01, per_doubling=0.01, overlap=0.5),
)


def efficiency(case, ranks):
    return estimate(efficiency_of(draw_case(case), ranks, case.samples_per_rank(ranks)))


def width(case, ranks):
    found = efficiency(case, ranks)
    return found.high - found.low


def speed(case, ranks):
    return ranks * 30 / float(np.atleast_1d(step_of(draw_case(case, 0), ranks))[0])


def test_the_first_draw_is_the_best_guess():
    steps = np.asarray(step_of(draw_case(CASE), 16))
    assert steps[0] == pytest.approx(float(step_of(CASE, 16)))
    assert steps.std() > 0


def test_a_measured_point_is_met_and_narrows_the_interval():
    known = replace(CASE, measured=((8, 600.0),))
    assert speed(known, 8) == pytest.approx(600)
    assert width(known, 8) < 0.5 * width(CASE, 8)
    assert width(known, 8) < width(known, 16) < width(known, 64), "wider far from the measurement"
    assert speed(known, 64) < speed(CASE, 64), "8 ranks were slower than assumed, so 64 are too"


def test_two_points_give_the_slope():
    flat, steep = (replace(CASE, measured=((8, 700.0), (16, rate))) for rate in (1400.0, 1000.0))
    assert speed(steep, 16) == pytest.approx(1000)
    assert efficiency(steep, 64).value < efficiency(steep, 16).value < efficiency(steep, 8).value
    assert efficiency(steep, 64).value < efficiency(flat, 64).value


def test_a_point_faster_than_perfect_is_not_believed_beyond_noise():
    known = replace(CASE, measured=((8, 2000.0),))
    assert efficiency(known, 8).value == pytest.approx(1 / 0.97)


def test_without_overlap_the_exchange_comes_after_the_backward_pass():
    sure = replace(CASE, uncertainty=Uncertainty())
    steps = [float(step_of(replace(sure, overhead=Overhead(overlap=part)), 16)) for part in (0.0, 0.5, 1.0)]
    exchange = 2 * 15 / 16 * 2e8 / 5e9
    assert steps[0] == pytest.approx(0.3 + exchange, rel=1e-3)
    assert steps[1] == pytest.approx((steps[0] + steps[2]) / 2)


def test_an_input_pipeline_limits_a_node():
    limited = replace(CASE, uncertainty=Uncertainty(), overhead=Overhead(data_rate=400.0))
    assert speed(limited, 8) < 400
    assert speed(limited, 8) == pytest.approx(400, rel=0.15)
    assert speed(limited, 1) == pytest.approx(100), "the given speed holds for one device"
    assert speed(limited, 16) == pytest.approx(2 * speed(limited, 8), rel=0.1), "every node has its own"
