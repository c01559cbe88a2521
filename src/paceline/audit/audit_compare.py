"""The same script with one rank and with several, with the same global batch: how far results are apart, and why."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from paceline.audit.audit_run import AuditedRun, AuditOptions, audit
from paceline.audit.evidence import Evidence
from paceline.audit.judge import judged
from paceline.audit.rules.world_rules import asked_batch, check_worlds
from paceline.core.units import plural, table

TOLERANCE = 1e-3
"""Relative difference that another order of summation may make in a few steps."""
MOST_ROWS = 12
EXPLAINING = frozenset({
    "same-order", "same-batches", "not-sharded", "lost-samples", "uneven-batches", "uneven-steps", "split-differs",
    "dataset-differs", "same-augmentation", "same-workers", "replicas-differ", "bypassed-ddp", "loaded-on-one-rank",
    "unused-parameters", "local-batch-norm", "same-dropout",
})  # fmt: skip
"""Rules whose mistakes make training depend on the number of ranks."""


@dataclass(frozen=True, kw_only=True)
class WorldStep:
    """One step at both world sizes: mean losses over the ranks, norms of the weights after it."""

    step: int
    losses: tuple[float, float]
    norms: tuple[float, float]

    @property
    def difference(self) -> float:
        """The relative difference of the losses."""
        return abs(self.losses[0] - self.losses[1]) / max(abs(self.losses[0]), 1e-9)


@dataclass(frozen=True, kw_only=True)
class WorldComparison:
    """Steps at one rank and at several, and the findings that explain a difference."""

    num_ranks: int
    steps: list[WorldStep]
    explained_by: list[str]

    @property
    def is_equal(self) -> bool:
        """Tell whether losses agree up to rounding."""
        return bool(self.steps) and all(step.difference <= TOLERANCE for step in self.steps)

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison as plain values."""
        return {"equal": self.is_equal, **asdict(self)}


def audit_alone(
    command: Sequence[str], options: AuditOptions, several: AuditedRun, tell: Callable[[str], None]
) -> AuditedRun:
    """Run the command with one rank on the same global batch.

    Every batch is multiplied by the number of ranks, unless the script itself divides it by them.
    """
    ranks = len(several.steps)
    alone = audit(command, replace(options, ranks=1, batch_factor=ranks), tell)
    own, shared = asked_batch(alone.evidence), asked_batch(several.evidence)
    if own is None or shared is None or own != ranks * shared:
        return alone
    return audit(command, replace(options, ranks=1), tell)


def with_world_findings(several: AuditedRun, alone: AuditedRun) -> AuditedRun:
    """Return the audit with the findings that need both world sizes."""
    more = judged(several.evidence, check_worlds(alone.evidence, several.evidence))
    return replace(several, findings=[*several.findings, *more])


def compare_worlds(alone: Evidence, several: AuditedRun) -> WorldComparison:
    """Match the steps of one rank with those of several."""
    one = {line["step"]: line for line in alone.lead.of("step")}
    steps = []
    for number, lines in several.evidence.side_by_side("step", "step"):
        losses = [_loss(line["passes"]) for line in lines]
        own = _loss(one[number]["passes"]) if number in one else None
        if own is not None and None not in losses:
            mean = sum(loss for loss in losses if loss is not None) / len(losses)
            norms = one[number]["norm"], lines[0]["norm"]
            steps.append(WorldStep(step=number, losses=(own, mean), norms=norms))
    reasons = [finding.rule.name for finding in several.findings if finding.rule.name in EXPLAINING]
    return WorldComparison(num_ranks=len(several.steps), steps=steps, explained_by=list(dict.fromkeys(reasons)))


def _loss(passes: list[dict[str, Any]]) -> float | None:
    losses = [one["loss"] for one in passes if one.get("loss") is not None]
    return sum(losses) / len(losses) if losses else None


def world_comparison_text(comparison: WorldComparison) -> str:
    """Return the steps as a table, and the verdict."""
    ranks = plural(comparison.num_ranks, "rank")
    rows = [
        [
            str(step.step),
            *(f"{loss:.6g}" for loss in step.losses),
            f"{step.difference:.1e}",
            *(f"{n:.6g}" for n in step.norms),
        ]
        for step in comparison.steps[:MOST_ROWS]
    ]
    head = ["step", "loss, 1 rank", f"loss, {ranks}", "difference", "weights, 1 rank", f"weights, {ranks}"]
    return f"{table(head, rows)}\n\n{_verdict(comparison, ranks)}\n"


def _verdict(comparison: WorldComparison, ranks: str) -> str:
    if not comparison.steps:
        return f"1 rank and {ranks} have no step in common"
    if comparison.is_equal:
        return f"1 rank and {ranks} train alike on the same global batch, up to rounding"
    first = next(step for step in comparison.steps if step.difference > TOLERANCE)
    text = f"1 rank and {ranks} differ from step {first.step} on"
    if comparison.explained_by:
        return f"{text}; explained by: {', '.join(comparison.explained_by)}"
    return f"{text}; no finding explains it: initial weights, augmentation or dropout may depend on the rank"
