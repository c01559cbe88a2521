"""The replica check on real ranks: it sees one flipped bit, and says where."""

import torch

from paceline.models.zoo import build_model
from paceline.parallel.replicas import Mismatch, check_replicas


def check_with_flipped_bit(team, bit):
    torch.manual_seed(0)
    model = build_model("cnn", num_classes=10, image_shape=(1, 8, 8))
    state = model.state_dict()
    name = next(key for key in state if key.endswith("conv.weight"))
    if bit is not None and team.world.rank == 1:
        state[name].view(torch.int32).flatten()[17] ^= 1 << bit
    return check_replicas(state.items(), team), name


def check_with_missing_tensor(team):
    tensors = {"everywhere": torch.ones(1), f"only{team.world.rank % 2}": torch.ones(1)}
    return check_replicas(tensors.items(), team)


def test_equal_replicas_pass(ranks):
    assert [found for found, _ in ranks(3).run(check_with_flipped_bit, None)] == [[]] * 3


def test_one_flipped_bit_on_one_rank_is_caught_and_named_on_every_rank(ranks):
    for bit in (0, 30):
        for found, name in ranks(3).run(check_with_flipped_bit, bit):
            assert found == [Mismatch(name=name, groups=((0, 2), (1,)))]
            assert found[0].sides == "ranks 0,2 against rank 1"


def test_a_tensor_that_some_ranks_lack_is_named(ranks):
    for found in ranks(3).run(check_with_missing_tensor):
        assert found == [Mismatch(name="only0", groups=((0, 2), (1,))), Mismatch(name="only1", groups=((0, 2), (1,)))]
