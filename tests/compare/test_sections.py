"""What a file holds, part by part, whatever wraps the weights."""

import numpy as np
import pytest
import torch

from paceline.compare.sections import parts_of, read_contents
from paceline.compare.stored import StoredTensor
from paceline.core.errors import CheckpointError

STATE = {"conv.weight": torch.ones(2), "bn.running_mean": torch.zeros(2), "bn.num_batches_tracked": torch.tensor(3)}
NAMES = {"weights": ["conv.weight"], "buffers": ["bn.running_mean", "bn.num_batches_tracked"]}


def names(parts):
    return {part: list(entries) for part, entries in parts.items()}


@pytest.mark.parametrize(
    "held",
    [
        pytest.param(STATE, id="bare"),
        pytest.param({"state_dict": STATE}, id="one key"),
        pytest.param({"model": {"module": STATE}}, id="two keys"),
        pytest.param({"net": STATE, "args": {"lr": 0.1}, "ema": None}, id="settings"),
    ],
)
def test_weights_and_buffers_are_found_wherever_they_are(held):
    parts, notes = parts_of(held)
    assert (names(parts), notes) == (NAMES, [])
    assert isinstance(parts["weights"]["conv.weight"], StoredTensor)


def test_prefixes_of_wrappers_are_taken_off_and_noted():
    parts, notes = parts_of({f"module._orig_mod.{name}": value for name, value in STATE.items()})
    assert names(parts) == NAMES
    assert ["module." in notes[0], "_orig_mod." in notes[1], len(notes)] == [True, True, 2]


def test_a_prefix_that_only_some_names_have_stays():
    parts, notes = parts_of({"module.a": torch.ones(1), "b": torch.ones(1)})
    assert (list(parts["weights"]), notes) == (["module.a", "b"], [])


def test_what_lies_beside_the_model_has_parts_of_its_own():
    held = {
        "model": {"w": torch.ones(1)},
        "model_ema": {"module.w": torch.zeros(1)},
        "optimizer": {"state": {0: {"momentum": torch.ones(1)}}, "param_groups": [{"lr": 0.1}]},
        "epoch": 3,
        "best_acc1": np.float64(0.5),
        "scheduler": {},
    }
    parts, _ = parts_of(held)
    assert names(parts) == {
        "weights": ["w"],
        "average": ["w"],
        "optimizer": ["state.0.momentum", "param_groups.0.lr"],
        "others": ["epoch", "best_acc1"],
    }
    assert parts["others"] == {"epoch": 3, "best_acc1": 0.5}


def test_entries_of_any_type_are_compared_and_a_set_has_one_order():
    parts, _ = parts_of(
        {"model": {"w": torch.ones(1)}, "extra": {"none": None, "type": torch.float16, "set": {"b", "a"}}}
    )
    assert parts["extra"] == {"none": None, "type": "torch.float16", "set.0": "a", "set.1": "b"}


def test_a_single_tensor_and_a_list_have_names_too():
    assert names(parts_of(torch.ones(2))[0]) == {"weights": ["tensor"]}
    assert names(parts_of([torch.ones(2), {"a": torch.ones(1)}])[0]) == {"weights": ["0", "1.a"]}


@pytest.mark.parametrize(
    ("held", "message"),
    [
        ({"lr": 0.1}, "has no tensors"),
        ({"w": torch.ones(2, device="meta")}, "has w without values"),
    ],
)
def test_a_file_without_values_is_refused(tmp_path, held, message):
    torch.save(held, tmp_path / "x.pt")
    with pytest.raises(CheckpointError, match=message):
        read_contents(tmp_path / "x.pt", runs_dir=tmp_path, checkpoint="last")


def test_a_file_is_read_part_by_part(tmp_path):
    path = tmp_path / "x.pt"
    torch.save({"model": {f"module.{name}": value for name, value in STATE.items()}}, path)
    contents = read_contents(path, runs_dir=tmp_path, checkpoint="last")
    assert (contents.name, names(contents.parts), len(contents.notes)) == (str(path), NAMES, 1)
