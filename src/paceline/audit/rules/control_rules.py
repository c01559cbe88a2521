"""Rules about control flow: collectives that only some ranks call, ranks that leave or fail alone, barriers."""

from collections import Counter
from collections.abc import Iterator

from paceline.audit.evidence import Evidence, lines_run
from paceline.audit.finding import Finding, Rule
from paceline.audit.source import exits, loops_around, parse, raises, uneven_branches
from paceline.observe.journals import Line

COLLECTIVES_DIFFER = Rule(
    name="collectives-differ",
    level="wrong",
    summary="the ranks call different collectives",
    effect="the ranks wait for each other in different places: a hang, or numbers of one read as another's",
    wrong="if rank == 0:\n    dist.barrier()",
    fix="dist.barrier()  # on every rank",
)
ONE_RANK_LEAVES = Rule(
    name="one-rank-leaves",
    level="wrong",
    summary="only some ranks can leave the training loop",
    effect="when they do, the others wait for gradients that never come",
    wrong="if rank == 0 and no_progress:\n    break",
    fix="stop = torch.tensor(float(no_progress))\ndist.broadcast(stop, 0)\nif stop:\n    break",
)
ONE_RANK_FAILS = Rule(
    name="one-rank-fails",
    level="wrong",
    summary="an exception ends one rank while the others wait for it",
    effect="the other ranks wait until the timeout of the process group, half an hour by default",
    wrong="if rank == 0:\n    raise RuntimeError",
    fix="let every rank see the problem: all_reduce a flag, then raise on all of them",
)
SAME_RANK = Rule(
    name="same-rank",
    level="wrong",
    summary="several processes join as the same rank",
    effect="they never form a group: one cannot bind the port, or each trains alone",
    wrong="dist.init_process_group(rank=args.node_rank, world_size=n)",
    fix="rank = args.node_rank * ranks_per_node + local_rank",
)
BARRIER_IN_LOOP = Rule(
    name="barrier-in-loop",
    level="slow",
    summary="a barrier in every training step",
    effect="each step waits for the slowest rank once more; DDP already keeps the ranks in step",
    wrong="for batch in loader:\n    …\n    dist.barrier()",
    fix="for batch in loader:\n    …",
)
RULES = (COLLECTIVES_DIFFER, ONE_RANK_LEAVES, ONE_RANK_FAILS, SAME_RANK, BARRIER_IN_LOOP)
FEWEST_STEPS = 4


def check_collectives(evidence: Evidence) -> Iterator[Finding]:
    """Compare the collectives of the ranks one by one."""
    sequences = {
        rank: [line for line in journal.of("collective") if not line.get("is_subgroup")]
        for rank, journal in evidence.ranks.items()
    }
    if len(sequences) < 2 or evidence.joins:
        return
    first, *others = sequences
    for other in others:
        found = _first_difference(evidence, (first, sequences[first]), (other, sequences[other]))
        if found is not None:
            yield found
            return


Sequence = tuple[int, list[Line]]


def _first_difference(evidence: Evidence, one: Sequence, other: Sequence) -> Finding | None:
    for number, (line, second) in enumerate(zip(one[1], other[1], strict=False)):
        if line["name"] != second["name"]:
            seen = (
                f"as collective {number}, rank {one[0]} calls {line['name']} while rank {other[0]} calls "
                f"{second['name']} in line {second['site'].rpartition(':')[2]}"
            )
            return COLLECTIVES_DIFFER.at(line["site"], seen)
    longer, shorter = (one, other) if len(one[1]) > len(other[1]) else (other, one)
    if len(longer[1]) == len(shorter[1]):
        return None
    extra, ended = longer[1][len(shorter[1])], evidence.ranks[shorter[0]]
    has_left = bool(ended.of("exit")) and not ended.of("done") and not ended.of("failed")
    if not has_left and not (evidence.ranks[longer[0]].of("stuck") and not ended.of("failed")):
        return None
    where = "has ended" if has_left else "is elsewhere"
    seen = f"rank {longer[0]} calls {extra['name']} once more than rank {shorter[0]}, which {where}"
    return COLLECTIVES_DIFFER.at(extra["site"], seen)


def check_exits(evidence: Evidence) -> Iterator[Finding]:
    """Find a break or return out of the training loop in a branch that only some ranks ran."""
    if evidence.world_size < 2 or len(set(evidence.steps)) > 1:
        return
    lines = lines_run(evidence)
    stack = {site for rank in evidence.ranks.values() for site in rank.first("training_lines").get("stack", [])}
    for file in set.intersection(*(set(ran) for ran in lines.values())):
        tree = parse(file)
        here = {int(site.rpartition(":")[2]) for site in stack if site.rpartition(":")[0] == file}
        for loop in loops_around(tree, here) if tree is not None else ():
            for branch in uneven_branches(loop, {rank: ran[file] for rank, ran in lines.items()}):
                for node in exits(branch, loop):
                    ranks = ", ".join(map(str, branch.ranks))
                    kind = type(node).__name__.lower()
                    seen = f"this {kind} leaves the loop of line {loop.lineno}; only rank {ranks} runs its branch"
                    yield ONE_RANK_LEAVES.at(f"{file}:{node.lineno}", seen)


def check_failures(evidence: Evidence) -> Iterator[Finding]:
    """Look for ranks that fail while others wait."""
    failed = {rank: journal.of("failed") for rank, journal in evidence.ranks.items()}
    own = {rank: lines[0] for rank, lines in failed.items() if lines and not _is_consequence(lines[0])}
    waiting = [rank for rank, journal in evidence.ranks.items() if rank not in own and journal.of("step")]
    stuck = [other for other in waiting if evidence.ranks[other].of("stuck") or failed[other]]
    for rank, line in list(own.items())[:1]:
        if stuck and evidence.lead.of("step") and line["stack"]:
            seen = f"rank {rank} ends with {line['error']}: {line['message'][:80]!r}; rank {stuck[0]} waits for it"
            yield ONE_RANK_FAILS.at(line["stack"][0], seen, level="wrong" if raises(line["stack"][0]) else "note")


def _is_consequence(line: Line) -> bool:
    """Tell whether an exception only says that another rank is gone."""
    texts = (
        "Connection closed",
        "Connection reset",
        "Timed out",
        "timed out",
        "Broken pipe",
        "peer",
        "SignalException",
    )
    return line["error"] == "SignalException" or any(text in line["message"] for text in texts)


def check_ranks(evidence: Evidence) -> Iterator[Finding]:
    """Look for processes that claim the same rank."""
    claims: dict[tuple[str, str, str], set[int]] = {}
    for journal in [*evidence.ranks.values(), *evidence.journals.others]:
        for line in journal.of("joining"):
            rank, method = line["asked"].get("rank"), str(line["asked"].get("init_method"))
            if rank not in {None, "-1"} and line["asked"].get("world_size") not in {None, "-1", "1"}:
                claims.setdefault((rank, method, line["site"]), set()).add(journal.process["pid"])
    for (rank, _, site), pids in claims.items():
        if len(pids) > 1:
            yield SAME_RANK.at(site, f"{len(pids)} processes join as rank {rank}")


def check_barriers(evidence: Evidence) -> Iterator[Finding]:
    """Count barriers between training steps."""
    steps = len(evidence.lead.of("step"))
    barriers = [line for line in evidence.lead.of("collective") if line["name"] in {"barrier", "monitored_barrier"}]
    lines = Counter(line["site"] for line in barriers)
    for site, number in lines.items():
        distinct = len({line["step"] for line in barriers if line["site"] == site})
        if steps >= FEWEST_STEPS and distinct >= steps - 1:
            yield BARRIER_IN_LOOP.at(site, f"{number} barriers in {steps} steps")


CHECKS = (check_collectives, check_exits, check_failures, check_ranks, check_barriers)
