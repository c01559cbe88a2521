"""Usual mistakes in data of one's own each get one sentence."""

from pathlib import Path

import pytest

from paceline.core.errors import DataError
from paceline.data.sources.user import open_user_data

CODE = """
import torch
from PIL import Image
from torch.utils.data import TensorDataset
LABELS = torch.arange(40) % 4
def hwc(): return TensorDataset(torch.rand(40, 16, 16, 3), LABELS)
def chw(): return TensorDataset(torch.rand(40, 3, 16, 16), LABELS)
def one_hot(): return TensorDataset(torch.rand(40, 3, 8, 8), torch.eye(4)[LABELS])
def one_hot_pairs(): return [(torch.rand(3, 8, 8), torch.eye(4)[i % 4]) for i in range(40)]
def words(): return [(torch.rand(3, 8, 8), "cat") for i in range(40)]
def pil(): return [(Image.new("RGB", (8, 8)), i % 4) for i in range(40)]
def numbers(): return list(range(40))
def pairs(): return [(torch.rand(3, 8, 8), i % 4) for i in range(40)]
def lists(): return [[torch.rand(3, 8, 8), i % 4] for i in range(40)]
def dicts(): return [{"image": torch.rand(3, 8, 8), "label": i % 4} for i in range(40)]
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    (tmp_path / "my.py").write_text(CODE)
    return tmp_path / "my.py"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("hwc", "look like height × width × channels"),
        ("one_hot", r"a label has shape \(4,\)"),
        ("one_hot_pairs", r"a label has shape \(4,\)"),
        ("words", "a label is 'cat'"),
        ("pil", "is a PIL image"),
        ("numbers", "a list, but not of pairs"),
    ],
)
def test_a_usual_mistake_gets_one_sentence_and_a_hint(code: Path, name: str, problem: str) -> None:
    with pytest.raises(DataError, match=problem) as raised:
        open_user_data(f"{code}:{name}", data_dir=code.parent, seed=0)
    assert raised.value.hint


@pytest.mark.parametrize("name", ["chw", "pairs", "lists", "dicts"])
def test_images_in_a_tensor_or_a_list_are_a_data_set(code: Path, name: str) -> None:
    found = open_user_data(f"{code}:{name}", data_dir=code.parent, seed=0)
    assert (len(found.train), len(found.test), found.classes) == (36, 4, ("0", "1", "2", "3"))


@pytest.mark.parametrize(
    "shape",
    [(3, 16, 16), (1, 28, 28), (4, 3, 3), (3, 128, 1), (1, 64, 4), (4, 64, 3), (12, 1000, 1), (2, 9, 1), (64, 3, 3)],
)
def test_channels_first_are_never_refused(code: Path, shape: tuple[int, ...]) -> None:
    code.write_text(f"{CODE}\ndef own(): return TensorDataset(torch.rand(40, *{shape}), LABELS)\n")
    assert open_user_data(f"{code}:own", data_dir=code.parent, seed=0).image_shape == shape


@pytest.mark.parametrize("shape", [(32, 32, 3), (28, 28, 1), (64, 48, 4), (480, 640, 3)])
def test_channels_last_are_refused(code: Path, shape: tuple[int, ...]) -> None:
    code.write_text(f"{CODE}\ndef own(): return TensorDataset(torch.rand(4, *{shape}), LABELS[:4])\n")
    with pytest.raises(DataError, match="height × width × channels"):
        open_user_data(f"{code}:own", data_dir=code.parent, seed=0)
