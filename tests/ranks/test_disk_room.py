"""The size of a checkpoint that several ranks write: the sum of their shards."""

from paceline.core.config import Config
from paceline.engine.disk_room import checkpoint_bytes
from paceline.engine.job import build_job
from paceline.engine.progress import Progress


def measured(team, mode):
    config = Config(model="mlp", data="digits", mode=mode, device="cpu", optimizer="adamw")
    return checkpoint_bytes(build_job(config, team), Progress(), team)


def test_shards_add_up_to_the_size_of_a_whole_checkpoint(ranks):
    (whole,) = set(ranks(2).run(measured, "ddp"))
    assert whole > 3 * 4 * 64 * 10, "weights and two moments"
    assert ranks(2).run(measured, "fsdp") == [whole, whole]
