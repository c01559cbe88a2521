"""The recorded environment of a run: enough to repeat the run, and without secrets."""

import json
import subprocess

import pytest

from paceline.records.environment import COMMAND_VARIABLE, describe_environment, typed_command
from paceline.records.folder import RunFolder

SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "planted-aws-secret",
    "OPENAI_API_KEY": "planted-openai-secret",
    "WANDB_API_KEY": "planted-wandb-secret",
    "GITHUB_TOKEN": "planted-github-secret",
    "DATABASE_URL": "postgres://user:planted-database-secret@host/db",
    "PGPASSWORD": "planted-password-secret",
}


def files_with(folder, text):
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return [str(path.relative_to(folder)) for path in files if text.encode() in path.read_bytes()]


def test_no_file_of_a_run_holds_a_secret_of_the_environment(small_run, monkeypatch):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "planted-interface")
    folder = small_run(track=("tensorboard",)).folder
    assert files_with(folder, "planted-interface") == ["environment.json"]
    assert files_with(folder, "planted-") == ["environment.json"]
    for name, value in SECRETS.items():
        assert files_with(folder, value) == []
        assert files_with(folder, name) == []


def test_the_recorded_environment_is_enough_to_repeat_a_run(finished_run: RunFolder):
    (facts,) = json.loads(finished_run.environment.read_text())
    assert facts["packages"].keys() >= {"paceline", "torch", "numpy"}
    assert facts["device"].startswith("cpu (")
    assert facts.keys() >= {"time", "host", "python", "platform", "cpu", "cores", "variables", "command", "git"}


@pytest.fixture
def checkout(elsewhere):
    """Work in a git checkout with one commit."""
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@y"]
    (elsewhere / "file").write_text("first")
    for words in (["init", "-q"], ["add", "file"], ["commit", "-qm", "first"], ["tag", "v1"]):
        subprocess.run([*git, *words], check=True)
    return elsewhere


def test_the_commit_is_noted_and_marked_when_files_differ(checkout):
    answer = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    commit = answer.stdout.strip()
    assert describe_environment({}, device="cpu")["git"] == commit
    (checkout / "file").write_text("second")
    assert describe_environment({}, device="cpu")["git"] == f"{commit}-dirty"


def test_a_checkout_too_large_to_compare_in_time_is_not_marked_as_changed(checkout, monkeypatch):
    run = subprocess.run

    def late(command, **options):
        if "diff" in command:
            raise subprocess.TimeoutExpired(command, options["timeout"])
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", late)
    assert describe_environment({}, device="cpu")["git"].endswith("-unknown")


def test_outside_a_checkout_there_is_no_commit(elsewhere):
    assert describe_environment({}, device="cpu")["git"] is None


COMMANDS = {
    "fsmonitor": [["core.fsmonitor", "{}"]],
    "hooks": [["core.hooksPath", "{folder}"]],
    "filter": [["filter.theirs.clean", "{}; cat"]],
    "external diff": [["diff.external", "{}"]],
}


@pytest.mark.parametrize("settings", COMMANDS.values(), ids=COMMANDS)
def test_no_command_of_a_checkout_runs(checkout, settings):
    """A checkout that one has received has its own .git/config, which may name commands."""
    script = checkout / "command"
    script.write_text(f"#!/bin/sh\ntouch {checkout}/ran\n")
    script.chmod(0o755)
    (checkout / ".gitattributes").write_text("file filter=theirs\n")
    (checkout / "file").write_text("other")
    for name, value in settings:
        subprocess.run(["git", "config", name, value.format(script, folder=checkout)], check=True)
    assert describe_environment({}, device="cpu")["git"].endswith("-dirty")
    assert not (checkout / "ran").exists()
    subprocess.run(["git", "diff", "HEAD"], check=True, capture_output=True)
    assert (checkout / "ran").exists() or "hooks" in str(settings), "the control: git itself runs the command"


def test_the_command_line_is_recorded_without_passwords(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/bin/paceline", "train", "--data-dir=s3://key:planted@bucket/x", "a:b@c"])
    command = describe_environment({}, device="cpu")["command"]
    assert command == ["paceline", "train", "--data-dir=s3://key:***@bucket/x", "a:b@c"]


def test_ranks_keep_the_command_that_the_user_typed():
    environ = {COMMAND_VARIABLE: '["paceline", "train", "--nproc", "2"]'}
    assert describe_environment(environ, device="cpu")["command"] == ["paceline", "train", "--nproc", "2"]
    assert describe_environment({}, device="cpu")["command"] == typed_command()
