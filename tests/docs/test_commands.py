"""What README and docs tell people to type: every command is understood, and those that can run here do.

Runs are short: two steps (four where a run is resumed), one rank in place of --nproc, and the embedded digits in place
of data that has to be downloaded. The long test runs every page as it is written.
"""

import os
import re
import runpy
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest
from cyclopts import Argument

from lab.environment import child_environment
from paceline import cli
from paceline.commands.settings_files import settings_files
from paceline.core.errors import RunError
from paceline.core.load import Layers
from tests.docs.pages import PAGES, Command, commands, read_command, write_files

SHORT = {"PACELINE_LOG_EVERY": "1", "PACELINE_TRACK": "none"}
STEPS = {False: "2", True: "4"}
"""By whether the run is resumed."""
DOWNLOADED = {"cifar10", "cifar100", "cinic10", "imagenet", "fashion-mnist"}
SHOWN = {
    "explain", "report", "predict", "runs", "eval", "compare", "export", "infer", "models", "recipes", "new", "profile",
    "cd",
}  # fmt: skip
"""Commands that read runs or print something, which run as they are."""
ELSEWHERE = re.compile(
    r"-(-nnodes|-rank|-node-rank|-rendezvous|-recipe)$|(timm|torchvision|folder|packed|hf):|^NAME$|^RUN$|auto$"
)
"""Words of commands that need other machines, other libraries, files of the reader's, or another test."""


def needs_more(command: Command) -> bool:
    """Tell whether a command cannot run in this process, or has a test that runs it in another way."""
    kind = command.words[0]
    return bool(command.starter) or kind not in SHOWN | {"train"} or any(map(ELSEWHERE.search, command.words))


def shortened(words: list[str]) -> list[str]:
    """Return a command that trains on one rank, on data that is here."""
    if words[0] != "train":
        return words
    words = ["digits" if before == "--data" and word in DOWNLOADED else word for before, word in _pairs(words)]
    if "--mode" in words or "--profile" in words:
        return words
    return [word for before, word in _pairs(words) if "--nproc" not in (before, word)]


def _pairs(words: list[str]) -> list[tuple[str, str]]:
    return list(zip(["", *words], words, strict=False))


@cache
def runnable(page: str) -> list[Command]:
    return [command for command in commands(page) if not needs_more(command)]


def run(command: list[str], variables: dict[str, str]) -> int:
    if command[0] == "cd":
        os.chdir(command[1])  # back after the test: `elsewhere`
        return 0
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (child_environment(OMP_NUM_THREADS="1") | variables).items():
            patch.setenv(name, value)
        return cli.run(command, os.environ)


def files_that_are_here(arguments: Mapping[str, Argument]) -> list[Path]:
    """Return the recipe of a command, but no file of a run, which an earlier command of the page would have made."""
    try:
        return [file for file in settings_files(arguments) if file.exists()]
    except RunError:
        return []


def parse(words: list[str]) -> None:
    """Read a command as the command line does, without running it."""
    app = cli.build_app(Layers({}, files_that_are_here), used=words[:1])
    app.parse_args(cli.command_first(words), exit_on_error=False, print_error=False)


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)])
def test_every_command_of_a_page_is_understood(page, elsewhere):
    write_files(page, elsewhere)
    for command in commands(page):
        if command.words[0] != "cd":
            parse(["0" if word.startswith("$") else word for word in command.words])  # a variable of the shell


@pytest.mark.parametrize("line", ["paceline train --modle mlp", "paceline train --epochs x", "srun paceline tarin"])
def test_a_command_that_is_wrong_is_found(line):
    command = read_command(line)
    assert command is not None
    with pytest.raises(Exception, match=r"modle|x|tarin"):
        parse(command.words)


def takes_long(page: str) -> bool:
    """Tell whether commands of a page start several processes here, or trace a model for torch.export."""
    words = {word for command in runnable(page) for word in shortened(command.words)}
    return "--nproc" in words or any("torch-export" in word for word in words)


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.slow] * takes_long(page)) for page in PAGES if runnable(page)],
)
def test_the_commands_of_a_page_run(page, elsewhere, capsys, one_thread):
    write_files(page, elsewhere)
    for command in runnable(page):
        steps = {} if "--steps" in command.words else {"PACELINE_STEPS": STEPS["--resume" in command.words]}
        variables = SHORT | steps if command.words[0] == "train" else {}
        code = run(shortened(command.words), variables | command.variables)
        assert code == 0, f"{page}: {' '.join(command.words)}\n{capsys.readouterr().err}"
    _load_what_was_exported(elsewhere)


@pytest.mark.long
@pytest.mark.parametrize(
    "page", ["README.md", "docs/start.md", "docs/training.md", "docs/prediction.md", "docs/timing.md"]
)
def test_the_commands_of_a_page_run_as_they_are_written(page, elsewhere, capsys, one_thread):
    write_files(page, elsewhere)
    for command in commands(page):
        if not command.starter and command.words[0] not in {"audit", "observe", "--install-completion"}:
            code = run(command.words, command.variables)
            assert code == 0, f"{page}: {' '.join(command.words)}\n{capsys.readouterr().err}"


def _load_what_was_exported(folder) -> None:
    """Run the lines of plain PyTorch that load what a command has exported."""
    if (folder / "load.py").exists():
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(folder))
            assert not runpy.run_path("load.py")["model"].training
