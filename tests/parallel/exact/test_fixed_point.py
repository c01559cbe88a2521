"""Fixed-point sums: the same bits in any order, nearly as precise as fp64, and out of range only with notice."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.parallel.exact.fixed_point import ASSUMED, BLOCK, EMPTY, HEADROOM, FixedPoint

CPU = torch.device("cpu")


def make(size: int = 2 * BLOCK, dtype: torch.dtype = torch.float32, num_terms: int = 8) -> FixedPoint:
    return FixedPoint(size, dtype, CPU, num_terms=num_terms)


def sum_up(fixed: FixedPoint, terms, *, wide: bool = False) -> torch.Tensor | None:
    """Return the sum of some vectors, or None where they are out of range."""
    fixed.set_scale(wide=wide)
    total = torch.zeros(len(terms[0]), dtype=fixed.integers)
    for term in terms:
        fixed.add(term.clone(), total)
    seen = fixed.seen()
    fits = bool(fixed.fits(seen))
    numbers = fixed.numbers(total, seen) if fits else None
    fixed.learn(seen)
    return numbers


def terms_of(
    seed: int, num_terms: int, dtype: torch.dtype = torch.float32, size: int = 2 * BLOCK
) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    spread = 10.0 ** (torch.rand(size, generator=generator, dtype=dtype) * 6 - 3)
    return [torch.randn(size, generator=generator, dtype=dtype) * spread for _ in range(num_terms)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(seed=st.integers(0, 10**6), num_terms=st.integers(2, 8), data=st.data())
def test_every_order_and_grouping_gives_the_same_bits(dtype, seed, num_terms, data):
    terms = terms_of(seed, num_terms, dtype)
    order = data.draw(st.permutations(range(num_terms)))
    cut = data.draw(st.integers(0, num_terms))
    fixed = make(dtype=dtype)
    assert sum_up(fixed, terms) is None, "nothing is known before the first step"
    alone = sum_up(fixed, terms)
    other = make(dtype=dtype)
    sum_up(other, terms)
    other.set_scale(wide=False)
    totals = torch.zeros(2, len(terms[0]), dtype=other.integers)  # as on two ranks
    for position, index in enumerate(order):
        other.add(terms[index].clone(), totals[int(position < cut)])
    numbers = other.numbers(totals.sum(0, dtype=other.integers), other.seen())
    assert alone is not None
    assert torch.equal(alone, numbers)


def test_floating_point_sums_depend_on_the_order():
    """The control: what fixed point is for."""
    terms = terms_of(0, 6)
    sums = [torch.as_tensor(sum(order)) for order in itertools.islice(itertools.permutations(terms), 20)]
    assert any(not torch.equal(sums[0], other) for other in sums[1:])


@pytest.mark.parametrize(
    ("dtype", "num_terms", "bound"), [(torch.float32, 8, 1e-6), (torch.float32, 64, 2e-5), (torch.float64, 8, 1e-15)]
)
def test_a_sum_is_precise_relative_to_the_largest_of_its_block(dtype, num_terms, bound):
    fixed, terms = make(dtype=dtype, num_terms=num_terms), terms_of(1, num_terms, dtype)
    sum_up(fixed, terms)
    found = sum_up(fixed, terms)
    assert found is not None
    error = (found.double() - torch.stack(terms).double().sum(0)).abs().view(-1, BLOCK).amax(1)
    assert (error / torch.stack(terms).abs().amax(0).view(-1, BLOCK).amax(1)).max() < bound


def test_growth_within_the_headroom_needs_no_repetition_and_beyond_it_one():
    fixed, terms = make(), terms_of(2, 4)
    sum_up(fixed, terms)
    grown = [term * 2**HEADROOM for term in terms]
    assert sum_up(fixed, grown) is not None
    sum_up(fixed, terms)
    jumped = [term * 2.0 ** (2 * HEADROOM + 1) for term in grown]
    assert sum_up(fixed, jumped) is None
    assert sum_up(fixed, jumped) is not None


def test_wide_sums_need_no_repetition_for_gradients_that_appear_late_and_grow_fast():
    """As in a residual branch that starts at zero: 12 bits per step, and nothing in the first."""
    fixed, terms = make(), terms_of(6, 8)
    zeros = [torch.zeros_like(term) for term in terms]
    growing = [[term * 2.0**power for term in terms] for power in (-26, -14, -2, 10)]
    for step in (zeros, *growing):
        found = sum_up(fixed, step, wide=True)
        assert found is not None
        exact = torch.stack(step).double().sum(0)
        largest = torch.stack(step).abs().amax().clamp(min=1e-30)
        assert (found.double() - exact).abs().max() / largest < 1e-6, "as precise as the others"
    narrow = make()
    assert [sum_up(narrow, step) is None for step in growing] == [True, True, True, True], "the control"


@pytest.mark.parametrize("exponent", [ASSUMED - 20, ASSUMED + 50])
def test_wide_sums_of_numbers_far_from_the_assumed_range_are_repeated(exponent):
    fixed, terms = make(), [term.sign() * 2.0**exponent for term in terms_of(7, 8)]
    assert sum_up(fixed, terms, wide=True) is None
    assert sum_up(fixed, terms, wide=True) is not None


def test_a_row_of_zeros_keeps_its_scale():
    fixed, terms = make(), terms_of(3, 2)
    sum_up(fixed, terms)
    absent = [torch.cat([term[:BLOCK], torch.zeros(BLOCK)]) for term in terms]
    for _ in range(100):
        assert sum_up(fixed, absent) is not None
    assert sum_up(fixed, terms) is not None


def test_a_value_that_is_not_finite_spoils_its_block_only():
    fixed, terms = make(), terms_of(4, 2)
    sum_up(fixed, terms)
    before = fixed.magnitudes.clone()
    spoiled = [terms[0], terms[1].index_fill(0, torch.tensor([3]), torch.inf)]
    found = sum_up(fixed, spoiled)
    assert found is not None
    assert found[:BLOCK].isnan().all()
    assert found[BLOCK:].isfinite().all()
    assert fixed.magnitudes[0] == before[0] != EMPTY


def test_tiny_and_huge_numbers_are_added():
    for factor in (1e-30, 1e34):
        fixed, terms = make(), [term * factor for term in terms_of(5, 3)]
        sum_up(fixed, terms)
        found = sum_up(fixed, terms)
        assert found is not None
        assert torch.allclose(found, torch.stack(terms).sum(0), rtol=1e-3, atol=0.01 * factor)
