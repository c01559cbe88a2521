"""Any bytes in a file of a run: a value that fits its schema, or none, and never another error.

`FUZZ=100000` in the environment draws that many inputs for each reader.
"""

import hashlib
import json
import os
from collections.abc import Callable
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from paceline.core.config import SETTINGS
from paceline.core.errors import CheckpointError, PacelineError
from paceline.engine.checkpoint import Checkpoints, open_checkpoint
from paceline.explain.time_split import split_time
from paceline.records.attempt import claim_run, take_over
from paceline.records.entries import State
from paceline.records.folder import RunFolder
from paceline.records.manifest import CHECKSUM, MANIFEST, read_manifest
from paceline.records.phases import read_phases
from paceline.records.profile import read_profile, write_profile
from paceline.records.reader import read_environments, read_metrics, read_rank, run_state, summarise
from paceline.records.run_index import list_runs
from paceline.records.schema import Manifest, RankState, fits, parse_json
from paceline.records.sealing import check_sealed, seal_folder
from tests.records.sample_profile import PROFILE

many = settings(
    max_examples=int(os.environ.get("FUZZ", "25")),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)

numbers = st.one_of(
    st.integers(), st.floats(), st.sampled_from([-1, 0, 1, 2**31, 2**53, 2**64, 10**400, -(10**400), 1e308, 1e20])
)
values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=8) | st.sampled_from([state.value for state in State]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
RANK = {
    "state": "TRAINING", "rank": 0, "world_size": 1, "host": "h", "pid": 5, "pid_start": "a-1", "launcher": "none",
    "time": 1.7e9, "step": 3, "doing": "start-up", "detail": "",
}  # fmt: skip
METRICS = [
    {"kind": "step", "step": 3, "epoch": 1, "loss": 1.0, "top1": 0.5, "top5": 1.0, "samples": 8, "lr": 0.1,
     "samples_per_s": 5.0, "seconds": 1.0, "phases": {"data": 0.1}},
    {"kind": "epoch", "step": 5, "epoch": 1, "samples_per_s": 10.0, "is_best": True, "seconds": 1.0,
     "train_loss": 0.5, "train_top1": 0.75, "train_top5": 1.0, "train_samples": 4,
     "valid_loss": 0.5, "valid_top1": 0.75, "valid_top5": 1.0, "valid_samples": 4},
    {"kind": "eval", "step": 5, "epoch": 1, "split": "test", "loss": 0.5, "top1": 0.5, "top5": 1.0, "samples": 4,
     "split_samples": 4, "is_best": False, "seconds": 1.0},
]  # fmt: skip
PHASES = [
    {"kind": "ranks", "first_step": 0, "hosts": ["a", "b"], "threads": [1, 1], "cores": [2, 2], "mode": "ddp",
     "device": "cpu", "parameters": 10, "gradient_bytes": 40, "global_batch": 8, "num_devices": 2},
    {"kind": "phases", "step": 4, "steps": 4, "seconds": [1.0, 1.0], "phases": {"data": [0.1, 0.1]}, "last": [1, 3],
     "cpu": [1.0, 1.0], "cpu_wait": [0.0, 0.0]},
]  # fmt: skip
ENVIRONMENT = {"time": 1.7e9, "host": "h", "world_size": 1, "launches": ["x"], "train_samples": 9}

FILES = {"model.safetensors": {"sha256": "0" * 64, "bytes": 8}}
MANIFEST_SAMPLE = {
    "format": 2, "time": 1.7e9, "step": 3, "best_step": 3, "world_size": 1, "files": FILES,
    "parts": {"model": {"files": ["model.safetensors"],
                        "tensors": {"w": {"dtype": "float32", "shape": [3], "hash": "0" * 32}}}},
    "state": {"model": {"w": {"$tensor": "w"}}, "progress": {"step": 3, "best": {"$float": "nan"}},
              "pair": {"$tuple": [1, 2]}, "by_number": {"$items": [[0, 1]]}},
}  # fmt: skip
SEALED_SAMPLE = {
    "format": "sealed", "time": 1.7e9, "files": FILES,
    "tensors": {"model.safetensors": {"w": {"dtype": "F32", "shape": [3], "hash": "0" * 32}}},
}  # fmt: skip
OLD_SAMPLE = {"format": 1, "file": "step-00000003.pt", "step": 3, "best_step": 3, "sha256": "0" * 64, "bytes": 8}


def edited(sample: Any) -> st.SearchStrategy[Any]:
    """Return samples in which some value, at any depth, is another, missing or added."""
    if isinstance(sample, dict):
        key = st.sampled_from([*sample, "another"])
        replaced = st.tuples(key, values).map(lambda pair: sample | {pair[0]: pair[1]})
        dropped = st.sampled_from([*sample]).map(lambda name: {k: v for k, v in sample.items() if k != name})
        inner = [edited(value).map(lambda new, k=k: sample | {k: new}) for k, value in sample.items()
                 if isinstance(value, dict | list)]  # fmt: skip
        return st.one_of(replaced, dropped, *inner)
    if isinstance(sample, list) and sample:
        inner = [edited(value).map(lambda new, i=i: [*sample[:i], new, *sample[i + 1 :]])
                 for i, value in enumerate(sample) if isinstance(value, dict | list)]  # fmt: skip
        return st.one_of(st.just(sample[:-1]), st.lists(values, max_size=3), *inner)
    return values


def text_of(sample: Any) -> st.SearchStrategy[bytes]:
    """Return bytes that are close to a real file, or far from it."""
    real = json.dumps(sample).encode()
    cut = st.integers(0, len(real)).map(lambda end: real[:end])
    flipped = st.tuples(st.integers(0, len(real) - 1), st.binary(min_size=1, max_size=3)).map(
        lambda pair: real[: pair[0]] + pair[1] + real[pair[0] + 1 :]
    )
    near = edited(sample).map(lambda value: json.dumps(value).encode())
    return st.one_of(st.just(real), near, near, cut, flipped, st.binary(max_size=64), st.just(b"[" * 100_000))


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    """Return a run beside another that is in order."""
    for name in ("bad", "good"):
        folder = RunFolder(tmp_path / name / "001")
        folder.rank(0).parent.mkdir(parents=True)
        folder.config.write_text('model = "mlp"\n')
    return RunFolder(tmp_path / "bad" / "001")


def refused_at_most(words: str, function: Callable[[RunFolder], object], folder: RunFolder) -> None:
    """Call a reader: its only error is one of ours, with these words."""
    problem = None
    try:
        function(folder)
    except PacelineError as refused:
        problem = refused
    assert problem is None or words in problem.message


def others_are_listed(folder: RunFolder) -> None:
    names = {run.folder.path.parent.name for run in list_runs(folder.path.parents[1])}
    assert "good" in names


@many
@given(text_of(RANK))
@example(b'{"state": "TRAINING", "rank": 0, "host": "h", "pid": -1, "time": 1e9}')
def test_state_file(folder, text):
    folder.rank(0).write_bytes(text)
    found = read_rank(folder.rank(0))
    assert found is None or fits(found, RankState)
    assert run_state(folder) in {"LOST", *State}
    refused_at_most("in use", claim_run, folder)
    others_are_listed(folder)


@many
@given(text_of({"token": "a", "host": "h", "pid": 5, "pid_start": None, "time": 1.7e9}))
def test_attempt(folder, text):
    folder.attempt.write_bytes(text)
    refused_at_most("in use", claim_run, folder)
    take_over(folder)


@many
@given(st.lists(st.one_of(*map(text_of, METRICS)), max_size=4))
def test_metrics(folder, lines):
    folder.metrics.write_bytes(b"\n".join(lines))
    assert all(record["kind"] in {"step", "epoch", "eval"} for record in read_metrics(folder))
    summarise(folder)
    others_are_listed(folder)


@many
@given(st.lists(st.one_of(*map(text_of, PHASES)), max_size=4))
def test_phases(folder, lines):
    folder.phases.write_bytes(b"\n".join(lines))
    list(read_phases(folder))


@many
@given(text_of([ENVIRONMENT, ENVIRONMENT]))
def test_environment(folder, text):
    folder.environment.write_bytes(text)
    for environment in read_environments(folder):
        assert all(isinstance(name, str) for name in environment.get("launches", ()))
    others_are_listed(folder)


@pytest.fixture(scope="module")
def profile_sample(tmp_path_factory) -> Any:
    folder = RunFolder(tmp_path_factory.mktemp("profile"))
    write_profile(folder, PROFILE)
    return json.loads(folder.profile.read_text())


@many
@given(st.data())
def test_profile(folder, profile_sample, data):
    folder.profile.write_bytes(data.draw(text_of(profile_sample)))
    refused_at_most(str(folder.profile), read_profile, folder)


def write_with_checksum(folder: RunFolder, text: bytes) -> None:
    """Write a manifest whose checksum is right."""
    path = folder.checkpoint(3)
    path.mkdir(parents=True, exist_ok=True)
    (path / MANIFEST).write_bytes(text)
    (path / CHECKSUM).write_text(f"{hashlib.sha256(text).hexdigest()}  {MANIFEST}\n")
    (path / "model.safetensors").write_bytes(b"\0" * 8)


@many
@given(text_of(MANIFEST_SAMPLE) | text_of(SEALED_SAMPLE))
@example(b"[]")
@example(b'{"format": 2}')
def test_manifest(folder, text):
    write_with_checksum(folder, text)
    path = folder.checkpoint(3)
    refused_at_most(str(path), lambda _: fits(read_manifest(path), Manifest) or pytest.fail("no manifest"), folder)
    refused_at_most(str(path), lambda _: open_checkpoint(path), folder)
    refused_at_most(str(path), lambda _: seal_folder(path), folder)
    check_sealed(path)
    refused_at_most("no checkpoint", lambda _: Checkpoints(folder.checkpoints, keep=1).named("best"), folder)


@many
@given(text_of(OLD_SAMPLE))
def test_old_manifest(folder, text):
    folder.checkpoints.mkdir(exist_ok=True)
    path = folder.checkpoints / "step-00000003.pt"
    path.write_bytes(b"\0" * 8)
    path.with_suffix(".json").write_bytes(text)
    refused_at_most(str(path), lambda _: open_checkpoint(path), folder)
    refused_at_most("no checkpoint", lambda _: Checkpoints(folder.checkpoints, keep=1).named("best"), folder)


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "", ".", "..", "a\0"])
def test_a_manifest_names_no_file_outside_its_folder(folder, name):
    write_with_checksum(folder, json.dumps(SEALED_SAMPLE | {"files": {name: {"sha256": "0", "bytes": 0}}}).encode())
    with pytest.raises(CheckpointError, match="is not the name of a file inside the folder"):
        read_manifest(folder.checkpoint(3))
    write_with_checksum(folder, json.dumps(SEALED_SAMPLE).encode())
    assert read_manifest(folder.checkpoint(3)) == SEALED_SAMPLE  # the control


@pytest.mark.parametrize("dtype", ["nn", "Tensor", "load", "float33"])
def test_a_type_that_is_none_is_refused(folder, dtype):
    tensors = {"w": {"dtype": dtype, "shape": [3], "hash": "0" * 32}}
    parts = {"model": {"files": ["model.safetensors"], "tensors": tensors}}
    write_with_checksum(folder, json.dumps(MANIFEST_SAMPLE | {"parts": parts}).encode())
    with pytest.raises(CheckpointError, match="do not fit"):
        open_checkpoint(folder.checkpoint(3))
    write_with_checksum(folder, json.dumps(MANIFEST_SAMPLE).encode())
    assert open_checkpoint(folder.checkpoint(3))["model"]["w"].shape == (3,)  # the control


names = st.sampled_from(SETTINGS)
texts = st.one_of(
    numbers.map(str),
    st.text(max_size=8).map(json.dumps),
    st.sampled_from(["true", "[]", "[1, 'a']", "{a = 1}", "0000-01-01"]),
)
toml = st.dictionaries(names, texts, max_size=3).map(
    lambda lines: "\n".join(f"{k} = {v}" for k, v in lines.items()).encode()
)


@many
@given(st.binary(max_size=64) | toml | st.sampled_from([b"a = " + b"[" * 50_000, b"model = 5", b'lr = "x"', b"\xff"]))
def test_settings(folder, text):
    folder.config.write_bytes(text)
    others_are_listed(folder)


def test_the_records_of_a_real_run_fit(finished_run):
    assert read_rank(finished_run.rank(0)) is not None
    lines = finished_run.metrics.read_bytes().splitlines()
    assert len(list(read_metrics(finished_run))) == len(lines) > 0
    assert len(list(read_phases(finished_run))) == len(finished_run.phases.read_bytes().splitlines()) > 0
    assert len(read_environments(finished_run)) == 1
    assert split_time(read_phases(finished_run)) is not None


def test_the_schema_knows_every_state():
    assert {*get_args(get_type_hints(RankState)["state"])} == {*State}


def test_text_that_is_nested_too_deeply_is_an_error_of_the_value():
    with pytest.raises(ValueError, match="deeply"):
        parse_json("[" * 100_000)
