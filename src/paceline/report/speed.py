"""What more devices bring: speed-up and efficiency against the ideal, measured and predicted, and the bench's table."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.analysis.scaling import Estimate, Group
from paceline.report.figures import Plot, Scale, Series, Table, Tick, draw_plot, nice_ticks
from paceline.report.standings import HEAD, row


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """What is predicted for numbers of devices, relative to one, and under which condition."""

    label: str
    efficiency: Mapping[int, tuple[float, float, float]]
    """By number of devices: value, low, high."""

    def speedup(self) -> dict[int, tuple[float, float, float]]:
        """Return the same as a multiple of one device."""
        return {devices: (devices * a, devices * b, devices * c) for devices, (a, b, c) in self.efficiency.items()}


def scaling_plots(group: Group, forecast: Forecast | None = None) -> list[Plot]:
    """Return speed-up and efficiency over devices as measured, and as predicted where someone did."""
    modes = dict.fromkeys(s.contender.mode for s in group.standings if s.contender.devices > 1)
    base = min(s.contender.devices for s in group.standings)
    counts = sorted({s.contender.devices for s in group.standings})
    if len(counts) < 2 or not modes:
        return []
    speed, efficiency = [], []
    for index, mode in enumerate(modes):
        chosen = [s for s in group.standings if s.contender.mode == mode or s.contender.devices == base]
        chosen.sort(key=lambda s: s.contender.devices)
        places = [s.contender.devices for s in chosen]
        speed.append(_measured(mode, index, places, [s.speedup for s in chosen], "{:.2f}×"))
        efficiency.append(_measured(mode, index, places, [s.efficiency for s in chosen], "percent"))
    if forecast is not None:
        speed.append(_predicted("predicted", "predicted", forecast.speedup()))
        efficiency.append(_predicted("predicted", "predicted", forecast.efficiency))
    return _both(speed, efficiency, counts)


def forecast_plots(forecasts: Sequence[Forecast]) -> list[Plot]:
    """Return speed-up and efficiency as predicted, under several conditions."""
    counts = sorted({devices for forecast in forecasts for devices in forecast.efficiency})
    speed = [_predicted(f.label, f"run-{index} soft", f.speedup()) for index, f in enumerate(forecasts)]
    efficiency = [_predicted(f.label, f"run-{index} soft", f.efficiency) for index, f in enumerate(forecasts)]
    return _both(speed, efficiency, counts)


def forecast_table(forecasts: Sequence[Forecast]) -> Table:
    """Return what is predicted as numbers."""
    head = ["devices", "condition", "speed-up", "low", "high", "efficiency", "low", "high"]
    rows = [
        [str(devices), forecast.label, *(f"{devices * v:.3g}" for v in values), *(f"{v:.3g}" for v in values)]
        for forecast in forecasts
        for devices, values in forecast.efficiency.items()
    ]
    return Table(name="predicted", title="Predicted", head=head, rows=rows)


def _both(speed: list[Series], efficiency: list[Series], counts: Sequence[int]) -> list[Plot]:
    ideal = [(float(number), number / counts[0]) for number in counts]
    flat = [(float(number), 1.0) for number in counts]
    speed = [Series(label="ideal", style="ideal", points=ideal), *speed]
    efficiency = [Series(label="ideal", style="ideal", points=flat), *efficiency]
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


def _predicted(label: str, style: str, values: Mapping[int, tuple[float, float, float]]) -> Series:
    return Series(
        label=label,
        style=style,
        points=[(float(devices), value) for devices, (value, _, _) in values.items()],
        low=[low for _, low, _ in values.values()],
        high=[high for _, _, high in values.values()],
        with_band=True,
    )


def _plot(title: str, lines: Sequence[Series], counts: Sequence[int], *, form: str) -> Plot:
    tops = [y for line in lines for y in (*(y for _, y in line.points), *line.high)]
    lows = [y for line in lines for y in (*(y for _, y in line.points), *line.low)]
    is_wide = counts[-1] > 8 * counts[0]
    if is_wide and form != "percent":
        ticks = [2.0**power for power in range(math.floor(math.log2(min(lows))), math.ceil(math.log2(max(tops))) + 1)]
        ticks = ticks[:: -(-len(ticks) // 6)] if len(ticks) > 6 else ticks
        ticks = ticks if ticks[-1] >= max(tops) else [*ticks, ticks[-1] * ticks[-1] / ticks[-2]]
    else:
        ticks = nice_ticks(0, max(y for y in tops if math.isfinite(y)), most=4)
    texts = [f"{100 * tick:g}%" if form == "percent" else form.format(tick) for tick in ticks]
    spoken = "; ".join(f"{line.label} {line.note or f'{line.points[-1][1]:.2g}'}" for line in lines[1:])
    return draw_plot(
        title,
        lines,
        alt=f"{title} over devices, at {counts[-1]} devices: {spoken}.",
        x_ticks=[Tick(number, str(number)) for number in counts],
        x_scale=Scale(counts[0], counts[-1], is_log=is_wide),
        y_values=ticks,
        y_texts=texts,
        y_scale=Scale(ticks[0], ticks[-1], is_log=is_wide and form != "percent"),
        x_label="devices",
    )


def standings_table(group: Group) -> Table:
    """Return the numbers of a benchmark."""
    head = [name or "contender" for name in HEAD]
    return Table(
        name=group.scaling, title=f"{group.scaling.capitalize()} scaling", head=head,
        rows=[row(standing) for standing in group.standings],
    )  # fmt: skip
