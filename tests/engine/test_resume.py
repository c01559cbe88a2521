import json
import os
import signal
import subprocess
import sys

import pytest

import paceline
from paceline.core.errors import RunError
from paceline.core.setting_types import Interval
from paceline.core.world import World
from paceline.engine.checkpoint import NO_OTHERS, Checkpoints, load_checkpoint
from paceline.engine.checkpoint_folder import Captured
from paceline.records.entries import State
from paceline.records.folder import RunFolder
from paceline.records.reader import read_environments, read_metrics
from paceline.records.writer import write_rank
from tests.states import differences, final_state, untimed_records

CASES = {
    "sgd with cosine": {"optimizer": "sgd", "schedule": "cosine"},
    "sgd with milestones and average": {"schedule": "milestones", "milestones": (1,), "ema": 0.9},
    "adamw with one cycle and average": {"optimizer": "adamw", "schedule": "one-cycle", "ema": 0.99},
    "adam with steps and clipping": {"optimizer": "adam", "schedule": "step", "decay_every": 1, "clip": 0.5},
    "adamw constant in parts": {"optimizer": "adamw", "schedule": "constant", "accumulate": 3, "warmup": 1.5},
    "sgd with loss scaling": {"precision": "fp16", "label_smoothing": 0.1, "lr": 0.01},
    "sgd written in the background": {"save_async": True, "no_decay_norm": True},
    "sgd with worker processes": {"workers": 2},
}


def stop_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    monkeypatch.setenv("TEST_SIGNAL_AT", str(step))
    monkeypatch.setenv("TEST_SIGNAL", str(int(signal.SIGTERM)))


@pytest.mark.parametrize("settings", CASES.values(), ids=CASES.keys())
def test_a_run_stopped_in_mid_epoch_and_resumed_ends_with_the_same_bits(plugin, small_config, monkeypatch, settings):
    whole = paceline.train(small_config(model=plugin, name="whole", **settings))
    steps = 11 * settings.get("accumulate", 1)
    stop_at(monkeypatch, steps + 4)
    stopped = paceline.train(small_config(model=plugin, name="stopped", **settings))
    assert stopped.state is State.STOPPED
    assert 11 < stopped.step < 22
    monkeypatch.delenv("TEST_SIGNAL_AT")
    resumed = paceline.train(resume=stopped.folder)
    assert resumed.state is State.FINISHED
    assert differences(final_state(whole.folder), final_state(resumed.folder)) == []
    assert (whole.best, whole.test) == (resumed.best, resumed.test)


def test_the_comparison_notices_randomness_that_a_resume_loses(plugin, small_config, monkeypatch):
    """The control of the test above: a model that draws from a stream of its own is not resumed exactly."""
    model = plugin.replace("Signals", "OwnStream")
    whole = paceline.train(small_config(model=model, name="whole"))
    stop_at(monkeypatch, 15)
    stopped = paceline.train(small_config(model=model, name="stopped"))
    monkeypatch.delenv("TEST_SIGNAL_AT")
    resumed = paceline.train(resume=stopped.folder)
    assert any("/model/" in place for place in differences(final_state(whole.folder), final_state(resumed.folder)))


def test_a_killed_run_resumes_from_its_last_checkpoint_with_the_same_bits(plugin, small_config, tmp_path):
    whole = paceline.train(small_config(model=plugin, name="whole", save_every=Interval(4, "step")))
    command = [sys.executable, "-m", "paceline", "train", "--model", plugin, "--epochs", "2", "--threads", "1"]
    command += ["--runs-dir", str(tmp_path / "runs"), "--name", "killed", "--save-every", "4 steps", "--track", "none"]
    environ = os.environ | {"TEST_SIGNAL_AT": "15", "TEST_SIGNAL": str(int(signal.SIGKILL))}
    killed = subprocess.run(command, env=environ, capture_output=True, timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL
    resumed = paceline.train(resume=tmp_path / "runs" / "killed")
    assert resumed.state is State.FINISHED
    assert differences(final_state(whole.folder), final_state(resumed.folder)) == []


def test_a_run_resumed_twice_is_still_the_same(plugin, small_config, monkeypatch):
    whole = paceline.train(small_config(model=plugin, name="whole"))
    stop_at(monkeypatch, 3)
    stopped = paceline.train(small_config(model=plugin, name="stopped"))
    stop_at(monkeypatch, 9)
    again = paceline.train(resume=stopped.folder)
    assert (stopped.step, again.step) == (3, 12)
    monkeypatch.delenv("TEST_SIGNAL_AT")
    resumed = paceline.train(resume=stopped.folder)
    assert differences(final_state(whole.folder), final_state(resumed.folder)) == []


def test_the_records_of_a_resumed_run_are_those_of_an_uninterrupted_one(plugin, small_config, monkeypatch):
    whole = paceline.train(small_config(model=plugin, name="whole", log_every=4))
    stop_at(monkeypatch, 14)
    stopped = paceline.train(small_config(model=plugin, name="stopped", log_every=4))
    monkeypatch.delenv("TEST_SIGNAL_AT")
    resumed = paceline.train(resume=stopped.folder)
    assert untimed_records(whole.folder) == untimed_records(resumed.folder)


def with_old_keys(values):
    """Return a record as versions wrote it that counted images."""
    return {key.replace("samples", "images"): value for key, value in values.items()}


def old_score(values):
    """Return a score as such versions stored it, with a float as the sum of losses."""
    samples = values["samples"]
    if "by_name" in values:
        own = values["by_name"]
        total, correct = own["loss"] * samples, [round(own[name] * samples) for name in ("top1", "top5")]
    elif values["parts"]:
        loss, accuracy = values["parts"]["loss"][0], values["parts"]["accuracy"]
        total, correct = loss["units"][0] / (1 << loss["bits"]), [part["units"][0] for part in accuracy[:2]]
    else:
        total, correct = 0.0, [0, 0]
    return with_old_keys({"loss_sum": total, "correct1": correct[0], "correct5": correct[1], "samples": samples})


def make_old(folder: RunFolder, step: int) -> None:
    """Give a run that has one checkpoint the keys of an earlier version."""
    checkpoints = Checkpoints(folder.checkpoints, keep=2)
    state = load_checkpoint(checkpoints.named("last"))
    scores = {name: old_score(value) for name, value in state["progress"].items() if isinstance(value, dict)}
    assert all("images" in score for score in scores.values())
    state["progress"] |= scores
    checkpoints.save(Captured.of(state), NO_OTHERS, step=step, best_step=step)
    folder.metrics.write_text("".join(json.dumps(with_old_keys(record)) + "\n" for record in read_metrics(folder)))
    folder.environment.write_text(json.dumps([with_old_keys(start) for start in read_environments(folder)]))


def test_a_run_of_a_version_that_counted_images_resumes_with_the_same_bits(plugin, small_config, monkeypatch):
    whole = paceline.train(small_config(model=plugin, name="whole", log_every=4))
    stop_at(monkeypatch, 14)
    stopped = paceline.train(small_config(model=plugin, name="stopped", log_every=4))
    monkeypatch.delenv("TEST_SIGNAL_AT")
    folder = RunFolder(stopped.folder)
    make_old(folder, stopped.step)
    assert "images_per_s" in folder.metrics.read_text()
    resumed = paceline.train(resume=stopped.folder)
    assert differences(final_state(whole.folder), final_state(resumed.folder)) == []
    assert (whole.best, whole.test) == (resumed.best, resumed.test)
    assert untimed_records(whole.folder) == untimed_records(resumed.folder)
    assert [start["train_samples"] for start in read_environments(folder)] == [1293, 1293]


def test_a_run_killed_before_its_first_checkpoint_starts_over(small_config, monkeypatch):
    whole = paceline.train(small_config(name="whole", log_every=4))

    def killed(*_args, **_facts):
        raise KeyboardInterrupt

    config = small_config(name="killed", log_every=4)
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", killed)
        with pytest.raises(KeyboardInterrupt):
            paceline.train(config)
    folder = RunFolder(whole.folder.parents[1] / "killed" / "001")
    write_rank(folder.rank(0), World(), State.FAILED, step=11)
    resumed = paceline.train(resume=folder.path)
    assert "was stopped before it saved a checkpoint: starting over" in folder.log.read_text()
    assert resumed.state is State.FINISHED
    assert differences(final_state(whole.folder), final_state(resumed.folder)) == []
    assert untimed_records(whole.folder) == untimed_records(resumed.folder)


def test_a_run_killed_after_its_last_step_is_tested_when_it_is_resumed(small_config):
    result = paceline.train(small_config())
    folder = RunFolder(result.folder)
    with pytest.raises(RunError, match="has finished"):
        paceline.train(resume=folder.path)
    records = [record for record in read_metrics(folder) if record.get("split") != "test"]
    folder.metrics.write_text("".join(json.dumps(record) + "\n" for record in records))
    write_rank(folder.rank(0), World(), State.FAILED, step=result.step)
    resumed = paceline.train(resume=folder.path)
    assert (resumed.state, resumed.step) == (State.FINISHED, result.step)
    assert (resumed.best, resumed.test) == (result.best, result.test)
    assert [record["step"] for record in read_metrics(folder) if record.get("split") == "test"] == [result.test_step]


def without_sample_order(folder: RunFolder) -> None:
    """Make the settings of a run those of a version that had no choice of orders."""
    kept = [line for line in folder.config.read_text().splitlines() if not line.startswith("sample_order")]
    folder.config.write_text("\n".join(kept) + "\n")


def test_a_permuted_run_resumed_in_mid_epoch_ends_with_the_same_bits(plugin, small_config, monkeypatch):
    whole = paceline.train(small_config(model=plugin, name="whole", sample_order="feistel"))
    stop_at(monkeypatch, 15)
    stopped = paceline.train(small_config(model=plugin, name="stopped", sample_order="feistel"))
    monkeypatch.delenv("TEST_SIGNAL_AT")
    with pytest.raises(RunError, match="was trained with --sample-order feistel, not argsort"):
        paceline.train(small_config(model=plugin, name="stopped", sample_order="argsort"), resume=stopped.folder)
    resumed = paceline.train(resume=stopped.folder)
    assert differences(final_state(whole.folder), final_state(resumed.folder)) == []


def test_a_run_of_a_version_without_a_choice_of_orders_continues_with_argsort(plugin, small_config, monkeypatch):
    """With this limit all sets are large, so that a new run is permuted."""
    whole = paceline.train(small_config(model=plugin, name="whole"))
    stop_at(monkeypatch, 15)
    stopped = paceline.train(small_config(model=plugin, name="stopped"))
    monkeypatch.delenv("TEST_SIGNAL_AT")
    without_sample_order(RunFolder(stopped.folder))
    monkeypatch.setattr("paceline.data.order.MOST_SORTED", 0)
    resumed = paceline.train(resume=stopped.folder)
    assert differences(final_state(whole.folder), final_state(resumed.folder)) == []
    permuted = paceline.train(small_config(model=plugin, name="permuted"))
    assert differences(final_state(whole.folder), final_state(permuted.folder)) != []


def test_a_stop_after_a_save_in_the_same_step_does_not_save_again(plugin, small_config, monkeypatch):
    saved: list[int] = []
    save = Checkpoints.save

    def counted(self, captured, team, *, step, best_step):
        saved.append(step)
        save(self, captured, team, step=step, best_step=best_step)

    monkeypatch.setattr(Checkpoints, "save", counted)
    stop_at(monkeypatch, 3)
    stopped = paceline.train(small_config(name="stopped", model=plugin, save_every=Interval(3, "step")))
    assert (stopped.state, stopped.step, saved) == (State.STOPPED, 3, [3])
    stop_at(monkeypatch, 5)
    paceline.train(small_config(name="control", model=plugin, save_every=Interval(3, "step")))
    assert saved == [3, 3, 5]
