"""Runs that are killed by their own model, and what they left in metrics.jsonl."""

import pytest

KILLED = '''
import os, signal
from torch import nn

class Net(nn.Module):
    """A small network that kills its process, as the kernel would, before a given training step."""

    def __init__(self, num_classes):
        super().__init__()
        self.inner = nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))
        self.steps = 0

    def forward(self, images):
        self.steps += self.training
        if self.training and self.steps == int(os.environ.get("TEST_KILL_AT", 0)):
            os.kill(os.getpid(), signal.SIGKILL)
        return self.inner(images)
'''


@pytest.fixture
def killed_model(elsewhere) -> str:
    """Return the name of a model that kills its process where TEST_KILL_AT says."""
    (elsewhere / "killed.py").write_text(KILLED)
    return "killed.py:Net"
