"""A rank that the user starts by hand says that it trains; others leave it to the launcher."""

import pytest

from paceline.core.start import Start
from paceline.core.world import World
from paceline.engine.rank import tell_joined


@pytest.mark.parametrize(
    ("start", "rank", "told"),
    [
        (Start(rank=1, world_size=3), 1, "paceline: rank 1 of 3 trains; rank 0 shows the progress\n"),
        (Start(rank=0, world_size=3), 0, ""),
        (Start(), 1, ""),
    ],
)
def test_only_ranks_above_0_that_were_started_by_hand_say_so(capsys, start, rank, told):
    tell_joined(start, World(rank=rank, size=3))
    assert capsys.readouterr().err == told
