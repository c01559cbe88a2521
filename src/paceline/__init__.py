"""Paceline: train one PyTorch model the same way on one device, one node or many.

import paceline
result = paceline.train(paceline.Config(model="resnet20", data="digits", epochs=5))
print(result.test.top1)
"""

from paceline.commands.launch import launch
from paceline.commands.train import train
from paceline.core.config import Config
from paceline.core.errors import PacelineError
from paceline.core.metrics import Score
from paceline.records.entries import RunResult

__all__ = ["Config", "PacelineError", "RunResult", "Score", "launch", "train"]
