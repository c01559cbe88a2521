"""The model that is exported, sampled from and used for inference: with all state of its checkpoint."""

from pathlib import Path

import pytest
import torch

import paceline
from paceline.engine.export import read_export
from paceline.records.folder import RunFolder
from tests.states import final_state

OWN = """
import torch


class Counting(torch.nn.Linear):
    '''Scales its outputs by the training passes so far, which a state dict leaves out, and by a late buffer.'''

    def __init__(self, num_classes, image_shape):
        super().__init__(image_shape[1] * image_shape[2], num_classes)
        self.register_buffer("passes", torch.zeros(()), persistent=False)
        self.register_buffer("late", None)

    def forward(self, images):
        if self.training:
            self.passes += 1
            self.late = torch.full((2,), 3.0)
        return super().forward(images.flatten(1)) / (1 + self.passes)
"""


@pytest.mark.parametrize("ema", [None, 0.5])
def test_buffers_outside_the_state_dict_are_exported(tmp_path, small_config, ema):
    (tmp_path / "own.py").write_text(OWN)
    config = small_config(model=f"{tmp_path / 'own.py'}:Counting", steps=5, ema=ema)
    result = paceline.train(config)
    folder = Path(result.folder)
    model = read_export(RunFolder(folder), config, checkpoint="last").model
    saved = final_state(folder)["buffers"]["model" if ema is None else "ema"]["passes"]
    buffers = dict(model.named_buffers())
    assert saved > 1
    assert torch.equal(buffers["passes"], saved)
    assert buffers["late"].tolist() == [3.0, 3.0]
