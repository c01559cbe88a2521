"""Sixty-four real ranks train, save and test as one rank does, with few connections each."""

import json
import subprocess
import sys

import pytest

from paceline.core.limits import open_files

TIME_LIMIT = 1500


def trained(folder, world_size):
    """Train in processes that this one does not hold, and return the number of sockets of each rank at its end."""
    command = [sys.executable, "-m", "tests.ranks.sixty_four", str(folder), str(world_size)]
    done = subprocess.run(command, timeout=TIME_LIMIT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"sockets-{world_size}-{rank}.json").read_text()) for rank in range(world_size)]


@pytest.mark.long
@pytest.mark.timeout(2 * TIME_LIMIT)
def test_sixty_four_ranks_compute_the_bits_of_one_with_few_connections(tmp_path):
    sockets = trained(tmp_path, 64)
    trained(tmp_path, 1)
    command = [sys.executable, "-m", "paceline", "compare", str(tmp_path / "ranks-64"), str(tmp_path / "ranks-1")]
    compared = subprocess.run(command, capture_output=True, text=True, check=False)
    assert compared.returncode == 0, compared.stdout
    assert max(sockets[1:]) <= open_files(64, is_lead=False) - open_files(1, is_lead=False)
    assert max(sockets[1:]) < 63  # a mesh has more
