"""Reports to Ray Train, on every rank; tests/launching/test_engines.py has a real Ray."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from paceline.core.errors import ConfigError
from paceline.trackers import ray
from paceline.trackers.choose import choose_trackers
from tests.trackers.sample_records import EPOCH, RUN, STEP


@pytest.fixture
def worker(monkeypatch):
    """Return a function that makes this process a worker of a Ray that keeps what it is told."""

    def become(rank: int) -> list:
        reports = []

        def report(metrics, checkpoint):
            reports.append((metrics, checkpoint and Path(checkpoint, "run.txt").read_text()))

        train = SimpleNamespace(
            get_context=lambda: SimpleNamespace(get_world_rank=lambda: rank),
            report=report,
            Checkpoint=SimpleNamespace(from_directory=lambda place: place),
        )
        monkeypatch.setattr(ray, "find_spec", lambda _name: object())
        monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(train=train))
        monkeypatch.setitem(sys.modules, "ray.train", train)
        return reports

    return become


@pytest.mark.parametrize("rank", [0, 1])
def test_every_rank_reports_epochs_and_the_lead_where_the_run_is(worker, rank):
    reports = worker(rank)
    tracker = choose_trackers(("ray",), say=print, is_lead=rank == 0)[-1]
    tracker.open(RUN)
    tracker.record(STEP)
    tracker.record(EPOCH)
    ((metrics, place),) = reports
    assert (metrics["epoch"], metrics["step"]) == (EPOCH.epoch, EPOCH.step)
    assert "loss/val" in metrics
    assert place == (f"{RUN.folder.path.absolute()}\n" if rank == 0 else None)


def test_other_ranks_have_no_other_tracker(worker):
    worker(1)
    assert [type(tracker) for tracker in choose_trackers(("auto", "ray"), say=print, is_lead=False)] == [ray.RayTrain]
    assert choose_trackers(("auto",), say=print, is_lead=False) == []


def test_outside_of_a_worker_it_is_refused(worker, monkeypatch):
    monkeypatch.setattr(ray, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match="--track ray needs the ray package"):
        choose_trackers(("ray",), say=print)
    worker(0)
    monkeypatch.delattr(sys.modules["ray.train"], "get_context")
    with pytest.raises(ConfigError, match="works in the workers of Ray Train only"):
        choose_trackers(("ray",), say=print)
