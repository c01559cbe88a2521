"""`paceline data`: list, fetch, pack, verify, and training on what they leave."""

import json
from pathlib import Path

import pytest

from paceline import cli
from paceline.data.sources.published import PublishedSet, Remote
from tests.data.pictures import write_classes


@pytest.fixture
def pictures(elsewhere):
    """Write a small folder of photographs into the working folder."""
    for part in ("train", "val"):
        write_classes(Path("pictures") / part, ["cat", "dog"], num=6)
    return Path("pictures")


@pytest.fixture
def published(elsewhere, monkeypatch):
    """Put a set of one small file on the shelf, to be had from a folder instead of the network."""
    source = elsewhere / "site" / "tiny.bin"
    source.parent.mkdir()
    source.write_bytes(b"x" * 3_000_000)
    remote = Remote(file="tiny.bin", md5=None, url=source.as_uri())
    known = PublishedSet(
        name="tiny", title="", num_train=2, num_test=1, num_classes=2, image="1×1×1", download_bytes=3_000_000,
        remotes=(remote,),
    )  # fmt: skip
    monkeypatch.setattr("paceline.data.inventory._FIND", ((known, known.find),))
    return source


def test_every_set_is_listed_with_where_it_belongs(run):
    answer = run("data", "list", "--data-dir", "there")
    assert answer.code == 0
    rows = {line.split()[0]: line for line in answer.out.splitlines()[2:] if line}
    assert {"digits", "cifar10", "cifar100", "cinic10", "fashion-mnist", "imagenet"} <= rows.keys()
    assert rows["cifar10"].split() == [
        "cifar10",
        "50,000",
        "10,000",
        "10",
        "32×32×3",
        "170",
        "MB",
        "no",
        "there/cifar10",
    ]
    assert "ships with Paceline" in rows["digits"]
    assert "folder:PATH" in answer.out


def test_data_without_a_subcommand_shows_the_list(run):
    assert run("data").out == run("data", "list").out


def test_programs_get_plain_values(run):
    rows = {row["name"]: row for row in map(json.loads, run("data", "list", "--json").out.splitlines())}
    assert rows["digits"]["num_train"] == 1437
    assert rows["cifar100"] == {
        "name": "cifar100",
        "num_train": 50_000,
        "num_test": 10_000,
        "num_classes": 100,
        "image": "32×32×3",
        "download_bytes": 169_001_437,
        "found": None,
        "expected": "data/cifar100",
    }


def test_a_set_that_is_there_is_seen(run):
    Path("data/cifar-10-batches-bin").mkdir(parents=True)
    rows = {row["name"]: row for row in map(json.loads, run("data", "list", "--json").out.splitlines())}
    assert rows["cifar10"]["found"] == "data/cifar-10-batches-bin"
    assert run("data", "fetch", "cifar10").out == "cifar10 is already in data/cifar-10-batches-bin\n"


def test_fetching_prints_a_line_at_every_tenth_and_the_next_command(run, published):
    answer = run("data", "fetch", "tiny")
    assert answer.code == 0
    lines = answer.out.splitlines()
    assert 5 <= len(lines) <= 12
    assert lines[-2] == "tiny.bin: 3 MB of 3 MB"
    assert lines[-1] == "tiny is in data/tiny; train on it with: paceline train --data tiny --data-dir data"
    assert Path("data/tiny/tiny.bin").read_bytes() == published.read_bytes()


def test_a_fetch_with_nothing_to_do_is_reported(run):
    assert run("data", "fetch", "digits").out == "digits ships with Paceline: nothing to fetch\n"


def test_a_set_that_asks_for_a_registration_says_what_to_put_where(run):
    answer = run("data", "fetch", "imagenet")
    assert answer.code == 2
    assert "ILSVRC2012_img_train.tar (md5 1d675b47d978889d74fa0da5fadfb00e)" in answer.hint
    assert answer.hint.endswith("put it into data/imagenet")


def test_an_unknown_set_is_answered_with_the_nearest(run):
    answer = run("data", "fetch", "cifar-10")
    assert (answer.code, answer.message) == (2, "there is no published set cifar-10")
    assert answer.hint.startswith("did you mean cifar10?")


@pytest.mark.parametrize("keep", ["jpeg", "pixels"])
def test_a_folder_is_packed_verified_and_trained_on(run, train, pictures, keep):
    answer = run("data", "pack", f"folder:{pictures}", "set.pack", "--size", "32", "--keep", keep)
    assert answer.code == 0
    assert "set.pack: 24 of 24" in answer.out.splitlines()
    assert "set.pack: 24 images" in answer.out
    assert run("data", "verify", "set.pack").out == "set.pack: 24 images, all checksums are correct\n"
    assert train("--data", "packed:set.pack", "--valid-split=0", "--global-batch=4").code == 0


def test_a_damaged_pack_is_reported(run, pictures):
    run("data", "pack", f"folder:{pictures}", "set.pack")
    content = bytearray(Path("set.pack").read_bytes())
    content[200] ^= 1
    Path("set.pack").write_bytes(content)
    answer = run("data", "verify", "set.pack")
    assert (answer.code, answer.message) == (2, "set.pack is damaged: 1 of 24 images have a wrong checksum")


def test_a_bad_image_stops_packing_or_is_left_out(run, pictures):
    (pictures / "train" / "cat" / "0.jpeg").write_bytes(b"no image")
    refused = run("data", "pack", f"folder:{pictures}", "set.pack")
    assert refused.code == 2
    assert "0.jpeg cannot be decoded" in refused.message
    answer = run("data", "pack", f"folder:{pictures}", "set.pack", "--bad-images", "skip")
    assert answer.code == 0
    assert "set.pack: 23 images" in answer.out
    assert "1 image left out" in answer.out


def test_unreadable_images_are_named_counted_and_summed_up(train, pictures):
    for number in (0, 3):
        (pictures / "train" / "cat" / f"{number}.jpeg").write_bytes(b"no image")
    words = ("--data", f"folder:{pictures}", "--image-size=16", "--valid-split=0", "--global-batch=4", "--name=demo")
    refused = train(*words)
    assert refused.code == 2
    assert refused.hint.endswith("--bad-images skip")
    answer = train(*words, "--bad-images=skip", "--workers=1")
    assert answer.code == 0
    lines = Path("runs/demo/001/log.txt").read_text().splitlines()
    told = [line for line in lines if "using others of the same class instead" in line]
    assert len(told) == 1  # once, though both epochs meet them
    assert told[0].startswith("warning: 2 images could not be decoded")
    assert "pictures/train/cat/0.jpeg, pictures/train/cat/3.jpeg" in told[0]
    assert sum("|  2 images unreadable" in line for line in lines) == 2
    assert "warning: 2 images of this data set could not be decoded" in lines
    records = [json.loads(line) for line in Path("runs/demo/001/metrics.jsonl").read_text().splitlines()]
    assert [record["num_unreadable"] for record in records if record["kind"] == "epoch"] == [2, 2]


def test_a_sound_folder_has_nothing_to_say_about_unreadable_images(train, pictures):
    words = ("--data", f"folder:{pictures}", "--image-size=16", "--valid-split=0", "--global-batch=4", "--name=demo")
    assert train(*words, "--bad-images=skip").code == 0
    assert "decode" not in Path("runs/demo/001/log.txt").read_text()


def test_a_variable_for_training_does_not_reach_a_flag_of_another_kind(pictures, capsys):
    words = ["data", "pack", f"folder:{pictures}", "set.pack", "--size=32"]
    assert cli.run(words, {"PACELINE_KEEP": "5"}) == 0
    assert cli.run(["eval"], {"PACELINE_RUN": "demo"}) == 2
    assert capsys.readouterr().err.startswith("paceline: eval needs RUN")
    assert cli.run(["recipes"], {"PACELINE_NAME": "demo"}) == 0
    assert "to show one: paceline recipes NAME" in capsys.readouterr().out


def test_a_variable_reaches_every_flag_that_means_the_same(elsewhere, capsys):
    assert cli.run(["data", "list"], {"PACELINE_DATA_DIR": "there"}) == 0
    assert "there/cifar10" in capsys.readouterr().out


def test_a_set_in_memory_is_not_packed(run):
    assert run("data", "pack", "digits", "set.pack").message.startswith("this data set is always kept in memory")


def test_a_folder_is_trained_on_and_its_run_is_named_after_it(train, pictures):
    answer = train("--data", f"folder:{pictures}", "--image-size=16", "--valid-split=0", "--global-batch=4")
    assert answer.code == 0
    assert Path("runs/pictures-mlp").is_dir()


def test_a_resumed_run_keeps_its_augmentation(run, train):
    train("--augment=crop1,flip", "--name=changed")
    answer = run("train", "--resume=runs/changed", "--augment=none", "--epochs=4")
    assert (answer.code, answer.message) == (2, "runs/changed/001 was trained with --augment crop1,flip, not none")
