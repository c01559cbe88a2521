"""Lost ranks: which errors of torch mean that a connection was lost."""

import pytest

from paceline.core.errors import LostRankError
from paceline.parallel.lost_ranks import is_lost, loss_explained, peer_of

RESET = (
    "[/pytorch/gloo/transport/tcp/pair.cc:537] Read error [10.77.0.2]:37508: Connection reset by peer. "
    "This is typically caused by a remote worker hanging or bugs in the application."
)


def test_a_lost_connection_is_distinguished_from_errors_of_the_model():
    with pytest.raises(LostRankError, match=r"the connection to a rank at 10\.77\.0\.2 was lost"), loss_explained():
        raise RuntimeError(RESET)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), loss_explained():
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied (64x100 and 64x10)")


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        (RESET, True),
        ("NCCL error: remote process exited or there was a network error", True),
        ("[c10d] TCPStore: Connection reset by peer", True),
        ("Timed out waiting 7000ms for recv operation to complete (gloo)", False),
        ("ConnectionResetError: reset by peer while reading an image", False),
    ],
)
def test_messages_of_torch_about_a_lost_rank_are_recognised(text, lost):
    assert is_lost(text) == lost
    assert peer_of("nothing is said") == "another rank"
