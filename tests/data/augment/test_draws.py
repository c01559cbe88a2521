"""Counter-based randomness: distributions, and separate draws for every purpose."""

import numpy as np

from paceline.data.augment.draws import Draws, Purpose, beta_table, log_uniform_table, normal_table


def test_tables_hold_the_quantiles_of_their_distributions():
    quantiles = (np.arange(4096) + 0.5) / 4096
    assert np.allclose(beta_table(1.0), quantiles, atol=1e-6)
    assert np.allclose(beta_table(0.5), np.sin(np.pi * quantiles / 2) ** 2, atol=1e-6)
    two = beta_table(2.0)
    assert np.allclose(3 * two**2 - 2 * two**3, quantiles, atol=1e-5)
    assert abs(beta_table(0.2).var() - 1 / (4 * (2 * 0.2 + 1))) < 1e-3
    assert abs(normal_table().std() - 1) < 1e-2
    assert np.allclose(log_uniform_table(0.5, 2.0)[2047:2049].mean(), 1.0, atol=1e-6)


def test_every_purpose_and_detail_has_separate_draws():
    draws = Draws(seed=1, epoch=2, ids=np.arange(100))
    seen = [tuple(draws.bits(purpose, *detail)) for purpose in Purpose for detail in ((), (0,), (1,), (0, 1), (1, 0))]
    assert len(set(seen)) == len(seen)
