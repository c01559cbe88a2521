"""`paceline compare`: runs, checkpoints and files of other tools, and the exit code."""

import json
import re
import struct
from argparse import Namespace

import numpy as np
import pytest
import torch
from torch import nn

from paceline.engine.checkpoint import load_checkpoint


@pytest.fixture
def state():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8, 4)).state_dict()


def copied(state, **changes):
    return {name: tensor.clone() for name, tensor in state.items()} | changes


def write_safetensors(path, state):
    header, body = {}, b""
    names = {torch.float32: "F32", torch.int64: "I64", torch.bfloat16: "BF16"}
    for name, tensor in state.items():
        data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        place = [len(body), len(body) + len(data)]
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": place}
        body += data
    text = json.dumps(header | {"__metadata__": {"format": "pt"}}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def test_a_run_equals_itself_in_every_section(run, own_run):
    answer = run("compare", "demo", own_run.path / "checkpoints" / "last")
    assert (answer.code, answer.err) == (0, "")
    parts = [line.split()[0] for line in answer.out.split("\n\n")[1].splitlines()[2:]]
    assert parts == ["weights", "optimizer", "progress"]
    assert re.search(
        r"^equal: all \d+ entries, bit by bit; by the hashes in their manifests: the files were not read, paceline"
        r" check reads them$",
        answer.out,
        re.MULTILINE,
    )


def test_two_checkpoints_of_a_run_differ_and_the_difference_is_reported(run, own_run):
    folder = own_run.path / "checkpoints"
    answer = run("compare", folder / "step-00000011", folder / "step-00000022")
    assert answer.code == 1
    assert "A is after step 11, B after step 22" in answer.out
    assert re.search(r"^different: \d+ of \d+ entries are not equal$", answer.out, re.MULTILINE)


def test_one_flipped_bit_in_a_run_is_found_named_and_counted(run, own_run, elsewhere):
    state = load_checkpoint(own_run.path / "checkpoints" / "step-00000022")
    state["model"]["linear2.weight"].view(-1)[77:78].view(torch.int32).bitwise_xor_(1)
    torch.save(state, elsewhere / "flipped.pt")
    value = json.loads(run("compare", "demo", "flipped.pt", "--json").out)
    (found,) = [entry for entry in value["entries"] if entry["status"] != "equal"]
    assert (found["part"], found["name"], found["ulps"], found["num_different"]) == ("weights", "linear2.weight", 1, 1)
    assert found["index"] == [0, 77]
    assert run("compare", "demo", "flipped.pt").code == 1
    assert run("compare", "demo", "flipped.pt", "--tolerance=1e-5").code == 0


def test_the_optimizer_is_compared_too(run, own_run, elsewhere):
    state = load_checkpoint(own_run.path / "checkpoints" / "step-00000022")
    state["optimizer"]["linear1.bias"]["momentum_buffer"] *= 1.01
    torch.save(state, elsewhere / "other.pt")
    answer = run("compare", "demo", "other.pt")
    assert answer.code == 1
    assert "optimizer: linear1.bias.momentum_buffer" in answer.out


def test_a_section_that_one_checkpoint_lacks_is_a_difference_but_bare_weights_need_no_optimizer(
    run, own_run, elsewhere
):
    state = load_checkpoint(own_run.path / "checkpoints" / "step-00000022")
    torch.save(state["model"], elsewhere / "weights.pt")
    torch.save({key: state[key] for key in ("model", "progress")}, elsewhere / "half.pt")
    answer = run("compare", "demo", "weights.pt")
    assert (answer.code, "Not compared: optimizer only in A, progress only in A." in answer.out) == (0, True)
    assert run("compare", "demo", "half.pt").code == 1


def test_weights_in_wrappers_and_formats_of_others_are_the_same_weights(run, elsewhere, state):
    torch.save(state, "plain.pth")
    torch.save(state, "old.pth", _use_new_zipfile_serialization=False)
    torch.save({f"module.{name}": tensor for name, tensor in state.items()}, "ddp.pth")
    torch.save({f"module._orig_mod.{name}": tensor for name, tensor in state.items()}, "compiled.pth")
    beside = {"epoch": 3, "best_acc1": np.float64(0.5), "args": Namespace(lr=0.1), "optimizer": {"state": {}}}
    torch.save({"state_dict": state} | beside, "script.pth.tar")
    torch.save({"model": {"state_dict": state}}, "nested.pt")
    write_safetensors(elsewhere / "safe.safetensors", {f"backbone.{name}": tensor for name, tensor in state.items()})
    for name in ("old.pth", "ddp.pth", "compiled.pth", "script.pth.tar", "nested.pt", "safe.safetensors"):
        for words in (("plain.pth", name), (name, "plain.pth")):
            answer = run("compare", *words)
            assert (answer.code, answer.err) == (0, ""), f"{name}: {answer.out}"
    assert "removed the wrapper's prefix module. of every name" in run("compare", "plain.pth", "ddp.pth").out
    assert "removed the prefix backbone. of every name" in run("compare", "safe.safetensors", "plain.pth").out


def test_a_folder_of_shards_is_one_model(run, elsewhere, state):
    torch.save(state, "plain.pth")
    folder = elsewhere / "big"
    folder.mkdir()
    names = list(state)
    for number, part in enumerate((names[:4], names[4:])):
        write_safetensors(folder / f"model-{number}.safetensors", {name: state[name] for name in part})
    places = {name: f"model-{int(place >= 4)}.safetensors" for place, name in enumerate(names)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert run("compare", "plain.pth", "big").code == 0
    (folder / "model-1.safetensors").unlink()
    assert run("compare", "plain.pth", "big").code == 2


def test_statistics_that_differ_between_ranks_are_explained(run, elsewhere, state):
    """The finding of a public demo, whose script lists these tensors and nothing else."""
    torch.save(state, "final_model_rank_0.pth")
    torch.save(copied(state, **{"1.running_mean": state["1.running_mean"] + 0.5}), "final_model_rank_1.pth")
    answer = run("compare", "final_model_rank_0.pth", "final_model_rank_1.pth")
    words = " ".join(answer.out.split())
    assert answer.code == 1
    assert "only 1 running statistic of batch norm differs." in words
    assert "--batch-norm sync" in words
    torch.save(copied(state, **{"0.bias": state["0.bias"] + 0.5}), "final_model_rank_1.pth")
    assert "batch norm" not in run("compare", "final_model_rank_0.pth", "final_model_rank_1.pth").out


def test_shapes_types_missing_names_and_nans_are_reported(run, elsewhere, state):
    torch.save(state, "a.pth")
    other = copied(state, extra=torch.ones(2), **{"1.weight": torch.ones(9), "0.bias": state["0.bias"].bfloat16()})
    other["3.weight"][0, 0] = float("nan")
    del other["3.bias"]
    torch.save(other, "b.pth")
    answer = run("compare", "a.pth", "b.pth")
    assert answer.code == 1
    for line in (
        r"weights: 1\.weight +differs +shape +float32 8 → float32 9$",
        r"weights: 0\.bias +differs +dtype +float32 8 → bfloat16 8",
        r"weights: 3\.bias +only in A +missing +float32 4$",
        r"weights: extra +only in B +missing +float32 2$",
        r"NaN: 0 in A, 1 in B$",
    ):
        assert re.search(line, answer.out, re.MULTILINE), f"{line}\n{answer.out}"
    assert json.loads(run("compare", "a.pth", "b.pth", "--json").out)["status"] == "differs"


@pytest.mark.parametrize(("kept", "line"), [("weights", "buffers: 1.running_mean"), ("buffers", "weights: 0.weight")])
def test_a_model_without_any_buffer_or_any_weight_is_not_the_same(run, elsewhere, state, kept, line):
    torch.save(state, "whole.pth")
    buffers = {name for name in state if "running" in name or "num_batches" in name}
    torch.save({name: state[name] for name in state if (name in buffers) == (kept == "buffers")}, "part.pth")
    for words, side in ((("whole.pth", "part.pth"), "A"), (("part.pth", "whole.pth"), "B")):
        answer = run("compare", *words)
        assert answer.code == 1
        assert re.search(rf"^ *{re.escape(line)} +only in {side} ", answer.out, re.MULTILINE), answer.out


def test_long_lists_are_cut_and_all_shows_them(run, elsewhere):
    first = {f"layer{place}.weight": torch.ones(2) for place in range(40)}
    torch.save(first, "a.pth")
    torch.save({name: tensor + 1 for name, tensor in first.items()}, "b.pth")
    short, long = run("compare", "a.pth", "b.pth").out, run("compare", "a.pth", "b.pth", "--all").out
    assert ("and 28 more; to list them: --all" in short, short.count("weights: ")) == (True, 12)
    assert long.count("weights: ") == 40


@pytest.mark.parametrize(
    "words", ["gone.pth", "no-run", "junk.pth", "b.safetensors", "empty.pth", "meta.pth", "a.pth --tolerance=-1", "."]
)
def test_what_cannot_be_compared_has_a_separate_exit_code(run, elsewhere, words):
    torch.save({"w": torch.ones(2)}, "a.pth")
    torch.save({"lr": 0.1}, "empty.pth")
    torch.save({"w": torch.ones(2, device="meta")}, "meta.pth")
    (elsewhere / "junk.pth").write_text("not a checkpoint")
    (elsewhere / "b.safetensors").write_bytes(b"\xff" * 20)
    answer = run("compare", "a.pth", *words.split())
    assert (answer.code, answer.out) == (2, "")
    assert answer.message


def test_a_damaged_checkpoint_is_not_called_different(run, own_run):
    folder = own_run.checkpoints
    path = folder / "step-00000022" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    answer = run("compare", folder / "step-00000011", folder / "step-00000022")
    assert (answer.code, "is damaged" in answer.message) == (2, True)


def test_equal_tensors_of_checkpoints_are_known_by_their_hashes_without_reading_them(run, own_run):
    for path in own_run.checkpoints.glob("step-00000022/*.safetensors"):
        path.unlink()
    answer = run("compare", "demo", own_run.checkpoints / "step-00000022")
    assert answer.code == 0
    assert answer.out.splitlines()[-1].endswith(
        ", bit by bit; by the hashes in their manifests: the files were not read, paceline check reads them"
    )


class Harmful:
    def __reduce__(self):
        return (print, ("code of a file ran",))


def test_code_in_a_file_does_not_run(run, elsewhere):
    torch.save({"w": torch.ones(2)}, "a.pth")
    torch.save({"w": torch.ones(2), "x": Harmful()}, "evil.pth")
    answer = run("compare", "a.pth", "evil.pth")
    assert (answer.code, answer.out) == (2, "")
    assert "contains code" in answer.message
    assert "state_dict()" in answer.hint


def test_each_compare_names_the_other(run):
    assert "paceline runs compare" in run("compare", "--help").out
    assert "paceline compare A B" in run("runs", "compare", "--help").out
