"""Running the command: in this process where that is enough, as a process of its own where it is not."""

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from paceline import cli
from paceline.records.folder import RunFolder
from tests.conftest import LONGEST


class Answer(NamedTuple):
    """What a command left."""

    code: int
    out: str
    err: str

    @property
    def message(self) -> str:
        return self.err.removeprefix("paceline: ").partition("\n")[0]

    @property
    def hint(self) -> str:
        return self.err.partition("\n  hint: ")[2].strip()


@pytest.fixture
def run(capsys, elsewhere, one_thread):
    """Return a function that runs a command in this process and in an empty folder."""

    def run_here(*words) -> Answer:
        capsys.readouterr()
        code = cli.run([str(word) for word in words], {})
        answer = Answer(int(code), *capsys.readouterr())
        assert "Traceback" not in answer.err
        return answer

    return run_here


@pytest.fixture
def train(run):
    """Return a function that trains the smallest model, or the one it is told, in this process."""

    def train_here(*words) -> Answer:
        model = [] if any(str(word).startswith("--model") for word in words) else ["--model=mlp"]
        return run("train", *model, "--epochs=2", "--threads=1", "--track=none", *words)

    return train_here


@pytest.fixture
def command(start):
    """Return a function that runs the real command to its end."""

    def run_to_end(*words, **options) -> Answer:
        process = start(*words, **options)
        out, err = process.communicate(timeout=LONGEST)
        return Answer(process.returncode, out, err)

    return run_to_end


@pytest.fixture
def own_run(finished_run, elsewhere) -> RunFolder:
    """Return a finished run of two epochs that a test may change: checkpoints at steps 11 and 22."""
    return RunFolder(shutil.copytree(finished_run.path, elsewhere / "runs" / "demo" / "001"))


@pytest.fixture
def write(elsewhere):
    """Return a function that writes a file into the working folder."""

    def write_file(name, text) -> Path:
        path = elsewhere / name
        path.write_text(text, encoding="utf-8")
        return path

    return write_file
