"""The checkpoints of a run: which are kept, which are intact, and saving in the background."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from paceline.core.errors import CheckpointError, RunError
from paceline.core.world import World
from paceline.engine.background_saver import BackgroundSaver
from paceline.engine.checkpoint import NO_OTHERS, Checkpoints, load_checkpoint
from paceline.engine.checkpoint_folder import Captured
from paceline.parallel.team import Team
from paceline.records.manifest import file_facts, read_manifest, write_manifest

BEST: dict[Path, int | None] = {}
"""The best step of each folder so far, which the progress of a run knows."""


def save(checkpoints: Checkpoints, step: int, *, is_best: bool = False) -> None:
    best_step = step if is_best else BEST.get(checkpoints.folder)
    BEST[checkpoints.folder] = best_step
    captured = Captured.of({"model": {"w": torch.full((3,), float(step))}, "progress": {"step": step}})
    checkpoints.save(captured, NO_OTHERS, step=step, best_step=best_step)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name not in {"best", "last"})


def test_old_checkpoints_go_but_the_newest_and_the_best_stay(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in range(1, 7):
        save(checkpoints, step, is_best=step == 2)
    assert names(tmp_path) == [f"step-{n:08d}" for n in (2, 5, 6)]
    assert checkpoints.named("best").name == "step-00000002"
    assert checkpoints.named("last").name == "step-00000006"


def test_a_checkpoint_holds_files_that_any_tool_reads(tmp_path):
    save(Checkpoints(tmp_path, keep=2), 7)
    found = tmp_path / "step-00000007"
    assert names(found) == ["manifest.json", "manifest.sha256", "model.safetensors"]
    assert load_file(found / "model.safetensors")["w"].tolist() == [7.0] * 3
    manifest = read_manifest(found)
    assert (manifest["format"], manifest["step"], manifest["world_size"]) == (2, 7, 1)
    assert manifest["files"]["model.safetensors"] == file_facts(found / "model.safetensors").as_dict()


def test_a_checkpoint_under_its_former_name_is_found(tmp_path):
    save(Checkpoints(tmp_path, keep=2), 7)
    assert Checkpoints(tmp_path, keep=2).named("step-00000007.pt").name == "step-00000007"


def test_a_kill_between_the_rename_and_the_pointers_loses_neither_the_best_nor_the_last(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path, keep=1)
    save(checkpoints, 1, is_best=True)

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "_point", killed)
        with pytest.raises(KeyboardInterrupt):
            save(checkpoints, 2, is_best=True)
    assert (tmp_path / "best").read_text() == "step-00000001\n"
    assert [checkpoints.named(name).name for name in ("best", "last")] == ["step-00000002"] * 2
    save(checkpoints, 3)
    save(checkpoints, 4)
    assert checkpoints.named("best").name == "step-00000002"
    assert names(tmp_path) == ["step-00000002", "step-00000004"]


def test_what_a_kill_left_of_a_checkpoint_is_not_one_and_is_removed_by_the_next_save(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path, keep=2)
    save(checkpoints, 1)

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("paceline.engine.checkpoint.finish_folder", killed)
        with pytest.raises(KeyboardInterrupt):
            save(checkpoints, 2)
    assert len(names(tmp_path)) == 2
    assert checkpoints.newest_good(NO_OTHERS, print)[1].name == "step-00000001"
    save(checkpoints, 3)
    assert names(tmp_path) == ["step-00000001", "step-00000003"]


def make_old(folder: Path, step: int, **facts: object) -> None:
    """Write a checkpoint as earlier versions did: one file, and a manifest beside it."""
    path = folder / f"step-{step:08d}.pt"
    torch.save({"model": {"w": torch.full((3,), float(step))}, "progress": {"step": step}}, path)
    manifest = {"file": path.name, "step": step, "world_size": 1, "format": 1, **file_facts(path).as_dict(), **facts}
    path.with_suffix(".json").write_text(json.dumps(manifest))


def test_checkpoints_of_format_1_are_read_and_removed_as_others_are(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (1, 2):
        make_old(tmp_path, step, best_step=1)
    state, path = checkpoints.newest_good(NO_OTHERS, print)
    assert (path.name, state["model"]["w"][0]) == ("step-00000002.pt", 2)
    assert checkpoints.named("best").name == "step-00000001.pt"
    BEST[tmp_path] = 1
    save(checkpoints, 3)
    save(checkpoints, 4)
    assert names(tmp_path) == ["step-00000001.json", "step-00000001.pt", "step-00000003", "step-00000004"]
    assert load_checkpoint(checkpoints.named("best"))["progress"]["step"] == 1
    make_old(tmp_path, 5)
    content = bytearray((tmp_path / "step-00000005.pt").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "step-00000005.pt").write_bytes(content)
    warnings: list[str] = []
    assert checkpoints.newest_good(NO_OTHERS, warnings.append)[1].name == "step-00000004"
    assert "step-00000005.pt is damaged: it has changed since it was written" in warnings[0]


def test_the_pointer_of_an_earlier_version_names_the_best(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    for step in (1, 2):
        make_old(tmp_path, step)
    (tmp_path / "best").write_text("step-00000001.pt\n")
    assert checkpoints.named("best").name == "step-00000001.pt"


def test_checkpoints_that_a_resume_passed_over_do_not_push_out_new_ones(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    save(checkpoints, 2, is_best=True)
    save(checkpoints, 6)
    save(checkpoints, 4)
    assert checkpoints.named("last").name == "step-00000004"
    assert names(tmp_path) == ["step-00000002", "step-00000004"]


def test_a_step_that_is_saved_again_replaces_the_checkpoint(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    save(checkpoints, 2)
    (checkpoints.named("last") / "model.safetensors").write_bytes(b"")
    save(checkpoints, 2)
    assert names(tmp_path) == ["step-00000002"]
    assert load_checkpoint(checkpoints.named("last"))["model"]["w"][0] == 2


def test_a_kill_between_the_two_renames_of_a_replacement_loses_no_checkpoint(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path, keep=1)
    save(checkpoints, 2)
    rename = Path.rename

    def killed(self, target):
        if ".new." in self.name:
            raise KeyboardInterrupt
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            save(checkpoints, 2)
    with pytest.raises(CheckpointError, match="none was saved"):  # the control
        checkpoints.newest_good(NO_OTHERS, pytest.fail)
    checkpoints.recover()
    assert checkpoints.newest_good(NO_OTHERS, pytest.fail)[1].name == "step-00000002"
    save(checkpoints, 3)
    assert names(tmp_path) == ["step-00000003"]


def test_a_checkpoint_that_cannot_be_removed_does_not_end_training(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path, keep=1)
    save(checkpoints, 1)
    rename = Path.rename

    def refused(self, target):
        if target.name.endswith(".old.partial"):
            raise PermissionError(13, "Permission denied")
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", refused)
        save(checkpoints, 2)
    assert names(tmp_path) == ["step-00000001", "step-00000002"]
    save(checkpoints, 3)
    assert names(tmp_path) == ["step-00000003"]


def test_a_lead_that_was_cut_off_removes_no_checkpoint(tmp_path):
    save(Checkpoints(tmp_path, keep=2), 1)
    save(Checkpoints(tmp_path, keep=2), 2)

    @contextmanager
    def refused() -> Iterator[None]:
        raise RunError("continued by a newer attempt")
        yield

    with pytest.raises(RunError, match="newer attempt"):
        Checkpoints(tmp_path, keep=1, fence=refused)._prune(2)
    assert names(tmp_path) == ["step-00000001", "step-00000002"]
    Checkpoints(tmp_path, keep=1)._prune(2)
    assert names(tmp_path) == ["step-00000002"]


def test_only_checkpoints_that_are_there_are_offered(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    with pytest.raises(CheckpointError) as caught:
        checkpoints.named("last")
    assert caught.value.hint == "the run was stopped before it saved a checkpoint"
    save(checkpoints, 1, is_best=False)
    with pytest.raises(CheckpointError) as caught:
        checkpoints.named("best")
    assert caught.value.hint == "available: last, step-00000001"


def test_a_flipped_bit_in_any_byte_of_a_checkpoint_is_found_and_the_one_before_is_used(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=3)
    save(checkpoints, 1)
    save(checkpoints, 2)
    assert checkpoints.newest_good(NO_OTHERS, print)[0]["model"]["w"][:][0] == 2
    for path in sorted(checkpoints.named("last").iterdir()):
        whole = path.read_bytes()
        for place in range(len(whole)):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << place % 8)]) + whole[place + 1 :])
            warnings: list[str] = []
            state, used = checkpoints.newest_good(NO_OTHERS, warnings.append)
            assert (used.name, state["model"]["w"][:][0], len(warnings)) == ("step-00000001", 1, 1), (path, place)
            assert "step-00000002" in warnings[0]
        path.write_bytes(whole)


def test_a_folder_without_a_whole_checkpoint_says_so(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=3)
    with pytest.raises(CheckpointError, match="none was saved"):
        checkpoints.newest_good(NO_OTHERS, print)
    save(checkpoints, 1)
    (checkpoints.named("last") / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="all are damaged"):
        checkpoints.newest_good(NO_OTHERS, lambda _text: None)


def test_a_later_format_is_refused(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=3)
    save(checkpoints, 1)
    path = checkpoints.named("last")
    write_manifest(path, read_manifest(path) | {"format": 3})
    with pytest.raises(CheckpointError, match="is not a checkpoint of format 2"):
        load_checkpoint(path)


def test_a_checkpoint_written_in_the_background_holds_the_moment_it_was_asked_for(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=3)
    saver = BackgroundSaver(checkpoints, NO_OTHERS)
    weights = torch.zeros(1000)
    state = {"model": {"w": weights}, "list": [weights]}
    copies = []
    for step in (1, 2):
        saver.save(Captured.of(state), step=step, best_step=None)
        copies.append(dict(saver._copies))
        weights.fill_(9)
    saver.close()
    assert [copy.data_ptr() for copy in copies[0].values()] == [copy.data_ptr() for copy in copies[1].values()]
    first, second = (load_checkpoint(tmp_path / f"step-{step:08d}") for step in (1, 2))
    assert not first["model"]["w"].any()
    assert not first["list"][0].any()
    assert (second["model"]["w"] == 9).all()


def test_a_failure_in_the_background_is_raised_not_lost(tmp_path):
    saver = BackgroundSaver(Checkpoints(tmp_path / "missing", keep=3), NO_OTHERS)
    saver.save(Captured.of({}), step=1, best_step=None)
    with pytest.raises(CheckpointError, match="could not be written"):
        saver.close()


def test_only_the_lead_writes_what_is_not_sharded(tmp_path):
    captured = Captured.of({"model": {"w": torch.ones(2)}})
    second = Team(World(rank=1, size=2), torch.device("cpu"))
    Checkpoints(tmp_path, keep=1).save(captured, second, step=1, best_step=None)
    assert names(tmp_path) == []
