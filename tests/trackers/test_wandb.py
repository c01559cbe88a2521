"""Weights & Biases, really run, offline: no account, no network, no secret."""

import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest

import paceline
from paceline.records.folder import RunFolder
from tests.conftest import make_small_config

wandb = pytest.importorskip("wandb")

BLOCK = 1 << 15
WHOLE, LAST = 1, 4
SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "planted-aws-secret",
    "OPENAI_API_KEY": "planted-openai-secret",
    "SLURM_JWT": "planted-slurm-secret",
}


@pytest.fixture
def no_account(elsewhere, monkeypatch):
    """Hide whatever W&B knows about the user."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(elsewhere / "home"))
    monkeypatch.setenv("NETRC", str(elsewhere / "home" / "netrc"))
    (elsewhere / "home").mkdir()
    return elsewhere


@pytest.fixture
def offline_rows(wait_until):
    """Return a function that gives the history rows that W&B wrote, by the name of the offline run."""
    from wandb.proto import wandb_internal_pb2

    proto: Any = wandb_internal_pb2

    def read(file):
        records = [proto.Record.FromString(data) for data in log_entries(file.read_bytes())]
        return [(record.WhichOneof("record_type"), record) for record in records]

    def rows_of(folder: RunFolder) -> dict[str, list]:
        files = sorted(folder.path.glob("wandb/offline-run-*/run-*.wandb"))
        found = {}
        for file in files:  # W&B's own process may still be writing when the run has finished
            wait_until(lambda file=file: "exit" in dict(read(file)), f"the end of {file}")
            items = [record.history.item for kind, record in read(file) if kind == "history"]
            found[file.parent.name] = [{name_of(item): json.loads(item.value_json) for item in row} for row in items]
        return found

    return rows_of


def name_of(item) -> str:
    return item.key or "/".join(item.nested_key)


def log_entries(data: bytes):
    """Yield the entries of a .wandb file: a LevelDB log behind a header of 7 bytes, in blocks of 32 KiB."""
    offset, entry = 7, b""
    while offset + 7 <= len(data):
        if (left := BLOCK - offset % BLOCK) < 7:
            offset += left
            continue
        _checksum, length, kind = struct.unpack_from("<IHB", data, offset)
        entry += data[offset + 7 : offset + 7 + length]
        offset += 7 + length
        if kind in {WHOLE, LAST}:
            yield entry
            entry = b""


def test_without_a_key_it_writes_offline_says_so_and_goes_on_under_the_same_id(
    no_account, capfd, monkeypatch, one_thread, offline_rows
):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    result = paceline.train(make_small_config(Path("runs"), track=("wandb",), log_every=4))
    folder = RunFolder(result.folder)
    out, err = capfd.readouterr()
    assert f"wandb: no key found, so it writes to {folder.path}/wandb; to upload it later: wandb sync\n" in out
    assert (err, "warning" in out) == ("", False)
    identity = folder.wandb_id.read_text().strip()
    (first,) = offline_rows(folder).items()
    assert first[0].endswith(identity)
    assert [row["_step"] for row in first[1] if "loss/train" in row] == [4, 8, 11, 12, 16, 20, 22]
    names = {"loss/train", "acc1/train", "acc5/train", "loss/val", "acc1/val", "acc5/val", "lr", "samples_per_s"}
    assert names <= {name for row in first[1] for name in row}

    paceline.train(make_small_config(Path("runs"), track=("wandb",), log_every=4, epochs=3), resume=folder.path)
    assert folder.wandb_id.read_text().strip() == identity
    second = {name: rows for name, rows in offline_rows(folder).items() if name != first[0]}
    ((name, rows),) = second.items()
    assert re.search(rf"-{identity}(-\d+)?$", name), name  # wandb numbers the folders of one second
    assert [row["_step"] for row in rows if "loss/train" in row] == [24, 28, 32, 33]
    for path in folder.path.rglob("*"):
        assert not path.is_file() or b"planted-" not in path.read_bytes(), path


def test_the_test_of_an_earlier_checkpoint_is_not_lost(no_account, small_run, offline_rows):
    result = small_run(track=("wandb",), epochs=50, patience=1, lr=1e-12)
    assert (result.step, result.test_step) == (22, 11)
    ((_, rows),) = offline_rows(RunFolder(result.folder)).items()
    assert result.test is not None
    assert [(row["_step"], row["loss/test"]) for row in rows if "loss/test" in row] == [(22, result.test.loss)]


def test_a_key_is_looked_for_where_wandb_keeps_it(no_account, monkeypatch):
    from paceline.trackers.wandb import _has_key

    assert not _has_key()
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    assert _has_key()
    monkeypatch.delenv("WANDB_API_KEY")
    netrc = no_account / "home" / "netrc"
    netrc.write_text("machine elsewhere.org login user password " + "x" * 40)
    netrc.chmod(0o600)
    assert not _has_key()
    netrc.write_text("machine api.wandb.ai login user password " + "x" * 40)
    assert _has_key()


def test_the_mode_of_the_environment_is_respected(no_account, capfd, monkeypatch, small_run, offline_rows):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    folder = RunFolder(small_run(track=("wandb",)).folder)
    assert "wandb" not in capfd.readouterr().out
    assert offline_rows(folder) == {}
    monkeypatch.setenv("WANDB_MODE", "offline")
    folder = RunFolder(small_run(track=("wandb",)).folder)
    assert f"wandb: WANDB_MODE is offline, so it writes to {folder.path}/wandb;" in capfd.readouterr().out
    assert len(offline_rows(folder)) == 1


def test_variables_of_the_user_win_over_our_arguments(no_account, monkeypatch, small_run):
    given: dict[str, Any] = {}
    real = wandb.init

    def init(**arguments):
        given.update(arguments)
        return real(**arguments)

    monkeypatch.setattr(wandb, "init", init)
    small_run(track=("wandb",), steps=1)
    assert {"project", "name", "group", "job_type", "dir"} <= set(given)
    assert given["group"] == given["project"]
    given.clear()
    asked = {"WANDB_PROJECT": "sweep", "WANDB_NAME": "mine", "WANDB_RUN_GROUP": "g", "WANDB_JOB_TYPE": "search"}
    for name, value in {**asked, "WANDB_RUN_ID": "abc123", "WANDB_DIR": str(no_account)}.items():
        monkeypatch.setenv(name, value)
    wandb.teardown()  # W&B reads WANDB_DIR once per process
    folder = RunFolder(small_run(track=("wandb",), steps=1).folder)
    assert not {"project", "name", "group", "job_type", "dir"} & set(given)
    assert (given["id"], folder.wandb_id.read_text().strip()) == ("abc123", "abc123")
    assert list(no_account.glob("wandb/offline-run-*-abc123"))
    assert not (folder.path / "wandb").exists()


@pytest.mark.parametrize("asked", ["end", "false"])
def test_the_best_checkpoint_becomes_an_artifact_on_request(no_account, monkeypatch, small_run, asked):
    monkeypatch.setenv("WANDB_LOG_MODEL", asked)
    logged = []
    monkeypatch.setattr(
        wandb.Run, "log_artifact", lambda _run, artifact, aliases: logged.append((artifact, tuple(aliases)))
    )
    result = small_run(track=("wandb",))
    if asked == "false":
        assert logged == []
        return
    ((artifact, aliases),) = logged
    assert (aliases, artifact.type, artifact.metadata["step"]) == (("best",), "model", result.test_step)
    assert "model.safetensors" in artifact.manifest.entries
