"""TensorBoard files, read back as TensorBoard reads them."""

import signal
import time
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

import paceline
from lab.environment import child_environment
from paceline.records.folder import RunFolder
from paceline.records.reader import read_metrics
from tests.conftest import LONGEST

TRAIN = {"loss/train": "loss", "acc1/train": "top1", "acc5/train": "top5", "lr": "lr", "samples_per_s": "samples_per_s"}
PROTO: Any = plugin_data_pb2.HParamsPluginData  # pyright: ignore[reportAttributeAccessIssue] - made at run time
VALID = {"loss/val": "valid_loss", "acc1/val": "valid_top1", "acc5/val": "valid_top5"}


def read_back(folder: RunFolder) -> EventAccumulator:
    events = EventAccumulator(str(folder.tensorboard), size_guidance={"scalars": 0})
    events.Reload()
    return events


def points(events: EventAccumulator, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in events.Scalars(tag)]


def check_points(folder: RunFolder) -> None:
    """Check that the curves hold every record of metrics.jsonl once, in order, and nothing else."""
    events = read_back(folder)
    records = list(read_metrics(folder))
    for kind, names in (("step", TRAIN), ("epoch", VALID)):
        for tag, key in names.items():
            expected = [(record["step"], record[key]) for record in records if record["kind"] == kind]
            assert points(events, tag) == [(step, pytest.approx(value)) for step, value in expected], tag


def test_all_curves_are_there_with_the_values_of_the_records(small_run):
    folder = RunFolder(small_run(track=("tensorboard",), log_every=4).folder)
    assert [step for step, _ in points(read_back(folder), "loss/train")] == [4, 8, 11, 12, 16, 20, 22]
    check_points(folder)
    utilisation = [tag for tag in read_back(folder).Tags()["scalars"] if tag.startswith("utilisation/")]
    assert {"utilisation/cpu_percent", "utilisation/memory_gb"} <= set(utilisation)


def test_hyper_parameters_stand_beside_the_final_metrics(small_run):
    result = small_run(track=("tensorboard",))
    events = read_back(RunFolder(result.folder))
    content = events.PluginTagToContent("hparams")
    assert set(content) == {f"_hparams_/{kind}" for kind in ("experiment", "session_start_info", "session_end_info")}
    start = PROTO.FromString(content["_hparams_/session_start_info"]).session_start_info
    assert start.hparams["model"].string_value == "mlp"
    assert start.hparams["lr"].number_value == 0.1
    experiment = PROTO.FromString(content["_hparams_/experiment"]).experiment
    metrics = {info.name.tag for info in experiment.metric_infos}
    assert metrics == {f"{split}/{name}" for split in ("best", "test") for name in ("loss", "acc1", "acc5")}
    for tag, value in {
        "best/acc1": result.best.top1,
        "test/acc1": result.test.top1,
        "test/loss": result.test.loss,
    }.items():
        assert points(events, tag) == [(22, pytest.approx(value))]


def test_without_the_tracker_there_are_no_files(finished_run):
    assert not finished_run.tensorboard.exists()


def test_after_a_kill_and_a_resume_no_step_is_missing_stale_or_double(
    start, killed_model, elsewhere, one_thread, wait_until
):
    words = ["train", f"--model={killed_model}", "--epochs=2", "--log-every=4", "--threads=1", "--name=killed"]
    process = start(*words, env=child_environment(TEST_KILL_AT="19"))
    process.communicate(timeout=LONGEST)
    assert process.returncode == -signal.SIGKILL
    folder = RunFolder(elsewhere / "runs" / "killed" / "001")
    assert max(record["step"] for record in read_metrics(folder)) == 16  # beyond the checkpoint at step 11
    killed = time.time()
    wait_until(lambda: int(time.time()) > int(killed), "the next second, since TensorBoard orders its files by seconds")
    result = paceline.train(resume=folder.path)
    assert [step for step, _ in points(read_back(folder), "loss/train")] == [4, 8, 11, 12, 16, 20, 22]
    check_points(folder)
    whole = paceline.train(paceline.Config(model=killed_model, epochs=2, log_every=4, threads=1, name="whole"))
    assert (result.test, result.best) == (whole.test, whole.best)
    assert points(read_back(folder), "loss/train") == points(read_back(RunFolder(whole.folder)), "loss/train")
