"""Rules about training data: order, sharding, content and random numbers."""

from collections.abc import Iterator

from paceline.audit.evidence import Evidence, PassKey
from paceline.audit.finding import Finding, Level, Rule
from paceline.audit.source import counts_epochs, leaves_early

SHARD = "sampler = DistributedSampler(data)\nloader = DataLoader(data, batch_size=32, sampler=sampler)"
SAME_ORDER = Rule(
    name="same-order",
    level="wrong",
    summary="every epoch goes over the samples in the same order",
    effect="the samples are shuffled once, not in every epoch: batches repeat exactly",
    wrong="for epoch in range(epochs):\n    for batch in loader:",
    fix="for epoch in range(epochs):\n    sampler.set_epoch(epoch)\n    for batch in loader:",
)
NEVER_SHUFFLED = Rule(
    name="never-shuffled",
    level="note",
    summary="training samples come in the order of the data set",
    effect="neighbours in the data set share their batches in every epoch",
    wrong="DistributedSampler(data, shuffle=False)",
    fix="DistributedSampler(data)  # shuffles",
)
SAME_BATCHES = Rule(
    name="same-batches",
    level="wrong",
    summary="all ranks train on the same samples at the same time",
    effect="the ranks repeat the work of one: the gradient is that of one rank's batch",
    wrong="loader = DataLoader(data, batch_size=32)",
    fix=SHARD,
)
NOT_SHARDED = Rule(
    name="not-sharded",
    level="wrong",
    summary="every rank goes over the whole data set, in its own order",
    effect="an epoch is as many epochs as there are ranks: schedules by epoch run too slowly, and time is not saved",
    wrong="loader = DataLoader(data, batch_size=32, shuffle=True)",
    fix=SHARD,
)
LOST_SAMPLES = Rule(
    name="lost-samples",
    level="wrong",
    summary="the shards of the ranks do not cover the data set",
    effect="part of the data is left out in every epoch",
    wrong="DistributedSampler(data, num_replicas=4, rank=rank)  # on two ranks",
    fix="DistributedSampler(data)  # takes both from the process group",
)
UNEVEN_BATCHES = Rule(
    name="uneven-batches",
    level="wrong",
    summary="ranks train on batches of different sizes",
    effect="DDP averages over ranks, not over samples: samples of the smaller batch count more",
    wrong="loss = criterion(model(x), y)",
    fix="DataLoader(…, drop_last=True), or scale the loss by world_size * len(x) / global_batch",
)
UNEVEN_STEPS = Rule(
    name="uneven-steps",
    level="wrong",
    summary="ranks have different numbers of batches in an epoch",
    effect="the rank with more batches waits in its backward pass for ranks that have left the loop: a hang",
    wrong="shard = Subset(data, range(rank, len(data), world_size))",
    fix="with model.join():  # torch.distributed.algorithms.Join\n    for batch in loader:",
)
SPLIT_DIFFERS = Rule(
    name="split-differs",
    level="wrong",
    summary="random_split divides the data differently on each rank",
    effect="samples that one rank trains on are validation samples of another: the score is too good",
    wrong="train, valid = random_split(data, [0.9, 0.1])",
    fix="train, valid = random_split(data, [0.9, 0.1], generator=torch.Generator().manual_seed(0))",
)
DATASET_DIFFERS = Rule(
    name="dataset-differs",
    level="wrong",
    summary="the data sets of the ranks differ, yet they are sharded by index",
    effect="an index means another sample on another rank: shards overlap and samples are lost",
    wrong="files = os.listdir(folder)  # any order",
    fix="files = sorted(os.listdir(folder))  # and one seed on all ranks for data that is generated",
)
SAME_AUGMENTATION = Rule(
    name="same-augmentation",
    level="wrong",
    summary="all ranks augment their samples with the same random numbers",
    effect="the n-th samples of all ranks get the same crop, flip and noise: augmentation varies less than it seems",
    wrong="torch.manual_seed(seed)",
    fix="torch.manual_seed(seed + rank)  # DDP makes the weights equal anyway",
)
SAME_DROPOUT = Rule(
    name="same-dropout",
    level="note",
    summary="all ranks drop the same units",
    effect="there is less noise in the averaged gradient than with independent masks",
    wrong="torch.manual_seed(seed)",
    fix="torch.manual_seed(seed + rank)",
)
SAME_WORKERS = Rule(
    name="same-workers",
    level="wrong",
    summary="worker_init_fn gives all workers the same random numbers",
    effect="samples that different workers prepare get the same augmentation",
    wrong="worker_init_fn=lambda worker: np.random.seed(0)",
    fix="leave worker_init_fn out: torch seeds random, numpy and torch differently in every worker and epoch",
)
RULES = (
    SAME_ORDER, NEVER_SHUFFLED, SAME_BATCHES, NOT_SHARDED, LOST_SAMPLES, UNEVEN_BATCHES, UNEVEN_STEPS, SPLIT_DIFFERS,
    DATASET_DIFFERS, SAME_AUGMENTATION, SAME_DROPOUT, SAME_WORKERS,
)  # fmt: skip
FEWEST_SAMPLES = 8
FEWEST_STEPS = 3
NEARLY_ALL = 0.9


def check_order(evidence: Evidence) -> Iterator[Finding]:
    """Compare the orders of two epochs, which the same lines of the script ask for."""
    loaders = evidence.loaders
    for loader in loaders.shared:
        keys = loaders.repeated(loader)
        if len(keys) < 2:
            continue
        pairs = list(zip(loaders.streams(keys[0]), loaders.streams(keys[1]), strict=True))
        length = min(len(stream) for pair in pairs for stream in pair)
        if length < FEWEST_SAMPLES or any(first[:length] != second[:length] for first, second in pairs):
            continue
        site, made = loaders.loop_line(keys[0]), loaders.made(loader)
        if all(first[:length] != sorted(first[:length]) for first, _ in pairs):
            seen = f"epochs 0 and 1 go over the {length} samples of each rank in the same order ({made['sampler']})"
            yield SAME_ORDER.at(site, seen, level="wrong" if made["shuffles"] else "note")
        else:
            yield NEVER_SHUFFLED.at(site, f"both epochs go over the {length} samples of a rank in ascending order")


def check_shards(evidence: Evidence) -> Iterator[Finding]:
    """Compare the samples of the ranks in an epoch."""
    loaders = evidence.loaders
    for loader in loaders.shared if evidence.world_size > 1 else ():
        for key in loaders.training_passes(loader)[:1]:
            if loaders.is_one_dataset(loader) and min(map(len, loaders.streams(key))) >= 4:
                yield from _compare_shards(evidence, loader, key)


def _compare_shards(evidence: Evidence, loader: int, key: PassKey) -> Iterator[Finding]:
    loaders, streams = evidence.loaders, evidence.loaders.streams(key)
    length, site = loaders.made(loader)["length"] or 0, loaders.loop_line(key)
    shortest = min(map(len, streams))
    if all(stream[:shortest] == streams[0][:shortest] for stream in streams):
        if loaders.has_same_content(key) and evidence.is_data_parallel:
            yield SAME_BATCHES.at(site, f"all {evidence.world_size} ranks get the same samples in the same order")
        return
    if not loaders.is_whole(key) or not length:
        return
    if all(len(set(stream)) >= NEARLY_ALL * length for stream in streams):
        is_epoch = evidence.is_data_parallel and counts_epochs(loaders.passes(key)[0]["stack"])
        seen = f"each of {evidence.world_size} ranks goes over all {length} samples"
        yield NOT_SHARDED.at(site, seen, level="wrong" if is_epoch else "note")
        return
    missing = length - len(set().union(*streams))
    left_over = evidence.world_size * (loaders.made(loader)["batch"] or 1)  # the last, smaller batches
    if missing > left_over and loaders.made(loader)["sampler"] == "DistributedSampler":
        yield LOST_SAMPLES.at(site, f"{missing} of {length} samples are on no rank")


def check_inputs(evidence: Evidence) -> Iterator[Finding]:
    """Compare the tensors that go into the model, where no loader shows the samples."""
    if evidence.world_size < 2 or evidence.loaders.trained_on or not evidence.is_data_parallel:
        return
    steps = [
        [[p.get("input") for p in line["passes"]] for line in lines]
        for _, lines in evidence.side_by_side("step", "step")
    ]
    known = [step for step in steps if all(rank and rank[0] is not None for rank in step)]
    if len(known) >= 2 and all(all(rank == step[0] for rank in step) for step in known):
        seen = f"all {evidence.world_size} ranks put identical tensors into the model in {len(known)} steps"
        yield SAME_BATCHES.at(evidence.training_line, seen)


def check_sizes(evidence: Evidence) -> Iterator[Finding]:
    """Compare the numbers and sizes of batches."""
    loaders = evidence.loaders
    for loader in loaders.shared if evidence.world_size > 1 else ():
        for key in loaders.training_passes(loader)[:1]:
            if not loaders.is_whole(key):
                continue
            sizes = [[len(batch) for batch in line["batches"]] for line in loaders.orders(key)]
            counts = list(map(len, sizes))
            if len(set(counts)) == 1:
                yield from _uneven_batches(evidence, key, list(zip(*sizes, strict=True)))
            elif not evidence.joins:
                site, stack = loaders.loop_line(key), loaders.passes(key)[0]["stack"]
                is_safe = leaves_early(site) or not counts_epochs(stack)
                seen = f"batches in an epoch, by rank: {counts}"
                yield UNEVEN_STEPS.at(site, seen, level="note" if is_safe else "wrong")


def _uneven_batches(evidence: Evidence, key: PassKey, sizes: list[tuple[int, ...]]) -> Iterator[Finding]:
    """Judge batches of different sizes by the loss: wrong if it is a mean, which hides the number of samples."""
    odd = [(number, step) for number, step in enumerate(sizes) if len(set(step)) > 1]
    losses = {one["reduction"] for line in evidence.lead.of("step") for one in line["passes"]}
    if odd and not losses & {"scaled", "sum"}:
        number, step = odd[0]
        is_planned = 2 * len(odd) > len(sizes) and evidence.loaders.made(key[0])["batch"] is None
        level: Level = "wrong" if losses == {"mean"} and not is_planned else "note"
        seen = f"batch {number} has {list(step)} samples, by rank"
        yield UNEVEN_BATCHES.at(evidence.loaders.loop_line(key), seen, level=level)


def check_datasets(evidence: Evidence) -> Iterator[Finding]:
    """Compare the contents of the data sets of the ranks."""
    loaders, told = evidence.loaders, set()
    for loader in loaders.shared if evidence.world_size > 1 else ():
        odd = loaders.unequal_facts(loader)
        keys = loaders.training_passes(loader) or loaders.evaluation_passes(loader)
        if not odd or not keys:
            continue
        streams = [set(stream) for stream in loaders.streams(keys[0])]
        if len(streams[0] & streams[1]) > 0.2 * len(streams[0]):
            continue  # not sharded by index: each rank may well have its own data
        is_split = any(name.split(".")[-1] == "indices" for name in odd)
        if (rule := SPLIT_DIFFERS if is_split else DATASET_DIFFERS) not in told:
            told.add(rule)
            seen = f"{', '.join(odd)} of the data set differ between ranks"
            level: Level = "note" if loaders.has_equal_samples(loader) is None else "wrong"
            yield rule.at(loaders.made(loader)["site"], seen, level=level)


def check_augmentation(evidence: Evidence) -> Iterator[Finding]:
    """Compare the random generators before samples are made."""
    if evidence.world_size < 2:
        return
    by_rank = []
    for lines in evidence.of("fetch"):
        moved = [(line, name) for line in lines for name in line["moved"]]
        by_rank.append(
            {(line["loader"], line["nth"], line["fetch"], name, line["before"][name]): line for line, name in moved}
        )
    equal = set(by_rank[0]).intersection(*by_rank)
    for loader in evidence.loaders.shared:
        hits = [
            key
            for key in equal
            if key[0] == loader in evidence.loaders.trained_on
            and by_rank[0][key]["indices"] != by_rank[-1][key]["indices"]
        ]
        if hits:
            names = " and ".join(sorted({key[3] for key in hits}))
            seen = (
                f"the {names} generator is in the same state on all ranks before {len(hits)} batches of other samples"
            )
            yield SAME_AUGMENTATION.at(evidence.loaders.made(loader)["site"], seen)


def check_dropout(evidence: Evidence) -> Iterator[Finding]:
    """Compare the random generators before forward passes with dropout."""
    if evidence.world_size < 2:
        return
    steps = [
        [line["passes"][0].get("generator") for line in lines]
        for _, lines in evidence.side_by_side("step", "step")
        if all(line["passes"] for line in lines)
    ]
    known = [step for step in steps if None not in step]
    equal = sum(len(set(step)) == 1 for step in known)
    if equal >= FEWEST_STEPS and equal >= 0.5 * len(known):
        seen = f"the generator is in the same state on all ranks in {equal} of {len(known)} forward passes"
        yield SAME_DROPOUT.at(evidence.training_line, seen)


def check_workers(evidence: Evidence) -> Iterator[Finding]:
    """Compare the random generators of the workers of a rank."""
    parents = {rank.process.get("pid") for rank in evidence.ranks.values()}
    states: dict[tuple[int, int], dict[int, dict[str, int]]] = {}
    used: set[str] = set()
    for journal in evidence.journals.others:
        if journal.process.get("parent") in parents:
            used |= {name for line in journal.of("worker_uses") for name in line["generators"]}
            for line in journal.of("worker"):
                states.setdefault((journal.process["parent"], line["loader"]), {})[line["worker"]] = line["generators"]
    told = set()
    for (_, loader), by_worker in states.items():
        values = list(by_worker.values())
        same = sorted(name for name in used & set(values[0]) if len({state.get(name) for state in values}) == 1)
        if len(values) > 1 and same and loader not in told:
            told.add(loader)
            seen = f"the {' and '.join(same)} generators of {len(values)} workers start in the same state"
            yield SAME_WORKERS.at(evidence.loaders.made(loader)["site"], seen)


CHECKS = (
    check_order, check_shards, check_inputs, check_sizes, check_datasets, check_augmentation, check_dropout,
    check_workers,
)  # fmt: skip
