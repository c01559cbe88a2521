"""Rules about the model: replicas, wrapping, gradients, weights."""

from collections.abc import Iterator

from paceline.audit.evidence import Evidence, lines_run
from paceline.audit.finding import Finding, Level, Rule
from paceline.audit.source import collectives_below
from paceline.observe.journals import Line

REPLICAS_DIFFER = Rule(
    name="replicas-differ",
    level="wrong",
    summary="the weights of the ranks differ after a step",
    effect="every rank trains its own model on its shard of the data; one of them is saved",
    wrong="model = Net().to(device)  # one per rank, gradients never averaged",
    fix="model = DistributedDataParallel(Net().to(device))",
)
BYPASSED_DDP = Rule(
    name="bypassed-ddp",
    level="wrong",
    summary="training calls the bare model instead of the DistributedDataParallel wrapper",
    effect="gradients are not averaged: every rank trains its own model on its shard of the data",
    wrong="ddp_model = DistributedDataParallel(model)\nloss = criterion(model(x), y)",
    fix="loss = criterion(ddp_model(x), y)",
)
LOADED_ON_ONE_RANK = Rule(
    name="loaded-on-one-rank",
    level="wrong",
    summary="weights are loaded on some ranks only, after DistributedDataParallel has made them equal",
    effect="the ranks continue from different weights, and stay different",
    wrong="model = DistributedDataParallel(model)\nif rank == 0:\n    model.load_state_dict(torch.load(path))",
    fix="model.load_state_dict(torch.load(path, map_location=device))  # on every rank, or before wrapping",
)
UNUSED_PARAMETERS = Rule(
    name="unused-parameters",
    level="wrong",
    summary="parameters take no part in the loss",
    effect="DistributedDataParallel waits for their gradients: the second step fails, and they are never trained",
    wrong="self.head = nn.Linear(64, 10)  # not used in forward",
    fix="remove the layer, or DistributedDataParallel(model, find_unused_parameters=True)",
)
NEEDLESS_SEARCH = Rule(
    name="needless-search",
    level="slow",
    summary="find_unused_parameters=True, but every parameter is used",
    effect="every step walks the whole autograd graph for nothing",
    wrong="DistributedDataParallel(model, find_unused_parameters=True)",
    fix="DistributedDataParallel(model)",
)
NOTHING_LEARNED = Rule(
    name="nothing-learned",
    level="wrong",
    summary="the steps do not change the weights",
    effect="the script trains nothing",
    wrong="optimizer = torch.optim.SGD(Net().parameters(), lr=0.1)  # of another model",
    fix="optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # and a loss whose gradient is not zero",
)
GRADIENTS_KEPT = Rule(
    name="gradients-kept",
    level="wrong",
    summary="gradients are never set to zero",
    effect="each step uses the sum of all gradients since the start",
    wrong="loss.backward()\noptimizer.step()",
    fix="optimizer.zero_grad()\nloss.backward()\noptimizer.step()",
)
LOCAL_BATCH_NORM = Rule(
    name="local-batch-norm",
    level="note",
    summary="the running statistics of batch norm differ between ranks",
    effect="the saved statistics are those of one rank's samples, and batch norm sees the batch of one rank only",
    wrong="model = DistributedDataParallel(model)",
    fix="model = DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(model))",
)
RULES = (
    REPLICAS_DIFFER, BYPASSED_DDP, LOADED_ON_ONE_RANK, UNUSED_PARAMETERS, NEEDLESS_SEARCH, NOTHING_LEARNED,
    GRADIENTS_KEPT, LOCAL_BATCH_NORM,
)  # fmt: skip
AVERAGING = frozenset(
    {"all_reduce", "reduce", "all_gather", "all_gather_into_tensor", "broadcast", "all_reduce_coalesced"}
)
UNFINISHED = "Expected to have finished reduction"


def check_parameters(evidence: Evidence) -> Iterator[Finding]:
    """Compare the weights of the ranks after each step."""
    explained = [*check_unused(evidence), *check_learning(evidence)]
    if evidence.world_size < 2 or any(finding.rule in {UNUSED_PARAMETERS, NOTHING_LEARNED} for finding in explained):
        return
    if evidence.is_sharded or _averages_weights(evidence):
        return
    for step, lines in evidence.side_by_side("step", "step"):
        if len({line["weights"] for line in lines}) > 1:
            yield _differing(evidence, step, lines)
            return


def _differing(evidence: Evidence, step: int, lines: list[Line]) -> Finding:
    """Return the rule that explains why the replicas differ."""
    tensors = _odd_tensors(lines)
    seen = f"after step {step} the weights differ between ranks" + (f" ({tensors})" if tensors else "")
    models = evidence.lead.of("model")
    loads = [
        [line for line in lines if line["is_wrapped"] and not line["step"]] for lines in evidence.of("load_weights")
    ]
    if models and len(set(map(len, loads))) > 1:
        ranks = [rank for rank, found in zip(evidence.ranks, loads, strict=True) if found]
        site = next(found[-1]["site"] for found in loads if found)
        return LOADED_ON_ONE_RANK.at(site, f"only rank {', '.join(map(str, ranks))} loads weights here, and {seen}")
    if models and not any("input" in p for line in lines for p in line["passes"]):
        place = evidence.training_line or models[0]["site"]
        return BYPASSED_DDP.at(place, f"the wrapper is never called before the backward pass, and {seen}")
    level: Level = "wrong" if models or _is_meant_as_one(evidence) else "note"
    return REPLICAS_DIFFER.at(models[0]["site"] if models else evidence.training_line, seen, level=level)


def _averages_weights(evidence: Evidence) -> bool:
    """Tell whether the script averages weights now and then, instead of gradients in every step."""
    lines = [line for lines in evidence.of("collective") for line in lines if line["step"]]
    return any(line.get("is_weight") and line["name"] in AVERAGING for line in lines)


def _is_meant_as_one(evidence: Evidence) -> bool:
    """Tell whether a script without the wrapper shards its data, or has code that averages gradients."""
    ran = lines_run(evidence).values()
    lines = {file: set().union(*(lines.get(file, set()) for lines in ran)) for found in ran for file in found}
    calls = [call for file, numbers in lines.items() for call in collectives_below(file, AVERAGING, numbers)]
    if any("grad" in text for text, _ in calls):
        return True
    may_average_later = any(not has_run for _, has_run in calls)
    shards = any(evidence.loaders.made(n)["sampler"] == "DistributedSampler" for n in evidence.loaders.trained_on)
    return shards and not may_average_later


def _odd_tensors(lines: list[Line]) -> str:
    if not all(line["tensors"] for line in lines):
        return ""
    columns = zip(*(line["tensors"] for line in lines), strict=False)
    odd = [name for name, column in zip(lines[0]["names"], columns, strict=False) if len(set(column)) > 1]
    number = len(lines[0]["tensors"])
    return f"{len(odd)} of {number} tensors, the first is {odd[0]}" if odd else ""


def check_unused(evidence: Evidence) -> Iterator[Finding]:
    """Look for parameters without gradients, and for a search for them that finds none."""
    model = evidence.lead.first("model")
    failed = [line for lines in evidence.of("failed") for line in lines if UNFINISHED in line["message"]]
    steps = evidence.lead.of("step")
    unused = next((line["unused"] for line in steps if line["unused"]), [])
    if failed:
        names = unused or evidence.lead.first("without_gradient").get("names", [])
        known = f": {', '.join(names[:4])}" if names else ""
        seen = f"DistributedDataParallel fails in step {failed[0]['step'] + 1}: parameters have no gradient{known}"
        yield UNUSED_PARAMETERS.at(model.get("site", ""), seen)
    elif model.get("find_unused") and len(steps) >= 3 and not any(line["unused"] for line in steps):
        yield NEEDLESS_SEARCH.at(model["site"], f"every parameter got a gradient in all {len(steps)} steps")


def check_learning(evidence: Evidence) -> Iterator[Finding]:
    """Look for steps that change nothing, and for gradients that are never cleared."""
    steps = evidence.lead.of("step")
    weights = {line["weights"] for line in steps}
    if len(steps) >= 3 and len(weights) == 1 and all(lr > 0 for line in steps for lr in line["lr"]):
        yield NOTHING_LEARNED.at(
            evidence.training_line, f"no bit of the optimizer's weights changed in {len(steps)} steps"
        )
    elif len(steps) >= 3 and len(weights) == 1 and _untouched(evidence):
        seen = f"the optimizer's weights are not those of the model: no gradient reached them in {len(steps)} steps"
        yield NOTHING_LEARNED.at(evidence.training_line, seen)
    stale = evidence.lead.of("stale_gradients")
    if len(stale) >= 2:
        seen = f"before step {stale[0]['step'] + 1} the last gradients are still there; zero_grad is never called"
        yield GRADIENTS_KEPT.at(stale[0]["site"], seen)


def _untouched(evidence: Evidence) -> bool:
    """Tell whether no parameter of the optimizer ever had a gradient."""
    lines = evidence.lead.of("step")
    return all(line["names"] is None or len(line["unused"]) == min(20, len(line["names"])) for line in lines[:3])


def check_batch_norm(evidence: Evidence) -> Iterator[Finding]:
    """Compare the buffers of the ranks after each step."""
    layers, model = evidence.lead.first("layers"), evidence.lead.first("model")
    is_synced = layers.get("synced_norms") or evidence.lead.of("sync_batch_norm")
    if evidence.world_size < 2 or not layers.get("norms") or is_synced:
        return
    steps = list(evidence.side_by_side("step", "step"))
    odd = [step for step, lines in steps if len({line["buffers"] for line in lines}) > 1]
    if odd:
        seen = f"the buffers of {layers['norms']} layers differ between ranks after {len(odd)} of {len(steps)} steps"
        yield LOCAL_BATCH_NORM.at(model["site"], seen)


CHECKS = (check_parameters, check_unused, check_learning, check_batch_norm)
