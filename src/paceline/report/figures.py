"""Plots and bars in coordinates from 0 to 100, ready for the page's templates."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

MOST_POINTS = 240
"""Maximum number of points of a line."""
LABEL_GAP = 9.0
"""Minimum distance between the labels of two lines, in percent of a plot's height."""


class Tick(NamedTuple):
    """A mark on an axis."""

    place: float
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PageTable:
    """The numbers behind a figure."""

    name: str
    """File name without its ending."""
    title: str
    head: list[str]
    rows: list[list[str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A line or a row of points with a label at its end."""

    label: str
    note: str = ""
    """A number next to the label."""
    style: str
    """Classes that choose colour and weight."""
    path: str
    label_place: float
    dots: str = ""
    whiskers: str = ""
    band: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plot:
    """Lines over two axes."""

    title: str
    alt: str
    x_label: str = ""
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    lines: list[Line]


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """A part of a bar."""

    style: str
    start: float
    width: float
    title: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A bar of segments."""

    name: str
    note: str = ""
    total: str = ""
    segments: list[Segment]


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """An entry of the legend: a colour, its meaning and its total."""

    style: str
    name: str
    share: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Bars:
    """Bars over one axis, with a legend above."""

    title: str
    alt: str
    keys: list[Key]
    rows: list[Row]
    ticks: list[Tick] = field(default_factory=list)
    mark: Tick | None = None
    """A time that is marked in all rows."""
    note: str = ""
    is_thin: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """The points of one line before they are placed."""

    label: str
    style: str
    points: Sequence[tuple[float, float]]
    note: str = ""
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    with_dots: bool = False
    with_band: bool = False


class Scale:
    """Maps values of an axis to coordinates from 0 to 100."""

    def __init__(self, low: float, high: float, *, is_log: bool = False) -> None:
        self._is_log = is_log
        self._low = self._value(low)
        self._span = self._value(high) - self._low or 1.0

    def _value(self, value: float) -> float:
        return math.log2(value) if self._is_log else value

    def __call__(self, value: float) -> float:
        """Return the coordinate of a value."""
        return 100 * (self._value(value) - self._low) / self._span


def nice_ticks(low: float, high: float, *, most: int = 5) -> list[float]:
    """Return round numbers that cover the range, at most `most` plus one."""
    span = high - low or abs(high) or 1.0
    rough = span / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def thin_out(points: Sequence[tuple[float, float]], most: int = MOST_POINTS) -> list[tuple[float, float]]:
    """Return at most `most` points: means of neighbours, the last one kept."""
    if len(points) <= most:
        return list(points)
    bounds = [round(index * len(points) / (most - 1)) for index in range(most)]
    parts = [points[start:end] for start, end in itertools.pairwise(bounds)]
    means = [(sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts]
    return [*means, points[-1]]


def draw_plot(  # noqa: PLR0913 - a plot has that many properties
    title: str,
    series: Sequence[Series],
    *,
    alt: str,
    x_ticks: Sequence[Tick],
    x_scale: Scale,
    y_values: Sequence[float],
    y_texts: Sequence[str],
    y_scale: Scale | None = None,
    x_label: str = "",
    gap: float = LABEL_GAP,
) -> Plot:
    """Lay out lines over their axes; labels are next to the last points, without overlapping."""
    y_scale = y_scale or Scale(y_values[0], y_values[-1])
    ends = [100 - y_scale(one.points[-1][1]) for one in series]
    places = spread_out(ends, gap)
    lines = [_line(one, x_scale, y_scale, place) for one, place in zip(series, places, strict=True)]
    return Plot(
        title=title,
        alt=alt,
        x_label=x_label,
        x_ticks=[Tick(round(x_scale(value), 2), text) for value, text in x_ticks],
        y_ticks=[Tick(round(100 - y_scale(v), 2), text) for v, text in zip(y_values, y_texts, strict=True)],
        lines=lines,
    )


def _line(one: Series, x_scale: Scale, y_scale: Scale, place: float) -> Line:
    points = thin_out(one.points)
    xs = [x_scale(x) for x, _ in points]
    ys = [100 - y_scale(y) for _, y in points]
    marks = list(zip(xs, ys, strict=True))
    lows, highs = [[100 - y_scale(value) for value in values] for values in (one.low, one.high)]
    whiskers = band = ""
    if lows and one.with_band:
        there = [*zip(xs, highs, strict=True), *reversed([*zip(xs, lows, strict=True)])]
        band = _path(there) + "Z"
    elif lows:
        whiskers = "".join(f"M{x:.2f} {a:.2f}V{b:.2f}" for x, a, b in zip(xs, lows, highs, strict=True))
    dots = "".join(f"M{x:.2f} {y:.2f}h0" for x, y in marks) if one.with_dots else ""
    return Line(
        label=one.label,
        note=one.note,
        style=one.style,
        path=_path(marks),
        label_place=round(place, 2),
        dots=dots,
        whiskers=whiskers,
        band=band,
    )


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.2f} {y:.2f}" for x, y in points)


def spread_out(places: Sequence[float], gap: float = LABEL_GAP) -> list[float]:
    """Return the positions moved as little as possible so that neighbours are at least the gap apart."""
    order = sorted(range(len(places)), key=lambda index: places[index])
    moved = list(places)
    for before, after in itertools.pairwise(order):
        moved[after] = max(moved[after], moved[before] + gap)
    excess = max((moved[index] for index in order[-1:]), default=0) - 100
    if excess > 0:
        ceiling = 100.0
        for index in reversed(order):
            moved[index] = min(moved[index], ceiling)
            ceiling = moved[index] - gap
    return moved
