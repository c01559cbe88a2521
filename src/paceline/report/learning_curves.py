"""Learning curves: loss, accuracy and learning rate over epochs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from paceline.core.score_text import FRACTIONS, TITLES, main_score
from paceline.records.schema import fits
from paceline.report.figures import LABEL_GAP, Key, PageTable, Plot, Scale, Series, Tick, draw_plot, nice_ticks
from paceline.report.run_data import RunData

MOST_RUNS = 6
LONGEST_NAME = 12
"""Maximum letters of a label next to a plot."""
SPLITS = ("train_", "valid_")
"""Prefixes of the scores of an epoch."""
Point = tuple[float, float]


def curves(runs: Sequence[RunData]) -> list[Plot]:
    """Return the plots that have records."""
    shown = [run for run in runs if run.records][:MOST_RUNS]
    longest = max((_end(run) for run in shown), default=0.0)
    if not longest:
        return []
    loss = _lines(shown, "loss", lambda value: f"{value:.3f}")
    metric = _metric(shown)
    is_fraction = metric in FRACTIONS
    scores = _lines(shown, metric, lambda value: f"{100 * value:.1f}%" if is_fraction else f"{value:.4g}")
    rates = [
        Series(label=_name(run, shown, ""), style=f"run-{index}", points=points)
        for index, run in enumerate(shown)
        if len(points := _points(run, "step", "lr")) > 1
    ]
    plots = [
        _plot("Loss", loss, longest, form="{:g}"),
        None if metric == "loss" else _plot(_title(metric), scores, longest, form="percent" if is_fraction else "{:g}"),
        _plot("Learning rate", _distinct(rates), longest, form="{:g}", gap=2 * LABEL_GAP),
    ]
    return [plot for plot in plots if plot is not None]


def _metric(shown: Sequence[RunData]) -> str:
    """Return the score that stands for the runs."""
    scores = next((run.summary.test or run.summary.best for run in shown if run.summary.test or run.summary.best), None)
    return "top1" if scores is None else main_score(scores)


def _title(metric: str) -> str:
    title = TITLES.get(metric, metric)
    return title[:1].upper() + title[1:]


def names_of_runs(runs: Sequence[RunData]) -> list[Key]:
    """Return a legend if the names do not fit next to the lines."""
    shown = [run for run in runs if run.records][:MOST_RUNS]
    if len(shown) < 2 or not _are_long(shown):
        return []
    return [Key(style=f"is-run-{index}", name=run.label, share="") for index, run in enumerate(shown)]


def _are_long(shown: Sequence[RunData]) -> bool:
    return any(len(run.label) > LONGEST_NAME for run in shown)


def _distinct(lines: list[Series]) -> list[Series]:
    """Return one line without a name if all lines are equal."""
    if any(line.points != lines[0].points for line in lines):
        return lines
    return [replace(line, label="") for line in lines[:1]]


def _name(run: RunData, shown: Sequence[RunData], alone: str) -> str:
    if len(shown) == 1:
        return alone
    return "" if _are_long(shown) else run.label


def _lines(shown: Sequence[RunData], what: str, form: Callable[[float], str]) -> list[Series]:
    """Return a faint line for training and a strong one for validation, of every run."""
    lines = []
    for index, run in enumerate(shown):
        train = _points(run, "step", what)
        valid = _points(run, "epoch", f"valid_{what}") or _points(run, "eval", what)
        if len(train) > 1:
            label = "" if len(shown) > 1 and valid else _name(run, shown, "train")
            note = form(train[-1][1]) if len(shown) == 1 else ""
            lines.append(Series(label=label, note=note, style=f"run-{index} faint", points=train))
        if valid:
            label = _name(run, shown, "valid")
            dots = len(valid) < 3
            note = form(valid[-1][1]) if len(shown) == 1 else ""
            lines.append(Series(label=label, note=note, style=f"run-{index}", points=valid, with_dots=dots))
    return lines


def _points(run: RunData, kind: str, key: str) -> list[Point]:
    """Return a curve over epochs, without values that no axis can show."""
    per_epoch = _steps_per_epoch(run)
    return [
        (record["step"] / per_epoch, record[key])
        for record in run.records
        if record["kind"] == kind and record.get("split") != "test" and fits(record.get(key), float)
    ]


def _steps_per_epoch(run: RunData) -> float:
    ends = [record["step"] / record["epoch"] for record in run.records if record["kind"] == "epoch"]
    if ends:
        return ends[-1]
    samples = next((e["train_samples"] for e in run.environments if e.get("train_samples")), None)
    return 1.0 if samples is None else -(-samples // run.summary.config.global_batch)


def _end(run: RunData) -> float:
    return max((record["step"] for record in run.records), default=0) / _steps_per_epoch(run)


def _plot(title: str, lines: list[Series], longest: float, *, form: str, gap: float = LABEL_GAP) -> Plot | None:
    if not lines:
        return None
    values = [y for line in lines for _, y in line.points]
    ticks = nice_ticks(min(0.0, *values) if form != "percent" else min(values), max(values), most=4)
    texts = [f"{100 * tick:g}%" if form == "percent" else form.format(tick) for tick in ticks]
    marks = [Tick(value, f"{value:g}") for value in nice_ticks(0, longest, most=5) if value <= longest * 1.001]
    ends = "; ".join(f"{line.label or 'training'} ends at {line.note or f'{line.points[-1][1]:g}'}" for line in lines)
    return draw_plot(
        title,
        lines,
        alt=f"{title} over epochs: {ends}.",
        x_ticks=marks,
        x_scale=Scale(0, longest),
        y_values=ticks,
        y_texts=texts,
        x_label="epoch",
        gap=gap,
    )


def learning_table(run: RunData) -> PageTable:
    """Return the records of a run as a table."""
    epochs = [record for record in run.records if record["kind"] == "epoch"]
    scores = [key for key in dict.fromkeys(key for record in epochs for key in record) if key.startswith(SPLITS)]
    keys = ["step", "epoch", *(key for key in scores if not key.endswith("_samples")), "samples_per_s"]
    rows = [[_cell(record.get(key)) for key in keys] for record in epochs]
    return PageTable(name="epochs", title=f"Epochs of {run.label}", head=keys, rows=rows)


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
