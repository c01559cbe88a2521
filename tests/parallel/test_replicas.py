"""Hashes of tensors, and the text about differences between ranks."""

import struct

import pytest
import torch

from paceline.core.world import World
from paceline.parallel.replicas import Mismatch, check_replicas, describe_mismatches, short_hash
from paceline.parallel.team import Team


def nan(payload):
    return torch.frombuffer(bytearray(struct.pack("<I", 0x7FC00000 | payload)), dtype=torch.float32)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.tensor([0.0]), torch.tensor([-0.0])),
        (nan(1), nan(2)),
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.int32)),
        (torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0])),
        (torch.tensor([1.0, 2.0, 3.0]), torch.tensor([-1.0, -2.0, 3.0])),
        (torch.tensor(3), torch.tensor(4)),
        (torch.zeros(0), torch.zeros(1)),
    ],
)
def test_different_bits_have_different_fingerprints(one, other):
    assert short_hash(one) == short_hash(one.clone())
    assert short_hash(one) != short_hash(other)


def test_the_memory_layout_is_not_part_of_the_fingerprint():
    tensor = torch.randn(2, 3, 4, 5)
    assert short_hash(tensor) == short_hash(tensor.to(memory_format=torch.channels_last))
    assert short_hash(tensor) == short_hash(torch.stack([tensor, tensor], -1)[..., 0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.bool, torch.int64, torch.complex64])
def test_tensors_of_any_type_have_a_fingerprint(dtype):
    assert short_hash(torch.zeros(3).to(dtype)) != short_hash(torch.ones(3).to(dtype))


def test_a_lone_rank_has_no_mismatch():
    assert check_replicas([("weight", torch.zeros(1))], Team(World(), torch.device("cpu"))) == []


def test_mismatches_are_described_in_a_sentence():
    found = [Mismatch(name=f"layer{number}", groups=((0, 2, 3), (1,))) for number in range(2)]
    found += [Mismatch(name="fc.bias", groups=((0, 1), (2,), (3,)))] * 41
    assert describe_mismatches(found[:1], 7) == (
        "the model differs between ranks after step 7: layer0 (ranks 0,2,3 against rank 1)"
    )
    assert describe_mismatches(found, 1412) == (
        "the model differs between ranks after step 1,412: layer0 (ranks 0,2,3 against rank 1), "
        "layer1 (ranks 0,2,3 against rank 1), fc.bias (ranks 0,1 against rank 2 against rank 3) and 40 more"
    )
