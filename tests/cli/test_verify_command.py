"""`paceline verify`: real ranks, real kills, and faults of a user's own model that it must name."""

import json
import re
import signal
from pathlib import Path

import psutil
import pytest

from tests.conftest import LONGEST

QUICK = ("--threads=1", "--device=cpu", "--kill-seed=3")

FAULTY = """
import os
import torch

class Net(torch.nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.linear = torch.nn.Linear(64, num_classes)
        self.stream = torch.Generator().manual_seed(int(os.environ.get("RANK", "0")))

    def forward(self, images):
        return self.linear(images.flatten(1))

calls = []

class Flipped(Net):
    '''Changes one bit of rank 1 in its third step, as faulty memory does: two shards in each step.

    Before that come three passes of the check at the start.
    '''

    def forward(self, images):
        if self.training:
            calls.append(len(images))
        if self.training and len(calls) == 3 + 5 and os.environ.get("RANK") == "1":
            self.linear.weight.data.view(-1)[7:8].view(torch.int32).bitwise_xor_(1)
        return super().forward(images)

class Consuming(Net):
    '''Draws from a stream that each rank has for itself.'''

    def forward(self, images):
        noise = torch.randn(images.shape, generator=self.stream) if self.training else 0
        return super().forward(images + 0.1 * noise)
"""


def left(folder: Path) -> list[str]:
    """Return what is there but for the test's own file, and what Python makes of it."""
    return sorted(path.name for path in folder.iterdir() if path.name not in {"faulty.py", "__pycache__"})


@pytest.mark.slow
def test_bitwise_is_equal_across_world_sizes_and_a_kill_and_leaves_no_files(command, elsewhere):
    answer = command("verify", "--model=cnn", "--exact=bitwise", "--worlds=1,3", "--steps=4", "--shards=4", *QUICK)
    assert answer.code == 0, answer.err
    assert re.search(r"^3 ranks +equal +4 +none$", answer.out, re.MULTILINE), answer.out
    assert re.search(r"^\d ranks?, rank \d killed in step \d, resumed on \d ranks? +equal", answer.out, re.MULTILINE)
    assert answer.out.endswith("have the same bits in every checkpoint of every trial\n")
    assert "kill seed 3" in answer.err
    assert left(elsewhere) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_a_verify_that_is_stopped_leaves_no_process_and_no_folder(start, elsewhere, wait_until, number):
    process = start("verify", "--model=cnn", "--steps=5000", "--worlds=2,1", *QUICK)
    wait_until(lambda: list(elsewhere.glob("runs/*/*/*/checkpoints/last")), "a first checkpoint")
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) >= 4, "a launcher, torchrun and ranks"
    process.send_signal(number)
    _, err = process.communicate(timeout=LONGEST)
    assert (process.returncode, err.splitlines()[-1]) == (130, "paceline: interrupted")
    assert left(elsewhere) == []
    wait_until(lambda: not any(child.is_running() for child in family), "every process to go")


@pytest.mark.long
def test_order_is_equal_within_its_tolerance(command, elsewhere):
    words = ("verify", "--model=mlp", "--worlds=1,2", "--steps=4", "--kills=0", "--json", *QUICK)
    value = json.loads(command(*words).out)
    assert (value["agrees"], value["exact"], value["tolerance"], value["kept"]) == (True, "order", 1e-3, None)
    assert 0 < value["trials"][0]["worst_relative"] < 1e-3


@pytest.mark.slow
def test_a_flipped_bit_on_one_rank_is_named_with_its_step_tensor_ranks_and_size(command, elsewhere, write):
    write("faulty.py", FAULTY)
    words = ("--model=faulty.py:Flipped", "--exact=bitwise", "--shards=4", "--worlds=1,2", "--steps=5", "--kills=0")
    answer = command("verify", *words, "--json", *QUICK)
    assert answer.code == 1, answer.err
    value = json.loads(answer.out)
    first = value["trials"][0]["first"]
    assert (first["step"], first["name"], first["ranks"]) == (3, "linear.weight", "rank 0 against rank 1")
    assert first["index"] == [0, 7]
    assert first["ulps"] is not None
    files = [f"{value['kept']}/2-ranks/001/ranks/rank-00{rank}.pt" for rank in (0, 1)]
    compared = command("compare", *files)
    assert (compared.code, "linear.weight" in compared.out) == (1, True), compared


@pytest.mark.long
def test_randomness_that_ranks_consume_is_found_in_the_first_step(command, elsewhere, write):
    write("faulty.py", FAULTY)
    words = ("--model=faulty.py:Consuming", "--exact=bitwise", "--shards=4", "--worlds=1,2", "--steps=3", "--kills=0")
    answer = command("verify", *words, *QUICK)
    assert answer.code == 1, answer.err
    assert re.search(r"^2 ranks +differs +1 .*step 1, weights linear\.", answer.out, re.MULTILINE), answer.out
    advice = re.search(r"to see all differences: paceline (compare .*)$", answer.out, re.MULTILINE)
    assert advice is not None
    assert command(*advice[1].split()).code == 1
    assert left(elsewhere) == ["runs"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("--worlds=0,1", "--worlds must be different world sizes"),
        ("--worlds=2,2", "--worlds must be different world sizes"),
        ("--worlds=1 --kills=0", "with one world size and no kill there is nothing to compare"),
        ("--kills=-1", "--kills is -1"),
        ("--steps=1", "--steps 1 with --kills leaves no checkpoint to resume from"),
        ("--exact=bitwise --worlds=1,9", "9 ranks are more than the 4 shards of the batch"),
        ("--exact=bitwise --tolerance=0.1", "--tolerance is 0.1, but --exact bitwise allows none"),
        ("--mode=single", "--mode single is one process at any world size"),
    ],
)
def test_what_cannot_be_verified_is_refused(run, words, problem):
    answer = run("verify", *words.split())
    assert (answer.code, answer.message.startswith(problem)) == (2, True), answer


def test_a_trial_that_fails_shows_why(command):
    answer = command("verify", "--model=mlp", "--global-batch=9999", "--worlds=1,2", *QUICK)
    assert answer.code == 2
    assert "1 rank: training failed" in answer.err
    assert "--global-batch 9,999 is larger than the 1,293 training samples" in answer.err
