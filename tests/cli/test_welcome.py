"""`paceline` alone, the short help, narrow terminals, --quiet and --verbose: what somebody sees in the first hour."""

import json
import re
import shutil
import time
from importlib import import_module

import pytest

from paceline.cli import num_own
from paceline.commands.short_help import FLAGS, wants_short_help
from paceline.core.errors import ConfigError
from paceline.core.units import fitted_table


def commands(out: str) -> list[str]:
    """Return the commands that a text offers."""
    return re.findall(r"^  (paceline .+?)(?:  .*)?$", out, re.MULTILINE)


def test_alone_in_an_empty_folder_it_offers_a_first_run_that_works(run):
    answer = run()
    assert (answer.code, answer.err) == (0, "")
    assert "no runs in runs yet" in answer.out
    first = commands(answer.out)[0]
    assert run(*first.split()[1:], "--steps=1", "--track=none", "--threads=1").code == 0


def test_alone_beside_runs_it_shows_the_last_and_what_fits_their_state(run, own_run):
    out = run().out
    assert re.search(r"^demo/001 .* FINISHED$", out, re.MULTILINE)
    explain = next(command for command in commands(out) if " explain " in command)
    assert run(*explain.split()[1:]).code == 0
    for state, command in {"STOPPED": "paceline train --resume runs/demo/001", "TRAINING": "paceline explain"}.items():
        lead = own_run.rank(0)
        values = json.loads(lead.read_text(encoding="utf-8"))
        host = {"host": "elsewhere", "time": time.time() + 60} if state == "TRAINING" else {}
        lead.write_text(json.dumps(values | {"state": state} | host), encoding="utf-8")
        assert any(offered.startswith(command) for offered in commands(run().out)), state


def test_a_run_without_checkpoints_is_not_offered_to_be_resumed(run, own_run):
    """A command that was observed, or a run that failed early."""
    assert " --resume " in run().out
    shutil.rmtree(own_run.checkpoints)
    lead = own_run.rank(0)
    values = json.loads(lead.read_text(encoding="utf-8"))
    for state in ("FINISHED", "FAILED"):
        lead.write_text(json.dumps(values | {"state": state}), encoding="utf-8")
        offered = commands(run().out)
        assert offered, state
        assert not [command for command in offered if "--resume" in command], state


@pytest.mark.parametrize(
    ("args", "ours"),
    [
        (["observe", "--", "python", "x.py", "--verbose", "--help-all"], 1),
        (["observe", "--verbose", "python", "x.py", "--verbose"], 2),
        (["audit", "python", "x.py", "--verbose"], 1),
        (["submit", "--dry-run", "--", "train", "--help-all"], 2),
        (["eval", "demo", "--verbose"], 3),
        ([], 0),
    ],
)
def test_the_args_of_a_users_command_are_not_ours(args, ours):
    assert num_own(args) == ours


@pytest.mark.parametrize("command", ["observe", "audit"])
@pytest.mark.parametrize("given", [["--", "tool", "--verbose", "--help-all"], ["tool", "--verbose", "--help-all"]])
def test_flags_of_a_users_command_reach_it(run, monkeypatch, command, given):
    seen = []

    def check(command):
        seen.extend(command)
        raise ConfigError("not run")

    monkeypatch.setattr(import_module(f"paceline.commands.{command}"), "check_command", check)
    assert run(command, *given).message == "not run"
    assert seen == ["tool", "--verbose", "--help-all"]


def test_the_short_help_fits_a_screen_and_has_the_help_of_each_flag(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = run("train", "--help").out
    assert len(out.splitlines()) <= 50
    assert max(map(len, out.splitlines())) <= 80
    assert re.findall(r"^  (--[a-z-]+)", out, re.MULTILINE) == list(FLAGS)
    assert "None" not in out
    assert "  --epochs, -e  (default: 10)\n    Number of passes over the training samples.\n" in out
    number = re.search(r"^(\d+) more flags: paceline train --help-all", out, re.MULTILINE)
    assert number is not None
    everything = run("train", "--help-all").out
    assert "--no-decay-norm" in everything
    assert int(number[1]) > 50


@pytest.mark.parametrize(
    ("args", "wanted"),
    [
        (["train", "--help"], True),
        (["train", "--epochs", "3", "-h"], True),
        (["train", "--help-all"], False),
        (["submit", "--", "train", "--help"], False),
        (["eval", "--help"], False),
    ],
)
def test_only_the_help_of_train_is_short(args, wanted):
    assert wants_short_help(args) is wanted


def test_a_row_that_is_wider_than_the_terminal_becomes_a_block(run, own_run, monkeypatch):
    assert fitted_table(["a", "bb"], [["1", "2"], ["3", "4"]], columns=4) == "a   1\nbb  2\n\na   3\nbb  4"
    monkeypatch.setenv("COLUMNS", "40")
    assert run("runs").out.splitlines()[0] == "run      demo/001"
    monkeypatch.setenv("COLUMNS", "200")
    assert run("runs").out.splitlines()[0].startswith("run ")
    assert "started" in run("runs").out.splitlines()[0]


def test_quiet_shows_the_result_only_and_the_log_has_all(train, elsewhere):
    answer = train("--quiet", "--name=calm")
    assert re.fullmatch(r"runs/calm/001, finished, 2 epochs in .*, test loss .*\n", answer.out)
    log = (elsewhere / "runs/calm/001/log.txt").read_text(encoding="utf-8")
    assert "epoch 2/2" in log
    warned = train("--quiet", "--decay-every=3", "--name=calm")
    assert warned.out.startswith("warning: --decay-every 3 has no effect with --schedule cosine\n")


def test_verbose_shows_every_setting_at_the_start(train):
    answer = train("--verbose")
    assert re.search(r"^weight_decay +0.0005$", answer.out, re.MULTILINE)
    assert re.search(r"^lr +0.1$", answer.out, re.MULTILINE)
    assert not re.search(r"^weight_decay", train().out, re.MULTILINE)


def test_recipes_and_reports_have_json(run, own_run):
    recipes = [json.loads(line) for line in run("recipes", "--json").out.splitlines()]
    assert {"recipe", "title", "settings"} == set(recipes[0])
    assert json.loads(run("recipes", "cifar10-resnet20", "--json").out)["settings"]["model"] == "resnet20"
    report = json.loads(run("report", "demo", "--json").out)
    assert report["report"] == "runs/demo/001/report.html"
    assert report["verdict"]
