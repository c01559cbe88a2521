"""What plain DDP leaves on each rank, seen by `paceline compare`."""

from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from paceline.compare.contents import compare_contents, explain_differences
from paceline.compare.sections import read_contents
from paceline.compare.tensors import Status
from paceline.parallel.buffers import average_buffers
from paceline.parallel.team import Team


def train_and_save(team: Team, folder: Path, settle: bool) -> None:
    """Train as a script on plain DDP does, each rank on its own samples, and save each rank's model."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 10))
    wrapped = DistributedDataParallel(model, broadcast_buffers=False)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(team.world.rank)
    for _ in range(3):
        wrapped(torch.randn(8, 1, 8, 8, generator=generator)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if settle:
        average_buffers(model, team)
    torch.save(wrapped.state_dict(), folder / f"rank{team.world.rank}.pth")


def compare_ranks(folder: Path):
    files = [read_contents(folder / f"rank{rank}.pth", runs_dir=folder, checkpoint="last") for rank in (0, 1)]
    return compare_contents(*files)


def test_plain_ddp_leaves_equal_weights_and_unequal_statistics_which_is_explained(ranks, tmp_path):
    ranks(2).run(train_and_save, tmp_path, False)
    found = compare_ranks(tmp_path)
    assert {entry.name for _, entry in found.unequal()} == {"1.running_mean", "1.running_var"}
    (sentence,) = explain_differences(found)
    assert "only 2 running statistics of batch norm differ" in sentence


def test_averaged_statistics_are_equal(ranks, tmp_path):
    ranks(2).run(train_and_save, tmp_path, True)
    assert compare_ranks(tmp_path).status is Status.EQUAL
