"""Evaluation in a loop of the user: fixed blocks, so that the same weights give the same scores at every world size."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from paceline.core.errors import TaskError
from paceline.core.keys import mix
from paceline.core.metrics import Scores, Sums
from paceline.data.loader import load_batches
from paceline.data.requests import BlockRequests
from paceline.data.seeding import seed_generators
from paceline.data.split import Split
from paceline.data.tree import Tree, align_leaves, moved
from paceline.engine.own_job import OwnTask
from paceline.engine.scoring import Scoring, Tally
from paceline.parallel.module_state import Snapshot
from paceline.tasks.task import Metric

if TYPE_CHECKING:
    from paceline.engine.own_run import Run

BLOCK = 256
"""Samples of a block."""


@torch.no_grad()
def score_blocks(
    run: "Run", split: Split, score: Callable[[Tree], Mapping[str, Any]], metrics: Mapping[str, Metric]
) -> Scores:
    """Return the scores of all samples. Collective: every rank must call it."""
    rank, size, num_samples, root = run.team.world.rank, run.team.world.size, len(split), run.parts.root
    if run.config.exact != "bitwise":
        run.average_buffers()
    mine = list(range(rank, -(-num_samples // BLOCK), size))
    requests = BlockRequests(num_samples=num_samples, scored=None, blocks=mine, largest=BLOCK)
    batches = load_batches(split, requests, workers=run.config.workers, pin=run.device.type == "cuda")
    training = {module: module.training for module in root.modules()}
    root.eval()
    before, tally, task = Snapshot(root), Tally(), OwnTask(metrics)
    for block, batch in zip(mine, batches, strict=True):
        before.restore()  # a block must not depend on those that this rank has seen
        seed_generators(mix(run.config.seed, block), run.device)
        with run.autocast():
            found = score(moved(align_leaves(batch), run.device, torch.preserve_format))
        for name, parts in _checked(found, metrics).items():
            tally.add(name, parts)
    before.restore()
    for module, was_training in training.items():
        module.training = was_training
    samples = sum(min(BLOCK, num_samples - block * BLOCK) for block in mine)
    total = run.team.total(Sums(parts=tally.take(), samples=samples), lambda every: sum(every, start=Sums()))
    for name in total.parts:
        if name != "loss":
            task.add_ratio(name)
    scores = Scoring(task).scores(total)
    if "loss" in total.parts:
        return scores
    return Scores(
        by_name={key: value for key, value in scores.by_name.items() if key != "loss"}, samples=scores.samples
    )


def _checked(found: Any, metrics: Mapping[str, Metric]) -> dict[str, tuple[Any, ...]]:
    """Return the sums of a block by name."""
    if not isinstance(found, Mapping) or not found:
        raise TaskError(f"score returned a {type(found).__name__}", hint='return {"accuracy": (correct, number)}')
    sums = {}
    for name, parts in found.items():
        own = parts if isinstance(parts, tuple) else (parts,)
        if name not in metrics and len(own) != 2:
            raise TaskError(f"{name} of score is not a pair (sum, count)", hint="return a pair, or give it a Metric")
        sums[name] = own
    return sums
