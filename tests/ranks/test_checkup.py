"""The check-up of real ranks: one folder, one time, links that carry more when messages are larger."""

from dataclasses import replace
from pathlib import Path

from paceline.analysis.checkup import findings
from paceline.parallel.checkup import check_up


def look(team, folder, own=False):
    """Look at a folder, or at one of each rank's own."""
    where = Path(folder) / str(team.world.rank) if own else Path(folder)
    return check_up(team, where, gpus_there=0, largest=1 << 20, environ={})


def quiet(checkup):
    """Return the check-up without what a busy machine adds."""
    ranks = tuple(replace(rank, load=0.0, open_files=4096, shared_memory=1 << 30) for rank in checkup.ranks)
    calm = tuple(replace(point, samples=(min(point.samples),)) for point in checkup.sweep)
    folder = tuple(replace(one, sync_seconds=0.0, bytes_per_second=1e9) for one in checkup.folder)
    return replace(checkup, ranks=ranks, sweep=calm, folder=folder)


def test_ranks_that_share_a_folder_are_healthy(ranks, tmp_path):
    first, second = ranks(2).run(look, str(tmp_path / "runs"))
    assert first == second, "every rank knows the whole of it"
    assert findings(quiet(first)) == []
    assert [rank.rank for rank in first.ranks] == [0, 1]
    assert [point.bytes for point in first.sweep] == [4**power * 1024 for power in range(6)]
    assert all(one.sees_lead and one.locks and one.replaces for one in first.folder)
    assert not (tmp_path / "runs").exists(), "nothing is left behind"


def test_a_rank_with_a_folder_of_its_own_is_found(ranks, tmp_path):
    checkup = ranks(2).run(look, str(tmp_path), True)[0]
    (finding,) = findings(quiet(checkup))
    assert "is not the folder that rank 0 sees" in finding.text


def test_a_folder_that_nobody_can_write_to_is_found(ranks):
    checkup = ranks(2).run(look, "/proc/nothing")[0]
    (finding,) = findings(quiet(checkup))
    assert finding.level == "problem"
    assert "cannot write to /proc/nothing" in finding.text


def test_a_lone_rank_has_no_links(ranks, tmp_path):
    (checkup,) = ranks(1).run(look, str(tmp_path))
    assert checkup.sweep == ()
    assert checkup.clocks == (0.0,)
