"""Facts for a page: results side by side, surroundings and settings, and the numbers of every run."""

from collections.abc import Sequence
from typing import Any

from paceline.analysis.runs import results
from paceline.analysis.scaling import unlike
from paceline.analysis.story import Story
from paceline.core.units import number, percent, rate
from paceline.records.bench import Bench
from paceline.report.figures import Table
from paceline.report.page import Facts, Section
from paceline.report.seconds import ms

OWN_BUSINESS = frozenset({"name", "runs_dir", "profile", "track", "log_every"})
"""Settings that are about what a run leaves behind."""
SHOWN_FACTS = ("host", "device", "cores", "python", "git", "told_by", "world_size", "num_devices", "mode")


def comparison(stories: Sequence[Story]) -> Table:
    """Return results as rows, and the settings that are not the same everywhere."""
    settings = [story.summary.config.as_dict() for story in stories]
    is_fair = not any(unlike_stories(stories[0], story) for story in stories)
    found = [_speeds(story, stories[0], is_fair=is_fair) | results(story.summary) for story in stories]
    rows = [[name, *(_text(name, one.get(name)) for one in found)] for name in found[0] if name != "images/s"]
    names = dict.fromkeys(name for one in settings for name in one)
    rows += [
        [name, *(_text(name, one.get(name)) for one in settings)]
        for name in names
        if name not in OWN_BUSINESS and len({str(one.get(name)) for one in settings}) > 1
    ]
    return Table(name="runs", title="Runs", head=["", *(story.label for story in stories)], rows=rows)


def _speeds(story: Story, first: Story, *, is_fair: bool) -> dict[str, str]:
    """Return how fast a run was, relative to the first and to its devices."""
    facts = {"world": story.where}
    own, base = story.image_seconds, first.image_seconds
    if story.split is None or own is None or base is None or not is_fair:
        return facts
    speedup, devices = base / own, story.num_devices / first.num_devices
    facts |= {"step": ms(float(story.split.steady.step.mean())), "speed-up": f"{speedup:.2f}×"}
    return facts | {"efficiency": f"{100 * speedup / devices:.0f}%"}


def surroundings(stories: Sequence[Story]) -> Section:
    """Return where runs ran and with which settings."""
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


def samples(bench: Bench) -> Table:
    """Return what every run of a benchmark measured."""
    head = ["contender", "scaling", "round", "images_per_s", "step_ms", "train_loss", "test_top1"]
    rows = []
    for sample in bench.samples:
        contender = bench.contenders[sample.contender]
        accuracy = "" if sample.test_top1 is None else f"{sample.test_top1:.4f}"
        numbers = [f"{value:.5g}" for value in (sample.images_per_s, 1000 * sample.step_s, sample.train_loss)]
        rows.append([contender.name, contender.scaling or "", str(sample.round + 1), *numbers, accuracy])
    return Table(name="samples", title="Every run", head=head, rows=rows)


def unlike_stories(first: Story, second: Story) -> list[str]:
    """Return why the speeds of two runs must not be compared; images a second make up for another batch."""
    return unlike(first.summary.config.as_dict(), second.summary.config.as_dict(), batch=False)


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
