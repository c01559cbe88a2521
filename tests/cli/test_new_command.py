"""`paceline new`: a project that trains, whose tests and notebook run, and nothing that was there before is touched."""

import subprocess
import sys
import tomllib
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import paceline
from lab.environment import child_environment
from paceline.core.new_project import TEMPLATES, render_project
from tests.conftest import LONGEST


@pytest.fixture
def project(run) -> Path:
    answer = run("new", "flowers")
    assert answer.code == 0, answer.err
    assert answer.out.startswith("flowers: Dockerfile, README.md, data.py")
    return Path("flowers")


def tool(*words, cwd) -> str:
    environ = child_environment(OMP_NUM_THREADS="1")
    done = subprocess.run(words, cwd=cwd, env=environ, capture_output=True, text=True, timeout=LONGEST, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_new_project_has_all_its_files_and_its_name_in_them(project):
    files = {path.name for path in project.iterdir()}
    assert files == {path.stem.replace("gitignore", ".gitignore") for path in TEMPLATES.glob("*.txt")}
    texts = {path.name: path.read_text(encoding="utf-8") for path in project.iterdir()}
    assert not [name for name, text in texts.items() if "@NAME@" in text or "@VERSION@" in text]
    assert f"paceline=={paceline.__version__}" in texts["requirements.txt"]
    named = texts["README.md"]
    assert not [name for name in files - {"README.md", ".gitignore"} if f"`{name}`" not in named]
    assert paceline.Config(**tomllib.loads(texts["train.toml"])).name == "flowers"


def test_the_files_of_a_project_are_clean(project):
    ruff = [sys.executable, "-m", "ruff"]
    tool(*ruff, "format", "--check", "--isolated", "--line-length", "120", ".", cwd=project)
    tool(*ruff, "check", "--isolated", "--select", "E,F,W,B,I,UP,SIM", "--line-length", "120", ".", cwd=project)
    tool("bash", "-n", "slurm.sbatch", cwd=project)


def test_a_new_project_trains_and_learns(project, run, monkeypatch):
    monkeypatch.chdir(project)
    answer = run("train", "--config", "train.toml", "--epochs=3", "--threads=1", "--track=none")
    assert answer.code == 0, answer.err
    (last,) = [line for line in answer.out.splitlines() if line.startswith("test at step")]
    assert float(last.split("accuracy ")[1].split("%")[0]) > 50  # of three classes


@pytest.mark.parametrize("name", ["flowers", "a b", "-x", "../.hidden"])
def test_a_folder_that_exists_and_a_name_that_is_none_are_refused(name, elsewhere, run):
    (elsewhere / "flowers").mkdir()
    (elsewhere / "flowers" / "mine.txt").write_text("kept")
    answer = run("new", "--", name)
    assert answer.code == 2
    assert answer.hint
    assert [path.name for path in elsewhere.iterdir()] == ["flowers"]
    assert (elsewhere / "flowers" / "mine.txt").read_text() == "kept"


def test_a_project_that_cannot_be_written_leaves_nothing(elsewhere, run, monkeypatch):
    written = Path.write_text

    def fail_late(path, *words, **options):
        if path.name == "train.toml":
            raise OSError(28, "No space left on device")
        return written(path, *words, **options)

    monkeypatch.setattr(Path, "write_text", fail_late)
    assert run("new", "flowers").message.startswith("the disk is full")
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("name", ["x.py/flowers", "/proc/flowers", f"{'x' * 300}"])
def test_a_folder_that_cannot_be_created_is_reported(elsewhere, run, name):
    (elsewhere / "x.py").touch()
    answer = run("new", name)
    assert (answer.code, answer.message.startswith(f"cannot create {name}: ")) == (2, True), answer.err
    assert answer.hint == "choose another folder"
    assert [path.name for path in elsewhere.iterdir()] == ["x.py"]


def test_marks_are_replaced_everywhere():
    files = render_project({"@NAME@": "x", "@VERSION@": "1"})
    assert not [name for name, text in files.items() if "@" in text.replace("USR1@120", "").replace('"$@"', "")]


@pytest.mark.slow
def test_the_tests_and_the_notebook_of_a_new_project_run(project, monkeypatch):
    assert "4 passed" in tool(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=project)
    for name in ("PYTHONPATH", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, child_environment(OMP_NUM_THREADS="1")[name])
    notebook = nbformat.read(project / "train.ipynb", as_version=4)
    NotebookClient(notebook, timeout=LONGEST, resources={"metadata": {"path": str(project)}}).execute()
    texts = [output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", [])]
    assert "test accuracy" in texts[-1]
