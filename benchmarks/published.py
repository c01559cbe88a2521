"""Predictions from a model spec against published scaling results, on a tune and a test split.

    python -m benchmarks.published [--split tune|test|later] [--worst 20]

published.csv has one line per series, published_sources.csv says where each group of series was published. A group goes
to one split as a whole, by a hash of its name; the split was committed before anything was tuned. Series in which a
device of many is more than 3% faster than a device alone were left out: their first row is not a baseline.
"""

import argparse
import csv
import hashlib
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.predict.cases import NOTHING_KNOWN, spec_case
from paceline.predict.fabric import Quantity
from paceline.predict.predict_options import BatchOptions, ClusterOptions, ModelSpec
from paceline.predict.simulate import trivial_step
from paceline.predict.uncertainty import Case, draw_case, efficiency_of, estimate

SERIES = Path(__file__).with_name("published.csv")
LATER = Path(__file__).with_name("published_later.csv")
"""Series that were added after all constants had been chosen."""
FALLS = 0.02
"""Least fall of efficiency, from the first to the last row of a series, that counts for the slope."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedSeries:
    """Samples per second of one training job on several numbers of ranks."""

    group: str
    name: str
    trainer: str
    overlap: str
    model: str | None
    parameters: str | None
    batch: float
    gradients: str
    per_node: int
    intra: str
    link: str
    data: str
    base: int
    """Ranks of the row to which the efficiency of the others relates."""
    speeds: dict[int, float]
    accumulates: dict[int, int]
    """Micro-batches per step, by ranks: some series keep the global batch."""

    @property
    def split(self) -> str:
        return "tune" if hashlib.sha256(self.group.encode()).digest()[0] % 2 == 0 else "test"

    @property
    def efficiencies(self) -> dict[int, float]:
        alone = self.speeds[self.base] / self.base
        return {ranks: speed / ranks / alone for ranks, speed in self.speeds.items() if ranks != self.base}


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedRow:
    """One row of a series: its efficiency, and what was predicted."""

    series: PublishedSeries
    ranks: int
    published: float
    predicted: float
    low: float
    high: float
    rule: float

    @property
    def error(self) -> float:
        return self.predicted - self.published

    @property
    def is_inside(self) -> bool:
        return self.low <= self.published <= self.high


def read_series(path: Path = SERIES) -> list[PublishedSeries]:
    with path.open(encoding="utf-8") as file:
        return [_series(line) for line in csv.DictReader(file)]


def _series(line: dict[str, str]) -> PublishedSeries:
    """Return the series of a line; a point such as 16x4:3528 is 16 ranks, 4 micro-batches, 3528 samples per second."""
    speeds, accumulates = {}, {}
    for point in line.pop("samples_per_second").split():
        place, speed = point.split(":")
        ranks, _, parts = place.partition("x")
        speeds[int(ranks)], accumulates[int(ranks)] = float(speed), int(parts or 1)
    whole = {name: int(line.pop(name)) for name in ("per_node", "base")}
    model, parameters = line.pop("model") or None, line.pop("parameters") or None
    batch = float(line.pop("batch"))
    return PublishedSeries(model=model, parameters=parameters, batch=batch, speeds=speeds, accumulates=accumulates,
                           **whole, **line)  # fmt: skip # pyright: ignore[reportArgumentType]


def case_of(series: PublishedSeries, ranks: int, *, knows_trainer: bool = True, measured: tuple[str, ...] = ()) -> Case:
    """Return the case that a reader of the paper could describe."""
    known = replace(NOTHING_KNOWN, measured=measured)
    if knows_trainer:
        known = replace(known, trainer=series.trainer, overlap=series.overlap)
    speed = series.speeds[series.base] / series.base
    spec = ModelSpec(model=series.model, parameters=series.parameters, gradients=series.gradients,  # pyright: ignore[reportArgumentType]
                     samples_per_second=speed)  # fmt: skip
    cluster = ClusterOptions(ranks=tuple(series.speeds), per_node=series.per_node, link=series.link, intra=series.intra)
    batch = BatchOptions(per_rank_batch=series.batch, accumulate=series.accumulates[ranks])
    return spec_case(cluster, spec, batch, _no_layers, known)[0]


def predict_further(series: PublishedSeries) -> list[PublishedRow]:
    """Return the rows after the first one, predicted with the first one as a measured point."""
    ranks = next(iter(series.efficiencies))
    point = f"{ranks}:{series.speeds[ranks]:.10g}"
    return [row for row in predict_rows(series, measured=(point,)) if row.ranks != ranks] if series.base == 1 else []


def _no_layers(name: str) -> list:
    raise LookupError(name)


def predict_rows(series: PublishedSeries, **known: Any) -> list[PublishedRow]:
    """Return the rows of a series with their predictions."""
    base, rule_base = _efficiencies(series, series.base, **known)
    found = []
    for ranks, published in series.efficiencies.items():
        drawn, rule = _efficiencies(series, ranks, **known)
        answer = estimate(drawn / base)
        found.append(PublishedRow(series=series, ranks=ranks, published=published, predicted=answer.value,
                                  low=answer.low, high=answer.high, rule=rule / rule_base))  # fmt: skip
    return found


def _efficiencies(series: PublishedSeries, ranks: int, **known: Any) -> tuple[Quantity, float]:
    """Return the predicted efficiencies, one per draw, and the efficiency by the simple rule."""
    case = case_of(series, ranks, **known)
    alone, rule = (float(trivial_step(case.workload, case.fabric, number, accumulate=case.accumulate))
                   for number in (1, ranks))  # fmt: skip
    return efficiency_of(draw_case(case), ranks, case.samples_per_rank(ranks)), alone / rule


def mean_error(rows: Sequence[PublishedRow], guess: Callable[[PublishedRow], float]) -> float:
    """Return the mean absolute error of a guess in points of efficiency."""
    return 100 * statistics.fmean(abs(guess(row) - row.published) for row in rows)


def best_constant(rows: Sequence[PublishedRow]) -> float:
    """Return the efficiency which has the smallest mean error if it is predicted for all rows: their median."""
    return statistics.median(row.published for row in rows)


def slope_errors(rows: Sequence[PublishedRow]) -> list[tuple[float, float]]:
    """Return the published and the predicted fall of every series that falls."""
    by_series: dict[str, list[PublishedRow]] = {}
    for row in rows:
        by_series.setdefault(row.series.name, []).append(row)
    falls = []
    for found in by_series.values():
        first, last = found[0], found[-1]
        if first.published - last.published >= FALLS:
            falls.append((first.published - last.published, first.predicted - last.predicted))
    return falls


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--split", choices=("tune", "test", "later"), default=None)
    parser.add_argument("--worst", type=int, default=0)
    options = parser.parse_args()
    everything = {split: [one for one in read_series() if one.split == split] for split in ("tune", "test")}
    everything["later"] = read_series(LATER)
    for split in (options.split,) if options.split else everything:
        chosen = everything[split]
        unknown = [row for series in chosen for row in predict_rows(series, knows_trainer=False)]
        rows = [row for series in chosen for row in predict_rows(series)]
        show(f"{split}, trainer unknown", unknown)
        show(f"{split}, trainer known", rows)
        show(f"{split}, and the first row measured", [row for series in chosen for row in predict_further(series)])
        for row in sorted(rows, key=lambda row: -abs(row.error))[: options.worst]:
            print(f"  {row.error:+.3f} {row.published:.3f} {row.predicted:.3f} {row.ranks:4} {row.series.name}")


def show(split: str, rows: Sequence[PublishedRow]) -> None:
    """Print the scores of a split."""
    falls = slope_errors(rows)
    slope = sum(abs(predicted - true) for true, predicted in falls) / sum(true for true, _ in falls)
    constant = best_constant(rows)
    names = {row.series.name for row in rows}
    predicted, published = ([getattr(row, name) for row in rows] for name in ("predicted", "published"))
    print(
        f"{split}: {len(names)} series, {len(rows)} rows: "
        f"mean error {mean_error(rows, lambda row: row.predicted):.2f}; "
        f"best constant ({100 * constant:.0f}%) {mean_error(rows, lambda _: constant):.2f}, "
        f"perfect scaling {mean_error(rows, lambda _: 1.0):.2f}, rule {mean_error(rows, lambda row: row.rule):.2f}; "
        f"correlation {statistics.correlation(predicted, published):.2f}; "
        f"slope error {slope:.0%} of the fall ({len(falls)} series); "
        f"intervals hold {statistics.fmean(row.is_inside for row in rows):.0%}"
    )


if __name__ == "__main__":
    main()
