"""Causes planted in real runs: `paceline train` with one of them and without, then what `paceline explain` says.

    python -m lab.causes --trials 10          # the table of docs/results/causes.md, as root

Each trial is two runs of the same work, the cause in one of them. The link is the one between two network namespaces.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from lab import planted
from lab.environment import child_environment
from lab.hosts import LONGEST, Hosts
from paceline.records.folder import RunFolder

LINK = "100mbit"
THREADS = 8
REAL_WORK = {
    "model": "resnet20", "data": "digits", "global_batch": 128, "steps": 66, "log_every": 11, "track": "none",
    "device": "cpu", "eval_every": "1000 steps", "save_every": "1000 steps",
}  # fmt: skip
CAUSES = {
    "slow loader": f"rank 1 takes {1e3 * planted.SECONDS_PER_SAMPLE:g} ms longer to load a sample",
    "slow rank": f"rank 1 computes {planted.SLOWER:g} times as long",
    "checkpoint": f"the disk takes {planted.SECONDS_PER_SYNC:g} s for every sync",
    "link": f"two hosts, tbf {LINK}",
    "threads": f"2 ranks of {THREADS} threads on {os.cpu_count()} cores, resnet20",
}


def trial(cause: str, *, is_planted: bool, folder: Path, hosts: Hosts | None = None) -> list[dict]:
    """Train with a cause, or without, and return what explain finds."""
    settings, environment = planted.SETTINGS | {"threads": 1}, {planted.CAUSE: cause if is_planted else "none"}
    if cause == "threads":
        settings = REAL_WORK | {"threads": THREADS if is_planted else 1}
    rate = LINK if is_planted and cause == "link" else None
    with _limited(hosts, rate) if hosts is not None else nullcontext():
        run = _trained(folder, settings, environment, hosts)
    return json.loads(_command(["explain", str(run.path), "--json"], folder))["bottlenecks"]


def _trained(folder: Path, settings: dict, environment: dict[str, str], hosts: Hosts | None) -> RunFolder:
    """Train with two ranks, here or each on a separate host, and return the run."""
    init_method = f"file://{folder}/rendezvous-{len(list(folder.glob('runs/*/*')))}"
    options = {"cwd": folder, "env": child_environment(**environment)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    processes = []
    for rank in range(2):
        start = ["--rank", str(rank), "--world-size", "2", "--init-method", init_method]
        command = [sys.executable, "-m", "paceline", "train", *_flags(settings), *start]
        if hosts is not None:
            processes.append(hosts.start(rank + 1, *command, **options, **pipes))
        else:
            processes.append(subprocess.Popen(command, **options, **pipes))
    outputs = [process.communicate(timeout=LONGEST)[0] for process in processes]
    assert not any(process.returncode for process in processes), "\n".join(outputs)
    return RunFolder(max(folder.glob("runs/*/*/config.toml"), key=lambda path: path.stat().st_mtime_ns).parent)


@contextmanager
def _limited(hosts: Hosts, rate: str | None) -> Iterator[None]:
    if rate is None:
        yield
        return
    hosts.limit(2, rate)
    try:
        yield
    finally:
        hosts.unlimit(2)


def _command(args: Sequence[str], folder: Path) -> str:
    line = [sys.executable, "-m", "paceline", *args]
    answer = subprocess.run(
        line, cwd=folder, env=child_environment(), capture_output=True, text=True, timeout=LONGEST, check=False
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


def _flags(settings: dict) -> list[str]:
    return [arg for name, value in settings.items() for arg in ("--" + name.replace("_", "-"), str(value))]


def campaign(causes: Sequence[str], trials: int, folder: Path) -> Iterator[str]:
    """Yield the lines of a table as they become known."""
    yield "| cause | planted | named | named first | other causes named | healthy twin silent |"
    yield "|---|---|---|---|---|---|"
    sentences = []
    for cause in causes:
        named = first = silent = 0
        others: set[str] = set()
        with Hosts(2, folder / "hosts") if cause == "link" else nullcontext() as hosts:
            for number in range(trials):
                place = folder / f"{cause}-{number}".replace(" ", "-")
                place.mkdir(parents=True)
                findings = trial(cause, is_planted=True, folder=place, hosts=hosts)
                found = [finding["kind"] for finding in findings]
                named, first = named + (cause in found), first + (found[:1] == [cause])
                others |= set(found) - {cause}
                healthy = trial(cause, is_planted=False, folder=place, hosts=hosts)
                silent += not healthy
                others |= {f"{finding['cause']} (healthy)" for finding in healthy}
                sentences += [f"- {cause}: {finding['sentence']}" for finding in findings[:1] if not number]
        listed = ", ".join(sorted(others)) or "none"
        yield f"| {cause} | {CAUSES[cause]} | {named} of {trials} | {first} | {listed} | {silent} of {trials} |"
    yield ""
    yield from sentences


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Plant causes in runs and see whether explain names them")
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--causes", nargs="+", default=list(CAUSES), choices=list(CAUSES))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that hosts are torn down
    with tempfile.TemporaryDirectory(prefix="paceline-causes-") as name:
        for line in campaign(options.causes, options.trials, Path(name)):
            print(line, flush=True)  # noqa: T201 - the table is the answer


if __name__ == "__main__":
    main()
