"""Scaling: speed-up and efficiency against the ideal, measured and predicted, and the table of a benchmark."""

import math
from collections.abc import Mapping, Sequence

from paceline.bench.bench_text import HEAD, result_row
from paceline.bench.statistics import MedianInterval, ScalingGroup
from paceline.report.figures import PageTable, Plot, Scale, Series, Tick, draw_plot, nice_ticks
from paceline.report.run_data import Forecast


def scaling_plots(group: ScalingGroup, forecast: Forecast | None = None) -> list[Plot]:
    """Return plots of measured speed-up and efficiency over devices, with predictions if there are any."""
    modes = dict.fromkeys(s.variant.mode for s in group.results if s.variant.devices > 1)
    base = min(s.variant.devices for s in group.results)
    counts = sorted({s.variant.devices for s in group.results})
    if len(counts) < 2 or not modes:
        return []
    speed, efficiency = [], []
    for index, mode in enumerate(modes):
        chosen = [s for s in group.results if s.variant.mode == mode or s.variant.devices == base]
        chosen.sort(key=lambda s: s.variant.devices)
        places = [s.variant.devices for s in chosen]
        speed.append(_measured(mode, index, places, [s.speedup for s in chosen], "{:.2f}×"))
        efficiency.append(_measured(mode, index, places, [s.efficiency for s in chosen], "percent"))
    if forecast is not None:
        speed.append(_predicted("predicted", "predicted", forecast.speedup()))
        efficiency.append(_predicted("predicted", "predicted", forecast.efficiency))
    return _both(speed, efficiency, counts)


def forecast_plots(forecasts: Sequence[Forecast]) -> list[Plot]:
    """Return plots of predicted speed-up and efficiency under several conditions."""
    counts = sorted({devices for forecast in forecasts for devices in forecast.efficiency})
    speed = [_predicted(f.label, f"run-{index} soft", f.speedup()) for index, f in enumerate(forecasts)]
    efficiency = [_predicted(f.label, f"run-{index} soft", f.efficiency) for index, f in enumerate(forecasts)]
    measured = next((one.measured for one in forecasts if one.measured), None)
    if measured:  # strong and weak scaling meet in the run itself
        efficiency.append(_points("measured", measured))
        speed.append(_points("measured", {devices: devices * part for devices, part in measured.items()}))
    return _both(speed, efficiency, counts)


def forecast_table(forecasts: Sequence[Forecast]) -> PageTable:
    """Return the predictions as a table."""
    head = ["devices", "condition", "speed-up", "low", "high", "efficiency", "low", "high", "measured"]
    rows = [
        [
            str(devices),
            forecast.label,
            *(f"{devices * v:.3g}" for v in values),
            *(f"{v:.3g}" for v in values),
            f"{forecast.measured[devices]:.3g}" if devices in forecast.measured else "",
        ]
        for forecast in forecasts
        for devices, values in forecast.efficiency.items()
    ]
    return PageTable(name="predicted", title="Predicted", head=head, rows=rows)


def _both(speed: list[Series], efficiency: list[Series], counts: Sequence[int]) -> list[Plot]:
    ideal = [(float(number), number / counts[0]) for number in counts]
    flat = [(float(number), 1.0) for number in counts]
    speed = [Series(label="ideal", style="ideal", points=ideal), *speed]
    efficiency = [Series(label="ideal", style="ideal", points=flat), *efficiency]
    return [_plot("Speed-up", speed, counts, form="{:g}×"), _plot("Efficiency", efficiency, counts, form="percent")]


def _measured(label: str, index: int, places: Sequence[int], values: Sequence[MedianInterval], form: str) -> Series:
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


def _points(label: str, values: Mapping[int, float]) -> Series:
    """Return measured values as dots without a line."""
    points = [(float(devices), value) for devices, value in values.items()]
    return Series(label=label, style="run-0", points=points, with_dots=True)


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


def results_table(group: ScalingGroup) -> PageTable:
    """Return the results of a benchmark as a table."""
    head = [name or "variant" for name in HEAD]
    return PageTable(
        name=group.scaling, title=f"{group.scaling.capitalize()} scaling", head=head,
        rows=[result_row(result) for result in group.results],
    )  # fmt: skip
