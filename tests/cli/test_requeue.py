"""Queueing a job again: by the lead, after a notice, and only so often."""

import signal

import pytest

from paceline.commands.train import after_stop
from paceline.core.errors import SettingError
from paceline.core.start import Start
from paceline.core.world import World


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Put a `scontrol` first that writes down its words, and return the file."""
    tool = tmp_path / "scontrol"
    tool.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    return tmp_path / "asked"


def test_the_lead_queues_its_job_again_after_a_notice(asked, capsys):
    assert after_stop(signal.SIGUSR1, World(launcher="Slurm"), Start()) == 0
    assert asked.read_text() == "requeue 4711\n"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("number", "world"), [(signal.SIGTERM, World()), (signal.SIGUSR1, World(rank=1, size=2))])
def test_no_other_rank_or_signal_requeues_a_job(asked, number, world):
    after_stop(number, world, Start())
    assert not asked.exists()


@pytest.mark.parametrize(("turns", "again"), [(2, True), (3, False)])
def test_a_job_at_its_requeue_limit_stays_stopped_with_a_message(asked, capsys, monkeypatch, turns, again):
    monkeypatch.setenv("SLURM_RESTART_COUNT", str(turns))
    after_stop(signal.SIGUSR1, World(launcher="Slurm"), Start(max_requeues=3))
    assert asked.exists() == again
    message = "paceline: job 4711 was not requeued: it was requeued 3 times, and --max-requeues is 3\n"
    assert capsys.readouterr().err == ("" if again else message)


def test_a_negative_requeue_limit_is_refused():
    with pytest.raises(SettingError, match="--max-requeues is -1, but must be at least 0"):
        Start(max_requeues=-1)
