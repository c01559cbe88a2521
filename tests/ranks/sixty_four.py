"""Trains with many real ranks on one machine: a process each, with one thread, forked from one that imported torch.

python -m tests.ranks.sixty_four RUNS_DIR WORLD_SIZE
"""

import json
import os
import sys
import traceback
from pathlib import Path

import torch

from paceline.core.config import Config
from paceline.core.setting_types import Interval
from paceline.core.world import World
from paceline.engine.rank import run_rank
from paceline.parallel.team import Team

SHARDS = 64


def settings(runs_dir: Path, world_size: int) -> Config:
    return Config(
        model="mlp", exact="bitwise", shards=SHARDS, global_batch=2 * SHARDS, steps=4, save_every=Interval(2, "step"),
        threads=1, log_every=2, track=(), name=f"ranks-{world_size}", runs_dir=runs_dir,
    )  # fmt: skip


def num_sockets() -> int:
    """Return the number of sockets of this process."""
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sum(str(link.readlink()).startswith("socket:") for link in links)


def rank_main(runs_dir: Path, rank: int, size: int) -> None:
    most = [0]
    barrier = Team.barrier

    def counted(self: Team) -> None:
        most[0] = max(most[0], num_sockets())
        barrier(self)

    Team.barrier = counted
    world = World(
        rank=rank, size=size, local_rank=rank, local_size=size, launcher="flags",
        init_method=f"file://{runs_dir}/meet-{size}",
    )  # fmt: skip
    run_rank(settings(runs_dir, size), world)
    (runs_dir / f"sockets-{size}-{rank}.json").write_text(json.dumps(most[0]))


def main() -> None:
    runs_dir, size = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    children = []
    for rank in range(size):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                rank_main(runs_dir, rank, size)
                code = 0
            except BaseException:  # noqa: BLE001 - a child must not return
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    sys.exit(max(map(abs, codes)))


if __name__ == "__main__":
    main()
