"""Runs a case and its reference in the rank pool, and reports where they differ."""

import shutil
from pathlib import Path
from typing import Any

from paceline.compare.contents import compare_contents
from paceline.compare.sections import read_contents
from paceline.core.errors import PacelineError, RanksError
from paceline.records.entries import State
from paceline.records.folder import RunFolder
from paceline.records.reader import run_state
from tests.campaign.cases import ALONE, Case
from tests.campaign.inside import train_case
from tests.ranks.pool import RankPool
from tests.states import untimed_records


def check(pool: RankPool, case: Case, folder: Path, *, fault: str | None = None) -> list[str]:
    """Return where the case differs from one rank without an interruption; nothing when every bit is the same."""
    if case.refused is not None:
        return check_refusal(pool, case, folder)
    reference = pool.of(1).run(train_case, case.settings(folder / "reference", ALONE))[0]
    settings = case.settings(folder / "case", case.place)
    try:
        if case.interruption is None:
            found = pool.of(case.place.world_size).run(train_case, settings, None, None, fault, case.bucket_bytes)[0]
        else:
            found = interrupted_and_resumed(pool, case, folder)
    except RanksError as problem:  # the ranks themselves saw that they differ
        return [problem.message]
    return unequal(reference, found)


def check_refusal(pool: RankPool, case: Case, folder: Path) -> list[str]:
    """Return what is wrong with the refusal of a module that cannot be bitwise."""
    try:
        pool.of(case.place.world_size).run(train_case, case.settings(folder / "case", case.place))
    except PacelineError as problem:
        named = str(case.refused) in problem.message
        return [] if named else [f"the refusal does not name {case.refused}: {problem.message}"]
    return [f"{case.refused} was not refused"]


def interrupted_and_resumed(pool: RankPool, case: Case, folder: Path) -> Path:
    end = case.interruption
    assert end is not None
    words = (case.settings(folder / "case", case.place), None, end, None, case.bucket_bytes)
    if end.moment == "on a signal":
        pool.of(case.place.world_size).run(train_case, *words)
    else:
        pool.of(case.place.world_size).run_until_death(end.rank, train_case, *words)
    (run,) = (folder / "case").glob("*/001")
    if run_state(RunFolder(run)) == State.FINISHED:  # several ranks stop a few steps after a signal
        return run
    again = case.settings(folder / "case", end.resume)
    return pool.of(end.resume.world_size).run(train_case, again, run, None, None, case.bucket_bytes)[0]


def unequal(first: Path, second: Path) -> list[str]:
    """Return the names of everything that differs: state after the last step, and every loss and score on the way."""
    held = [read_contents(path, runs_dir=path, checkpoint="last") for path in (first, second)]
    compared = compare_contents(*held)
    assert {"weights", "optimizer", "progress", "fingerprint"} <= {part.name for part in compared.parts}
    found = [f"{part} {entry.name}" for part, entry in compared.unequal()] + list(compared.missing)
    records = [recorded(path) for path in (first, second)]
    assert len(records[0]) >= 3
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
        shutil.rmtree(folder, ignore_errors=True)  # a refused case has left nothing
    return found
