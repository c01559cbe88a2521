"""Composes the sections of a page from the data of runs and benchmarks."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version

from paceline.bench.bench_text import method_text
from paceline.bench.statistics import ScalingGroup
from paceline.core.score_text import TITLES, main_score, score_value
from paceline.core.units import bit_rate, duration, plural, rate
from paceline.explain.explain_text import nothing_found
from paceline.explain.run_numbers import RunBottleneck
from paceline.records.profile import Profile
from paceline.report.bench_data import BenchData
from paceline.report.figures import PageTable
from paceline.report.learning_curves import curves, learning_table, names_of_runs
from paceline.report.page import Page, Section
from paceline.report.page_tables import audit_section, comparison, environment_section, measurements, unlike_runs
from paceline.report.run_data import Forecast, RunData, contrast_sentence, run_sentence, seeds_sentence
from paceline.report.scaling_plots import forecast_plots, forecast_table, results_table, scaling_plots
from paceline.report.step_timeline import one_step
from paceline.report.time_bars import split_table, steps_of_ranks, steps_of_runs, whole_run

FAINT = "Strong lines: validation. Faint lines: training."
MOST_ADVICE = 6
MODES = ("dp", "ddp", "fsdp")


def page_of_run(run: RunData, forecasts: Sequence[Forecast] = ()) -> Page:
    """Return the page of one run."""
    summary = run.summary
    bottlenecks = run.bottlenecks
    bars = [figure for figure in (whole_run(run), steps_of_ranks(run)) if figure is not None]
    sections = [Section(name="time", title="Where the time goes", bars=bars)] if bars else []
    if bottlenecks:
        sections.append(Section(name="advice", title="What to try", advice=_advice(bottlenecks)))
    if run.audit is not None:
        sections.append(audit_section(run.audit))
    if run.profile is not None:
        sections.append(Section(name="step", title="One step", bars=[one_step(run.profile)]))
    if forecasts and run.profile is not None:
        intro = [
            f"Predicted from this run's profile, on the link that it measured: {_link(run.profile)}. "
            f"Strong: {run.profile.global_batch:,} samples/step in total; weak: {run.profile.samples_per_rank:,} per "
            "rank. The bands are 90% intervals, the dot is this run."
        ]
        plots = forecast_plots(forecasts)
        sections.append(Section(name="more", title="Predicted scaling", intro=intro, plots=plots))
    plots = curves([run])
    if plots:
        sections.append(Section(name="learning", title="Learning curves", plots=plots))
    sections.append(environment_section([run]))
    return Page(
        title=summary.folder.name,
        subtitle=f"{' on '.join(summary.trained)}, started {_when(run)}",
        verdict=_sentence(bottlenecks[0].sentence if bottlenecks else run_sentence(run)),
        lead=_lead(run, bottlenecks),
        numbers=_numbers(run),
        sections=sections,
        tables=_tables([run]) + ([forecast_table(forecasts)] if forecasts else []),
        version=version("paceline"),
    )


def _numbers(run: RunData) -> list[tuple[str, str]]:
    """Return the numbers at the top of the page of one run."""
    numbers = [("state", run.summary.state.lower()), ("world", run.where)]
    if run.summary.test or run.summary.best:
        score = run.summary.test or run.summary.best or {}
        name = main_score(score)
        title = f"{'test' if run.summary.test else 'best'} {TITLES.get(name, name)}"
        numbers.insert(0, (title, score_value(name, score[name])))
    if run.summary.samples_per_s is not None:
        numbers.append(("samples per second", rate(run.summary.samples_per_s)))
    if run.split is not None:
        numbers.append(("wall time", duration(float(run.split.total.seconds.mean()))))
    return numbers


def page_of_runs(runs: Sequence[RunData]) -> Page:
    """Return the page that compares runs with the first one."""
    first, others = runs[0], runs[1:]
    reasons = list(dict.fromkeys(reason for other in others for reason in unlike_runs(first, other)))
    sentences = [] if reasons else [text for other in others if (text := contrast_sentence(first, other)) is not None]
    if reasons:
        verdict = "These runs did different work, so their speeds are not compared: " + "; ".join(reasons)
    else:
        verdict = seeds_sentence(runs) or (sentences[-1] if sentences else f"{plural(len(runs), 'run')} side by side")
    bars = steps_of_runs(runs)
    slowest = max(runs, key=lambda run: run.sample_seconds or 0.0)
    sections = [Section(name="results", title="Side by side", tables=[comparison(runs)])]
    if bars is not None and not reasons:
        intro = [_sentence(text) + "." for text in sentences if text != verdict]
        sections.append(Section(name="time", title="Where the time goes", intro=intro, bars=[bars]))
        if slowest.bottlenecks:
            advice = Section(
                name="advice", title=f"What to try with {slowest.label}", advice=_advice(slowest.bottlenecks)
            )
            sections.append(advice)
    profiled = [run for run in runs if run.profile is not None and run.profile.buckets]
    steps = [one_step(run.profile) for run in profiled if run.profile is not None]
    if steps:
        intro = ["Each bucket is sent when its last gradient is ready; what ends after the backward pass is exposed."]
        sections.append(Section(name="step", title=f"One step of {profiled[-1].label}", intro=intro, bars=steps[-1:]))
    plots = curves(runs)
    if plots:
        intro = [FAINT] if len(runs) > 1 else []
        keys = names_of_runs(runs)
        sections.append(Section(name="learning", title="Learning curves", intro=intro, keys=keys, plots=plots))
    sections.append(environment_section(runs))
    return Page(
        title=f"{plural(len(runs), 'run')} compared",
        subtitle=", ".join(run.summary.folder.name for run in runs),
        verdict=_sentence(verdict),
        lead=[]
        if reasons or not slowest.bottlenecks
        else [_sentence(f"{slowest.label}: {slowest.bottlenecks[0].sentence}.")],
        sections=sections,
        tables=_tables(runs),
        version=version("paceline"),
    )


def page_of_bench(data: BenchData) -> Page:
    """Return the page of a benchmark."""
    bench, groups = data.bench, data.groups
    sections = [_group_section(group, data.predicted, is_first=group is groups[0]) for group in groups]
    bars = steps_of_runs(data.runs)
    if bars is not None:
        sections.append(Section(name="time", title="Where the time goes", bars=[bars]))
    if data.profile is not None:
        title = f"One step of ddp with {plural(data.profile.world_size, 'rank')}"
        sections.append(Section(name="step", title=title, bars=[one_step(data.profile)]))
    if data.runs:
        sections.append(environment_section(data.runs[:1]))
    return Page(
        title=data.name,
        subtitle=f"{bench.settings['model']} on {bench.settings['data']}",
        verdict=_sentence(groups[0].verdict if groups else "nothing was measured"),
        lead=[_sentence(method_text(bench, data.visible)) + "."],
        sections=sections,
        tables=[results_table(group) for group in groups] + [measurements(bench)],
        version=version("paceline"),
    )


def _group_section(group: ScalingGroup, predicted: Mapping[str, Forecast], *, is_first: bool) -> Section:
    """Return the section of a kind of scaling; the verdict of the first is the headline of the page."""
    wrong = [_sentence(f"{s.variant.name} is left out: {s.wrong}.") for s in group.results if s.wrong]
    return Section(
        name=group.scaling,
        title=f"{group.scaling.capitalize()} scaling",
        intro=[*([] if is_first else [_sentence(group.verdict) + "."]), *wrong],
        tables=[results_table(group)],
        plots=scaling_plots(group, predicted.get(group.scaling)),
    )


def _link(profile: Profile) -> str:
    """Return the bandwidth of a profile's link, and whether it is a network."""
    where = "inside one host, no network" if len(profile.ranks_per_node) == 1 else "between hosts"
    return f"{bit_rate(profile.bandwidth)} {where}"


def _advice(bottlenecks: Sequence[RunBottleneck]) -> list[tuple[str, str]]:
    """Return the suggestions of all bottlenecks with their gains."""
    suggestions = [suggestion for bottleneck in bottlenecks for suggestion in bottleneck.suggestions]
    return [
        (f"{suggestion.action}: {suggestion.why}", f"{suggestion.gain:.2f}×")
        for suggestion in suggestions[:MOST_ADVICE]
    ]


def _lead(run: RunData, bottlenecks: Sequence[RunBottleneck]) -> list[str]:
    """Return the sentences below the headline."""
    if run.split is None:
        return []
    if not bottlenecks:
        return [_sentence(nothing_found(run.split)) + "."]
    return [
        _sentence(text) + "." for text in (run_sentence(run), *(bottleneck.sentence for bottleneck in bottlenecks[1:]))
    ]


def _tables(runs: Sequence[RunData]) -> list[PageTable]:
    pairs = [(run, table) for run in runs for table in (learning_table(run), split_table(run))]
    return [
        replace(table, name=_file_name(run.label, table.name) if len(runs) > 1 else table.name)
        for run, table in pairs
        if table is not None and table.rows
    ]


def _file_name(label: str, name: str) -> str:
    return "-".join([*label.replace("/", " ").split(), name])


def _when(run: RunData) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(run.summary.started))


def _sentence(text: str) -> str:
    """Capitalise a text, unless it starts with a number or the name of a mode."""
    return text if text.split(" ", maxsplit=1)[0] in MODES else text[:1].upper() + text[1:]
