"""How runs learned: loss, accuracy and learning rate over epochs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from paceline.analysis.story import Story
from paceline.report.figures import LABEL_GAP, Key, Plot, Scale, Series, Table, Tick, draw_plot, nice_ticks

MOST_RUNS = 6
LONGEST_NAME = 12
"""Letters that fit beside a plot."""
Point = tuple[float, float]


def curves(stories: Sequence[Story]) -> list[Plot]:
    """Return the plots for which there are records."""
    shown = [story for story in stories if story.records][:MOST_RUNS]
    longest = max((_end(story) for story in shown), default=0.0)
    if not longest:
        return []
    loss = _lines(shown, "loss", lambda value: f"{value:.3f}")
    accuracy = _lines(shown, "top1", lambda value: f"{100 * value:.1f}%")
    rates = [
        Series(label=_name(story, shown, ""), style=f"run-{index}", points=points)
        for index, story in enumerate(shown)
        if len(points := _points(story, "step", "lr")) > 1
    ]
    plots = [
        _plot("Loss", loss, longest, form="{:g}"),
        _plot("Accuracy", accuracy, longest, form="percent"),
        _plot("Learning rate", _distinct(rates), longest, form="{:g}", gap=2 * LABEL_GAP),
    ]
    return [plot for plot in plots if plot is not None]


def names_of_runs(stories: Sequence[Story]) -> list[Key]:
    """Return which colour is whose, where the names do not fit beside the lines."""
    shown = [story for story in stories if story.records][:MOST_RUNS]
    if len(shown) < 2 or not _are_long(shown):
        return []
    return [Key(style=f"is-run-{index}", name=story.label, share="") for index, story in enumerate(shown)]


def _are_long(shown: Sequence[Story]) -> bool:
    return any(len(story.label) > LONGEST_NAME for story in shown)


def _distinct(lines: list[Series]) -> list[Series]:
    """Return one line without a name where all are the same."""
    if any(line.points != lines[0].points for line in lines):
        return lines
    return [replace(line, label="") for line in lines[:1]]


def _name(story: Story, shown: Sequence[Story], alone: str) -> str:
    if len(shown) == 1:
        return alone
    return "" if _are_long(shown) else story.label


def _lines(shown: Sequence[Story], what: str, form: Callable[[float], str]) -> list[Series]:
    """Return a faint line for training and a strong one for validation, of every run."""
    lines = []
    for index, story in enumerate(shown):
        train = _points(story, "step", what)
        valid = _points(story, "epoch", f"valid_{what}") or _points(story, "eval", what)
        if len(train) > 1:
            label = "" if len(shown) > 1 and valid else _name(story, shown, "train")
            note = form(train[-1][1]) if len(shown) == 1 else ""
            lines.append(Series(label=label, note=note, style=f"run-{index} faint", points=train))
        if valid:
            label = _name(story, shown, "valid")
            dots = len(valid) < 3
            note = form(valid[-1][1]) if len(shown) == 1 else ""
            lines.append(Series(label=label, note=note, style=f"run-{index}", points=valid, with_dots=dots))
    return lines


def _points(story: Story, kind: str, key: str) -> list[Point]:
    per_epoch = _steps_per_epoch(story)
    return [
        (record["step"] / per_epoch, record[key])
        for record in story.records
        if record["kind"] == kind and key in record and record.get("split") != "test"
    ]


def _steps_per_epoch(story: Story) -> float:
    ends = [record["step"] / record["epoch"] for record in story.records if record["kind"] == "epoch"]
    if ends:
        return ends[-1]
    images = next((e["train_images"] for e in story.environments if e.get("train_images")), None)
    return 1.0 if images is None else -(-images // story.summary.config.global_batch)


def _end(story: Story) -> float:
    return max((record["step"] for record in story.records), default=0) / _steps_per_epoch(story)


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


def learning_table(story: Story) -> Table:
    """Return the records of a run as a table."""
    keys = ("step", "epoch", "train_loss", "train_top1", "valid_loss", "valid_top1", "valid_top5", "images_per_s")
    rows = [[_cell(record.get(key)) for key in keys] for record in story.records if record["kind"] == "epoch"]
    return Table(name="epochs", title=f"Epochs of {story.label}", head=list(keys), rows=rows)


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
