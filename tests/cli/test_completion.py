"""`paceline --install-completion`: a real bash completes commands, flags and choices."""

import subprocess

import pytest

from tests.conftest import LONGEST


@pytest.fixture
def complete(command, elsewhere, monkeypatch):
    """Return a function that gives what bash offers for the last of some words."""
    monkeypatch.setenv("HOME", str(elsewhere))
    answer = command("--install-completion", "--shell=bash")
    assert answer.code == 0, answer.err
    (script,) = elsewhere.glob(".local/share/bash-completion/completions/*")
    ask = "source $1; shift; COMP_WORDS=($@); COMP_CWORD=$(($# - 1)); _paceline; printf '%s\\n' ${COMPREPLY[@]}"

    def offered(*words):
        bash = ["bash", "-c", ask, "bash", script, "paceline", *words]
        return subprocess.run(bash, capture_output=True, text=True, timeout=LONGEST, check=True).stdout.split()

    return offered


def test_bash_completes_commands_flags_and_choices(complete):
    assert complete("tr") == ["train"]
    assert complete("train", "--glob") == ["--global-batch"]
    assert complete("train", "--optimizer", "ada") == ["adam", "adamw"]
    assert complete("train", "--no-such") == []


def test_a_shell_that_is_not_known_is_refused(run):
    answer = run("--install-completion", "--shell=tcsh")
    assert (answer.code, answer.message) == (2, '--shell: expected one of zsh, bash, fish, powershell, got "tcsh"')
