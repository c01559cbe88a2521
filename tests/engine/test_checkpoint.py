"""Checkpoints in a folder: which are kept, which are whole, and saving in the background."""

import json
from pathlib import Path

import pytest
import torch

from paceline.core.errors import CheckpointError
from paceline.engine.checkpoint import BackgroundSaver, Checkpoints, load_checkpoint

BEST: dict[Path, int | None] = {}
"""The best step of each folder so far, which the progress of a run knows."""


def save(checkpoints: Checkpoints, step: int, *, is_best: bool = False) -> None:
    best_step = step if is_best else BEST.get(checkpoints.folder)
    BEST[checkpoints.folder] = best_step
    checkpoints.save({"weights": torch.full((3,), float(step))}, step=step, world_size=1, best_step=best_step)


def test_old_checkpoints_go_but_the_newest_and_the_best_stay(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in range(1, 7):
        save(checkpoints, step, is_best=step == 2)
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == [f"step-{n:08d}.pt" for n in (2, 5, 6)]
    assert sorted(path.name for path in tmp_path.glob("*.json")) == [f"step-{n:08d}.json" for n in (2, 5, 6)]
    assert checkpoints.named("best").name == "step-00000002.pt"
    assert checkpoints.named("last").name == "step-00000006.pt"


def test_a_kill_between_a_manifest_and_the_pointers_loses_neither_the_best_nor_the_last(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path, keep=1)
    save(checkpoints, 1, is_best=True)

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "_point", killed)
        with pytest.raises(KeyboardInterrupt):
            save(checkpoints, 2, is_best=True)
    assert (tmp_path / "best").read_text() == "step-00000001.pt\n"
    assert [checkpoints.named(name).name for name in ("best", "last")] == ["step-00000002.pt"] * 2
    save(checkpoints, 3)
    save(checkpoints, 4)
    assert checkpoints.named("best").name == "step-00000002.pt"
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == ["step-00000002.pt", "step-00000004.pt"]


def test_the_pointer_of_an_earlier_version_names_the_best(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    for step in (1, 2):
        save(checkpoints, step, is_best=step == 1)
        manifest = tmp_path / f"step-{step:08d}.json"
        old = json.loads(manifest.read_text())
        del old["best_step"]
        manifest.write_text(json.dumps(old))
    assert checkpoints.named("best").name == "step-00000001.pt"
    save(checkpoints, 3)
    assert checkpoints.named("best").name == "step-00000001.pt"


def test_checkpoints_that_a_resume_passed_over_do_not_push_out_new_ones(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    save(checkpoints, 2, is_best=True)
    save(checkpoints, 6)
    save(checkpoints, 4)
    assert checkpoints.named("last").name == "step-00000004.pt"
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == ["step-00000002.pt", "step-00000004.pt"]


def test_only_checkpoints_that_are_there_are_offered(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    with pytest.raises(CheckpointError) as caught:
        checkpoints.named("last")
    assert caught.value.hint == "the run was stopped before it saved a checkpoint"
    save(checkpoints, 1, is_best=False)
    with pytest.raises(CheckpointError) as caught:
        checkpoints.named("best")
    assert caught.value.hint == "available: last, step-00000001.pt"


@pytest.mark.parametrize("damage", ["flip", "cut", "manifest"])
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(tmp_path, damage):
    checkpoints = Checkpoints(tmp_path, keep=3)
    save(checkpoints, 1)
    save(checkpoints, 2)
    warnings: list[str] = []
    assert checkpoints.newest_good(warnings.append)[0]["weights"][0] == 2
    assert warnings == []
    path = checkpoints.named("last")
    if damage == "flip":
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    else:
        path.with_suffix(".json").unlink()
    state, used = checkpoints.newest_good(warnings.append)
    assert state["weights"][0] == 1
    assert used.name == "step-00000001.pt"
    assert len(warnings) == 1
    assert "step-00000002.pt" in warnings[0]


def test_a_folder_without_a_whole_checkpoint_says_so(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=3)
    with pytest.raises(CheckpointError, match="none was saved"):
        checkpoints.newest_good(print)
    save(checkpoints, 1)
    checkpoints.named("last").write_bytes(b"")
    with pytest.raises(CheckpointError, match="all are damaged"):
        checkpoints.newest_good(lambda _text: None)


def test_a_checkpoint_written_in_the_background_holds_the_moment_it_was_asked_for(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=3)
    saver = BackgroundSaver(checkpoints)
    weights = torch.zeros(1000)
    saver.save({"weights": weights, "list": [weights]}, step=1, world_size=1, best_step=None)
    weights.fill_(9)
    saver.close()
    state = load_checkpoint(checkpoints.named("last"))
    assert not state["weights"].any()
    assert not state["list"][0].any()


def test_a_failure_in_the_background_is_raised_not_lost(tmp_path):
    saver = BackgroundSaver(Checkpoints(tmp_path / "missing", keep=3))
    saver.save({}, step=1, world_size=1, best_step=None)
    with pytest.raises(CheckpointError, match="could not be written"):
        saver.close()
