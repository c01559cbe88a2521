"""`make campaign`: hundreds of random cases, each equal to one rank to the bit; writes docs/results/campaign.md."""

import argparse
import os
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch

from paceline.core.units import count, duration, plural
from paceline.records.environment import cpu_name
from tests.campaign.cases import Case, make_case
from tests.campaign.check import check_in
from tests.ranks.pool import RankPool

RESULT = Path(__file__).parents[2] / "docs" / "results" / "campaign.md"


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--cases", type=int, default=200)
    words.add_argument("--kills", type=int, default=50, help="cases in which a rank is killed with SIGKILL")
    words.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    words.add_argument("--only", type=int, help="run one case of a seed again")
    words.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    options = words.parse_args()
    every = max(1, options.cases // options.kills) if options.kills else options.cases + 1
    numbers = range(options.cases) if options.only is None else [options.only]
    cases = [make_case(options.seed, number, killed=number % every == 0) for number in numbers]
    print(f"{plural(len(cases), 'case')}, seed {options.seed}", flush=True)
    start = time.monotonic()
    try:
        mismatches = run(cases)
    except KeyboardInterrupt:
        print("\nstopped; nothing was written", file=sys.stderr)
        return 130
    text = result_text(cases, mismatches, options.seed, time.monotonic() - start)
    if options.write:
        RESULT.write_text(text, encoding="utf-8")
    print(f"\n{text}")
    return 1 if mismatches else 0


def run(cases: Sequence[Case]) -> dict[int, list[str]]:
    """Run all cases and return those that differ; their runs are kept."""
    mismatches: dict[int, list[str]] = {}
    memory = Path("/dev/shm")  # no disk needs to hear of hundreds of runs
    home = Path(tempfile.mkdtemp(prefix="campaign-", dir=memory if memory.is_dir() else None))
    with RankPool(hang_seconds=900.0) as pool:
        for done, case in enumerate(cases, start=1):
            found = check_in(pool, case, home / str(case.number))
            if found:
                mismatches[case.number] = found
                print(f"case {case.number} differs: {case}\n  {', '.join(found[:5])}\n  {home / str(case.number)}")
            if done % 10 == 0:
                print(f"{done} of {len(cases)}: {len(mismatches)} differ", flush=True)
    if not mismatches:
        home.rmdir()
    return mismatches


def result_text(cases: Sequence[Case], mismatches: dict[int, list[str]], seed: int, seconds: float) -> str:
    """Return the page about a campaign."""
    kills = [case.kill for case in cases if case.kill is not None]
    rows = {
        "ranks": Counter(f"W={case.world_size}" for case in cases),
        "fixed shards": Counter(f"V={case.shards}" for case in cases),
        "loader workers": Counter(str(case.workers) for case in cases),
        "model with": Counter(case.model for case in cases),
        "optimizer": Counter(case.optimizer for case in cases),
        "killed": Counter(kill.moment for kill in kills),
        "resumed on": Counter(f"W={kill.resume_size}" for kill in kills),
    }
    lines = [
        "# The campaign",
        "",
        "Written by `make campaign`: random cases of `--exact bitwise`, each compared with a run of the same settings",
        "on one rank without loader workers that nobody killed. Compared are all bits of weights, buffers, optimizer,",
        "moving average and progress after the last step, and every recorded loss and score.",
        "",
        f"**{count(len(cases))} cases, {count(len(kills))} SIGKILLs with resume at another world size: "
        f"{count(len(mismatches))} mismatches.** Seed {seed}.",
        "",
        f"{cpu_name()}, {os.cpu_count()} cores, torch {torch.__version__}, gloo, a thread a rank; {duration(seconds)}.",
        "",
        "| | cases |",
        "|---|---|",
        *(f"| {name} | {', '.join(f'{k}: {n}' for k, n in sorted(found.items()))} |" for name, found in rows.items()),
        "",
        "The same checker must flag planted faults, and does: `tests/campaign/test_campaign.py`.",
    ]
    lines += [f"- case {number}: {', '.join(found[:5])}" for number, found in mismatches.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
