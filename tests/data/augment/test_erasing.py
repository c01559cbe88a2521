"""Random erasing and cutout, equal to a one-sample reference."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data import reference
from tests.data.augmented import NUM, SEED, plain, split


@settings(max_examples=15, deadline=None)
@given(ids=st.lists(st.integers(0, NUM - 1), min_size=1, max_size=12), epoch=st.integers(0, 500))
def test_erasing_and_cutout_agree_with_one_image_at_a_time(ids, epoch):
    indices = np.array(ids)
    erased, cut = (split(policy).fetch(indices, epoch).images.numpy() for policy in ("erase0.5", "cutout5"))
    for index, (sample, values) in enumerate(zip(ids, plain(indices), strict=True)):
        draws = reference.SampleDraws(SEED, epoch, sample)
        assert np.array_equal(erased[index], reference.erase(values, draws, 0.5))
        assert np.array_equal(cut[index], reference.cutout(values, draws, 5))
