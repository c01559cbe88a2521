"""`paceline bench`: real runs compared, nonsense refused, and nothing left behind."""

import json
import signal

import psutil
import pytest

from paceline.bench.bench_folder import BenchFolder, find_bench, read_bench
from tests.conftest import LONGEST

SLOW_RANKS = """
import os, time, torch

class Slow(torch.nn.Sequential):
    def forward(self, images):
        time.sleep(3 * ("RANK" in os.environ))
        return super().forward(images)

def build(num_classes):
    return Slow(torch.nn.Flatten(), torch.nn.Linear(64, num_classes))
"""
SMALL = ("bench", "--track=none", "--steps=8", "--device=cpu", "--threads=1")


@pytest.mark.slow
def test_a_benchmark_of_real_runs(command, elsewhere):
    answer = command(*SMALL, "--model=mlp", "--ranks=1,2", "--scaling=strong,weak", "--repeats=1")
    assert answer.code == 0, answer.err
    lines = answer.err.splitlines()
    assert [line.partition("  ")[0] for line in lines if line.startswith("[")] == [
        "[1/3] round 1: single", "[2/3] round 1: ddp 2 (strong)", "[3/3] round 1: ddp 2 (weak)",
    ]  # fmt: skip
    for text in (
        "strong scaling: 128 samples/step in total", "weak scaling: 128 samples/step per device", "speed-up",
        "no winner: fewer than 4 repeats cannot tell speed from noise",
        "1 round of 8 steps each, the first 2 not measured",
    ):  # fmt: skip
        assert text in answer.out
    folder = find_bench(elsewhere / "runs" / "bench-digits-mlp", elsewhere / "runs")
    assert folder is not None
    bench = read_bench(folder)
    assert bench.train_samples == 1293
    assert [sample.variant for sample in bench.measurements] == [0, 1, 2]
    single, strong, weak = bench.measurements
    assert strong.train_loss == pytest.approx(single.train_loss, rel=1e-3), "the same work"
    assert weak.step_s * weak.samples_per_s > 1.5 * single.step_s * single.samples_per_s, "twice the samples per step"
    assert all(sample.test_top1 is not None for sample in bench.measurements)
    assert not list(folder.path.glob("**/*.safetensors")), "checkpoints are not kept"
    assert len(list(folder.path.glob("runs/*/*/metrics.jsonl"))) == 3


@pytest.mark.long
def test_a_variant_that_fails_is_left_out_and_the_others_continue(command, elsewhere):
    broken = elsewhere / "own.py"
    broken.write_text(
        "import os, torch\n"
        "def build(num_classes):\n"
        "    assert 'RANK' not in os.environ, 'no ranks here'\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, num_classes))\n"
    )
    answer = command(*SMALL, "--model=own.py:build", "--repeats=1", "--json")
    value = json.loads(answer.out)
    assert answer.code == 0
    assert list(value["failures"]) == ["ddp 2 (strong)"]
    assert "no ranks here" in value["failures"]["ddp 2 (strong)"]
    (group,) = value["groups"]
    assert [result["variant"]["mode"] for result in group["results"]] == ["single"]
    assert group["verdict"] == "a single variant cannot be compared"


@pytest.mark.long
def test_ctrl_c_keeps_what_was_measured_and_leaves_nothing_behind(start, elsewhere, wait_until):
    (elsewhere / "own.py").write_text(SLOW_RANKS)
    process = start(*SMALL, "--model=own.py:build", "--repeats=2")
    folder = BenchFolder(elsewhere / "runs" / "bench-digits-own" / "001")
    wait_until(lambda: list(folder.path.glob("runs/strong-ddp-2/001/metrics.jsonl")), "the second variant to train")
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) >= 4, "a launcher, torchrun and ranks"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LONGEST)
    assert process.returncode == 130, err
    assert "stopped after 1 run; the results so far are saved" in err
    assert "single" in out
    assert [sample.variant for sample in read_bench(folder).measurements] == [0]
    wait_until(lambda: not any(child.is_running() for child in family), "every process to go")


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["--ranks=0"], '--ranks lists "0", which is not a number of devices', "2x4"),
        (["--ranks=two"], '--ranks lists "two", which is not a number of devices', "2x4"),
        (["--modes=dpp"], '--modes lists "dpp", which does not exist', "did you mean dp"),
        (["--scaling=week"], '--scaling lists "week", which does not exist', "did you mean weak"),
        (["--ranks=2x2"], "--ranks 2x2 needs 2 nodes, but --nnodes is 1", "--nnodes 2"),
        (["--ranks=2x1", "--nnodes=2", "--rendezvous=a:1"], "--ranks 2x1 needs --node-rank", "--node-rank"),
        (["--modes=single"], "nothing to compare: the only variant is single", "--modes single,ddp"),
        (["--ranks=1,3"], "--global-batch 128 does not divide by the 3 devices of ddp 3", "--global-batch 129"),
        (["--patience=2"], "--patience can end one variant before another", "drop"),
        (["--compress=fp16"], "--compress fp16 changes the work of ddp only", "--modes ddp"),
        (["--steps=5", "--cut=5"], "--cut is 5, but must be at least 1 and below the 5 steps", ""),
        (["--repeats=0"], "--repeats is 0", ""),
        (["--rank=0", "--world-size=2"], "bench starts its own ranks, but --rank makes this process", "single process"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_the_reason(run, elsewhere, words, message, hint):
    answer = run("bench", *words)
    assert answer.code == 2
    assert message in answer.message
    assert hint in answer.hint
    assert not (elsewhere / "runs").exists(), "nothing was begun"
