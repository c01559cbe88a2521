"""User code that ends the process in the middle of a run: the run fails, and the line is named."""

import pytest

import paceline
from paceline.core.errors import PacelineError

OWN = """
import sys
from torch import nn


class Net(nn.Sequential):
    def forward(self, images):
        if self.training:
            {code}
        return super().forward(images)


def build(num_classes):
    return Net(nn.Flatten(), nn.Linear(64, num_classes))
"""


@pytest.mark.parametrize(("code", "said"), [("sys.exit(9)", "sys.exit(9)"), ("sys.exit()", "sys.exit()")])
def test_sys_exit_in_a_model_is_a_failure_that_names_the_line(small_config, elsewhere, code, said):
    (elsewhere / "my.py").write_text(OWN.format(code=code))
    with pytest.raises(PacelineError) as failed:
        paceline.train(small_config(model="my.py:build"))
    assert said in failed.value.message
    assert (failed.value.hint or "").endswith("my.py, line 9")


def test_a_model_that_does_not_exit_trains(small_config, elsewhere):
    (elsewhere / "my.py").write_text(OWN.format(code="pass"))
    paceline.train(small_config(model="my.py:build"))
