"""From the command to the first step of all its ranks: Paceline against a plain script, one rank and two.

    python -m benchmarks.start_up [--rounds 10 | --quick]

The plain script imports torch and takes one step of the same model. Wall seconds are those of the last rank to arrive;
CPU seconds are those of one rank. Commands take turns, differences are taken within a round.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ARRIVED = "first step at"

PLAIN_ALONE, OURS_ALONE = "plain script, 1 rank", "paceline train, 1 rank"
PLAIN_RANKS, OURS_TORCHRUN = "plain script, torchrun, 2 ranks", "torchrun -m paceline train, 2 ranks"
OURS_RANKS = "paceline train --nproc 2"
BESIDE = {
    PLAIN_ALONE: (),
    OURS_ALONE: (PLAIN_ALONE,),
    PLAIN_RANKS: (PLAIN_ALONE,),
    OURS_TORCHRUN: (PLAIN_RANKS,),
    OURS_RANKS: (OURS_TORCHRUN, PLAIN_RANKS, OURS_ALONE),
}
"""Which command each is compared with."""

PLAIN = """
import os, time, torch, torch.distributed as dist
from torch import nn
torch.set_num_threads(1)
images, labels = torch.randn(1293, 1, 8, 8), torch.randint(0, 10, (1293,))
class Net(nn.Sequential):
    def forward(self, images):
        os.write(1, f"first step at {time.time()} {time.process_time()}\\n".encode())
        return super().forward(images)
model = Net(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
if "RANK" in os.environ:
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
nn.functional.cross_entropy(model(images[:64]), labels[:64]).backward()
optimizer.step()
"""

PLUGIN = """
import os, time
from torch import nn
class Net(nn.Sequential):
    def __init__(self, num_classes):
        super().__init__(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, num_classes))
    def forward(self, images):
        if self.training and len(images) == 64:
            os.write(1, f"first step at {time.time()} {time.process_time()}\\n".encode())
        return super().forward(images)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the way to the first step")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--quick", dest="rounds", action="store_const", const=1, help="one round")
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as name:
        commands = commands_in(Path(name))
        seconds: dict[str, list[tuple[float, float]]] = {title: [] for title in commands}
        for number in range(rounds + 1):
            for title, command in commands.items():
                taken = seconds_to_first_step(command)
                if number:
                    seconds[title].append(taken)
    print(f"\nfrom the command to the first step, {rounds} rounds in turns: wall, CPU, and more than another command")
    for title, values in seconds.items():
        wall, cpu = (statistics.median(column) for column in zip(*values, strict=True))
        print(f"  {title:<36} {wall:6.2f} s {cpu:6.2f} s" + "".join(more(values, seconds[o], o) for o in BESIDE[title]))


def more(values: list[tuple[float, float]], others: list[tuple[float, float]], title: str) -> str:
    """Return how much more time than another command was taken, by the median of the rounds and its middle half."""
    wall, cpu = zip(*((v[0] - o[0], v[1] - o[1]) for v, o in zip(values, others, strict=True)), strict=True)
    ordered, quarter = sorted(wall), len(wall) // 4
    middle = f"({ordered[quarter]:+.2f} … {ordered[-1 - quarter]:+.2f})"
    return f"\n{'':>8}{statistics.median(wall):+.2f} s {middle}, {statistics.median(cpu):+.2f} s beside {title}"


def commands_in(folder: Path) -> dict[str, list[str]]:
    """Return the commands that take turns."""
    (folder / "net.py").write_text(PLUGIN)
    (folder / "plain.py").write_text(PLAIN)
    train = f"-m paceline train --model {folder}/net.py:Net --steps 1 --threads 1 --runs-dir {folder}/runs".split()
    python = [sys.executable]
    torchrun = [*python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return {
        PLAIN_ALONE: [*python, f"{folder}/plain.py"],
        OURS_ALONE: [*python, *train, "-b", "64"],
        PLAIN_RANKS: [*torchrun, f"{folder}/plain.py"],
        OURS_TORCHRUN: [*torchrun, *train, "-b", "128"],
        OURS_RANKS: [*python, *train, "-b", "128", "--nproc", "2"],
    }


def seconds_to_first_step(command: list[str]) -> tuple[float, float]:
    """Return the wall seconds until the last rank is there, and the CPU seconds of the one that used most."""
    environ = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)  # the first round, which does not count, compiles
    begin = time.time()
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env=environ).stdout
    arrivals = [line.split()[-2:] for line in output.splitlines() if line.startswith(ARRIVED)]
    return max(float(moment) for moment, _ in arrivals) - begin, max(float(cpu) for _, cpu in arrivals)


if __name__ == "__main__":
    main()
