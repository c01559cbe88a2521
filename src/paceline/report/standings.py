"""The result of a benchmark as text: a table and a sentence for each kind of scaling."""

from collections.abc import Sequence

from paceline.analysis.scaling import Group, Standing
from paceline.core.units import count, percent, plural, rate
from paceline.records.bench import Bench
from paceline.report.tables import table

HEAD = [
    "",
    "ms/step",
    "interval",
    "images/s",
    "speed-up",
    "interval",
    "efficiency",
    "device-s/epoch",
    "train loss",
    "test acc",
]


def standings_text(bench: Bench, groups: Sequence[Group], visible: float | None) -> str:
    """Return everything a benchmark has to say."""
    parts = [_group_text(bench, group) for group in groups]
    parts += [f"{name} failed: {why}" for name, why in bench.failures.items()]
    if not bench.samples:
        parts.append("nothing was measured")
    parts.append(method(bench, visible))
    return "\n".join(parts)


def _group_text(bench: Bench, group: Group) -> str:
    batch = count(bench.settings["global_batch"])
    title = {
        "strong": f"strong scaling: {batch} images a step in all",
        "weak": f"weak scaling: {batch} images a step for each device",
    }[group.scaling]
    rows = [row(standing) for standing in group.standings]
    wrong = [f"{s.contender.name} does not count: {s.wrong}" for s in group.standings if s.wrong]
    return "\n".join([title, table(HEAD, rows), *wrong, group.verdict, ""])


def row(standing: Standing) -> list[str]:
    """Return the cells of one contender."""
    step, speed = standing.step_s, standing.speedup
    cost = "–" if standing.device_seconds is None else f"{standing.device_seconds:.3g}"
    accuracy = "–" if standing.test_top1 is None else percent(standing.test_top1)
    return [
        standing.contender.name,
        rate(1000 * step.median),
        f"{rate(1000 * step.low)} … {rate(1000 * step.high)}",
        rate(standing.images_per_s.median),
        f"{speed.median:.2f}×",
        f"{speed.low:.2f} … {speed.high:.2f}",
        f"{100 * standing.efficiency.median:.0f}%",
        cost,
        f"{standing.train_loss:.4f}",
        accuracy,
    ]


def method(bench: Bench, visible: float | None) -> str:
    """Say how it was measured, and how small a difference it could have seen."""
    rounds = plural(bench.complete_rounds, "round")
    text = f"{rounds} of {bench.steps} steps each, the first {bench.cut} not measured"
    if visible is None:
        return text
    return f"{text}; differences below about {_short(100 * visible)}% would not be seen"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"
