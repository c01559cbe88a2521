"""Rules about set-up and speed: downloads, addresses, devices, loader workers, values read in every step."""

from collections.abc import Iterator
from pathlib import Path

from paceline.audit.evidence import Evidence, lines_run
from paceline.audit.finding import Finding, Rule
from paceline.audit.source import calls_with, depends_on_rank, holds_lock, parse

DOWNLOAD_BY_ALL = Rule(
    name="download-by-all",
    level="wrong",
    summary="all ranks download the data at the same time",
    effect="on a fresh machine they download and unpack over each other: damaged files, or a crash",
    wrong="data = CIFAR10(root, download=True)",
    fix="if local_rank == 0:\n    CIFAR10(root, download=True)\ndist.barrier()\ndata = CIFAR10(root)",
)
FIXED_ADDRESS = Rule(
    name="fixed-address",
    level="note",
    summary="the script fixes address and port of the rendezvous",
    effect="two runs on one machine collide, and several nodes do not find each other",
    wrong='os.environ["MASTER_PORT"] = "12355"',
    fix="torchrun train.py  # sets address and port",
)
CUDA_ONLY = Rule(
    name="cuda-only",
    level="note",
    summary="the script needs CUDA",
    effect="it cannot be tried or tested on a machine without a GPU",
    wrong="model.cuda()",
    fix='device = torch.accelerator.current_accelerator() or torch.device("cpu")\nmodel.to(device)',
)
READ_EVERY_STEP = Rule(
    name="read-every-step",
    level="slow",
    summary="a value is read from the device in every step",
    effect="the CPU waits until the GPU has finished, instead of preparing the next step",
    wrong="total += loss.item()",
    fix="total += loss.detach()  # read it once per epoch",
)
NO_WORKERS = Rule(
    name="no-workers",
    level="slow",
    summary="samples are prepared in the training process",
    effect="the device waits while samples are prepared",
    wrong="DataLoader(data, batch_size=32, sampler=sampler)",
    fix="DataLoader(data, batch_size=32, sampler=sampler, num_workers=2)",
)
FORK_WITH_THREADS = Rule(
    name="fork-with-threads",
    level="note",
    summary="loader workers are forked while other threads run",
    effect="a lock that another thread holds at that moment stays locked in the worker for ever: a rare hang",
    wrong="threading.Thread(target=report).start()\nfor batch in loader:  # num_workers=4",
    fix='DataLoader(…, num_workers=4, multiprocessing_context="forkserver")  # or start the thread later',
)
RULES = (DOWNLOAD_BY_ALL, FIXED_ADDRESS, CUDA_ONLY, READ_EVERY_STEP, NO_WORKERS, FORK_WITH_THREADS)
FEWEST_STEPS = 4
LEAST_SHARE = 0.3
LEAST_SECONDS = 0.02
"""Seconds per batch below which loading is no problem worth a finding."""


def check_downloads(evidence: Evidence) -> Iterator[Finding]:
    """Look for downloads that all ranks run without a collective between them."""
    if evidence.world_size < 2:
        return
    ran, first = lines_run(evidence), _first_serials(evidence)
    earlier = {
        file for journal in evidence.journals.others for line in journal.of("lines") for file in _downloading(line)
    }
    for file in sorted(set.intersection(*(set(files) for files in ran.values())) - earlier):
        tree = parse(file)
        for call in calls_with(tree, "download") if tree is not None else ():
            if tree is None or holds_lock(tree, call) or depends_on_rank(call):
                continue
            span = range(call.lineno, (call.end_lineno or call.lineno) + 1)
            serials = [[at[f"{file}:{line}"] for line in span if f"{file}:{line}" in at] for at in first]
            if all(serials) and len({min(found) for found in serials}) == 1:
                seen = f"all {evidence.world_size} ranks run download=True with no collective between them"
                yield DOWNLOAD_BY_ALL.at(f"{file}:{call.lineno}", seen)
                break
    yield from _requests(evidence)


def _first_serials(evidence: Evidence) -> list[dict[str, int]]:
    """Return how many collectives each rank had called when it first ran a line."""
    return [
        {site: at for line in reversed(journal.of("lines")) for site, at in line["first"].items()}
        for journal in evidence.ranks.values()
    ]


def _downloading(line: dict[str, dict[str, list[int]]]) -> Iterator[str]:
    """Yield the files in which a process ran a download, such as the parent that started the ranks."""
    for file, numbers in line["files"].items():
        tree = parse(file)
        for call in calls_with(tree, "download") if tree is not None else ():
            if set(range(call.lineno, (call.end_lineno or call.lineno) + 1)) & set(numbers):
                yield file


def _requests(evidence: Evidence) -> Iterator[Finding]:
    by_rank = [{(line["url"], line["serial"]): line for line in lines} for lines in evidence.of("net")]
    for url, serial in sorted(set(by_rank[0]).intersection(*by_rank), key=str)[:1]:
        seen = f"{evidence.world_size} ranks connect to {url}"
        yield DOWNLOAD_BY_ALL.at(by_rank[0][url, serial]["site"], seen, level="note")


def check_address(evidence: Evidence) -> Iterator[Finding]:
    """Look for an address in the arguments of init_process_group, or set by the script itself."""
    for line in [*evidence.lead.of("joining")][:1]:
        method = str(line["asked"].get("init_method", ""))
        if method.startswith("tcp://"):
            yield FIXED_ADDRESS.at(line["site"], f"init_method is {method}")
            return
    for line in [*evidence.lead.of("address")][:1]:
        yield FIXED_ADDRESS.at(line["site"], f"the script sets {line['name']} to {line['value']}")


def check_device(evidence: Evidence) -> Iterator[Finding]:
    """Name the first line that asks for CUDA."""
    files = {file for ran in lines_run(evidence).values() for file in ran}
    lines = [] if any(map(_checks_for_gpu, files)) else evidence.lead.of("cuda")
    if lines:
        what = ", ".join(dict.fromkeys(line["what"] for line in lines[:3]))
        yield CUDA_ONLY.at(lines[0]["site"], f"{len(lines)} lines ask for CUDA or NCCL without a check ({what}, …)")


def _checks_for_gpu(file: str) -> bool:
    """Tell whether a file asks somewhere whether there is a GPU."""
    try:
        return "is_available" in Path(file).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def check_reads(evidence: Evidence) -> Iterator[Finding]:
    """Count the values that are read in every step."""
    lines = evidence.lead.of("reads")[1:]
    steps = [set(line["lines"]) for line in lines]
    if len(steps) < FEWEST_STEPS:
        return
    for site in sorted(set.intersection(*steps)):
        number = sum(line["lines"][site] for line in lines)
        yield READ_EVERY_STEP.at(site, f"{number} values are read in {len(lines)} steps")


def check_loading(evidence: Evidence) -> Iterator[Finding]:
    """Compare the time for samples with that of whole steps."""
    for made in evidence.lead.of("loader"):
        waits = [line for line in evidence.lead.of("waited") if line["loader"] == made["loader"]][1:]
        if made["loader"] not in evidence.loaders.trained_on or made["workers"] or len(waits) < FEWEST_STEPS:
            continue
        loading = sum(line["seconds"] for line in waits)
        steps = sum(line["seconds"] or 0.0 for line in evidence.lead.of("step")[1:])
        if steps and loading > max(LEAST_SHARE * steps, LEAST_SECONDS * len(waits)):
            seen = f"num_workers is 0, and loading takes {100 * loading / steps:.0f}% of a step on this machine"
            yield NO_WORKERS.at(made["site"], seen)


def check_forks(evidence: Evidence) -> Iterator[Finding]:
    """Look for threads of the script that run when workers are forked."""
    for line in [line for line in evidence.lead.of("pass") if line["threads"]][:1]:
        workers = evidence.loaders.made(line["loader"])["workers"]
        started = ", ".join(sorted({f"{Path(site).name}" for site in line["threads"]})[:3])
        seen = f"{workers} workers are forked while {len(line['threads'])} threads run, started at {started}"
        yield FORK_WITH_THREADS.at(line["site"], seen)


CHECKS = (check_downloads, check_address, check_device, check_reads, check_loading, check_forks)
