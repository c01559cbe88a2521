"""CPU seconds from the start of the process to the first training step: Paceline against `import torch` and a raw loop.

python -m benchmarks.start_up
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

RAW = """
import time, torch
from torch import nn
torch.set_num_threads(1)
images, labels = torch.randn(1293, 1, 8, 8), torch.randint(0, 10, (1293,))
class Net(nn.Sequential):
    def forward(self, images):
        print(time.process_time(), flush=True)
        return super().forward(images)
model = Net(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
nn.functional.cross_entropy(model(images[:64]), labels[:64]).backward()
optimizer.step()
"""

PLUGIN = """
import time
from torch import nn
class Net(nn.Sequential):
    def __init__(self, num_classes):
        super().__init__(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, num_classes))
    def forward(self, images):
        if self.training and len(images) == 64:
            print(time.process_time(), flush=True)
        return super().forward(images)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the CPU time before the first step")
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        plugin = Path(folder) / "net.py"
        plugin.write_text(PLUGIN)
        flags = f"train --model {plugin}:Net -b 64 --steps 1 --threads 1 --runs-dir {folder}/runs".split()
        commands = {"raw loop": [sys.executable, "-c", RAW], "paceline": [sys.executable, "-m", "paceline", *flags]}
        seconds: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(rounds + 1):
            for name, command in commands.items():
                seconds[name].append(_first_number(command))
    medians = {name: statistics.median(values[1:]) for name, values in seconds.items()}
    print("\nCPU seconds from start to first step, median")
    for name, value in medians.items():
        print(f"  {name:<10}  {value:.2f} s   {value - medians['raw loop']:+.2f} s")


def _first_number(command: list[str]) -> float:
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    for line in output.splitlines():
        try:
            return float(line)
        except ValueError:
            continue
    raise AssertionError(f"no time in the output of {command}: {output}")


if __name__ == "__main__":
    main()
