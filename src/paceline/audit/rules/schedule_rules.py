"""Rules about updates: accumulation, gradient scaling, learning-rate schedules."""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from paceline.audit.evidence import Evidence
from paceline.audit.finding import Finding, Rule
from paceline.observe.journals import Line

ACCUMULATE_SYNC = Rule(
    name="accumulate-sync",
    level="slow",
    summary="gradients are averaged in every backward pass of an accumulated step",
    effect="all all-reduces but the last are wasted",
    wrong="loss.backward()\nif (i + 1) % n == 0:\n    optimizer.step()",
    fix="with nullcontext() if (i + 1) % n == 0 else model.no_sync():\n    loss.backward()",
)
ACCUMULATE_SCALE = Rule(
    name="accumulate-scale",
    level="wrong",
    summary="accumulated mean losses are not divided by the number of passes",
    effect="the gradient is the sum of several means: the learning rate is effectively that much larger",
    wrong="loss = criterion(model(x), y)\nloss.backward()  # n times before optimizer.step()",
    fix="loss = criterion(model(x), y) / n",
)
CLIP_SCALED = Rule(
    name="clip-scaled",
    level="wrong",
    summary="gradients are clipped while GradScaler has them multiplied",
    effect="the norm is thousands of times too large: gradients are clipped to almost nothing in every step",
    wrong="scaler.scale(loss).backward()\nclip_grad_norm_(model.parameters(), 1.0)",
    fix="scaler.scale(loss).backward()\nscaler.unscale_(optimizer)\nclip_grad_norm_(model.parameters(), 1.0)",
)
SCHEDULE_UNIT = Rule(
    name="schedule-unit",
    level="note",
    summary="the scheduler is stepped per batch, but its length is shorter than one epoch",
    effect="the schedule is over within the first epoch, if its length was meant in epochs",
    wrong="scheduler = CosineAnnealingLR(optimizer, T_max=epochs)\nfor batch in loader:\n    …\n    scheduler.step()",
    fix="scheduler = CosineAnnealingLR(optimizer, T_max=epochs * len(loader))",
)
SCHEDULE_FIRST = Rule(
    name="schedule-first",
    level="wrong",
    summary="the scheduler is stepped before the optimizer",
    effect="the first value of the schedule is skipped: all learning rates come one step early",
    wrong="scheduler.step()\noptimizer.step()",
    fix="optimizer.step()\nscheduler.step()",
)
SCHEDULE_PER_RANK = Rule(
    name="schedule-per-rank",
    level="note",
    summary="the scheduler is stepped once per rank after each update",
    effect="the schedule ends that much earlier, unless its length counts the batches of all ranks",
    wrong="for _ in range(world_size):\n    scheduler.step()",
    fix="scheduler.step()",
)
RULES = (ACCUMULATE_SYNC, ACCUMULATE_SCALE, CLIP_SCALED, SCHEDULE_UNIT, SCHEDULE_FIRST, SCHEDULE_PER_RANK)
FEWEST_UPDATES = 3


def check_accumulation(evidence: Evidence) -> Iterator[Finding]:
    """Look at steps of several backward passes from one line: a loss of several parts has several lines."""
    steps = [line for line in evidence.lead.of("step") if line["passes"]]
    several = [line for line in steps if len({p["site"] for p in line["passes"]}) == 1 and _is_of_batches(line)]
    if not several or len(several) < 0.5 * len(steps):
        return
    first = several[0]
    number, site = len(first["passes"]), first["passes"][0]["site"]
    if evidence.world_size > 1 and all(line["synced"] == len(line["passes"]) for line in several):
        yield ACCUMULATE_SYNC.at(site, f"{number} backward passes per step, and each averages all gradients")
    kinds = {p["reduction"] for line in several for p in line["passes"]}
    if not kinds & {"scaled", "sum"} and not any(line["regraded"] for line in several):
        level = "wrong" if first["optimizer"] == "SGD" else "note"
        seen = f"{number} backward passes per step, each of a whole loss ({first['optimizer']})"
        yield ACCUMULATE_SCALE.at(site, seen, level=level)


def _is_of_batches(line: Line) -> bool:
    """Tell whether each backward pass of a step had samples of its own; several losses of one batch have not."""
    inputs = {p["input"] for p in line["passes"] if p.get("input") is not None}
    return len(line["passes"]) > 1 and max(line["fetches"], len(inputs)) >= len(line["passes"])


def check_clipping(evidence: Evidence) -> Iterator[Finding]:
    """Look for clipping of scaled gradients."""
    for line in evidence.lead.of("clip"):
        yield CLIP_SCALED.at(line["site"], f"{line['name']} runs after scaler.scale(loss).backward() without unscale_")


def check_schedulers(evidence: Evidence) -> Iterator[Finding]:
    """Compare the steps of schedulers with those of the optimizer."""
    by_scheduler: dict[int, list[Line]] = {}
    for line in evidence.lead.of("schedule"):
        by_scheduler.setdefault(line["scheduler"], []).append(line)
    for lines in by_scheduler.values():
        if evidence.lead.of("step") and _is_first(lines):
            yield SCHEDULE_FIRST.at(lines[0]["site"], f"{lines[0]['name']} is stepped before the first update")
        yield from _check_frequency(evidence, lines)
        batches = _batches_per_epoch(evidence)
        pairs = pairwise(lines)
        per_step = len(lines) >= 4 and all(later["step"] - line["step"] == 1 for line, later in pairs)
        horizon = lines[0]["horizon"]
        if per_step and batches and 0 < horizon < batches:
            seen = f"{lines[0]['name']} of {horizon} steps is stepped after every batch, and an epoch has {batches}"
            yield SCHEDULE_UNIT.at(lines[0]["site"], seen)


def _is_first(lines: list[Line]) -> bool:
    """Tell whether a scheduler loses its first value: not by step(epoch), nor after an update that GradScaler left out.

    Several steps before the first update bring a resumed run to its place in the schedule.
    """
    early = [line for line in lines if line["step"] == 0]
    first = lines[0]
    is_counted = first["at"] is None and not first["skipped"] and first["name"] != "ReduceLROnPlateau"
    return len(early) == 1 and is_counted


def _check_frequency(evidence: Evidence, lines: list[Line]) -> Iterator[Finding]:
    """Look for a scheduler that is stepped once per rank after each update."""
    ranks = evidence.world_size
    counts = list(Counter(line["step"] for line in lines if line["step"] and line["at"] is None).values())[:-1]
    if ranks > 1 and len(counts) >= FEWEST_UPDATES and all(number == ranks for number in counts):
        seen = f"{lines[0]['name']} is stepped {ranks} times after each of {len(counts)} updates"
        yield SCHEDULE_PER_RANK.at(lines[0]["site"], seen)


def _batches_per_epoch(evidence: Evidence) -> int:
    loaders = evidence.loaders
    for loader in loaders.shared:
        for key in loaders.training_passes(loader)[:1]:
            if loaders.is_whole(key):
                return len(loaders.orders(key)[0]["batches"])
    return 0


CHECKS = (check_accumulation, check_clipping, check_schedulers)
