"""Rules about evaluation: which samples are scored, by which model, and how scores are put together."""

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from paceline.audit.evidence import Evidence, PassKey
from paceline.audit.finding import Finding, Rule
from paceline.audit.rules.model_rules import check_parameters
from paceline.observe.journals import Line

REDUCE = "totals = torch.tensor([loss_sum, correct, count])\ndist.all_reduce(totals)\naccuracy = totals[1] / totals[2]"
EVAL_PADDED = Rule(
    name="eval-padded",
    level="wrong",
    summary="some samples are evaluated twice",
    effect="the score counts some samples twice, and changes with the number of ranks",
    wrong="sampler = DistributedSampler(valid_data, shuffle=False)  # pads to a multiple of the world size",
    fix="valid_data = Subset(valid_data, range(rank, len(valid_data), world_size))  # then reduce sums and counts",
)
EVAL_DROPPED = Rule(
    name="eval-dropped",
    level="wrong",
    summary="some samples are never evaluated",
    effect="the score is of another set than the one named, and changes with batch size and ranks",
    wrong="DataLoader(valid_data, batch_size=32, drop_last=True)",
    fix="DataLoader(valid_data, batch_size=32)",
)
EVAL_EVERYWHERE = Rule(
    name="eval-everywhere",
    level="slow",
    summary="every rank evaluates all samples",
    effect="evaluation takes as long as on one rank, and all results but one are thrown away",
    wrong="loader = DataLoader(valid_data, batch_size=32)  # on every rank",
    fix="valid_data = Subset(valid_data, range(rank, len(valid_data), world_size))  # then reduce sums and counts",
)
EVAL_NOT_REDUCED = Rule(
    name="eval-not-reduced",
    level="wrong",
    summary="each rank evaluates its shard, and the scores are never put together",
    effect="what is printed, and what is saved as best, is the score of one rank's shard",
    wrong="accuracy = correct / count  # of this rank",
    fix=REDUCE,
)
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
    fix=REDUCE,
)
EVAL_MODELS = Rule(
    name="eval-models",
    level="wrong",
    summary="the ranks evaluate different models",
    effect="the score is an average over different models, of which only one is saved",
    wrong="DistributedDataParallel(model, broadcast_buffers=False)",
    fix="for buffer in model.buffers():\n    dist.broadcast(buffer, 0)  # before evaluating and saving",
)
EVAL_IN_TRAINING_MODE = Rule(
    name="eval-in-training-mode",
    level="wrong",
    summary="the model is evaluated in training mode",
    effect="dropout is active, and batch norm uses and learns the statistics of the evaluated samples",
    wrong="with torch.no_grad():\n    model(x)",
    fix="model.eval()\nwith torch.no_grad():\n    model(x)",
)
STAYS_IN_EVAL_MODE = Rule(
    name="stays-in-eval-mode",
    level="wrong",
    summary="after the first evaluation the model is trained in evaluation mode",
    effect="dropout is off and batch norm learns nothing from the second epoch on",
    wrong="model.train()  # once, before the loop over epochs",
    fix="for epoch in range(epochs):\n    model.train()",
)
RULES = (
    EVAL_PADDED, EVAL_DROPPED, EVAL_EVERYWHERE, EVAL_NOT_REDUCED, METRIC_SUMMED, MEAN_OF_MEANS, EVAL_MODELS,
    EVAL_IN_TRAINING_MODE, STAYS_IN_EVAL_MODE,
)  # fmt: skip
REDUCING = frozenset({
    "all_reduce", "reduce", "all_gather", "all_gather_into_tensor", "gather", "all_gather_object", "gather_object",
    "reduce_scatter", "reduce_scatter_tensor", "all_to_all",
})  # fmt: skip
NUMBER = re.compile(r"(?<![\w.])-?\d+\.\d+(?:e-?\d+)?(?![\w.])")
LONGEST_MEAN = 64
FEWEST_SAMPLES = 8
NEAR = 6e-3
MOST_PRINTS = 80


def check_evaluations(evidence: Evidence) -> Iterator[Finding]:
    """Compare the samples that the ranks evaluate."""
    loaders = evidence.loaders
    for loader in loaders.shared if evidence.world_size > 1 else ():
        for key in loaders.evaluation_passes(loader)[:1]:
            is_sharded = loaders.made(loader)["sampler"] == "DistributedSampler"
            if not loaders.is_whole(key) or not loaders.made(loader)["length"]:
                continue
            if loaders.is_one_dataset(loader) or is_sharded:
                yield from _compare_evaluation(evidence, loader, key)
            elif not loaders.has_same_content(key) and not _collectives_after(evidence, key):
                yield _not_reduced(evidence, key)


def _compare_evaluation(evidence: Evidence, loader: int, key: PassKey) -> Iterator[Finding]:
    loaders, streams = evidence.loaders, evidence.loaders.streams(key)
    made = loaders.made(loader)
    if all(stream == streams[0] for stream in streams) and not loaders.has_same_content(key):
        return  # the same indices of shards that differ
    counts = Counter(index for stream in streams for index in stream)
    missing = made["length"] - len(counts)
    if missing > 0 and not _is_covered(evidence, loader, missing):
        reason = "drop_last=True" if made["drop_last"] else f"{made['sampler']} leaves them out"
        yield EVAL_DROPPED.at(made["site"], f"{missing} of {made['length']} samples are never evaluated ({reason})")
    if all(sorted(stream) == sorted(streams[0]) for stream in streams):
        seen = f"each of {evidence.world_size} ranks evaluates all {len(streams[0])} samples"
        if len(streams[0]) >= FEWEST_SAMPLES:
            yield EVAL_EVERYWHERE.at(loaders.loop_line(key), seen)
        return
    followed = _collectives_after(evidence, key)
    twice = sum(number - 1 for number in counts.values())
    if twice and not any("gather_for_metrics" in line.get("through", ()) for line in followed):
        yield EVAL_PADDED.at(
            made["site"], f"{twice} of {made['length']} samples are evaluated twice ({made['sampler']})"
        )
    if not followed:
        yield _not_reduced(evidence, key)


def _not_reduced(evidence: Evidence, key: PassKey) -> Finding:
    sizes = [len(stream) for stream in evidence.loaders.streams(key)]
    seen = f"the ranks evaluate {sizes} samples, and call no collective before the next training step"
    return EVAL_NOT_REDUCED.at(evidence.loaders.loop_line(key), seen)


def _is_covered(evidence: Evidence, loader: int, missing: int) -> bool:
    """Tell whether another loader evaluates the samples that this one leaves out, as PyTorch's examples do."""
    loaders = evidence.loaders
    others = [made for made in evidence.lead.of("loader") if made["loader"] not in {loader, *loaders.trained_on}]
    return any(made["length"] == missing for made in others)


def _collectives_after(evidence: Evidence, key: PassKey) -> list[Line]:
    """Return the reducing collectives of any rank from an evaluation to the next training pass."""
    found = []
    for index, rank in enumerate(evidence.ranks.values()):
        passes = evidence.loaders.all_passes(index)
        start = passes[key]["time"]
        later = [line["time"] for other, line in passes.items() if other[0] in evidence.loaders.trained_on]
        end = min((moment for moment in later if moment > start), default=float("inf"))
        lines = rank.of("collective")
        found += [line for line in lines if start <= line["time"] <= end and line["name"] in REDUCING]
    return found


def check_models(evidence: Evidence) -> Iterator[Finding]:
    """Compare the models that the ranks evaluate: DDP broadcasts buffers in the first forward pass after a step."""
    if evidence.world_size < 2 or any(True for _ in check_parameters(evidence)):
        return
    for earlier, pair in pairwise(zip(*evidence.of("evaluates"), strict=False)):
        if len({line["step"] for line in (*earlier, *pair)}) > 1:
            continue
        for what, name in (("weights", "weights"), ("buffers", "batch-norm statistics")):
            if len({line[what] for line in pair}) > 1:
                seen = f"after step {pair[0]['step']} the ranks evaluate with different {name}"
                yield EVAL_MODELS.at(pair[0]["site"], seen)
                return


def check_modes(evidence: Evidence) -> Iterator[Finding]:
    """Look for evaluation in training mode, and training in evaluation mode."""
    trained_on = evidence.loaders.trained_on
    for line in evidence.lead.of("evaluates"):
        layers = line["norms"] + line["dropouts"]
        if line["training"] and layers and line["loader"] is not None and line["loader"] not in trained_on:
            seen = (
                f"model.training is True in a forward pass without gradients ({layers} batch-norm and dropout layers)"
            )
            yield EVAL_IN_TRAINING_MODE.at(line["site"], seen)
            break
    layers = evidence.lead.first("layers")
    modes = [
        (line["step"], p["training"]) for line in evidence.lead.of("step") for p in line["passes"] if "training" in p
    ]
    first = next((step for step, training in modes if not training), None)
    if layers.get("norms", 0) + layers.get("dropouts", 0) and first is not None and modes[0][1]:
        yield STAYS_IN_EVAL_MODE.at(evidence.training_line, f"from step {first} on, model.training is False")


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
    numbers = [(text, [float(number) for number in NUMBER.findall(text)]) for text in lines]
    mean = total / evidence.world_size
    if any(_is_near(number, mean) for _, found in numbers for number in found):
        return None
    return next((text.strip()[:80] for text, found in numbers if any(_is_near(n, total) for n in found)), None)


def _is_near(shown: float, value: float) -> bool:
    return abs(shown - value) <= max(NEAR * abs(value), 6e-5)


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
    if any(line["name"] not in {"all_reduce", "reduce"} or len(line.get("values") or ()) != 1 for line in lines):
        return False
    values = [line["values"][0] for line in lines]
    for unit in (1.0, 100.0):
        right = [value / unit * size for value, size in zip(values, sizes, strict=True)]
        if all(
            abs(number - round(number)) < 1e-3 and 0 < number < size for number, size in zip(right, sizes, strict=True)
        ):
            return any(value != round(value) for value in values)
    return False


CHECKS = (check_evaluations, check_models, check_modes, check_sums, check_means)
