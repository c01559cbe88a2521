"""Rules about how a script changes with the number of ranks; they need `--compare`, which runs it with one rank too."""

from collections.abc import Iterator

from paceline.audit.evidence import Evidence
from paceline.audit.finding import Finding, Rule

BATCH_GROWS = Rule(
    name="batch-grows",
    level="note",
    summary="the global batch grows with the number of ranks",
    effect="more ranks or nodes make fewer, larger steps per epoch: another training, not the same one faster",
    wrong="DataLoader(data, batch_size=args.batch_size, sampler=sampler)",
    fix="DataLoader(data, batch_size=args.batch_size // dist.get_world_size(), sampler=sampler)",
)
LR_NOT_SCALED = Rule(
    name="lr-not-scaled",
    level="note",
    summary="the learning rate stays the same while the global batch grows with the ranks",
    effect="with SGD, a larger batch at the same learning rate learns less per epoch",
    wrong="SGD(model.parameters(), lr=0.1)",
    fix="SGD(model.parameters(), lr=0.1 * dist.get_world_size())  # with a warm-up, or keep the global batch",
)
RULES = (BATCH_GROWS, LR_NOT_SCALED)
SAME = 1e-6


def asked_batch(evidence: Evidence) -> int | None:
    """Return the batch size that the script gives the loader it trains on, on one rank."""
    for line in evidence.lead.of("loader"):
        if line["loader"] in evidence.loaders.trained_on:
            return line["asked"]
    return None


def check_worlds(alone: Evidence, several: Evidence) -> Iterator[Finding]:
    """Compare batch size and learning rate with one rank and with several."""
    before, after, ranks = asked_batch(alone), asked_batch(several), several.world_size
    if before is None or after is None or ranks < 2 or ranks * after <= before:
        return
    loader = next(line for line in several.lead.of("loader") if line["loader"] in several.loaders.trained_on)
    seen = f"{before} samples per step with 1 rank, {ranks * after} with {ranks} ranks"
    yield BATCH_GROWS.at(loader["site"], seen)
    rates = [evidence.lead.first("step").get("lr") or [0.0] for evidence in (alone, several)]
    if abs(rates[0][0] - rates[1][0]) <= SAME * abs(rates[0][0]):
        yield LR_NOT_SCALED.at(several.training_line, f"{seen}; the learning rate is {rates[0][0]:g} with both")


CHECKS = ()
