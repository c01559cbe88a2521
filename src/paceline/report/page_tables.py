"""Facts for a page: results side by side, environment and settings, and the numbers of every run."""

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.bench.bench_folder import Bench
from paceline.bench.statistics import work_differences
from paceline.core.units import plural, step_time, value_text
from paceline.explain.speed_ratio import speed_ratio, too_short
from paceline.records.compare_runs import compare_runs
from paceline.report.figures import PageTable
from paceline.report.page import Facts, Section
from paceline.report.run_data import RunData

OWN_BUSINESS = frozenset({"name", "runs_dir", "profile", "track", "log_every"})
"""Settings of files and logging, not of the result."""
SHOWN_FACTS = ("host", "device", "cores", "python", "git", "launcher", "world_size", "num_devices", "mode")


def comparison(runs: Sequence[RunData]) -> PageTable:
    """Return results as rows, and the settings that differ."""
    settings = [run.summary.config.as_dict() for run in runs]
    is_fair = not any(unlike_runs(runs[0], run) for run in runs)
    results = compare_runs(*(run.summary for run in runs)).results
    found = [
        _speeds(run, runs[0], is_fair=is_fair) | {one.name: one.values[index] for one in results}
        for index, run in enumerate(runs)
    ]
    rows = [
        [name, *(value_text(name, one.get(name)) for one in found)]
        for name in dict.fromkeys(n for f in found for n in f)
    ]
    names = dict.fromkeys(name for one in settings for name in one)
    rows += [
        [name, *(value_text(name, one.get(name)) for one in settings)]
        for name in names
        if name not in OWN_BUSINESS and len({str(one.get(name)) for one in settings}) > 1
    ]
    return PageTable(name="runs", title="Runs", head=["", *(run.label for run in runs)], rows=rows)


def _speeds(run: RunData, first: RunData, *, is_fair: bool) -> dict[str, str]:
    """Return speed-up and efficiency of a run relative to the first."""
    facts = {"world": run.where}
    own, base = run.sample_seconds, first.sample_seconds
    if run.split is None or first.split is None or own is None or base is None or not is_fair:
        return facts
    facts |= {"step": step_time(float(run.split.steady_state.step.mean()))}
    if too_short(run.split) or too_short(first.split):
        return facts | {"speed-up": "too few steps"}
    speedup, devices = base / own, run.num_devices / first.num_devices
    batches = first.summary.config.global_batch, run.summary.config.global_batch
    ratio = speed_ratio(first.split, run.split, batches=batches)
    interval = "" if run is first else f" ({ratio.low:.2f}–{ratio.high:.2f})"
    return facts | {"speed-up": f"{speedup:.2f}×{interval}", "efficiency": f"{100 * speedup / devices:.0f}%"}


def environment_section(runs: Sequence[RunData]) -> Section:
    """Return the environment and the settings of runs."""
    facts = []
    for run in runs:
        prefix = f"{run.label}: " if len(runs) > 1 else ""
        environment = run.environments[-1] if run.environments else {}
        shown = [
            (name, value_text(name, environment[name])) for name in SHOWN_FACTS if environment.get(name) is not None
        ]
        shown += [(name, str(value)) for name, value in environment.get("packages", {}).items()]
        facts.append(Facts(title=f"{prefix}Environment", facts=shown))
        settings = run.summary.config.as_dict()
        facts.append(
            Facts(title=f"{prefix}Settings", facts=[(name, value_text(name, v)) for name, v in settings.items()])
        )
    return Section(name="environment", title="Environment and settings", facts=facts)


def audit_section(values: Mapping[str, Any]) -> Section:
    """Return what `paceline audit` found in the script of a run."""
    head = ["level", "rule", "place", "seen", "effect", "fix"]
    found = [one | {"place": f"{one['file']}:{one['line']}" if one["file"] else ""} for one in values["findings"]]
    rows = [[one[name] for name in head] for one in found]
    audited = f"Audited {plural(max(values['steps'], default=0), 'step')} on {plural(len(values['steps']), 'rank')}"
    ending = f" ({values['ending']})" if values["ending"] else ""
    number = plural(len(rows), "finding") if rows else "no findings"
    table = PageTable(name="audit", title="Findings in the script", head=head, rows=rows)
    intro = [f"{audited}{ending}: {number}."]
    return Section(name="audit", title="Mistakes in the script", intro=intro, tables=[table] if rows else [])


def measurements(bench: Bench) -> PageTable:
    """Return the measurements of every run of a benchmark."""
    head = ["variant", "scaling", "round", "samples_per_s", "step_ms", "train_loss", "test_top1"]
    rows = []
    for measurement in bench.measurements:
        variant = bench.variants[measurement.variant]
        accuracy = "" if measurement.test_top1 is None else f"{measurement.test_top1:.4f}"
        numbers = [
            f"{value:.5g}" for value in (measurement.samples_per_s, 1000 * measurement.step_s, measurement.train_loss)
        ]
        rows.append([variant.name, variant.scaling or "", str(measurement.round + 1), *numbers, accuracy])
    return PageTable(name="measurements", title="Every run", head=head, rows=rows)


def unlike_runs(first: RunData, second: RunData) -> list[str]:
    """Return why the speeds of two runs cannot be compared; a different batch is allowed, as speeds are samples/s."""
    return work_differences(first.summary.config.as_dict(), second.summary.config.as_dict(), batch=False)
