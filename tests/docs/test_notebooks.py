"""The notebooks of examples/ run in real kernels: alone, and two that find each other by address."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from lab.environment import child_environment
from paceline.records.folder import RunFolder
from paceline.records.reader import read_metrics
from tests.conftest import LONGEST
from tests.launching.conftest import free_port

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def execute(elsewhere, monkeypatch):
    """Return a function that runs a notebook, at a port that is free and with a smaller model: what its cells show."""
    for name in ("PYTHONPATH", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, child_environment(OMP_NUM_THREADS="1")[name])

    def run(name: str, port: int, before: str = "", after: str = "") -> str:
        text = (EXAMPLES / f"{name}.ipynb").read_text()
        for old, new in ((":29400", f":{port}"), ("resnet20", "mlp"), (before, after)):
            text = text.replace(old, new)
        notebook = nbformat.reads(text, as_version=4)
        NotebookClient(notebook, timeout=LONGEST, resources={"metadata": {"path": str(elsewhere)}}).execute()
        outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
        return "".join(output.get("text", "") for output in outputs)

    return run


def accuracy(text: str) -> str:
    (line,) = re.findall(r"^test accuracy .* over 360 samples$", text, re.MULTILINE)
    return line


@pytest.mark.slow
def test_main_and_worker_train_one_model_and_show_one_result(execute):
    port = free_port()
    with ThreadPoolExecutor() as both:
        worker, main = both.map(execute, ("worker", "main"), (port, port))
    assert "2 ranks, started by torchrun" in main
    assert "epoch 2/2" in main
    assert f"node 1 joins node 0 at 127.0.0.1:{port}" in worker
    assert accuracy(main) == accuracy(worker)
    (folder,) = Path("runs").glob("notebooks/*")
    assert len(list(folder.glob("ranks/rank-*.json"))) == 2
    assert {record["step"] for record in read_metrics(RunFolder(folder)) if record["kind"] == "epoch"} == {11, 22}


@pytest.mark.long
def test_notebooks_with_different_settings_are_refused_with_the_setting_that_differs(execute):
    port = free_port()
    with ThreadPoolExecutor() as both:
        attempts = [
            both.submit(execute, "main", port),
            both.submit(execute, "worker", port, "lr=0.05", "lr=0.5"),
        ]
        errors = [attempt.exception() for attempt in attempts]
    assert all(isinstance(error, CellExecutionError) for error in errors)
    assert "--lr is 0.05 on rank 0 and 0.5 on rank 1" in str(errors[0])


def test_the_single_notebook_runs(execute):
    assert "mode single" in (text := execute("single", 0))
    assert accuracy(text)


def test_notebooks_are_kept_without_outputs():
    for path in EXAMPLES.glob("*.ipynb"):
        cells = json.loads(path.read_text())["cells"]
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells), path.name
