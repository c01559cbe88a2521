"""Rules about evaluation: which samples are scored, by which model, and whether the ranks share their scores."""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from paceline.audit.evidence import Evidence, PassKey
from paceline.audit.finding import Finding, Level, Rule
from paceline.audit.rules.model_rules import check_parameters
from paceline.observe.journals import Line, ProcessJournal

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
    EVAL_PADDED, EVAL_DROPPED, EVAL_EVERYWHERE, EVAL_NOT_REDUCED, EVAL_MODELS, EVAL_IN_TRAINING_MODE,
    STAYS_IN_EVAL_MODE,
)  # fmt: skip
REDUCING = frozenset({
    "all_reduce", "reduce", "all_gather", "all_gather_into_tensor", "gather", "all_gather_object", "gather_object",
    "reduce_scatter", "reduce_scatter_tensor", "all_to_all",
})  # fmt: skip
FEWEST_SAMPLES = 8


def check_evaluations(evidence: Evidence) -> Iterator[Finding]:
    """Compare the samples that the ranks evaluate."""
    loaders = evidence.loaders
    for loader in loaders.shared if evidence.world_size > 1 else ():
        for key in loaders.evaluation_passes(loader)[:1]:
            is_sharded = loaders.made(loader)["sampler"] == "DistributedSampler"
            if not loaders.is_whole(key) or not loaders.made(loader)["length"]:
                continue
            yield from _dropped(evidence, loader, key)
            if loaders.is_one_dataset(loader) or is_sharded:
                yield from _compare_evaluation(evidence, loader, key)
            elif not loaders.has_same_content(key):
                yield from _not_reduced(evidence, key)


def _compare_evaluation(evidence: Evidence, loader: int, key: PassKey) -> Iterator[Finding]:
    loaders, streams = evidence.loaders, evidence.loaders.streams(key)
    made = loaders.made(loader)
    if all(stream == streams[0] for stream in streams) and not loaders.has_same_content(key):
        return  # the same indices of shards that differ
    counts = Counter(index for stream in streams for index in stream)
    missing = made["length"] - len(counts)
    is_left_out = missing > 0 and made["sampler"] == "DistributedSampler" and not made["drop_last"]
    if is_left_out and not _is_covered(evidence, loader, missing):
        seen = f"{missing} of {made['length']} samples are never evaluated (DistributedSampler leaves them out)"
        yield EVAL_DROPPED.at(made["site"], seen)
    if all(sorted(stream) == sorted(streams[0]) for stream in streams):
        seen = f"each of {evidence.world_size} ranks evaluates all {len(streams[0])} samples"
        if len(streams[0]) >= FEWEST_SAMPLES:
            yield EVAL_EVERYWHERE.at(loaders.loop_line(key), seen)
        return
    followed = _collectives_after(evidence, key)
    twice = sum(number - 1 for number in counts.values())
    if twice and not any("gather_for_metrics" in line.get("through", ()) for line in followed):
        is_gathered = bool(followed) and all("gather" in line["name"] for line in followed)  # and may be cut then
        seen = f"{twice} of {made['length']} samples are evaluated twice ({made['sampler']})"
        yield EVAL_PADDED.at(made["site"], seen, level="note" if is_gathered else "wrong")
    yield from _not_reduced(evidence, key)


def _dropped(evidence: Evidence, loader: int, key: PassKey) -> Iterator[Finding]:
    """Look for a last batch that drop_last leaves out."""
    made = evidence.loaders.made(loader)
    fetched = [len(stream) for stream in evidence.loaders.streams(key)]
    if not made["drop_last"] or made["samples"] is None:
        return
    missing = made["samples"] - fetched[0]
    if missing > 0 and not _is_covered(evidence, loader, missing * len(fetched)):
        seen = f"{missing} of {made['samples']} samples of a rank are never evaluated (drop_last=True)"
        yield EVAL_DROPPED.at(made["site"], seen)


def _not_reduced(evidence: Evidence, key: PassKey) -> Iterator[Finding]:
    """Find scores of shards that no rank puts together before it trains on, or ends."""
    windows = [_window(evidence, key, index) for index in range(evidence.world_size)]
    if None in windows or _collectives_after(evidence, key):
        return
    shown = [_own_results(rank, window) for rank, window in zip(evidence.ranks.values(), windows, strict=True)]
    sizes = [len(stream) for stream in evidence.loaders.streams(key)]
    seen = f"the ranks evaluate {sizes} samples, and call no collective before the next training step"
    level: Level = "note" if all(shown) else "wrong"  # each rank shows or stores its own: they may be merged elsewhere
    yield EVAL_NOT_REDUCED.at(evidence.loaders.loop_line(key), seen, level=level)


Window = tuple[float, float]


def _window(evidence: Evidence, key: PassKey, index: int) -> Window | None:
    """Return the time from an evaluation to the next training pass; None if the rank did not come so far."""
    passes, rank = evidence.loaders.all_passes(index), list(evidence.ranks.values())[index]
    start = passes[key]["time"]
    later = [line["time"] for other, line in passes.items() if other[0] in evidence.loaders.trained_on]
    end = min((moment for moment in later if moment > start), default=None)
    if end is None and (rank.of("failed") or not rank.of("exit")):
        return None
    return start, float("inf") if end is None else end


def _own_results(rank: ProcessJournal, window: Window | None) -> bool:
    """Tell whether a rank prints a score or writes a file after an evaluation."""
    lines = [*rank.of("print"), *rank.of("write"), *rank.of("save")]
    return window is not None and any(window[0] <= line["time"] <= window[1] for line in lines)


def _is_covered(evidence: Evidence, loader: int, missing: int) -> bool:
    """Tell whether another loader evaluates the samples that this one leaves out, as PyTorch's examples do."""
    loaders = evidence.loaders
    others = [made for made in evidence.lead.of("loader") if made["loader"] not in {loader, *loaders.trained_on}]
    return any(made["length"] == missing for made in others)


def _collectives_after(evidence: Evidence, key: PassKey) -> list[Line]:
    """Return what the ranks exchange from an evaluation to the next training pass."""
    found = []
    for index, rank in enumerate(evidence.ranks.values()):
        window = _window(evidence, key, index) or (evidence.loaders.all_passes(index)[key]["time"], float("inf"))
        lines = [line for line in rank.of("collective") if line["name"] in REDUCING] + rank.of("exchange")
        found += [line for line in lines if window[0] <= line["time"] <= window[1]]
    return found


def check_models(evidence: Evidence) -> Iterator[Finding]:
    """Compare the models that the ranks evaluate: DDP broadcasts buffers in the first forward pass after a step."""
    if evidence.world_size < 2 or evidence.is_sharded or any(True for _ in check_parameters(evidence)):
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
            is_meant = bool(evidence.lead.of("eval_mode"))  # the script knows how to leave it
            yield EVAL_IN_TRAINING_MODE.at(line["site"], seen, level="note" if is_meant else "wrong")
            break
    layers = evidence.lead.first("layers")
    modes = [
        (line["step"], p["training"]) for line in evidence.lead.of("step") for p in line["passes"] if "training" in p
    ]
    evaluated = {line["step"] + 1 for line in evidence.lead.of("eval_mode")}
    first = next((step for step, training in modes if not training and evaluated and step >= min(evaluated)), None)
    if layers.get("norms", 0) + layers.get("dropouts", 0) and first is not None and modes[0][1]:
        yield STAYS_IN_EVAL_MODE.at(evidence.training_line, f"from step {first} on, model.training is False")


CHECKS = (check_evaluations, check_models, check_modes)
