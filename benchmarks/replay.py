"""A published table replayed on one machine: one rank, two ranks on a host, and two hosts over slower and slower links.

    sudo python -m benchmarks.replay --out docs/results/replay.html

The table: resnet18 on one GPU took 555 s, on two GPUs of a node 302 s, and on four GPUs of two nodes 549 s; the authors
wondered why. Here hosts are network namespaces and links are shaped; the report says where the time goes.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from lab.environment import child_environment
from lab.hosts import Hosts, why_not

LONGEST = 300
ARGS = ("train", "--model", "resnet20", "--data", "digits", "--threads", "1", "--track", "none", "--device", "cpu")
LINKS = {"two hosts, 1 Gbit/s": "1gbit", "two hosts, 100 Mbit/s": "100mbit"}


def run_everything(hosts: Hosts, folder: Path, epochs: int) -> list[str]:
    """Run all configurations and return their labels; a run is named after the index of its label."""
    labels = ["one rank", "two ranks, one host", *LINKS]
    common = [*ARGS, "--epochs", str(epochs)]
    _run_all(hosts, folder, [[*common, "--name", "0"]])
    _run_all(hosts, folder, [[*common, "--name", "1", "--nproc", "2", "--profile"]])
    for number, rate in enumerate(LINKS.values(), start=2):
        hosts.limit(2, rate)
        rendezvous = ["--nnodes", "2", "--rendezvous", f"{hosts.address(1)}:{29400 + number}", "--profile"]
        _run_all(
            hosts,
            folder,
            [[*common, "--name", str(number), *rendezvous, "--node-rank", str(node)] for node in range(2)],
        )
        hosts.unlimit(2)
    return labels


def _run_all(hosts: Hosts, folder: Path, commands: Sequence[Sequence[str]]) -> None:
    """Run a command on each of the first hosts and wait for all."""
    options = {"cwd": folder, "env": child_environment()}
    python = [sys.executable, "-m", "paceline"]
    started = [hosts.start(host, *python, *args, **options) for host, args in enumerate(commands, start=1)]
    answers = [process.communicate(timeout=LONGEST) for process in started]
    if any(process.returncode for process in started):
        sys.exit("\n".join(out + err for out, err in answers))
    print(answers[0][0].strip().splitlines()[-1], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("docs/results/replay.html"))
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()
    reason = why_not()
    if reason is not None:
        sys.exit(f"no lab here: {reason}")
    with tempfile.TemporaryDirectory() as scratch, Hosts(2, Path(scratch) / "hosts") as hosts:
        folder = Path(scratch) / "replay"
        folder.mkdir()
        labels = run_everything(hosts, folder, options.epochs)
        runs = [str(number) for number in range(len(labels))]
        named = [arg for label in labels for arg in ("--label", label)]
        options.out.parent.mkdir(parents=True, exist_ok=True)
        args = ["report", *runs, *named, "--out", str(options.out.resolve())]
        subprocess.run([sys.executable, "-m", "paceline", *args], cwd=folder, env=child_environment(), check=True)


if __name__ == "__main__":
    main()
