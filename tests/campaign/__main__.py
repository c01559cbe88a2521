"""`make campaign`: random modules and runs, each equal to one rank to the bit; writes docs/results/campaign.md."""

import argparse
import json
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch

from paceline.core.units import count, duration, plural
from paceline.records.environment import cpu_name
from tests.campaign.cases import KILLS, Case, make_case
from tests.campaign.check import check_in
from tests.ranks.pool import RankPool

RESULT = Path(__file__).parents[2] / "docs" / "results" / "campaign.md"


def main() -> int:
    options = read_args()
    numbers = range(options.cases) if options.only is None else [options.only]
    cases = [make_case(options.seed, number) for number in numbers]
    journal = Journal(options.journal, options.seed)
    todo = [case for case in cases if case.number not in journal.found or options.only is not None]
    todo = todo[options.part :: options.parts][: options.at_most]
    print(f"{plural(len(todo), 'case')} of {len(cases)}, seed {options.seed}", flush=True)
    try:
        run(todo, journal)
    except KeyboardInterrupt:
        print("\nstopped; the page was not written", file=sys.stderr)
        return 130
    if len(journal.found) < len(cases):
        print(f"{len(journal.found)} of {len(cases)} done; the same command goes on")
        return 0
    text = result_text(cases, journal, options.seed)
    if options.write and options.only is None:
        RESULT.write_text(text, encoding="utf-8")
    print(f"\n{text}")
    return 1 if journal.mismatches else 0


def read_args() -> argparse.Namespace:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--cases", type=int, default=1000)
    words.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    words.add_argument("--only", type=int, help="run one case of a seed again")
    words.add_argument("--journal", type=Path, help="file of what is done; a campaign goes on where it stopped")
    words.add_argument("--at-most", type=int, help="cases to run this time")
    words.add_argument("--parts", type=int, default=1, help="processes that share the cases, each with its own --part")
    words.add_argument("--part", type=int, default=0)
    words.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    return words.parse_args()


class Journal:
    """What has been found so far, case by case; in a file if there is one."""

    def __init__(self, path: Path | None, seed: int) -> None:
        self.path = path
        self.seed = seed
        self.found: dict[int, list[str]] = {}
        self.seconds = 0.0
        if path is not None and path.exists():
            for line in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
                if line["seed"] == seed:
                    self.found[line["case"]] = line["found"]
                    self.seconds += line["seconds"]

    def add(self, case: Case, found: list[str], seconds: float) -> None:
        self.found[case.number] = found
        self.seconds += seconds
        if self.path is not None:
            line = {"seed": self.seed, "case": case.number, "found": found, "seconds": round(seconds, 3)}
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    @property
    def mismatches(self) -> dict[int, list[str]]:
        return {number: found for number, found in self.found.items() if found}


def run(cases: Sequence[Case], journal: Journal) -> None:
    """Run cases one after another; the runs of one that differs are kept."""
    memory = Path("/dev/shm")  # no disk needs to hear of hundreds of runs
    home = Path(tempfile.mkdtemp(prefix="campaign-", dir=memory if memory.is_dir() else None))
    differs = False
    try:
        with RankPool() as pool:
            for done, case in enumerate(cases, start=1):
                start = time.monotonic()
                try:
                    found = check_in(pool, case, home / str(case.number))
                except Exception as problem:  # noqa: BLE001 - a finding: the other cases still count
                    found = [f"{type(problem).__name__}: {problem}"]
                journal.add(case, found, time.monotonic() - start)
                if found:
                    differs = True
                    print(f"case {case.number} differs: {case}\n  {', '.join(found[:5])}\n  {home / str(case.number)}")
                if done % 10 == 0:
                    print(f"{done} of {len(cases)}: {len(journal.mismatches)} differ", flush=True)
    finally:
        if not differs:
            shutil.rmtree(home, ignore_errors=True)


def result_text(cases: Sequence[Case], journal: Journal, seed: int) -> str:
    """Return the page about a campaign."""
    mismatches, seconds = journal.mismatches, journal.seconds
    ends = [case.interruption for case in cases if case.interruption is not None and case.refused is None]
    kills = sum(end.moment in KILLS for end in ends)
    refused = [case for case in cases if case.refused is not None]
    places = [case.place for case in cases] + [end.resume for end in ends]
    rows = {
        "mode": Counter(place.mode for place in places),
        "ranks": Counter(f"W={place.world_size}" for place in places),
        "fixed shards": Counter(f"V={case.shards}" for case in cases),
        "shards of a rank": Counter("changing" if place.balance else "fixed" for place in places),
        "loader workers": Counter(str(place.workers) for place in places),
        "trained": Counter(case.subject for case in cases),
        "part of the module": Counter(part.__name__ for case in cases for part in case.parts),
        "optimizer": Counter(case.optimizer for case in cases),
        "bucket": Counter(f"{case.bucket_bytes} bytes" for case in cases),
        "interrupted": Counter(end.moment for end in ends),
        "refused": Counter(str(case.refused) for case in refused),
    }
    lines = [
        "# The campaign",
        "",
        "Written by `make campaign`: random modules and runs of `--exact bitwise`, each compared with a run of the",
        "same settings on one rank that was not interrupted. Half of them train another task or a loop of a user",
        "(`subjects.py`). Compared are all bits of weights, buffers, optimizer, moving average and progress after the",
        "last step, and every recorded loss and score. `parts.py` has the parts that modules are made of. An",
        "interrupted run resumes in another mode, with other ranks and shards.",
        "A module with a part that cannot be bitwise must be refused, by the name of the attribute.",
        "",
        f"**{count(len(cases))} cases, {count(len(ends))} of them interrupted ({count(kills)} by SIGKILL), "
        f"resumed, {count(len(refused))} refused by name: {count(len(mismatches))} differences.** Seed {seed}.",
        "",
        f"{cpu_name()}, {os.cpu_count()} cores, torch {torch.__version__}, gloo, one thread/rank; {duration(seconds)}.",
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
