"""Bottlenecks that explain finds on real ranks, one of which has a planted cause."""

import os

import pytest

from lab import planted
from paceline.core.config import Config
from paceline.core.setting_types import Interval
from paceline.explain.bottlenecks import find_bottlenecks
from paceline.explain.time_split import split_time
from paceline.parallel.team import Team
from paceline.records.folder import RunFolder
from paceline.records.phases import read_phases
from tests.ranks.runs import train_rank

PLANTED = ("slow loader", "slow rank", "checkpoint")
"""Others, such as "cores", other programs may bring about; `make causes` looks for silence on a quiet machine."""


def train_with_cause(team: Team, settings: dict, cause: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(planted.CAUSE, cause)
        patch.setattr(os, "fsync", os.fsync)  # which a slow disk replaces
        train_rank(team, settings)


def causes_of(ranks, folder, cause: str) -> list[str]:
    """Return the causes that explain names in a run with this one planted."""
    every = {"eval_every": Interval(1000, "step"), "save_every": Interval(8, "step"), "track": ()}
    settings = planted.SETTINGS | every | {"runs_dir": folder}
    ranks(2).run(train_with_cause, settings, cause)
    (run,) = folder.glob("*/*")
    split = split_time(read_phases(RunFolder(run)))
    assert split is not None
    return [bottleneck.kind for bottleneck in find_bottlenecks(split, Config(**settings)) if bottleneck.kind in PLANTED]


@pytest.mark.parametrize("cause", PLANTED)
def test_the_cause_is_named(ranks, tmp_path, cause):
    assert causes_of(ranks, tmp_path / "runs", cause)[:1] == [cause]


def test_no_cause_is_named_where_there_is_none(ranks, tmp_path):
    """In one of three runs: other tests may keep the disk busy in the others."""
    assert any(causes_of(ranks, tmp_path / str(number), "none") == [] for number in range(3))
