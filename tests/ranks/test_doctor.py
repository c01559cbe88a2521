"""The check-up of real ranks: one folder, one time, links that carry more when messages are larger."""

from pathlib import Path

from paceline.doctor.findings import findings
from paceline.doctor.probe import check_up
from paceline.parallel import speed_check
from paceline.parallel.speed_check import measure_speeds, outliers
from tests.ranks.checkups import quiet


def look(team, folder, own=False):
    """Look at a folder, or at one of each rank's own."""
    where = Path(folder) / str(team.world.rank) if own else Path(folder)
    return check_up(team, where, gpus_there=0, largest=1 << 20, environ={})


def test_ranks_that_share_a_folder_are_healthy(ranks, tmp_path):
    first, second = ranks(2).run(look, str(tmp_path / "runs"))
    assert first == second, "every rank knows the whole of it"
    assert findings(quiet(first)) == []
    assert [rank.rank for rank in first.ranks] == [0, 1]
    assert [point.bytes for point in first.sweep] == [4**power * 1024 for power in range(6)]
    assert all(one.sees_lead and one.locks and one.replaces for one in first.folder)
    assert not (tmp_path / "runs").exists(), "nothing is left behind"


def test_a_rank_that_sees_another_folder_is_found(ranks, tmp_path):
    checkup = ranks(2).run(look, str(tmp_path), True)[0]
    (finding,) = findings(quiet(checkup))
    assert "is not the same folder as on rank 0" in finding.text


def test_a_folder_without_write_permission_is_found(ranks):
    checkup = ranks(2).run(look, "/proc/nothing")[0]
    (finding,) = findings(quiet(checkup))
    assert finding.level == "problem"
    assert "cannot write to /proc/nothing" in finding.text


def measured(team, slow_rank=None):
    """Time all ranks; the products of one take ten times as long as they should."""
    product, mm = speed_check.torch.mm, speed_check.torch.mm
    if team.world.rank == slow_rank:
        speed_check.torch.mm = lambda *matrices: [product(*matrices) for _ in range(10)]
    try:
        return measure_speeds(team)
    finally:
        speed_check.torch.mm = mm


def test_ranks_and_their_link_are_timed_and_a_slow_rank_is_named(ranks):
    first, second = ranks(2).run(measured)
    assert first == second
    assert [(pair.first, pair.second, pair.rate > 0) for pair in first.pairs] == [(0, 1, True)]
    slow = ranks(2).run(measured, 1)[0]
    assert any(text.startswith("rank 1 on ") and " computes at " in text for text in outliers(slow))
