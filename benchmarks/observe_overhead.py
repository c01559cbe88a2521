"""What `paceline observe` costs a training step: the same script with and without it, in turns.

    python -m benchmarks.observe_overhead            # mlp and resnet20
    python -m benchmarks.observe_overhead --quick    # a few rounds

The script times its own steps and their CPU time; a process has both numbers printed at its end. One thread, one rank.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.interleave import Outcome, ratios_of

SCRIPT = """
import json, sys, time, torch
from torch.utils.data import DataLoader, TensorDataset
from paceline.models.zoo import build_model
name, steps = sys.argv[1], int(sys.argv[2])
torch.manual_seed(0)
model = build_model(name, num_classes=10, image_shape=(1, 8, 8))
data = TensorDataset(torch.randn(64 * steps, 1, 8, 8), torch.randint(0, 10, (64 * steps,)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader = DataLoader(data, batch_size=64)
for turn in range(2):  # the first warms up
    wall, cpu = time.perf_counter(), time.process_time()
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
print(json.dumps([(time.perf_counter() - wall) / steps, (time.process_time() - cpu) / steps]))
"""
STEPS = {"mlp": 400, "resnet20": 25}


def measure(folder: Path, model: str, *, observed: bool) -> tuple[float, float]:
    """Return the wall and CPU seconds of a step."""
    script = folder / "train.py"
    script.write_text(SCRIPT)
    plain = [sys.executable, str(script), model, str(STEPS[model])]
    command = [sys.executable, "-m", "paceline", "observe", "--", *plain] if observed else plain
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=True)
    wall, cpu = json.loads(done.stdout)
    return wall, cpu


def compare(model: str, rounds: int) -> list[Outcome]:
    """Return the ratios of observed to plain steps: wall time and CPU time."""
    times: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as name:
        for _ in range(rounds):
            for observed in (False, True):
                times[observed].append(measure(Path(name), model, observed=observed))
    return [
        ratios_of(what, [both[index] for both in times[True]], [both[index] for both in times[False]])
        for index, what in enumerate(("wall", "CPU"))
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    rounds = 2 if parser.parse_args().quick else 9
    for model in STEPS:
        for outcome in compare(model, rounds):
            middle = f"{100 * (outcome.low - 1):+.1f} … {100 * (outcome.high - 1):+.1f}"
            ratio = 100 * (outcome.ratio - 1)
            print(f"{model}: {outcome.name} time of a step {ratio:+.1f}% ({middle}), {1e3 * outcome.median:.3f} ms")


if __name__ == "__main__":
    main()
