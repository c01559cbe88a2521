"""`paceline audit` as a command: output formats, exit codes, silenced lines, scripts for GPUs, bad input."""

import json
import shutil
import socket
import sys
from pathlib import Path

import psutil
import pytest

from paceline.audit.audit_run import with_ranks
from paceline.audit.audit_text import findings_sarif
from paceline.audit.judge import RULES
from paceline.audit.source import is_silenced
from paceline.cli import run as run_cli
from tests.audit.audited import SCRIPTS, audit
from tests.audit.planted import MISTAKES


def plant(folder: Path, rule: str, name: str = "train.py") -> None:
    planted = next(planted for planted in MISTAKES if planted.rule == rule)
    (folder / name).write_text(planted.text((SCRIPTS / planted.script).read_text()))


def test_a_mistake_is_reported_with_line_effect_and_fix(tmp_path):
    plant(tmp_path, "same-order")
    folder = tmp_path / "runs" / "seen" / "001"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text('data = "digits"')
    done = audit(tmp_path, "--json", "--run", "seen", "--", "train.py")
    assert done.returncode == 1, done.stderr
    values = json.loads(done.stdout)
    assert json.loads((folder / "audit.json").read_text()) == values
    (finding,) = values["findings"]
    assert (finding["rule"], finding["level"], finding["file"]) == ("same-order", "wrong", "train.py")
    assert "set_epoch" in finding["fix"]
    assert values["steps"] == [12, 12]


@pytest.mark.long
def test_text_and_sarif_name_the_line_and_a_comment_silences_it(tmp_path):
    plant(tmp_path, "same-order")
    text = audit(tmp_path, "--", "train.py")
    assert text.returncode == 1
    assert "WRONG  same-order  train.py:" in text.stdout
    script = (tmp_path / "train.py").read_text()
    loop = "for inputs, targets in train_loader:"
    (tmp_path / "train.py").write_text(script.replace(loop, loop + "  # paceline: ignore[same-order]"))
    silenced = audit(tmp_path, "--output", "sarif", "--", sys.executable, "-m", "torch.distributed.run", "train.py")
    assert silenced.returncode == 0, silenced.stderr
    assert json.loads(silenced.stdout)["runs"][0]["results"] == []


@pytest.mark.long
@pytest.mark.parametrize(("claims", "rule", "code"), [("own", "cuda-only", 0), ("same", "same-rank", 1)])
def test_a_script_for_gpus_runs_on_the_cpu(tmp_path, claims, rule, code):
    shutil.copy(SCRIPTS / "on_gpu.py", tmp_path)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    done = audit(tmp_path, "--json", "--limit", "240", "--", sys.executable, "on_gpu.py", claims, port)
    assert done.returncode == code, done.stderr
    assert rule in {finding["rule"] for finding in json.loads(done.stdout)["findings"]}


@pytest.mark.long
@pytest.mark.parametrize("waits", [False, True])
def test_a_clock_that_does_not_wait_for_the_gpu_is_noted(tmp_path, waits):
    text = (SCRIPTS / "on_gpu.py").read_text().replace("import os\n", "import os\nimport time\n", 1)
    wait = "            torch.cuda.synchronize()\n" if waits else ""
    after = f"            optimizer.step()\n{wait}            print(time.time() - start)\n"
    text = text.replace("        for x, y in loader:\n", "        start = time.time()\n        for x, y in loader:\n")
    (tmp_path / "train.py").write_text(text.replace("            optimizer.step()\n", after))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    done = audit(tmp_path, "--json", "--", sys.executable, "train.py", "own", port)
    assert done.returncode == 0, done.stderr
    rules = {finding["rule"] for finding in json.loads(done.stdout)["findings"]}
    assert ("clock-before-device" in rules) != waits


BAD_SCRIPTS = {
    "no torch": ("print('hello')", "no Python process imported torch"),
    "no Python": ("this is not Python", "exit code 1"),
    "needs arguments": ("import sys\nif len(sys.argv) < 2: sys.exit('usage: train.py DATA')", "usage: train.py DATA"),
    "needs options": (
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--data', required=True)\np.parse_args()",
        "the following arguments are required: --data",
    ),
    "catches everything": (
        "import torch\ntry:\n    raise ValueError('no data')\nexcept BaseException:\n    pass",
        "without a step of an optimizer",
    ),
    "never steps": (
        "import torch\nfor x in torch.utils.data.DataLoader(range(9)): pass",
        "without a step of an optimizer",
    ),
    "needs an extension": ("import torch\nimport apex_of_nowhere", "No module named 'apex_of_nowhere'"),
    "os._exit": ("import os; print('bye', flush=True); os._exit(9)", "exit code 9"),
}


@pytest.mark.parametrize("name", BAD_SCRIPTS)
def test_a_script_that_never_trains_gives_the_reason(tmp_path, name):
    text, reason = BAD_SCRIPTS[name]
    (tmp_path / "bad.py").write_text(text)
    done = audit(tmp_path, "--", sys.executable, "bad.py")
    assert done.returncode == 2
    assert "no training step was seen" in done.stderr
    assert reason in done.stderr


def test_a_script_beyond_the_limit_is_ended_with_all_its_processes(tmp_path):
    code = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(500)']); "
    (tmp_path / "slow.py").write_text(code + "open('pid', 'w').write(str(__import__('os').getpid())); time.sleep(500)")
    done = audit(tmp_path, "--limit", "3", "--", sys.executable, "slow.py")
    assert done.returncode == 2
    assert "ended after --limit 3 seconds" in done.stderr
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))
    left = [p for p in psutil.process_iter(["cmdline"]) if "time.sleep(500)" in " ".join(p.info["cmdline"] or [])]
    assert left == []


def test_a_script_that_does_not_exist_is_refused(elsewhere, capsys):
    assert run_cli(["audit", "--", "missing.py"], {}) == 2
    assert "there is no script missing.py" in capsys.readouterr().err


def test_explain_prints_a_rule_and_an_unknown_one_gets_a_hint(elsewhere, capsys):
    assert run_cli(["audit", "--explain", "same-order"], {}) == 0
    assert "sampler.set_epoch(epoch)" in capsys.readouterr().out
    assert run_cli(["audit", "--explain", "same-oder"], {}) == 2
    assert "did you mean same-order?" in capsys.readouterr().err
    assert run_cli(["audit", "--rules"], {}) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(RULES) + 2


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("torchrun train.py -b 8", "torchrun --nproc-per-node=2 train.py -b 8"),
        ("torchrun --nproc_per_node=8 train.py", "torchrun --nproc_per_node=2 train.py"),
        ("torchrun --nproc-per-node 8 train.py", "torchrun --nproc-per-node 2 train.py"),
        ("python -m torch.distributed.run train.py", "python -m torch.distributed.run --nproc-per-node=2 train.py"),
        ("python train.py", "python train.py"),
    ],
)
def test_the_number_of_ranks_is_set_for_torchrun(command, expected):
    assert with_ranks(command.split(), 2) == expected.split()


def test_a_script_alone_is_started_by_torchrun():
    assert with_ranks(["train.py", "-b"], 2)[-3:] == ["--nproc-per-node=2", "train.py", "-b"]


def test_a_comment_silences_all_rules_or_those_that_it_names(tmp_path):
    file = tmp_path / "a.py"
    file.write_text("x = 1  # paceline: ignore\ny = 2  # paceline: ignore[same-order, same-file]\nz = 3\n")
    assert is_silenced(file, 1, "same-file")
    assert is_silenced(file, 2, "same-file")
    assert not is_silenced(file, 2, "same-log")
    assert not is_silenced(file, 3, "same-file")
    assert not is_silenced(file, 9, "same-file")


def test_sarif_has_a_rule_and_a_place_for_every_result():
    finding = RULES["same-order"].at("train.py:12", "seen twice")
    report = findings_sarif([finding], RULES)
    (run,) = report["runs"]
    assert report["version"] == "2.1.0"
    assert {rule["id"] for rule in run["tool"]["driver"]["rules"]} == set(RULES)
    (result,) = run["results"]
    assert (result["ruleId"], result["level"]) == ("same-order", "error")
    place = result["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == ("train.py", 12)
