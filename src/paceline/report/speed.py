"""What more devices bring: speed-up and efficiency against the ideal, measured and predicted, and the bench's table."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.analysis.scaling import Estimate, Group
from paceline.report.figures import Plot, Scale, Series, Table, Tick, draw_plot, nice_ticks
from paceline.report.standings import HEAD, row


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """What is predicted for one world size, relative to one device."""

    devices: int
    speedup: tuple[float, float, float]
    """Value, low, high."""
    efficiency: tuple[float, float, float]


def scaling_plots(group: Group, forecasts: Sequence[Forecast] = ()) -> list[Plot]:
    """Return speed-up and efficiency over devices."""
    modes = dict.fromkeys(s.contender.mode for s in group.standings if s.contender.devices > 1)
    base = min(s.contender.devices for s in group.standings)
    counts = sorted({s.contender.devices for s in group.standings} | {f.devices for f in forecasts})
    if len(counts) < 2 or not modes:
        return []
    speed, efficiency = [], []
    for index, mode in enumerate(modes):
        chosen = sorted(
            (s for s in group.standings if s.contender.mode == mode or s.contender.devices == base),
            key=lambda s: s.contender.devices,
        )
        places = [s.contender.devices for s in chosen]
        speed.append(_measured(mode, index, places, [s.speedup for s in chosen], "{:.2f}×"))
        efficiency.append(_measured(mode, index, places, [s.efficiency for s in chosen], "percent"))
    if forecasts:
        speed.append(_predicted([f.devices for f in forecasts], [f.speedup for f in forecasts]))
        efficiency.append(_predicted([f.devices for f in forecasts], [f.efficiency for f in forecasts]))
    ideal = [(float(number), number / base) for number in counts]
    flat = [(float(number), 1.0) for number in counts]
    speed.insert(0, Series(label="ideal", style="ideal", points=ideal))
    efficiency.insert(0, Series(label="ideal", style="ideal", points=flat))
    return [_plot("Speed-up", speed, counts, form="{:g}×"), _plot("Efficiency", efficiency, counts, form="percent")]


def _measured(label: str, index: int, places: Sequence[int], values: Sequence[Estimate], form: str) -> Series:
    last = values[-1].median
    return Series(
        label=label,
        note=f"{100 * last:.0f}%" if form == "percent" else form.format(last),
        style=f"run-{index}",
        points=[(float(x), value.median) for x, value in zip(places, values, strict=True)],
        low=[value.low for value in values],
        high=[value.high for value in values],
        with_dots=True,
    )


def _predicted(places: Sequence[int], values: Sequence[tuple[float, float, float]]) -> Series:
    return Series(
        label="predicted",
        style="predicted",
        points=[(float(x), value[0]) for x, value in zip(places, values, strict=True)],
        low=[value[1] for value in values],
        high=[value[2] for value in values],
        with_band=True,
    )


def _plot(title: str, lines: Sequence[Series], counts: Sequence[int], *, form: str) -> Plot:
    tops = [y for line in lines for _, y in line.points] + [y for line in lines for y in line.high]
    ticks = nice_ticks(0, max(y for y in tops if math.isfinite(y)), most=4)
    texts = [f"{100 * tick:g}%" if form == "percent" else form.format(tick) for tick in ticks]
    spoken = "; ".join(f"{line.label} {line.note}" for line in lines if line.note)
    return draw_plot(
        title,
        lines,
        alt=f"{title} over devices: {spoken}.",
        x_ticks=[Tick(number, str(number)) for number in counts],
        x_scale=Scale(counts[0], counts[-1], is_log=counts[-1] > 8 * counts[0]),
        y_values=ticks,
        y_texts=texts,
        x_label="devices",
    )


def standings_table(group: Group) -> Table:
    """Return the numbers of a benchmark."""
    head = [name or "contender" for name in HEAD]
    return Table(
        name=group.scaling, title=f"{group.scaling.capitalize()} scaling", head=head,
        rows=[row(standing) for standing in group.standings],
    )  # fmt: skip
