"""The assumptions that decide a prediction: each with its effect, and the flag that replaces it by knowledge."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from paceline.core.units import bit_rate, count, step_time
from paceline.predict.uncertainty import Case, Uncertainty, draw_case, efficiency_of, estimate

MOST = 5
"""Assumptions to show."""
LEAST = 0.005
"""Least effect on efficiency, from low to high, of an assumption that is shown."""
FAR = 512
"""Ranks beyond which there was nothing to compare predictions with."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Assumption:
    """An assumption, the flag that changes it, and the efficiencies between which it decides."""

    text: str
    flag: str
    low: float
    high: float


def assumptions(case: Case, ranks: int) -> list[Assumption]:
    """Return the assumptions that matter most for this number of ranks, the most important first."""
    found = []
    for name, (text, flag) in _known(case, ranks).items():
        only = Uncertainty(**{"measured": 0.0, name: getattr(case.uncertainty, name)})
        efficiency = estimate(_efficiency(case, only, ranks))
        found.append(Assumption(text=text, flag=flag, low=efficiency.low, high=efficiency.high))
    found.sort(key=lambda one: one.low - one.high)
    return [one for one in found if one.high - one.low >= LEAST][:MOST]


def range_warnings(case: Case, ranks: Sequence[int]) -> list[str]:
    """Return what to keep in mind: an input pipeline without a limit, and ranks far from everything measured."""
    found = []
    if case.uncertainty.data > 0 and math.isinf(float(case.overhead.data_rate)):
        found.append("Synthetic data assumed: --data-rate 5000 limits the samples per second of a node.")
    if max(ranks) > FAR:
        found.append(f"{count(max(ranks))} ranks are an extrapolation: published results end near {FAR}.")
    return found


def _efficiency(case: Case, only: Uncertainty, ranks: int) -> np.ndarray:
    drawn = draw_case(replace(case, uncertainty=only))
    return np.asarray(efficiency_of(drawn, ranks, case.samples_per_rank(ranks)))


def _known(case: Case, ranks: int) -> dict[str, tuple[str, str]]:
    """Return a sentence and a flag by the name of an uncertainty."""
    extra, fabric = case.overhead, case.fabric
    lost = extra.per_doubling
    found = {
        "pace": ("speed of one device", "--samples-per-second"),
        "loss": (_overhead(case), "--measured, --trainer"),
        "slope": (f"{lost:.1%} lost with each doubling of the nodes", "--measured, two points"),
        "overlap": (f"{extra.overlap:.0%} of the possible overlap with the backward pass", "--overlap none, full"),
        "inter": (f"{bit_rate(float(fabric.inter.bandwidth))} between nodes", "--sweep, --link"),
        "latency": (f"{step_time(float(fabric.inter.latency))} per message between nodes", "--latency, --sweep"),
    }
    if fabric.intra is not None:
        found["intra"] = (f"{bit_rate(float(fabric.intra.bandwidth))} inside a node", "--intra")
    if not math.isinf(float(extra.data_rate)):
        rate = float(extra.data_rate) * (extra.remote_data if fabric.nodes(ranks) > 1 else 1.0)
        found["data"] = (f"input pipeline of at most {count(round(rate))} samples/s per node", "--data-rate")
    uncertain = {field.name for field in fields(Uncertainty) if getattr(case.uncertainty, field.name) > 0}
    return {name: text for name, text in found.items() if name in uncertain}


def _overhead(case: Case) -> str:
    seconds, fraction = float(case.overhead.seconds), float(case.overhead.fraction)
    spread = f"steps vary by {float(case.workload.spread):.1%}"
    if seconds == fraction == 0:
        return spread
    return f"overhead of {step_time(seconds)} and {fraction:.1%} per step; {spread}"
