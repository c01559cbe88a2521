"""Runs a case and its reference in the rank pool, and reports where they differ."""

import shutil
from pathlib import Path
from typing import Any

from paceline.compare.contents import compare_contents
from paceline.compare.sections import read_contents
from paceline.core.errors import RanksError
from tests.campaign.cases import Case
from tests.campaign.inside import train_case
from tests.ranks.pool import RankPool
from tests.states import untimed_records


def check(pool: RankPool, case: Case, folder: Path, *, fault: str | None = None) -> list[str]:
    """Return where the case differs from one rank that nobody killed; nothing when every bit is the same."""
    reference = pool.of(1).run(train_case, case.settings(folder / "reference", workers=0))[0]
    settings = case.settings(folder / "case", case.workers)
    try:
        if case.kill is None:
            found = pool.of(case.world_size).run(train_case, settings, None, None, fault, case.bucket_bytes)[0]
        else:
            found = killed_and_resumed(pool, case, folder)
    except RanksError as problem:  # the ranks themselves saw that they differ
        return [problem.message]
    return unequal(reference, found)


def killed_and_resumed(pool: RankPool, case: Case, folder: Path) -> Path:
    kill = case.kill
    assert kill is not None
    settings = case.settings(folder / "case", case.workers)
    pool.of(case.world_size).run_until_death(kill.rank, train_case, settings, None, kill, None, case.bucket_bytes)
    (run,) = (folder / "case").glob("*/001")
    assert not (run / "checkpoints" / f"step-{case.steps:08d}.json").exists(), "the kill came too late"
    again = case.settings(folder / "case", kill.resume_workers)
    return pool.of(kill.resume_size).run(train_case, again, run, None, None, case.bucket_bytes)[0]


def unequal(first: Path, second: Path) -> list[str]:
    """Return the names of everything that differs: state after the last step, and every loss and score on the way."""
    held = [read_contents(path, runs_dir=path, checkpoint="last") for path in (first, second)]
    compared = compare_contents(*held)
    assert {"weights", "optimizer", "progress", "fingerprint"} <= {part.name for part in compared.parts}
    found = [f"{part} {entry.name}" for part, entry in compared.unequal()] + list(compared.missing)
    records = [recorded(path) for path in (first, second)]
    assert len(records[0]) > 3
    return found + [f"record {key}" for key in records[0] | records[1] if records[0].get(key) != records[1].get(key)]


def recorded(folder: Path) -> dict[str, dict[str, Any]]:
    """Return losses and scores by step; after a kill the last word on a step counts."""
    found = {}
    for record in untimed_records(folder):
        found[f"{record['kind']} {record['step']} {record.get('split', '')}".strip()] = record
    return found


def check_in(pool: RankPool, case: Case, folder: Path, *, fault: str | None = None) -> list[str]:
    """Check a case and remove its runs when they are the same."""
    found = check(pool, case, folder, fault=fault)
    if not found:
        shutil.rmtree(folder)
    return found
