"""`paceline train --loop`: what the commands say about a loop of the user, and about mistakes in its name."""

import json
import shutil
from pathlib import Path

import pytest

GAN = Path(__file__).parents[2] / "examples/gan.py"


@pytest.fixture
def gan(elsewhere):
    shutil.copy(GAN, elsewhere / "gan.py")
    (elsewhere / "other.py").write_text(
        "number = 3\ndef two(run, more): pass\ndef late(run):\n    yield\nasync def soon(run): pass\n"
    )


def test_the_example_trains_and_resumes(run, gan):
    train = ("train", "--loop", "gan.py:train", "--global-batch", "100", "--threads", "1")
    assert run(*train, "--epochs", "2").code == 0
    assert run("train", "--resume", "gan", "--epochs", "3").code == 0
    assert run(*train, "--epochs", "3", "--name", "whole").code == 0
    (shown,) = [line for line in run("runs").out.splitlines() if line.startswith("gan/001")]
    assert "gan.py:train" in shown
    assert "3/3" in shown
    assert "resnet20" not in shown
    assert json.loads(run("explain", "gan", "--json").out)
    for command in (["eval"], ["export"], ["sample"], ["infer", "gan.py"]):
        name, *more = command
        answer = run(name, "gan", *more)
        assert answer.code == 2, command
        assert "gan/001 was trained with a loop of your own, gan.py:train, which this command cannot run" in answer.err
        assert "model.safetensors" in answer.err
        assert "Traceback" not in answer.err
    again = run("train", "--resume", "gan")
    assert again.code == 2
    assert "has finished" in again.err


BAD = {
    "--loop gan.py:nope": "gan.py has no function or class nope",
    "--loop missing.py:train": "missing.py does not exist",
    "--loop gan.py": "gan.py is a script that calls start_run",
    "--loop other.py:number": "other.py has no function or class number",
    "--loop other.py:two": "other.py:two cannot be called with a Run",
    "--loop other.py:late": "other.py:late is a generator",
    "--loop other.py:soon": "other.py:soon is a coroutine",
    "--loop gan.py:train --model mlp": "--model mlp has no effect on a loop of your own",
    "--loop gan.py:train --ema 0.9": "--ema 0.9 has no effect on a loop of your own",
    "--loop gan.py:train --mode fsdp": "--mode fsdp is not supported with a loop of your own",
}


@pytest.mark.parametrize("flags", BAD)
def test_a_bad_loop_is_refused(run, gan, flags):
    answer = run("train", *flags.split())
    assert answer.code == 2
    assert BAD[flags] in answer.err
    assert "hint:" in answer.err
    assert not Path("runs").exists()


@pytest.mark.parametrize("command", ["bench", "profile"])
def test_a_command_that_measures_our_loop_refuses_another(run, gan, command):
    answer = run(command, "--loop", "gan.py:train")
    assert answer.code == 2
    assert f"paceline {command} measures Paceline's own loop, not gan.py:train" in answer.err
