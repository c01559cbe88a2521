"""From what runs and benchmarks tell to the sections of a page."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version

from paceline.analysis.evidence import Finding
from paceline.analysis.scaling import Group
from paceline.analysis.story import Story, contrast, tell
from paceline.core.units import duration, percent, plural, rate
from paceline.records.bench import Bench
from paceline.records.profile import Profile
from paceline.report.curves import curves, learning_table, names_of_runs
from paceline.report.facts import comparison, samples, surroundings, unlike_stories
from paceline.report.figures import Table
from paceline.report.lanes import one_step
from paceline.report.page import Page, Section
from paceline.report.seconds import split_table, steps_of_ranks, steps_of_runs, whole_run
from paceline.report.speed import Forecast, forecast_plots, forecast_table, scaling_plots, standings_table
from paceline.report.standings import method

NOTHING_FOUND = "Nothing stands out: no single cause costs a tenth of the time."
MOST_ADVICE = 6
MODES = ("dp", "ddp", "fsdp")


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
    profile: Profile | None = None


def page_of_run(story: Story, forecasts: Sequence[Forecast] = ()) -> Page:
    """Return the page of one run."""
    summary, split = story.summary, story.split
    findings = story.findings
    bars = [figure for figure in (whole_run(story), steps_of_ranks(story)) if figure is not None]
    sections = [Section(name="time", title="Where the time goes", bars=bars)] if bars else []
    if findings:
        sections.append(Section(name="advice", title="What to try", advice=_advice(findings)))
    if story.profile is not None:
        sections.append(Section(name="step", title="One step", bars=[one_step(story.profile)]))
    if forecasts and story.profile is not None:
        intro = [
            f"Predicted from this run's profile, on the link that it measured. Strong: {story.profile.global_batch:,} "
            f"images a step in all; weak: {story.profile.images_per_rank:,} for each rank. The bands hold the truth "
            "nine times of ten."
        ]
        plots = forecast_plots(forecasts)
        sections.append(Section(name="more", title="What more ranks would bring", intro=intro, plots=plots))
    plots = curves([story])
    if plots:
        sections.append(Section(name="learning", title="How it learned", plots=plots))
    sections.append(surroundings([story]))
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
        verdict=_sentence(findings[0].sentence if findings else tell(story)),
        lead=_lead(story, findings),
        numbers=numbers,
        sections=sections,
        tables=_tables([story]) + ([forecast_table(forecasts)] if forecasts else []),
        version=version("paceline"),
    )


def page_of_runs(stories: Sequence[Story]) -> Page:
    """Return the page that compares runs; the first one is what the others are compared with."""
    first, others = stories[0], stories[1:]
    reasons = list(dict.fromkeys(reason for other in others for reason in unlike_stories(first, other)))
    sentences = [] if reasons else [text for other in others if (text := contrast(first, other)) is not None]
    if reasons:
        verdict = "These runs did different work, so their speeds are not compared: " + "; ".join(reasons)
    else:
        verdict = sentences[-1] if sentences else f"{plural(len(stories), 'run')} side by side"
    bars = steps_of_runs(stories)
    slowest = max(stories, key=lambda story: story.image_seconds or 0.0)
    sections = [Section(name="results", title="Side by side", tables=[comparison(stories)])]
    if bars is not None and not reasons:
        intro = [_sentence(text) + "." for text in sentences if text != verdict]
        sections.append(Section(name="time", title="Where the time goes", intro=intro, bars=[bars]))
        if slowest.findings:
            advice = Section(name="advice", title=f"What to try with {slowest.label}", advice=_advice(slowest.findings))
            sections.append(advice)
    profiled = [story for story in stories if story.profile is not None and story.profile.buckets]
    lanes = [one_step(story.profile) for story in profiled if story.profile is not None]
    if lanes:
        intro = ["Each bucket of gradients leaves when its last gradient is there; what ends late is waited for."]
        sections.append(Section(name="step", title=f"One step of {profiled[-1].label}", intro=intro, bars=lanes[-1:]))
    plots = curves(stories)
    if plots:
        sections.append(Section(name="learning", title="How they learned", keys=names_of_runs(stories), plots=plots))
    sections.append(surroundings(stories))
    return Page(
        title=f"{plural(len(stories), 'run')} compared",
        subtitle=", ".join(story.summary.folder.name for story in stories),
        verdict=_sentence(verdict),
        lead=[]
        if reasons or not slowest.findings
        else [_sentence(f"{slowest.label}: {slowest.findings[0].sentence}.")],
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
    if told.profile is not None:
        title = f"One step of ddp with {plural(told.profile.world_size, 'rank')}"
        sections.append(Section(name="step", title=title, bars=[one_step(told.profile)]))
    if told.stories:
        sections.append(surroundings(told.stories[:1]))
    return Page(
        title=told.name,
        subtitle=f"{bench.settings['model']} on {bench.settings['data']}",
        verdict=_sentence(groups[0].verdict if groups else "nothing was measured"),
        lead=[_sentence(method(bench, told.visible)) + "."],
        sections=sections,
        tables=[standings_table(group) for group in groups] + [samples(bench)],
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


def _advice(findings: Sequence[Finding]) -> list[tuple[str, str]]:
    """Return the remedies of all findings, what each brings beside it."""
    remedies = [remedy for finding in findings for remedy in finding.remedies]
    return [(f"{remedy.words}: {remedy.why}", f"{remedy.gain:.2f}×") for remedy in remedies[:MOST_ADVICE]]


def _lead(story: Story, findings: Sequence[Finding]) -> list[str]:
    """Return what the headline leaves out."""
    if story.split is None:
        return []
    if not findings:
        return [NOTHING_FOUND]
    return [_sentence(text) + "." for text in (tell(story), *(finding.sentence for finding in findings[1:]))]


def _tables(stories: Sequence[Story]) -> list[Table]:
    pairs = [(story, table) for story in stories for table in (learning_table(story), split_table(story))]
    return [
        replace(table, name=_file_name(story.label, table.name) if len(stories) > 1 else table.name)
        for story, table in pairs
        if table is not None and table.rows
    ]


def _file_name(label: str, name: str) -> str:
    return "-".join([*label.replace("/", " ").split(), name])


def _when(story: Story) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(story.summary.started))


def _sentence(text: str) -> str:
    """Return a text with a capital in front, unless it begins with a number or the name of a mode."""
    return text if text.split(" ", maxsplit=1)[0] in MODES else text[:1].upper() + text[1:]
