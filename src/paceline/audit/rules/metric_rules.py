"""Rules about numbers that ranks add up: what is summed, averaged and shown."""

import re
from collections.abc import Iterator

from paceline.audit.evidence import Evidence
from paceline.audit.finding import Finding, Rule
from paceline.audit.rules.evaluation_rules import REDUCE as SUMS_AND_COUNTS
from paceline.observe.journals import Line

METRIC_SUMMED = Rule(
    name="metric-summed",
    level="wrong",
    summary="the means of the ranks are added up and shown as a mean",
    effect="losses and accuracies are too large by the number of ranks, and so is what they are compared with",
    wrong="dist.all_reduce(mean_loss)\nprint(mean_loss.item())",
    fix="dist.all_reduce(mean_loss)\nmean_loss /= dist.get_world_size()",
)
MEAN_OF_MEANS = Rule(
    name="mean-of-means",
    level="wrong",
    summary="the accuracies of shards of different sizes are averaged",
    effect="samples of the smaller shard count more: the score changes with the number of ranks",
    wrong="accuracy = torch.tensor(correct / count)\ndist.all_reduce(accuracy)\naccuracy /= world_size",
    fix=SUMS_AND_COUNTS,
)
RULES = (METRIC_SUMMED, MEAN_OF_MEANS)
NUMBER = re.compile(r"(?<![\w.])-?\d+\.\d+(?:e-?\d+)?(?![\w.])")
LONGEST_MEAN = 64
FEWEST_DIGITS = 3
MOST_PRINTS = 80


def check_sums(evidence: Evidence) -> Iterator[Finding]:
    """Find mean losses of the ranks that are summed and then shown."""
    if evidence.world_size < 2:
        return
    results = {line["number"]: line["values"] for line in evidence.lead.of("reduced")}
    told = set()
    for number, lines in evidence.side_by_side("collective", "number"):
        totals = results.get(number)
        is_sum = all(line["name"] in {"all_reduce", "reduce"} and line.get("operation") == "SUM" for line in lines)
        if not totals or not is_sum or any("float" not in line.get("dtype", "") for line in lines):
            continue
        for index, total in enumerate(totals):
            values = [line["values"][index] for line in lines]
            if abs(total) < 1e-6 or lines[0]["site"] in told or not _are_mean_losses(evidence, values, lines):
                continue
            shown = _shown_as(evidence, total, lines[0]["time"])
            if shown:
                told.add(lines[0]["site"])
                means = ", ".join(f"{value:.4f}" for value in values)
                yield METRIC_SUMMED.at(
                    lines[0]["site"], f"the mean losses {means} are added to {total:.4f}, shown as: {shown}"
                )


def _shown_as(evidence: Evidence, total: float, since: float) -> str | None:
    """Return the output that shows a total, unless the mean is shown too."""
    lines = [line["text"] for line in evidence.lead.of("print") if line["time"] >= since][:MOST_PRINTS]
    numbers = [(text, NUMBER.findall(text)) for text in lines]
    mean = total / evidence.world_size
    if any(_is_near(number, mean) for _, found in numbers for number in found):
        return None
    return next((text.strip()[:80] for text, found in numbers if any(_is_near(n, total) for n in found)), None)


def _is_near(shown: str, value: float) -> bool:
    """Tell whether a text of three digits or more is this number, rounded."""
    mantissa, _, exponent = shown.partition("e")
    decimals = len(mantissa.partition(".")[2]) - int(exponent or 0)
    digits = len(mantissa.replace(".", "").lstrip("-0"))
    return digits >= FEWEST_DIGITS and abs(float(shown) - value) <= 0.51 * 10.0**-decimals + 1e-6 * abs(value)


def _are_mean_losses(evidence: Evidence, values: list[float], lines: list[Line]) -> bool:
    """Tell whether these are the ranks' last training losses, or means of them."""
    for rank, value, line in zip(evidence.ranks.values(), values, lines, strict=True):
        steps = [step for step in rank.of("step") if step["time"] <= line["time"]]
        losses = [p["loss"] for step in steps for p in step["passes"] if p.get("loss") is not None]
        means = [sum(losses[-n:]) / n for n in range(1, min(len(losses), LONGEST_MEAN) + 1)]
        if not any(abs(mean - value) <= 2e-3 * max(abs(value), 1e-3) for mean in means):
            return False
    return True


def check_means(evidence: Evidence) -> Iterator[Finding]:
    """Find accuracies of shards of different sizes that are averaged."""
    loaders = evidence.loaders
    for loader in loaders.shared if evidence.world_size > 1 else ():
        for key in loaders.evaluation_passes(loader)[:1]:
            sizes = [sum(map(len, line["batches"][: line["yielded"]])) for line in loaders.orders(key)]
            if len(set(sizes)) == 1 or not all(sizes):
                continue
            start = loaders.passes(key)[0]["time"]
            for _, lines in evidence.side_by_side("collective", "number"):
                if lines[0]["time"] > start and _is_fraction(lines, sizes):
                    values = ", ".join(f"{line['values'][0]:.4f}" for line in lines)
                    seen = f"the ranks evaluate {sizes} samples, and their accuracies {values} are averaged"
                    yield MEAN_OF_MEANS.at(lines[0]["site"], seen)
                    return


def _is_fraction(lines: list[Line], sizes: list[int]) -> bool:
    """Tell whether each rank reduces one number that is a whole number of its samples, as a fraction or in percent."""
    is_mean = all(line.get("operation") in {"SUM", "AVG"} for line in lines)
    if not is_mean or any(len(line.get("values") or ()) != 1 for line in lines):
        return False
    values = [line["values"][0] for line in lines]
    for unit in (1.0, 100.0):
        right = [value / unit * size for value, size in zip(values, sizes, strict=True)]
        if all(
            abs(number - round(number)) < 1e-3 and 0 < number < size for number, size in zip(right, sizes, strict=True)
        ):
            return any(value != round(value) for value in values)
    return False


CHECKS = (check_sums, check_means)
