"""Tensors as the comparison reads them: bits and values in the order of indices, block by block."""

import numpy as np
import pytest
import torch

from paceline.compare import stored
from paceline.compare.stored import StoredTensor


def read(tensor):
    """Return all bits and all values of a tensor."""
    blocks = list(StoredTensor(tensor).blocks())
    return [bit for block in blocks for bit in block.bits], [value for block in blocks for value in block.values]


def test_bits_and_values_of_a_tensor():
    bits, values = read(torch.tensor([[1.0, -0.0], [0.5, -2.0]]))
    assert [hex(bit) for bit in bits] == ["0x3f800000", "0x80000000", "0x3f000000", "0xc0000000"]
    assert values == [1.0, 0.0, 0.5, -2.0]


@pytest.mark.parametrize("tensor", [torch.tensor([True, False]), torch.tensor([255, 1], dtype=torch.uint8)])
def test_whole_numbers_are_their_bits(tensor):
    bits, values = read(tensor)
    assert bits == values == tensor.tolist()


def test_elements_come_in_the_order_of_indices_in_any_layout():
    tensor = torch.arange(120.0).reshape(2, 3, 4, 5)
    expected = read(tensor)
    assert read(tensor.to(memory_format=torch.channels_last)) == expected
    assert read(tensor.transpose(0, 3).contiguous().transpose(0, 3)) == expected


def test_a_tensor_is_read_in_blocks_to_the_end(monkeypatch):
    monkeypatch.setattr(stored, "BLOCK", 7)
    tensor = torch.arange(50.0).reshape(5, 10)
    assert [len(block.bits) for block in StoredTensor(tensor).blocks()] == [7] * 7 + [1]
    assert read(tensor)[1] == list(range(50))


def test_a_block_survives_a_change_of_the_tensor():
    tensor = torch.zeros(3)
    (block,) = StoredTensor(tensor).blocks()
    tensor += 1
    assert np.array_equal(block.bits, [0, 0, 0])


def test_a_complex_tensor_has_real_and_imaginary_parts():
    tensor = torch.tensor([1 + 2j, 3 - 4j])
    assert (StoredTensor(tensor).shape, StoredTensor(tensor).dtype) == ((2, 2), "complex64")
    assert read(tensor)[1] == [1, 2, 3, -4]
    assert read(tensor.conj())[1] == [1, -2, 3, 4]


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_sparse_and_quantised_tensors_are_read_as_what_they_mean():
    dense = torch.tensor([[0.0, 1.5], [0.0, 0.0]])
    assert read(dense.to_sparse()) == read(dense)
    quantised = torch.quantize_per_tensor(torch.tensor([0.5, 1.0]), scale=0.5, zero_point=0, dtype=torch.qint8)
    assert read(quantised)[1] == [0.5, 1.0]
    assert StoredTensor(quantised).dtype == "qint8"


def test_a_number_is_a_tensor_without_dimensions():
    number = StoredTensor(torch.tensor(3, dtype=torch.int64))
    assert (number.shape, number.dtype, read(number.tensor)) == ((), "int64", ([3], [3.0]))
