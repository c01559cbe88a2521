"""What two tensors have in common: bits, values, types, and the place where they differ most."""

import math
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.compare import stored
from paceline.compare.stored import StoredTensor
from paceline.compare.tensors import Status, compare_tensors, compare_values, ulps_between

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def compare(first, second, **options):
    return compare_tensors("x", StoredTensor(first), StoredTensor(second), **options)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn])
def test_a_tensor_equals_its_copy_in_every_type(dtype):
    tensor = torch.arange(24).reshape(2, 3, 4).to(dtype)
    found = compare(tensor, tensor.clone())
    assert (found.status, found.num_different, found.largest) == (Status.EQUAL, 0, None)


@pytest.mark.parametrize("dtype", FLOATS)
def test_one_flipped_bit_is_found_at_its_place_one_ulp_away(dtype):
    tensor = torch.linspace(-1, 1, 60).reshape(3, 4, 5).to(dtype)
    other = tensor.clone()
    whole = {8: torch.int64, 4: torch.int32, 2: torch.int16}[dtype.itemsize]
    other[2, 1, 3:4].view(whole).bitwise_xor_(1)
    found = compare(tensor, other)
    assert found.status is not Status.EQUAL
    assert found.num_different == 1
    assert found.largest is not None
    assert (found.largest.index, found.largest.ulps) == ((2, 1, 3), 1)
    assert found.largest.absolute == abs(float(tensor[2, 1, 3]) - float(other[2, 1, 3])) > 0


def test_tensors_larger_than_a_piece_are_compared_to_the_end(monkeypatch):
    monkeypatch.setattr(stored, "BLOCK", 7)
    tensor = torch.zeros(5, 10)
    other = tensor.clone()
    other[4, 8] = 1e-3
    other[0, 1] = 1e-4
    found = compare(tensor, other)
    assert found.num_different == 2
    assert found.largest is not None
    assert found.largest.index == (4, 8)


def test_not_a_number_on_both_sides_is_equal_and_on_one_side_is_not():
    tensor = torch.tensor([1.0, math.nan, 3.0])
    assert compare(tensor, tensor.clone()).status is Status.EQUAL
    found = compare(tensor, torch.tensor([1.0, 2.0, 3.0]), tolerance=1e9)
    assert (found.status, found.num_nan) == (Status.DIFFERS, (1, 0))


def test_infinities_of_one_sign_are_equal_and_of_two_are_not():
    infinite = torch.tensor([math.inf, 1.0])
    assert compare(infinite, infinite.clone()).status is Status.EQUAL
    found = compare(infinite, -infinite, tolerance=10.0)
    assert found.status is Status.DIFFERS
    assert found.largest is not None
    assert found.largest.absolute == math.inf


def test_close_is_relative_to_the_largest_value_of_the_tensor():
    tensor, other = torch.tensor([100.0, 0.0]), torch.tensor([100.0, 1e-2])
    assert compare(tensor, other).status is Status.DIFFERS
    assert compare(tensor, other, tolerance=1e-3).status is Status.CLOSE
    assert compare(tensor, other, tolerance=1e-5).status is Status.DIFFERS
    assert compare(tensor, torch.tensor([100.0, 1e-5])).status is Status.CLOSE


def test_a_zero_with_a_sign_is_not_the_same_bits():
    found = compare(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert (found.status, found.what) == (Status.CLOSE, "sign")
    assert found.largest is not None
    assert (found.largest.absolute, found.largest.ulps) == (0.0, 0)
    assert compare(torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 2.0])).what == "value"
    number = compare_values("loss", 0.0, -0.0)
    assert (number.status, number.what) == (Status.CLOSE, "sign")


def test_nan_of_another_payload_is_not_the_same_bits():
    quiet, other = (torch.tensor([1, bits], dtype=torch.int32).view(torch.float32) for bits in (0x7FC00000, 0x7FC00001))
    found = compare(quiet, other)
    assert (found.status, found.what, found.num_different) == (Status.CLOSE, "NaN", 1)
    assert found.largest is not None
    assert (found.largest.index, found.largest.relative, found.largest.ulps) == ((1,), 0.0, None)
    assert compare(quiet, other, tolerance=0.0).status is Status.CLOSE
    payload = struct.unpack("d", struct.pack("Q", 0x7FF8000000000001))[0]
    number = compare_values("loss", math.nan, payload)
    assert (number.status, number.what) == (Status.CLOSE, "NaN")


def test_other_shapes_and_types_differ_and_a_tolerance_forgives_the_type():
    tensor = torch.tensor([1.0, 0.1])
    assert compare(tensor, torch.zeros(3), tolerance=10.0).status is Status.DIFFERS
    half = compare(tensor, tensor.bfloat16())
    assert (half.status, half.same_kind) == (Status.DIFFERS, False)
    assert compare(tensor, tensor.bfloat16(), tolerance=1e-2).status is Status.CLOSE
    assert compare(torch.ones(2), torch.ones(2).double()).status is Status.DIFFERS
    assert (half.what, compare(tensor, torch.zeros(3)).what) == ("dtype", "shape")
    assert compare(torch.ones(3, dtype=torch.bool), torch.ones(3, dtype=torch.uint8)).what == "dtype"


def test_a_complex_tensor_is_never_close_to_pairs_of_real_numbers():
    pairs = torch.ones(3, 2)
    found = compare(torch.view_as_complex(pairs), pairs, tolerance=1.0)
    assert (found.status, found.what) == (Status.DIFFERS, "dtype")


def test_an_empty_tensor_equals_another():
    assert compare(torch.empty(0, 3), torch.empty(0, 3)).status is Status.EQUAL


def test_plain_values_are_the_same_or_close_or_not():
    assert compare_values("step", 3, 3).status is Status.EQUAL
    assert compare_values("step", 3, 4).status is Status.DIFFERS
    assert compare_values("step", 3, "3").status is Status.DIFFERS
    assert (compare_values("step", 3, 4).what, compare_values("step", 1, True).what) == ("value", "type")
    assert compare_values("loss", 1.0, 1.0 + 1e-9).status is Status.CLOSE
    assert compare_values("loss", math.nan, math.nan).status is Status.EQUAL


@given(st.floats(width=32, allow_nan=False, allow_infinity=False), st.integers(0, 1000))
def test_ulps_count_the_numbers_between(value, steps):
    after = value
    for _ in range(steps):
        after = float(torch.nextafter(torch.tensor(after), torch.tensor(math.inf)))
    first, second = (struct.unpack("<I", struct.pack("<f", x))[0] for x in (value, after))
    if math.isfinite(after):
        assert ulps_between(first, second, 32) == steps


def test_sums_of_losses_that_are_stored_as_integers_may_be_close():
    assert compare_values("best.loss_units", 10**12, 10**12 + 1).status is Status.CLOSE
    assert compare_values("best.loss_units", 10**12, 2 * 10**12).status is Status.DIFFERS
    assert compare_values("step", 10**12, 10**12 + 1).status is Status.DIFFERS
