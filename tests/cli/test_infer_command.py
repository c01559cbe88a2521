"""`paceline infer`: files give the predictions that evaluation counts, at every world size."""

import json

import numpy as np
import pytest
from PIL import Image

from paceline.core.config import Config
from paceline.data.catalog import open_data
from paceline.data.in_memory import InMemory

OWN = """
import torch


def read(path):
    return (torch.zeros(1, 8, 8),)


def broken(path):
    raise ValueError("no magic")
"""


@pytest.fixture
def digits(elsewhere):
    """Write the test digits as image files, half of them in a folder below; return how many there are."""
    test = open_data(Config(data="digits")).test
    assert isinstance(test, InMemory)
    (elsewhere / "pictures" / "more").mkdir(parents=True)
    for index, (image, label) in enumerate(zip(test.images, test.labels, strict=True)):
        folder = elsewhere / "pictures" / ("more" if index % 2 else ".")
        Image.fromarray(image[0].numpy()).save(folder / f"{index:03d}-{label}.png")
    return len(test)


def rows(answer):
    assert answer.code == 0, answer.err
    return [json.loads(line) for line in answer.out.splitlines()]


def test_predictions_of_files_are_those_that_evaluation_counts(run, own_run, digits):
    found = rows(run("infer", "demo", "pictures", "--json"))
    assert len({row["file"] for row in found}) == digits
    right = sum(row["file"].endswith(f"-{row['class']}.png") for row in found)
    top1 = json.loads(run("eval", "demo", "--json").out)["top1"]
    assert right / digits == pytest.approx(top1, abs=1e-9)
    head, _, first, *_ = run("infer", "demo", "pictures").out.splitlines()
    assert head.split() == ["file", "class", "probability"]
    assert first.split()[:2] == [found[0]["file"], found[0]["class"]]


@pytest.mark.slow
def test_two_ranks_predict_the_same_as_one(run, command, own_run, digits):
    alone = run("infer", "demo", "pictures", "--json")
    both = command("infer", "demo", "pictures", "--json", "--nproc=2")
    assert (both.code, both.out) == (0, alone.out)


def test_masks_numbers_labels_and_text_are_predicted_by_their_tasks(run, train, write, elsewhere):
    Image.fromarray(np.full((40, 48, 3), 90, np.uint8)).save(elsewhere / "grey.jpg")
    write("tale.txt", "Alice was beginning to get very tired")
    for data, model in {
        "shapes": "unet-nano",
        "shape-labels": "cnn",
        "shape-centers": "cnn",
        "alice": "gpt-nano",
    }.items():
        assert train(f"--data={data}", f"--model={model}", "--steps=1", "--global-batch=8", f"--name={data}").code == 0
    (mask,) = rows(run("infer", "shapes", "grey.jpg", "--out=masks", "--json"))
    pixels = np.asarray(Image.open(elsewhere / "masks" / "grey.png"))
    assert pixels.shape == (32, 32)
    assert mask["mask"] == "masks/grey.png"
    assert sum(mask["pixels"].values()) == pytest.approx(1)
    assert mask["pixels"].get("background", 0) == pytest.approx((pixels == 0).mean())
    (labels,) = rows(run("infer", "shape-labels", "grey.jpg", "--json"))
    assert [p > 0.5 for p in labels["probabilities"]] == [bool(label) for label in labels["labels"]]
    assert len(rows(run("infer", "shape-centers", "grey.jpg", "--json"))[0]["value"]) == 2
    (text,) = rows(run("infer", "alice", "tale.txt", "--json"))
    assert text["tokens"] == 37
    assert 1 < text["perplexity"] < 1000
    assert text["text"]
    write("empty.txt", "")
    assert run("infer", "alice", "empty.txt").message == "empty.txt has 0 bytes, no token ids of 1 bytes"


def test_wrong_files_are_refused(run, own_run, write, elsewhere):
    (elsewhere / "empty").mkdir()
    write("own.py", OWN)
    bad = write("bad.png", "not an image")
    for words, message in (
        ((), "infer needs files or folders"),
        (("nowhere",), "nowhere does not exist"),
        (("empty",), "empty contains no files (.jpg, .jpeg, .png, .webp)"),
        ((bad,), f"{bad} cannot be decoded: it is not an image format that Pillow knows"),
        ((bad, "--read=own.py:broken"), f"reading {bad} raised ValueError: no magic"),
        ((bad, "--read=own.py:nothing"), "own.py has no function or class nothing"),
    ):
        answer = run("infer", "demo", *words)
        assert (answer.code, answer.message) == (2, message)
        assert answer.hint
    assert len(rows(run("infer", "demo", bad, "--read=own.py:read", "--json"))) == 1
