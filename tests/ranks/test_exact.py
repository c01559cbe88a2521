"""`--exact bitwise`: the same bits at every world size, through stops and resumes at another; and what would break it."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from paceline.core.config import Config
from paceline.core.errors import ConfigError, ModelError, RanksError, RunError
from paceline.core.start import Start
from paceline.engine.rank import Beginning
from paceline.parallel.team import Team
from paceline.records.folder import RunFolder
from paceline.records.reader import read_metrics
from tests.engine.conftest import differences, final_state
from tests.ranks.test_training import StopAt

VARYING = {"images_per_s", "seconds", "phases", "utilisation", "time"}

MODELS = '''
import torch
from torch import nn

def plain(num_classes, image_shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.GELU(), nn.LayerNorm(48), nn.Linear(48, num_classes))

def dropped(num_classes, image_shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Dropout(0.3), nn.Linear(48, num_classes))

class Partly(nn.Module):
    """Uses one of two branches, by what it sees: parameters that some shards leave without a gradient."""

    def __init__(self, num_classes):
        super().__init__()
        self.inner = nn.ModuleList([nn.Linear(64, num_classes) for _ in range(2)])

    def forward(self, images):
        flat = images.flatten(1)
        return self.inner[int(flat.sum() > 0)](flat)

class Shuffling(nn.Module):
    """Draws random numbers of its own in training."""

    def __init__(self, num_classes):
        super().__init__()
        self.linear = nn.Linear(64, num_classes)

    def forward(self, images):
        flat = images.flatten(1)
        return self.linear(flat + 0.1 * torch.randn_like(flat) if self.training else flat)
'''


@pytest.fixture(scope="session")
def models(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("models") / "models.py"
    path.write_text(MODELS)
    return path


def exact(tmp_path: Path, **settings: Any) -> dict[str, Any]:
    """Return settings of a run of a few steps; 1,293 images in batches of 215 leave three for the seventh."""
    usual = {"model": "mlp", "steps": 9, "global_batch": 215, "lr": 0.05, "track": (), "log_every": 4}
    return usual | {"exact": "bitwise", "shards": 4, "threads": 1, "runs_dir": tmp_path / "runs"} | settings


def live(team: Team, settings: dict[str, Any], resume: Path | None = None, stop_at: int | None = None) -> str:
    torch.set_num_threads(settings["threads"])
    stop = StopAt(stop_at is not None and team.world.rank == team.world.size - 1)
    stop.at = stop_at or 0
    try:
        result = Beginning(Config(**settings), team, Start()).run(stop, None if resume is None else RunFolder(resume))
    finally:
        torch.set_num_threads(1)
    return str(result.folder)


def train(ranks, world_size: int, settings: dict[str, Any], *more: Any) -> Path:
    return Path(ranks(world_size).run(live, settings, *more)[0])


def records(folder: Path) -> list[dict[str, Any]]:
    """Return what a run wrote down of losses and scores, without what depends on the time."""
    return [
        {key: value for key, value in record.items() if key not in VARYING}
        for record in read_metrics(RunFolder(folder))
        if record["kind"] in {"step", "epoch", "eval"}
    ]


def unequal(first: Path, second: Path) -> list[str]:
    """Return where two runs differ: parameters, buffers, optimizer, progress, and every loss on the way."""
    states = differences(final_state(first), final_state(second))
    return states + differences(records(first), records(second), "/records")


CASES = {
    "no batch norm": {"model": "plain", "shards": 4},
    "dropout, adamw": {"model": "dropped", "shards": 6, "optimizer": "adamw", "lr": 0.002, "clip": 0.5},
    "batch norm and dropout": {"model": "cnn", "shards": 8, "ema": 0.9, "global_batch": 127},
    "batch norm, adamw, clipped": {"model": "cnn", "shards": 6, "optimizer": "adamw", "clip": 1.0, "lr": 0.002},
    "parameters without gradient": {"model": "Partly", "shards": 8, "global_batch": 24, "steps": 55},
    "random numbers of its own": {"model": "Shuffling", "shards": 4},
}


@pytest.mark.parametrize("name", CASES)
def test_every_bit_is_the_same_at_every_world_size(ranks, tmp_path, models, name):
    settings = exact(tmp_path, **CASES[name])
    if settings["model"] not in {"cnn", "mlp"}:
        settings["model"] = f"{models}:{settings['model']}"
    alone = train(ranks, 1, settings)
    assert len(records(alone)) > 3
    for world_size in (2, 3, 4):
        assert unequal(alone, train(ranks, world_size, settings)) == [], f"{world_size} ranks"
