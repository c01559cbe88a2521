"""RandAugment: every operation equal to Pillow, layer after layer."""

import numpy as np
import pytest

from paceline.data.augment.randaugment import Op
from tests.data import reference
from tests.data.augmented import FILL, IMAGES, NUM, SEED, batched_bytes

TOLERANCE: dict[int | None, int] = {Op.SHEAR_X: 1, Op.SHEAR_Y: 1, Op.SHIFT_X: 1, Op.SHIFT_Y: 1, Op.ROTATE: 6}
"""In bytes: we round where Pillow cuts off, and turn by steps of 1/64 pixel, which shows most in pure noise."""


@pytest.mark.parametrize(("policy", "increasing"), [("rand-m9-mstd0.5-inc1-n1", True), ("rand-m9-mstd0.5-n1", False)])
def test_every_operation_of_randaugment_agrees_with_pillow(policy, increasing):
    ids, seen = np.arange(NUM), set()
    for epoch in range(12):
        batched = batched_bytes(policy, ids, epoch)
        for sample in ids:
            draws = reference.SampleDraws(SEED, epoch, int(sample))
            op = reference.rand_choice(draws, 0)
            image = reference.rand_layer(reference.picture(IMAGES[sample]), draws, 0, increasing=increasing, fill=FILL)
            tolerance = TOLERANCE.get(op, 0)
            assert np.abs(batched[sample].astype(int) - reference.planes(image)).max() <= tolerance, op
            seen.add(op)
    assert seen == {None, *range(len(Op))}


def test_randaugment_layers_follow_one_another():
    ids = np.arange(NUM)
    for epoch in range(4):
        batched = batched_bytes("rand-m9-mstd0.5-inc1", ids, epoch)
        for sample in ids:
            draws = reference.SampleDraws(SEED, epoch, int(sample))
            first, second = (reference.rand_choice(draws, layer) for layer in (0, 1))
            if max(first or 0, second or 0) >= reference.COLOUR_OPS:
                continue
            image = reference.picture(IMAGES[sample])
            for layer in (0, 1):
                image = reference.rand_layer(image, draws, layer, fill=FILL)
            assert np.array_equal(batched[sample], reference.planes(image))
