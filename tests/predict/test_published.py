"""The published scaling results: their split, and how predictions from a model spec do on them."""

import csv
import statistics
from pathlib import Path

import pytest

from benchmarks.published import (
    LATER,
    SERIES,
    best_constant,
    mean_error,
    predict_further,
    predict_rows,
    read_series,
)


@pytest.fixture(scope="module")
def series():
    return read_series()


def test_every_series_has_a_source_and_a_plausible_efficiency(series):
    with Path(SERIES).with_name("published_sources.csv").open(encoding="utf-8") as file:
        sources = {line["group"]: line["source"] for line in csv.DictReader(file)}
    series = [*series, *read_series(LATER)]
    assert {one.group for one in series} == set(sources)
    assert all(sources.values())
    assert len({one.name for one in series}) == len(series)
    for one in series:
        assert all(0.35 < efficiency < 1.03 for efficiency in one.efficiencies.values()), one.name


def test_a_group_is_tuned_on_or_tested_never_both(series):
    splits = {split: {one.group for one in series if one.split == split} for split in ("tune", "test")}
    assert not splits["tune"] & splits["test"]
    assert len(splits["tune"]) >= 20
    assert len(splits["test"]) >= 20


@pytest.mark.parametrize("split", ["tune", "test"])
def test_predictions_beat_every_constant_and_intervals_hold(series, split):
    rows = [row for one in series if one.split == split for row in predict_rows(one, knows_trainer=False)]
    constant = best_constant(rows)
    assert mean_error(rows, lambda row: row.predicted) < mean_error(rows, lambda _: constant) - 0.9
    assert mean_error(rows, lambda row: row.predicted) < 0.6 * mean_error(rows, lambda row: row.rule)
    assert 0.85 <= statistics.fmean(row.is_inside for row in rows) <= 0.95


@pytest.mark.parametrize("split", ["tune", "test"])
def test_one_measured_row_halves_the_error_of_a_constant(series, split):
    rows = [row for one in series if one.split == split for row in predict_further(one)]
    constant = best_constant(rows)
    assert mean_error(rows, lambda row: row.predicted) < 0.6 * mean_error(rows, lambda _: constant)
    assert 0.85 <= statistics.fmean(row.is_inside for row in rows) <= 0.95
