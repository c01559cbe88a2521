"""Paceline in Ray Train: two workers are two ranks of one run, and their scores reach `ray.train.report`.

    pip install 'paceline[ray]' && python examples/ray_train.py

Ray restarts the workers after a failure, and `resume="auto"` continues the run. The runs folder must be one that every
node can see.
"""

import sys
from pathlib import Path

from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

import paceline


def train_worker(settings):
    """Train as one worker, in the process group that Ray has connected."""
    paceline.train(paceline.Config(**settings), resume="auto")


def main(folder):
    """Train on two workers with a core each, and print the scores that Ray received."""
    trainer = TorchTrainer(
        train_worker,
        train_loop_config={"model": "mlp", "epochs": 3, "track": ("ray",), "runs_dir": folder / "runs"},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(folder / "ray"), failure_config=FailureConfig(max_failures=1)),
    )
    result = trainer.fit()
    print(f"Ray received: {result.metrics}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else ".").absolute())
