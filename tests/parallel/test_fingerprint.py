"""What a run's bits depend on, and the way out where it is not the same."""

import pytest
import torch

from paceline.core.config import Config
from paceline.core.errors import RunError
from paceline.parallel.exact.fingerprint import fingerprint, refuse_other_bits

HERE = fingerprint(Config(exact="bitwise", shards=8), torch.device("cpu"))


@pytest.mark.parametrize(
    ("name", "value", "way_out"),
    [
        ("arithmetic", 1, "the version of Paceline that began it"),
        ("torch", "2.9.0", "go on where torch is 2.9.0"),
        ("threads", 7, "--threads 7"),
        ("MKL_CBWR", "COMPATIBLE", "go on where MKL_CBWR is COMPATIBLE"),
    ],
)
def test_a_run_that_began_elsewhere_is_refused_with_the_way_out(name, value, way_out):
    refuse_other_bits(HERE, HERE)
    with pytest.raises(RunError, match=f"{name}, which was {value} and is") as refused:
        refuse_other_bits(HERE | {name: value}, HERE)
    assert way_out in (refused.value.hint or "")
    assert "--exact order" in (refused.value.hint or "")
