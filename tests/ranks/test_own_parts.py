"""Own optimizer, schedule and augmentation over ranks: the same bits as on one, also after a resume."""

import pytest

from paceline.core.config import Config
from paceline.core.errors import ConfigError
from paceline.engine.job import build_job
from paceline.parallel.team import Team
from tests.ranks.runs import exact_settings, train, unequal

OWN = """
import torch


class Slowing(torch.optim.Adam):
    def __init__(self, params, lr):
        super().__init__(params, lr)
        for group in self.param_groups:
            group["total"] = torch.zeros(())

    def step(self, closure=None):
        for group in self.param_groups:
            group["total"] += 1
            group["lr"] /= group["total"].item()
            for parameter in group["params"]:
                parameter.grad.add_(torch.randn_like(parameter), alpha=1e-3)  # the same on every rank
        return super().step(closure)


def factor(step, steps_per_epoch):
    return 1 / (1 + step % steps_per_epoch)


def noisy(image):
    return (image.int() + torch.randint(0, 40, image.shape)).clamp(0, 255).byte()
"""


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN)

    def settings(**others):
        named = {"optimizer": f"{path}:Slowing", "schedule": f"{path}:factor", "augment": f"crop1,{path}:noisy"}
        return exact_settings(tmp_path, **(named | {"model": "mlp", "lr": 0.01} | others))

    return settings


def refused(team: Team, settings) -> str:
    with pytest.raises(ConfigError) as caught:
        build_job(Config(**settings), team)
    return caught.value.message


def test_own_parts_are_bitwise_at_every_world_size_and_after_a_resume(ranks, own):
    alone = train(ranks, 1, own())
    assert unequal(alone, train(ranks, 2, own())) == []
    stopped = train(ranks, 2, own(), None, 1, 4)
    assert unequal(alone, train(ranks, 1, own(), stopped)) == []
    other = train(ranks, 2, own(augment="crop1"))
    assert unequal(alone, other), "the own step takes part"


def test_an_own_optimizer_is_not_bitwise_on_shards_of_parameters(ranks, own):
    for message in ranks(2).run(refused, own(mode="fsdp")):
        assert "Slowing may round differently on the shards of each rank" in message
