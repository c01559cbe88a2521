"""An error in the user's own code: one paragraph with their lines; all frames with --verbose."""

import pytest

from paceline.core.first_cause import VERBOSE_VARIABLE

MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.linear, self.calls = torch.nn.Linear(64, num_classes), 0

    def forward(self, images):
        self.calls += 1
        if self.calls > 8:
            return self.scaled(images)
        return self.linear(images.flatten(1))

    def scaled(self, images):
        return images @ images.new_ones(3, 5)
"""


@pytest.fixture
def mine(elsewhere):
    (elsewhere / "mine.py").write_text(MODEL)
    return "--model=mine.py:Net"


def test_an_error_in_a_model_is_one_paragraph_with_its_lines(train, mine):
    answer = train(mine)
    first, *places, hint = answer.err.strip().splitlines()
    assert answer.code == 1
    assert first.startswith("paceline: RuntimeError: ")
    assert places[0].endswith("mine.py, line 16, in scaled: return images @ images.new_ones(3, 5)")
    assert places[1].endswith("in forward: return self.scaled(images)")
    assert "after step" in places[-1]
    assert hint == "  hint: --verbose shows the whole traceback"
    assert "src/paceline" not in answer.err


def test_with_verbose_the_whole_traceback_is_shown(train, mine, monkeypatch):
    monkeypatch.setenv(VERBOSE_VARIABLE, "1")  # the command sets it for its ranks
    with pytest.raises(RuntimeError):
        train("--verbose", mine)
