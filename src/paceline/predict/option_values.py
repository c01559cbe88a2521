"""Values of the options of `paceline predict`: numbers, times and measurements, or an error for bad ones."""

import math

from paceline.core.errors import ConfigError, SettingError
from paceline.core.units import number, parse_number, parse_seconds
from paceline.predict.predict_options import BatchOptions, ClusterOptions, QuestionOptions

MOST_RANKS = 10**6


def read_seconds(setting: str, text: str) -> float:
    """Return a time above 0."""
    try:
        seconds = parse_seconds(text)
    except ValueError as cause:
        raise SettingError(setting, f'is "{text}": {cause}') from None
    if seconds <= 0:
        raise SettingError(setting, f'is "{text}", but must be more than 0 seconds')
    return seconds


def read_amount(setting: str, text: str, *, example: str | None = None) -> float:
    """Return a number of at least 1."""
    try:
        amount = parse_number(text)
    except ValueError as cause:
        raise SettingError(setting, f'is "{text}": {cause}') from None
    if amount < 1:
        hint = None if example is None else f"use --{setting.replace('_', '-')} {example}"
        raise SettingError(setting, f'is "{text}", but must be at least 1', hint=hint)
    return amount


def read_measured(points: tuple[str, ...]) -> tuple[tuple[int, float], ...]:
    """Return the ranks and samples per second of points such as 8:2456, by ranks."""
    found: dict[int, float] = {}
    for point in points:
        ranks, colon, rate = point.partition(":")
        try:
            place, speed = int(ranks), parse_number(rate)
        except ValueError:
            place, speed = 0, 0.0
        if not colon or not 1 <= place <= MOST_RANKS or speed <= 0:
            raise SettingError(
                "measured", f'has "{point}", but needs ranks:rate', hint="use --measured 8:2456 for 8 ranks, 2456/s"
            )
        if place in found:
            raise SettingError("measured", f"has two rates for {place} ranks", hint="keep one of them, or their mean")
        found[place] = speed
    return tuple(sorted(found.items()))


def read_data_rate(text: str) -> float:
    """Return the samples per second of an input pipeline; synthetic data has no limit."""
    return math.inf if text.strip().lower() in {"synthetic", "none"} else read_amount("data_rate", text, example="5000")


def check_cluster(cluster: ClusterOptions) -> None:
    """Refuse numbers of ranks, devices and prices that are out of range."""
    if not cluster.ranks:
        raise SettingError("ranks", "is empty", hint="use --ranks 2,4,8")
    for ranks in cluster.ranks:
        if not 1 <= ranks <= MOST_RANKS:
            raise SettingError(
                "ranks", f"has {ranks}, but must be between 1 and {MOST_RANKS:,}", hint="use --ranks 2,4,8"
            )
    if cluster.per_node < 1:
        raise SettingError("per_node", f"is {cluster.per_node}, but must be at least 1")
    if cluster.price is not None and not 0 <= cluster.price < math.inf:
        raise SettingError("price", f"is {cluster.price}, but must be at least 0")
    if cluster.link is not None and cluster.sweep is not None:
        raise ConfigError("--link cannot be combined with --sweep", hint="use one of them")


def check_batch(batch: BatchOptions, cluster: ClusterOptions, *, is_spec: bool) -> None:
    """Refuse batches that have less than one sample for a rank."""
    if batch.global_batch is not None and batch.per_rank_batch is not None and not is_spec:
        raise ConfigError("--global-batch cannot be combined with --per-rank-batch", hint="use one of them")
    for name in ("global_batch", "per_rank_batch", "accumulate", "epochs"):
        value = getattr(batch, name)
        if value is not None and not 1 <= value < math.inf:
            raise SettingError(name, f"is {number(value)}, but must be at least 1")
    parts, most = batch.accumulate or 1, max(cluster.ranks)
    if batch.global_batch is not None and batch.global_batch < most * parts:
        what = f"{most} ranks" if parts == 1 else f"{most} ranks with {parts} micro-batches each"
        raise SettingError(
            "global_batch",
            f"is {number(batch.global_batch)}, less than one sample for each of {what}",
            hint=f"use --global-batch {most * parts} or more, or fewer --ranks",
        )


def check_question(question: QuestionOptions, cluster: ClusterOptions, total_samples: float | None) -> None:
    """Refuse questions without an answer."""
    if question.worth is not None and question.worth < 1:
        raise SettingError(
            "worth", f"is {question.worth}, but must be at least 1", hint="use --worth 4 for 4 more nodes"
        )
    if question.budget is not None and not 0 < question.budget < math.inf:
        raise SettingError("budget", f"is {number(question.budget)}, but must be more than 0")
    needs = {"--price": cluster.price, "--budget": question.budget, "--deadline": question.deadline}
    given = [name for name, value in needs.items() if value is not None]
    if given and total_samples is None:
        raise ConfigError(
            f"{given[0]} needs the length of the training", hint="add --samples 115M (90 epochs of ImageNet)"
        )
    if question.budget is not None and cluster.price is None:
        raise ConfigError("--budget needs the price of a device and hour", hint="add --price 2.5")
