"""Parts that an installed package offers by a short name."""

import importlib
import sys
from typing import Any

import pytest

import paceline
from paceline.core.entry_points import entry_names, is_own_part, load_part
from paceline.core.errors import ModelError, PacelineError, TaskError
from paceline.data.catalog import open_data
from paceline.models.zoo import build_model
from paceline.tasks.choose_task import choose_task
from tests.conftest import make_small_config

PARTS = """
import torch
from torch import nn

import paceline


class Board:
    seen = []

    def open(self, run):
        self.seen.append("open")

    def record(self, entry):
        self.seen.extend(sorted(paceline.scalars(entry)))

    def close(self, result):
        self.seen.append(str(result.state))


class Absolute(paceline.Task):
    def loss(self, outputs, targets):
        return (outputs - targets).abs().sum()


def build(num_classes, image_shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))


def points():
    images = torch.arange(40 * 64, dtype=torch.float32).reshape(40, 1, 8, 8) % 7
    return torch.utils.data.TensorDataset(images, torch.arange(40) % 4)
"""
ENTRIES = """
[paceline.trackers]
board = acme_parts:Board
torn = acme_parts:Missing
[paceline.tasks]
absolute = acme_parts:Absolute
[paceline.models]
acme-net = acme_parts:build
torn = acme_gone:build
[paceline.data]
acme-points = acme_parts:points
"""


@pytest.fixture
def acme(tmp_path, monkeypatch):
    """Install a package with entry points, and return its module."""
    site = tmp_path / "site"
    facts = site / "acme_parts-1.0.dist-info"
    facts.mkdir(parents=True)
    (site / "acme_parts.py").write_text(PARTS, encoding="utf-8")
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-parts\nVersion: 1.0\n", encoding="utf-8")
    (facts / "entry_points.txt").write_text(ENTRIES, encoding="utf-8")
    monkeypatch.syspath_prepend(str(site))
    importlib.invalidate_caches()
    yield importlib.import_module("acme_parts")
    del sys.modules["acme_parts"]


def test_every_kind_of_part_is_found_by_its_name(acme):
    assert type(choose_task("absolute", {})) is acme.Absolute
    built: Any = build_model("acme-net", num_classes=4, image_shape=(1, 8, 8))
    assert built[1].out_features == 4
    assert len(open_data(paceline.Config(data="acme-points")).train) == 36
    assert "board" in entry_names("trackers")


def test_a_run_uses_model_data_and_tracker_of_a_package(acme, elsewhere, one_thread):
    config = make_small_config(
        elsewhere / "runs", data="acme-points", model="acme-net", track=("board",), epochs=1, global_batch=8
    )
    result = paceline.train(config)
    assert acme.Board.seen[0] == "open"
    assert acme.Board.seen[-1] == str(result.state)
    assert {"loss/train", "loss/val", "loss/test"} <= set(acme.Board.seen)


def test_without_the_package_the_names_are_refused_and_with_it_suggested(request):
    with pytest.raises(ModelError, match="there is no model acme-net"):
        build_model("acme-net", num_classes=4, image_shape=(1, 8, 8))
    with pytest.raises(PacelineError, match='lists "board", which is not a tracker'):
        paceline.Config(track=("board",))
    request.getfixturevalue("acme")
    with pytest.raises(ModelError) as caught:
        build_model("acme-nett", num_classes=4, image_shape=(1, 8, 8))
    assert "acme-net" in str(caught.value.hint)


def test_a_package_that_cannot_be_imported_is_named(acme):
    with pytest.raises(ModelError, match=r"acme_gone:build of acme-parts.*ModuleNotFoundError"):
        build_model("torn", num_classes=4, image_shape=(1, 8, 8))
    with pytest.raises(TaskError, match=r"acme_parts:Missing of acme-parts"):
        load_part("trackers", "torn", TaskError)


def test_a_name_of_ours_needs_no_look_at_the_installed_packages(monkeypatch):
    def scan(**_query):
        raise AssertionError("installed packages were searched")

    monkeypatch.setattr("importlib.metadata.entry_points", scan)
    paceline.Config(track=("tensorboard",))
    build_model("mlp", num_classes=10, image_shape=(1, 8, 8))
    open_data(paceline.Config(data="digits"))
    with pytest.raises(AssertionError, match="were searched"):
        is_own_part("models", "other")
