"""The command from the user's side: help without torch, clean pipes, an interactive terminal, signals."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys

import pytest
import torch

from lab.environment import child_environment
from paceline.engine.checkpoint import NO_OTHERS, Checkpoints, load_checkpoint
from paceline.records.folder import RunFolder
from paceline.records.reader import read_metrics, summarise
from tests.conftest import LONGEST

SMALL = ("train", "--model=mlp", "--threads=1", "--track=none")

WITHOUT_TORCH = """
import sys
from paceline.cli import run
for words in (["--help"], ["--version"], ["train", "--help"], ["train", "--help-all"], [], ["eval", "--help"],
              ["runs", "--help"], ["runs"],
              ["train", "--epochs", "0"]):
    print(words, run(words, {}), flush=True)
import paceline
print("torch" in sys.modules or "numpy" in sys.modules)
"""


def test_help_version_and_bad_settings_do_not_wait_for_torch_or_numpy(elsewhere):
    words = [sys.executable, "-c", WITHOUT_TORCH]
    options = {"timeout": LONGEST, "cwd": elsewhere, "env": child_environment()}
    answer = subprocess.run(words, capture_output=True, text=True, check=True, **options)
    assert answer.stdout.splitlines()[-1] == "False"
    assert re.search(r"^0\.\d+\.\d+$", answer.stdout, re.MULTILINE)
    for text in ("Usage: paceline COMMAND", "Usage: paceline train", "--global-batch -b", "PACELINE_… variables"):
        assert text in answer.stdout
    assert "['train', '--epochs', '0'] 2" in answer.stdout


def test_a_pipe_gets_clean_lines_and_the_run_can_be_read_evaluated_and_repeated(command, run, elsewhere):
    answer = command(*SMALL, "--epochs=2", "--log-every=4")
    assert (answer.code, answer.err) == (0, "")
    folder = RunFolder(elsewhere / "runs" / "digits-mlp" / "001")
    check_lines(answer.out)
    assert (folder.log.read_text()) == answer.out
    assert summarise(folder).state == "FINISHED"
    (test,) = [record for record in read_metrics(folder) if record.get("split") == "test"]
    facts = {"run": str(folder.path), "checkpoint": "best", "split": "test"}
    scores = {key: test[key] for key in ("loss", "top1", "top5", "samples")}
    assert json.loads(run("eval", folder.path, "--json").out) == facts | scores
    assert run("train", "--config", folder.config).code == 0
    states = [
        load_checkpoint(Checkpoints(path / "checkpoints", keep=1).named("last"))["model"]
        for path in (folder.path, folder.path.with_name("002"))
    ]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


def check_lines(text):
    """Check the header, a line per interval, a line per epoch, and that a log file could hold them."""
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text)
    lines = text.splitlines()
    names = ["run", "device", "world", "data", "batch", "lr", "model", "disk"]
    assert [line.split()[0] for line in lines[:8]] == names
    assert "train 1,293 – valid 144 – test 360" in lines[3]
    speed = r"[\d,.]+ samples/s"
    step = rf"step \d+/22  loss \d\.\d{{4}}  acc \d+\.\d\d%  lr [\d.e-]+  [\d.]+ m?s/step  {speed}  run: [\dms. ]+ left"
    score = r"loss \d\.\d{4}  acc \d+\.\d\d%"
    epoch = rf"epoch \d/2  train {score}  \|  valid {score}  top-5 \d+\.\d\d%  \|  {speed}, [\dms. ]+(  \*)?"
    body = lines[8:-2]
    assert [line.split()[1] for line in body] == ["4/22", "8/22", "1/2", "12/22", "16/22", "20/22", "2/2"]
    for line in body:
        assert re.fullmatch(step if line.startswith("step") else epoch, line), line
    assert re.fullmatch(
        rf"test at step (11|22) \(best checkpoint\): {score}  top-5 \d+\.\d\d%  over 360 samples", lines[-2]
    )
    assert re.fullmatch(r"finished in [\dms. ]+: best was step \d+ in epoch \d; runs/digits-mlp/001", lines[-1])


def test_samples_that_a_trial_does_not_score_are_reported_and_can_be_scored_later(train, run):
    answer = train("--steps=2")
    assert "scores   over 256 of 360 test samples: the run ends within its first epoch; " in answer.out
    assert re.search(r"^test at step 2 .*  over 256 of 360 samples$", answer.out, re.MULTILINE)
    (words,) = re.findall(r"paceline (eval \S+) scores all", answer.out)
    assert run(*words.split()).out.endswith("over 360 samples\n")
    assert json.loads(run("runs", "show", "digits-mlp", "--json").out)["test_samples"] == 256
    assert re.search(r"^test samples +256$", run("runs", "show", "digits-mlp").out, re.MULTILINE)


def test_a_terminal_gets_a_bar_and_the_lines_that_matter(start):
    main, terminal = pty.openpty()
    options = {"stdin": terminal, "stdout": terminal, "stderr": terminal}
    environ = child_environment(TERM="xterm-256color", COLUMNS="120")
    process = start(*SMALL, "--epochs=2", "--log-every=2", env=environ, **options)
    os.close(terminal)
    text = read_terminal(main)
    assert process.wait(LONGEST) == 0
    assert "━" in text
    seen = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    assert re.search(r"epoch 1/2 ━+[╸╺━ ]+ *\d+/11 loss \d\.\d{4}  acc \d+\.\d\d%  [\d,.]+ samples/s", seen)
    assert len(re.findall(r"epoch \d/2  train loss [^\r\n]+samples/s", seen)) == 2
    assert "finished in" in seen
    assert "step 2/22" not in seen  # the bar says it
    assert "epoch 0/2" not in seen
    assert text.endswith("\x1b[?25h\r\x1b[1A\x1b[2K")  # the cursor is back, and the line of the bar is empty


def read_terminal(main):
    """Return everything that is written to a terminal until its other side is closed."""
    parts = []
    while select.select([main], [], [], LONGEST)[0]:
        try:
            part = os.read(main, 65536)
        except OSError:  # how Linux says that the other side is closed
            break
        parts.append(part)
    os.close(main)
    return b"".join(parts).decode()


@pytest.mark.parametrize(
    ("number", "code"), [pytest.param(signal.SIGINT, 130, id="SIGINT"), pytest.param(signal.SIGTERM, 143, id="SIGTERM")]
)
def test_a_signal_to_the_whole_group_stops_saves_and_leaves_no_process(start, run, wait_until, number, code):
    """Ctrl-C in a terminal and scancel both signal the workers too."""
    process = start(*SMALL, "--epochs=100000", "--workers=2", "--log-every=1")
    for line in process.stdout:
        if line.startswith("step 15/"):  # the fourth of its epoch: both workers have given a batch
            break
    os.killpg(process.pid, number)
    out, err = process.communicate(timeout=LONGEST)
    assert (process.returncode, err) == (code, "")
    stopped = re.fullmatch(
        r"stopped after step (\d+) of 1100000, saved; to resume: paceline (train --resume runs/digits-mlp/001)",
        out.splitlines()[-1],
    )
    assert stopped
    wait_until(lambda: not group_exists(process.pid), "all processes of the run to end")
    assert re.search(r"digits-mlp/001 .* STOPPED", run("runs").out)
    again = run(*stopped[2].split(), "--steps", int(stopped[1]) + 3, "--workers=0")
    assert again.code == 0
    assert f"resumed after step {stopped[1]} of {int(stopped[1]) + 3}" in again.out
    assert re.search(r"digits-mlp/001 .* FINISHED", run("runs").out)


def group_exists(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_run_that_was_killed_is_lost_and_can_be_resumed_but_not_while_it_lives(start, run, elsewhere):
    process = start(*SMALL, "--epochs=100000", "--log-every=1")
    for line in process.stdout:
        if line.startswith("step 15/"):
            break
    answer = run("train", "--resume=digits-mlp")
    assert answer.code == 2
    assert re.fullmatch(rf"runs/digits-mlp/001 is in use by process {process.pid} on \S+", answer.message)
    process.kill()
    process.wait(LONGEST)
    assert re.search(r"digits-mlp/001 .* LOST", run("runs").out)
    checkpoints = Checkpoints(elsewhere / "runs" / "digits-mlp" / "001" / "checkpoints", keep=1)
    step = checkpoints.newest_good(NO_OTHERS, lambda _damaged: None)[0]["progress"]["step"]
    again = run("train", "--resume=digits-mlp", "--steps", step + 3)
    assert again.code == 0
    assert f"resumed after step {step} of {step + 3}" in again.out
