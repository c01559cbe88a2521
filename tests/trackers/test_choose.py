"""Which trackers a run has: by default, by name, and the user's own."""

import runpy
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

import paceline
from paceline.core.errors import ConfigError
from paceline.trackers import choose, tensorboard
from paceline.trackers.choose import choose_trackers

EXAMPLE = Path(__file__).parents[2] / "examples" / "mlflow_tracker.py"
ALWAYS = ["console", "log.txt", "metrics.jsonl", "phases.jsonl"]


def names(*chosen: str) -> list[str]:
    return [tracker.name for tracker in choose_trackers(chosen, say=print)]  # pyright: ignore[reportAttributeAccessIssue]


@pytest.fixture
def no_tensorboard(monkeypatch):
    """Hide the package, as where it is not installed."""

    def find(name, *rest):
        return None if name == "tensorboard" else find_spec(name, *rest)

    for module in (choose, tensorboard):
        monkeypatch.setattr(module, "find_spec", find)


def test_tensorboard_is_used_where_it_is_installed():
    assert names("auto") == [*ALWAYS, "tensorboard"]
    assert names() == ALWAYS


def test_without_tensorboard_a_run_needs_no_flag(no_tensorboard, small_run, capfd):
    result = small_run(track=("auto",))
    assert result.state == "FINISHED"
    assert "warning" not in capfd.readouterr().out
    assert not (result.folder / "tensorboard").exists()


def test_tensorboard_by_name_must_be_installed(no_tensorboard):
    with pytest.raises(ConfigError, match="needs the tensorboard package") as caught:
        names("tensorboard")
    assert caught.value.hint == "pip install 'paceline[tensorboard]'"


def test_an_object_without_the_methods_is_no_tracker(elsewhere):
    (elsewhere / "my.py").write_text("class Half:\n    def open(self, run): ...\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"my\.py:Half is no tracker: Half has no method record and no close"):
        names("my.py:Half")


def test_an_unknown_tracker_is_refused_with_those_there_are():
    with pytest.raises(paceline.PacelineError) as caught:
        paceline.Config(track=("tensorbord",))
    assert "tensorboard" in str(caught.value.hint)


class FakeMLflow:
    """Stands for the package where it is not installed: keeps what is logged."""

    def __init__(self):
        self.calls = []

    def start_run(self, run_id, run_name):
        self.calls.append(("start_run", run_id, run_name))
        return SimpleNamespace(info=SimpleNamespace(run_id=run_id or "id-1"))

    def log_params(self, values):
        self.calls.append(("log_params", values["model"]))

    def log_metrics(self, values, step=None):
        self.calls.append(("log_metrics", step, values))

    def end_run(self, status):
        self.calls.append(("end_run", status))


def test_the_example_for_mlflow_has_forty_lines_and_logs_a_run_and_its_resume(elsewhere, monkeypatch, small_config):
    lines = EXAMPLE.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 42
    fake = FakeMLflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    config = small_config(track=(f"{EXAMPLE}:MLflow",), log_every=8)
    folder = paceline.train(config).folder
    name = f"{folder.parent.name}/{folder.name}"
    assert fake.calls[:2] == [("start_run", None, name), ("log_params", "mlp")]
    logged = {step: sorted(values) for kind, step, values in (c for c in fake.calls if c[0] == "log_metrics") if kind}
    assert "loss/train" in logged[8]
    assert "test/top1" in logged[None]
    assert fake.calls[-1] == ("end_run", "FINISHED")
    fake.calls.clear()
    paceline.train(small_config(track=(f"{EXAMPLE}:MLflow",), epochs=3), resume=folder)
    assert fake.calls[0] == ("start_run", "id-1", name)
    assert "log_params" not in [call[0] for call in fake.calls]


def test_the_example_runs_with_the_real_mlflow(elsewhere, monkeypatch, small_run):
    mlflow = pytest.importorskip("mlflow", reason="mlflow-skinny is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # mlflow-skinny has no database
    mlflow.set_tracking_uri(f"file:{elsewhere}/mlruns")
    small_run(track=(f"{EXAMPLE}:MLflow",), log_every=8)
    (found,) = mlflow.search_runs(search_all_experiments=True, output_format="list")
    assert found.info.status == "FINISHED"
    assert {"loss/train", "test/top1"} <= set(found.data.metrics)
    assert runpy.run_path(str(EXAMPLE))["MLflow"].name == "mlflow"
