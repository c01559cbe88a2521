"""Flags that torchrun and torch.distributed.launch pass on to the command, and those that they add."""

import subprocess
import sys
from pathlib import Path

import pytest
from torch.distributed import launch, run

from lab.environment import child_environment
from paceline import cli
from paceline.commands.settings_files import settings_files
from paceline.core.errors import ConfigError
from paceline.core.load import Layers
from paceline.core.start import Start
from paceline.parallel.detect import detect_world
from paceline.records.folder import RunFolder
from paceline.records.reader import read_environments
from tests.conftest import LONGEST
from tests.launching.conftest import SETTINGS, free_port

AMBIGUOUS = {"--run", "--nproc"}
"""Flags that torchrun may take for an abbreviation of its own: --run-path or --run_path, --nproc-per-node or …"""


def names_by_argument(command: str) -> list[set[str]]:
    app = cli.build_app(Layers({}, settings_files), used=[command])
    arguments = app[command].assemble_argument_collection()
    found = [{*argument.names, *argument.negatives} for argument in arguments]
    return [{name for name in names if name.startswith("-")} for names in found]


def reaches_the_script(flag: str, parse) -> bool:
    for words in ([flag], [flag, "1"], [f"{flag}=1"]):
        try:
            parsed = parse(["--standalone", "--nproc-per-node=2", "-m", "paceline", "train", *words])
        except SystemExit:
            return False
        assert (parsed.training_script, parsed.training_script_args) == ("paceline", ["train", *words])
    return True


@pytest.mark.parametrize("parse", [run.parse_args, launch.parse_args], ids=["torchrun", "torch.distributed.launch"])
@pytest.mark.parametrize("command", ["train", "profile", "doctor"])
def test_every_setting_has_a_flag_that_reaches_the_script(command, parse):
    arguments = names_by_argument(command)
    assert len(arguments) > 10
    lost: set[str] = set()
    for names in arguments:
        reaching = {name for name in names if reaches_the_script(name, parse)}
        assert reaching or not names, f"{names} never reach {command}"
        lost |= names - reaching
    assert lost <= AMBIGUOUS


@pytest.mark.slow
def test_torchrun_starts_a_run_with_a_name(elsewhere):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "paceline"]
    words = [*SETTINGS, "--name", "x", "--nproc-per-node", "2"]
    subprocess.run([*command, "train", *words], env=child_environment(), check=True, timeout=LONGEST)
    (environment,) = read_environments(RunFolder(Path("runs/x/001")))
    assert (environment["world_size"], environment["launcher"]) == (2, "torchrun")


@pytest.mark.long
def test_torch_distributed_launch_starts_ranks(elsewhere):
    command = [sys.executable, "-m", "torch.distributed.launch", "--nproc-per-node=2", f"--master-port={free_port()}"]
    words = ["-m", "paceline", "train", *SETTINGS, "--name", "x"]
    subprocess.run([*command, *words], env=child_environment(), check=True, timeout=LONGEST)
    (environment,) = read_environments(RunFolder(Path("runs/x/001")))
    assert environment["world_size"] == 2


@pytest.mark.parametrize(
    "words", [["--local-rank=3"], ["--local_rank=3"], ["--local-rank", "3"], ["--local_rank", "3"]]
)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_local_rank_is_taken_before_and_after_the_command(monkeypatch, words, is_first):
    seen = []

    def remember(_environ, start):
        seen.append(start)
        raise ConfigError("seen")

    monkeypatch.setattr("paceline.commands.train.detect_world", remember)
    cli.run([*words, "train"] if is_first else ["train", *words], {})
    assert [start.local_rank for start in seen] == [3]


def test_a_local_rank_wins_over_the_environment():
    environ = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    assert detect_world(environ, Start()).local_rank == 1
    assert detect_world(environ, Start(local_rank=2)).local_rank == 2
    by_hand = Start(rank=1, world_size=2, init_method="tcp://a:1", local_rank=1)
    assert detect_world({}, by_hand).local_rank == 1


@pytest.mark.parametrize("words", [[], ["--help"], ["--version"], ["runs"], ["--local-rank"]])
def test_other_arguments_keep_their_order(words):
    assert cli.command_first(words) == words
