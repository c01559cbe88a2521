"""The records of runs as one table of comma-separated values, for pandas, polars or a spreadsheet."""

import csv
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from paceline.records.folder import RunFolder
from paceline.records.reader import read_metrics

FIRST = ("run", "kind", "split", "step", "epoch")
"""Columns that every table starts with; the others follow in the order in which they appear."""


def write_csv(runs: Sequence[RunFolder], stream: TextIO) -> None:
    """Write one row per record; a value that a record does not have is empty. The files are read twice."""
    columns: dict[str, None] = dict.fromkeys(FIRST)
    for row in _rows(runs):
        columns.update(dict.fromkeys(row))
    table = csv.DictWriter(stream, columns, lineterminator="\n")
    table.writeheader()
    table.writerows(_rows(runs))


def _rows(runs: Sequence[RunFolder]) -> Iterator[dict[str, Any]]:
    for run in runs:
        for record in read_metrics(run):
            yield {"run": run.name} | _flat(record)


def _flat(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record whose named numbers are columns: phases.forward."""
    flat: dict[str, Any] = {}
    for name, value in record.items():
        flat |= {f"{name}.{key}": number for key, number in value.items()} if isinstance(value, dict) else {name: value}
    return flat
