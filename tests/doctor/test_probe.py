"""What a lone rank and its folder can do, tried on real ones. Several ranks: tests/ranks/test_doctor."""

from pathlib import Path

import pytest
import torch

from paceline.core.world import World
from paceline.doctor.probe import can_replace, check_up, file_system, time_sync, time_writing
from paceline.parallel.team import Team

ALONE = Team(World(), torch.device("cpu"))


def test_a_file_is_replaced_in_one_step(tmp_path):
    assert can_replace(tmp_path, "probe")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("timed", [time_sync, time_writing])
def test_writing_is_timed_and_leaves_nothing(tmp_path, timed):
    assert timed(tmp_path, "probe") > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("tried", [can_replace, time_sync, time_writing])
def test_a_folder_that_takes_no_file_raises_the_error_of_the_system(tried):
    with pytest.raises(OSError, match="/proc/probe"):
        tried(Path("/proc"), "probe")


def test_the_innermost_mount_names_the_file_system(tmp_path):
    assert file_system(Path("/proc/self")) == "proc"
    assert file_system(tmp_path / "gone" / "further") == file_system(tmp_path) != "proc"
    (tmp_path / "link").symlink_to("/proc")
    assert file_system(tmp_path / "link") == "proc"


def test_a_lone_rank_has_no_links(tmp_path):
    checkup = check_up(ALONE, tmp_path, gpus_there=0, largest=1 << 20, environ={})
    assert (checkup.sweep, checkup.clocks, checkup.backend) == ((), (0.0,), "none")
    assert checkup.ranks[0].interface is None
    assert checkup.ranks[0].can_listen


def test_a_folder_that_was_not_there_is_removed_again(tmp_path):
    (folder,) = check_up(ALONE, tmp_path / "a" / "runs", gpus_there=0, largest=1 << 20, environ={}).folder
    assert (folder.error, folder.sees_lead, folder.locks, folder.replaces) == (None, True, True, True)
    assert not (tmp_path / "a" / "runs").exists()


def test_a_folder_that_cannot_be_made_is_an_error_and_no_crash():
    (folder,) = check_up(ALONE, Path("/proc/nothing"), gpus_there=0, largest=1 << 20, environ={}).folder
    assert (folder.error, folder.kind) == ("No such file or directory: /proc/nothing", "unknown")
