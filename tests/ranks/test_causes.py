"""What explain says of real ranks, one of which has a cause planted."""

import os

import pytest
import torch

from paceline.analysis.explain import explain
from paceline.analysis.phases import split_time
from paceline.core.config import Config
from paceline.core.interval import Interval
from paceline.core.start import Start
from paceline.engine.rank import Beginning
from paceline.engine.signals import StopRequest
from paceline.parallel.team import Team
from paceline.records.folder import RunFolder
from paceline.records.phases import read_phases
from tests import planted

PLANTED = ("slow loader", "slow rank", "checkpoint")
"""Others, such as "cores", other programs may bring about; `make causes` looks for silence on a quiet machine."""


def live(team: Team, settings: dict, cause: str) -> None:
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(planted.CAUSE, cause)
        patch.setattr(os, "fsync", os.fsync)  # which a slow disk replaces
        Beginning(Config(**settings), team, Start()).run(StopRequest(), None)


@pytest.mark.parametrize("cause", [*PLANTED, "none"])
def test_the_cause_is_named_and_where_there_is_none_none_is(ranks, tmp_path, cause):
    every = {"eval_every": Interval(1000, "step"), "save_every": Interval(8, "step"), "track": ()}
    settings = planted.SETTINGS | every | {"runs_dir": tmp_path / "runs"}
    ranks(2).run(live, settings, cause)
    (folder,) = tmp_path.glob("runs/*/*")
    split = split_time(read_phases(RunFolder(folder)))
    assert split is not None
    found = [finding.cause for finding in explain(split, Config(**settings)) if finding.cause in PLANTED]
    assert found[:1] == ([] if cause == "none" else [cause])
