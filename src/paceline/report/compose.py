"""From what runs and benchmarks tell to the sections of a page."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

from paceline.analysis.runs import results
from paceline.analysis.scaling import Group, unlike
from paceline.analysis.story import Story, contrast, tell
from paceline.core.units import duration, number, percent, plural, rate
from paceline.records.bench import Bench
from paceline.report.curves import curves, learning_table
from paceline.report.figures import Table
from paceline.report.page import Facts, Page, Section
from paceline.report.seconds import one_step, split_table, steps_of_ranks, steps_of_runs, whole_run
from paceline.report.speed import Forecast, forecast_plots, forecast_table, scaling_plots, standings_table
from paceline.report.standings import method

SHOWN_FACTS = ("host", "device", "cores", "python", "platform", "git", "told_by", "world_size", "mode")


@dataclass(frozen=True, slots=True)
class BenchStory:
    """A benchmark as a page tells it."""

    name: str
    bench: Bench
    groups: Sequence[Group]
    stories: Sequence[Story]
    """One run of each contender."""
    visible: float | None
    """The smallest difference that would have been seen."""
    predicted: Mapping[str, Forecast]
    """By kind of scaling."""


def page_of_run(story: Story, forecasts: Sequence[Forecast] = ()) -> Page:
    """Return the page of one run."""
    summary, split = story.summary, story.split
    bars = [figure for figure in (whole_run(story), steps_of_ranks(story)) if figure is not None]
    sections = [Section(name="time", title="Where the time goes", bars=bars)] if bars else []
    if story.profile is not None:
        sections.append(Section(name="step", title="One step", bars=[one_step(story.profile)]))
    if forecasts:
        intro = [
            "Predicted from this run's profile on the link that it measured; bands hold the truth nine times of ten."
        ]
        plots = forecast_plots(forecasts)
        sections.append(Section(name="more", title="What more ranks would bring", intro=intro, plots=plots))
    plots = curves([story])
    if plots:
        sections.append(Section(name="learning", title="How it learned", plots=plots))
    sections.append(_surroundings([story]))
    numbers = [("state", summary.state.lower()), ("world", story.where)]
    if summary.test or summary.best:
        score = summary.test or summary.best or {}
        numbers.insert(0, ("test accuracy" if summary.test else "best accuracy", percent(score["top1"])))
    if summary.images_per_s is not None:
        numbers.append(("images per second", rate(summary.images_per_s)))
    if split is not None:
        numbers.append(("wall time", duration(float(split.whole.seconds.mean()))))
    return Page(
        title=summary.folder.name,
        subtitle=f"{summary.config.model} on {summary.config.data}, started {_when(story)}",
        verdict=_sentence(tell(story)),
        numbers=numbers,
        sections=sections,
        tables=_tables([story]) + ([forecast_table(forecasts)] if forecasts else []),
        version=version("paceline"),
    )


def page_of_runs(stories: Sequence[Story]) -> Page:
    """Return the page that compares runs; the first one is what the others are compared with."""
    first, others = stories[0], stories[1:]
    reasons = list(dict.fromkeys(reason for other in others for reason in _unlike(first, other)))
    sentences = [] if reasons else [text for other in others if (text := contrast(first, other)) is not None]
    if reasons:
        verdict = "These runs did different work, so their speeds are not compared: " + "; ".join(reasons)
    else:
        verdict = sentences[-1] if sentences else f"{plural(len(stories), 'run')} side by side"
    bars = steps_of_runs(stories)
    sections = [Section(name="results", title="Side by side", tables=[_comparison(stories)])]
    if bars is not None and not reasons:
        intro = [_sentence(text) for text in sentences if text != verdict]
        sections.append(Section(name="time", title="Where the time goes", intro=intro, bars=[bars]))
    profiled = [story for story in stories if story.profile is not None and story.profile.buckets]
    lanes = [one_step(story.profile) for story in profiled if story.profile is not None]
    if lanes:
        intro = ["Each bucket of gradients leaves when its last gradient is there; what ends late is waited for."]
        sections.append(Section(name="step", title=f"One step of {profiled[-1].label}", intro=intro, bars=lanes[-1:]))
    plots = curves(stories)
    if plots:
        sections.append(Section(name="learning", title="How they learned", plots=plots))
    sections.append(_surroundings(stories))
    return Page(
        title=f"{plural(len(stories), 'run')} compared",
        subtitle=", ".join(story.summary.folder.name for story in stories),
        verdict=_sentence(verdict),
        sections=sections,
        tables=_tables(stories),
        version=version("paceline"),
    )


def page_of_bench(told: BenchStory) -> Page:
    """Return the page of a benchmark."""
    bench, groups = told.bench, told.groups
    sections = [_group_section(group, told.predicted, is_first=group is groups[0]) for group in groups]
    bars = steps_of_runs(told.stories)
    if bars is not None:
        sections.append(Section(name="time", title="Where the time goes", bars=[bars]))
    if told.stories:
        sections.append(_surroundings(told.stories[:1]))
    return Page(
        title=told.name,
        subtitle=f"{bench.settings['model']} on {bench.settings['data']}",
        verdict=_sentence(groups[0].verdict if groups else "nothing was measured"),
        lead=[_sentence(method(bench, told.visible)) + "."],
        sections=sections,
        tables=[standings_table(group) for group in groups] + [_samples(bench)],
        version=version("paceline"),
    )


def _group_section(group: Group, predicted: Mapping[str, Forecast], *, is_first: bool) -> Section:
    """Return a kind of scaling; the verdict of the first stands above the page already."""
    wrong = [_sentence(f"{s.contender.name} does not count: {s.wrong}.") for s in group.standings if s.wrong]
    return Section(
        name=group.scaling,
        title=f"{group.scaling.capitalize()} scaling",
        intro=[*([] if is_first else [_sentence(group.verdict) + "."]), *wrong],
        tables=[standings_table(group)],
        plots=scaling_plots(group, predicted.get(group.scaling)),
    )


def _unlike(first: Story, second: Story) -> list[str]:
    return unlike(first.summary.config.as_dict(), second.summary.config.as_dict(), batch=False)


def _comparison(stories: Sequence[Story]) -> Table:
    """Return results as rows, and the settings that are not the same everywhere."""
    settings = [story.summary.config.as_dict() for story in stories]
    found = [results(story.summary) | {"ranks": story.where} for story in stories]
    rows = [[name, *(_text(name, one.get(name)) for one in found)] for name in found[0]]
    names = dict.fromkeys(name for one in settings for name in one)
    rows += [
        [name, *(_text(name, one.get(name)) for one in settings)]
        for name in names
        if name not in {"run", "runs_dir"} and len({str(one.get(name)) for one in settings}) > 1
    ]
    return Table(name="runs", title="Runs", head=["", *(story.label for story in stories)], rows=rows)


def _surroundings(stories: Sequence[Story]) -> Section:
    facts = []
    for story in stories:
        prefix = f"{story.label}: " if len(stories) > 1 else ""
        environment = story.environments[-1] if story.environments else {}
        shown = [(name, _text(name, environment[name])) for name in SHOWN_FACTS if environment.get(name) is not None]
        shown += [(name, str(value)) for name, value in environment.get("packages", {}).items()]
        facts.append(Facts(title=f"{prefix}Environment", facts=shown))
        settings = story.summary.config.as_dict()
        facts.append(Facts(title=f"{prefix}Settings", facts=[(name, _text(name, v)) for name, v in settings.items()]))
    return Section(name="surroundings", title="Environment and settings", facts=facts)


def _tables(stories: Sequence[Story]) -> list[Table]:
    pairs = [(story, table) for story in stories for table in (learning_table(story), split_table(story))]
    return [
        replace(table, name=_file_name(story.label, table.name) if len(stories) > 1 else table.name)
        for story, table in pairs
        if table is not None and table.rows
    ]


def _file_name(label: str, name: str) -> str:
    return "-".join([*label.replace("/", " ").split(), name])


def _samples(bench: Bench) -> Table:
    head = ["contender", "scaling", "round", "images_per_s", "step_ms", "train_loss", "test_top1"]
    rows = []
    for sample in bench.samples:
        contender = bench.contenders[sample.contender]
        accuracy = "" if sample.test_top1 is None else f"{sample.test_top1:.4f}"
        numbers = [f"{value:.5g}" for value in (sample.images_per_s, 1000 * sample.step_s, sample.train_loss)]
        rows.append([contender.name, contender.scaling or "", str(sample.round + 1), *numbers, accuracy])
    return Table(name="samples", title="Every run", head=head, rows=rows)


def _when(story: Story) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(story.summary.started))


def _text(name: str, value: Any) -> str:
    if value is None:
        return "–"
    if name.endswith(" acc"):
        return percent(value)
    if name == "images/s":
        return rate(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return number(value) if isinstance(value, float) else str(value)


def _sentence(text: str) -> str:
    return text if not text or text[0].isdigit() else text[0].upper() + text[1:]
