"""The result of a benchmark as text: a table and a sentence for each kind of scaling."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from paceline.bench.bench_folder import Bench
from paceline.bench.statistics import ScalingGroup, VariantResult, compare_all, smallest_visible
from paceline.core.units import count, percent, plural, rate, table

HEAD = [
    "",
    "ms/step",
    "interval",
    "samples/s",
    "speed-up",
    "interval",
    "efficiency",
    "device-s/epoch",
    "train loss",
    "test acc",
]


def results_text(bench: Bench) -> str:
    """Return the results of a benchmark."""
    parts = [_group_text(bench, group) for group in compare_all(bench)]
    parts += [f"{name} failed: {why}" for name, why in bench.failures.items()]
    if not bench.measurements:
        parts.append("nothing was measured")
    parts.append(method_text(bench, smallest_visible(bench)))
    return "\n".join(parts)


def bench_values(bench: Bench, folder: Path) -> dict[str, Any]:
    """Return the results of a benchmark as plain values for JSON."""
    return {
        "folder": str(folder),
        "complete_rounds": bench.complete_rounds,
        "smallest_visible_difference": smallest_visible(bench),
        "failures": bench.failures,
        "groups": [asdict(group) for group in compare_all(bench)],
    }


def _group_text(bench: Bench, group: ScalingGroup) -> str:
    batch = count(bench.settings["global_batch"])
    title = {
        "strong": f"strong scaling: {batch} samples/step in total",
        "weak": f"weak scaling: {batch} samples/step per device",
    }[group.scaling]
    rows = [result_row(result) for result in group.results]
    wrong = [f"{s.variant.name} is left out: {s.wrong}" for s in group.results if s.wrong]
    return "\n".join([title, table(HEAD, rows), *wrong, group.verdict, ""])


def result_row(result: VariantResult) -> list[str]:
    """Return the cells of one variant."""
    step, speed = result.step_s, result.speedup
    cost = "–" if result.device_seconds is None else f"{result.device_seconds:.3g}"
    accuracy = "–" if result.test_top1 is None else percent(result.test_top1)
    return [
        result.variant.name,
        rate(1000 * step.median),
        f"{rate(1000 * step.low)} … {rate(1000 * step.high)}",
        rate(result.samples_per_s.median),
        f"{speed.median:.2f}×",
        f"{speed.low:.2f} … {speed.high:.2f}",
        f"{100 * result.efficiency.median:.0f}%",
        cost,
        f"{result.train_loss:.4f}",
        accuracy,
    ]


def method_text(bench: Bench, visible: float | None) -> str:
    """Return the rounds and steps, and the smallest difference that can be detected."""
    rounds = plural(bench.complete_rounds, "round")
    text = f"{rounds} of {bench.steps} steps each, the first {bench.cut} not measured"
    if visible is None:
        return text
    return f"{text}; differences below about {_short(100 * visible)}% cannot be detected"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"
