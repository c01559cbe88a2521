"""Folders of images: how they are found, cut to size and augmented, and what is said about bad ones."""

import os
import pickle

import numpy as np
import pytest
import torch
from PIL import Image

from paceline.core.errors import DataError
from paceline.data.augment.pipeline import Augmentation
from paceline.data.augment.policy import parse_policy
from paceline.data.decoded import Cut, Decoded, cut_out, middle
from paceline.data.loader import load_batches
from paceline.data.sources import cinic
from paceline.data.sources.cinic import open_cinic10
from paceline.data.sources.folder import Files, ImageOptions, list_images, open_folder
from paceline.data.split import Subset
from tests.data.pictures import encoded, picture, write_classes

SMALL = ImageOptions(size=24)
CLASSES = ["cat", "dog", "fox"]
POLICY = Augmentation(policy=parse_policy("resized-crop,flip,jitter0.4,erase0.25,mixup0.2"), seed=5)


@pytest.fixture
def root(tmp_path):
    write_classes(tmp_path / "train", CLASSES, num=4)
    write_classes(tmp_path / "val", CLASSES, num=2, form="PNG")
    return tmp_path


def test_train_and_val_folders_give_classes_in_the_order_of_their_names(root):
    data = open_folder(root, SMALL)
    assert data.classes == ("cat", "dog", "fox")
    assert data.image_shape == (3, 24, 24)
    assert len(data.train) == 12
    batch = data.test.fetch(np.arange(6), None)
    assert batch.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert batch.images.shape == (6, 3, 24, 24)


def test_one_folder_is_split_always_the_same_way(tmp_path):
    write_classes(tmp_path, CLASSES, num=5)
    one, other = open_folder(tmp_path, SMALL), open_folder(tmp_path, SMALL)
    assert (len(one.train), len(one.test)) == (12, 3)
    assert torch.equal(one.test.fetch(np.arange(3), None).images, other.test.fetch(np.arange(3), None).images)


def test_webp_and_upper_case_endings_and_sub_folders_count_and_other_files_do_not(tmp_path):
    write_classes(tmp_path, CLASSES, num=2, form="WEBP")
    (tmp_path / "cat" / "deep").mkdir()
    (tmp_path / "cat" / "deep" / "A.JPEG").write_bytes(encoded(picture(30, 30)))
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    (tmp_path / "cat" / "._0.jpg").write_text("what a Mac leaves behind")
    listing = list_images(tmp_path)
    assert listing.labels.tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert "cat/deep/A.JPEG" in listing.names


def test_a_sample_does_not_depend_on_the_batch_it_is_decoded_in(root):
    train = open_folder(root, SMALL, POLICY).train
    whole = train.fetch(np.arange(12), 3)
    for ids in ([5], [11, 0, 7], [3, 3]):
        part = train.fetch(np.array(ids), 3)
        assert torch.equal(part.images, whole.images[ids])
        assert part.targets is not None
        assert whole.targets is not None
        assert torch.equal(part.targets, whole.targets[ids])
    assert not torch.equal(whole.images, train.fetch(np.arange(12), 4).images)


def test_a_worker_process_gets_the_same_images(root):
    train = open_folder(root, SMALL, POLICY).train
    copied = pickle.loads(pickle.dumps(train))
    assert torch.equal(train.fetch(np.arange(12), 1).images, copied.fetch(np.arange(12), 1).images)


def test_evaluation_sees_the_middle():
    assert middle(100, 60, 32) == Cut(20, 0, 60, 60)
    assert middle(256, 256, 224) == Cut(16, 16, 224, 224)
    image = Image.new("RGB", (60, 100), (255, 0, 0))
    image.paste((0, 0, 255), (0, 20, 60, 80))
    pixels = cut_out(encoded(image, "PNG"), (100, 60), middle(100, 60, 20), 20)
    assert np.all(pixels == (0, 0, 255))


@pytest.mark.parametrize("cut", [Cut(5, 9, 30, 44), Cut(0, 0, 60, 80), Cut(20, 30, 12, 9), Cut(59, 79, 1, 1)])
def test_cutting_and_scaling_agree_with_pillow(cut):
    image = picture(60, 80)
    box = (cut.left, cut.top, cut.left + cut.width, cut.top + cut.height)
    expected = np.asarray(image.crop(box).resize((24, 24), Image.Resampling.BICUBIC)).astype(int)
    assert np.abs(cut_out(encoded(image, "PNG"), (60, 80), cut, 24) - expected).max() <= 1


@pytest.mark.parametrize("size", [(5, 7), (1, 1), (3, 200)])
def test_an_image_smaller_than_the_crop_is_enlarged(tmp_path, size):
    for part in ("train", "test"):
        write_classes(tmp_path / part, ["a", "b"], num=2, size=size, form="PNG")
    data = open_folder(tmp_path, SMALL, POLICY)
    assert data.train.fetch(np.arange(4), 0).images.shape == (4, 3, 24, 24)
    assert torch.isfinite(data.test.fetch(np.arange(4), None).images).all()


def test_an_image_of_the_right_size_is_left_as_it_is(tmp_path):
    write_classes(tmp_path, ["a", "b"], num=3, size=(24, 24), form="PNG")
    train = open_folder(tmp_path, ImageOptions(size=24, mean=(0, 0, 0), std=(1, 1, 1))).train
    assert isinstance(train, Decoded)
    pixels = (train.fetch(np.array([0]), None).images[0] * 255).round().byte().permute(1, 2, 0)
    assert np.array_equal(pixels.numpy(), np.asarray(Image.open(train.records.name(0))))


def test_grey_palette_and_cmyk_images_can_stand_in_one_batch(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for place, mode in enumerate(("L", "P", "CMYK", "RGB")):
            form = "JPEG" if mode == "CMYK" else "PNG"
            (tmp_path / name / f"{place}.{form.lower()}").write_bytes(encoded(picture(30, 30, mode=mode), form))
    train = open_folder(tmp_path, SMALL).train
    assert train.fetch(np.arange(len(train)), None).images.shape[1:] == (3, 24, 24)


def test_an_unreadable_image_is_named_and_stops_the_run(root):
    (root / "train" / "dog" / "1.jpeg").write_bytes(b"no image at all")
    train = open_folder(root, SMALL).train
    with pytest.raises(DataError, match=r"train/dog/1.jpeg cannot be decoded") as caught:
        train.fetch(np.arange(12), 0)
    assert "--bad-images skip" in (caught.value.hint or "")


@pytest.mark.parametrize("content", [b"no image at all", None])
def test_a_skipped_image_is_counted_and_replaced_by_one_of_its_class(root, caplog, content):
    path = root / "train" / "dog" / "1.jpeg"
    path.write_bytes(path.read_bytes()[:-300] if content is None else content)
    train = open_folder(root, ImageOptions(size=24, bad_images="skip")).train
    assert isinstance(train, Decoded)
    first, again = train.fetch(np.arange(12), None), train.fetch(np.arange(12), None)
    assert torch.equal(first.images, again.images)
    assert torch.equal(first.images[5], first.images[6])
    assert first.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert len(train.unreadable()) == 1
    assert [str(path) in message for message in caplog.messages] == [True]


def test_a_class_without_any_readable_image_is_refused_even_when_skipping(root):
    for path in (root / "train" / "fox").iterdir():
        path.write_bytes(b"")
    train = open_folder(root, ImageOptions(size=24, bad_images="skip")).train
    with pytest.raises(DataError, match=r"no image of the class of .*fox"):
        train.fetch(np.arange(12), None)


def test_an_empty_class_folder_is_named(root):
    (root / "train" / "bee").mkdir()
    with pytest.raises(DataError, match="train/bee has no image") as caught:
        open_folder(root, SMALL)
    assert "rmdir" in (caught.value.hint or "")


def test_classes_that_differ_between_train_and_test_are_named(root):
    write_classes(root / "val", ["owl"], num=1)
    with pytest.raises(DataError, match=r"differ: owl only in .*val"):
        open_folder(root, SMALL)


def test_half_a_data_set_and_no_data_set_are_told_apart(root, tmp_path):
    (root / "val").rename(root / "other")
    with pytest.raises(DataError, match="has train but not test, val or valid"):
        open_folder(root, SMALL)
    with pytest.raises(DataError, match="does not exist"):
        open_folder(tmp_path / "nowhere", SMALL)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no class folders"):
        open_folder(tmp_path / "empty", SMALL)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_without_permission_is_named(root):
    (root / "train" / "cat").chmod(0)
    try:
        with pytest.raises(DataError, match="train/cat cannot be read: Permission denied"):
            open_folder(root, SMALL)
    finally:
        (root / "train" / "cat").chmod(0o755)


def test_a_folder_that_the_system_refuses_is_named(root, monkeypatch):
    monkeypatch.setattr(
        "paceline.data.sources.folder.os.walk",
        lambda folder, onerror, **_: onerror(PermissionError(13, "Permission denied", str(folder))),
    )
    with pytest.raises(DataError, match="train/cat cannot be read: Permission denied") as caught:
        open_folder(root, SMALL)
    assert "ls -ld" in (caught.value.hint or "")


def test_names_beyond_ascii_survive(tmp_path):
    files = Files(tmp_path, ["cat/été.png", "cat/x.png", "dog/雪.png"])
    assert [files.name(number) for number in range(3)] == [
        str(tmp_path / n) for n in ("cat/été.png", "cat/x.png", "dog/雪.png")
    ]


def test_cinic_has_its_own_size_and_is_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(
        cinic,
        "CINIC10",
        cinic.CINIC10.__class__(
            name="cinic10", title="", num_train=4, num_test=2, num_classes=2, image="", download_bytes=0
        ),
    )
    for part, num in (("train", 2), ("valid", 2), ("test", 1)):
        write_classes(tmp_path / "cinic10" / part, ["airplane", "bird"], num=num, size=(32, 32), form="PNG")
    data = open_cinic10(tmp_path)
    assert data.image_shape == (3, 32, 32)
    assert (len(data.train), len(data.test)) == (4, 2)
    (tmp_path / "cinic10" / "train" / "bird" / "0.png").unlink()
    with pytest.raises(DataError, match="has 3 images, cinic10 has 4 there"):
        open_cinic10(tmp_path)


def test_bad_images_that_worker_processes_find_are_counted_here(root):
    (root / "train" / "dog" / "1.jpeg").write_bytes(b"no image at all")
    train = open_folder(root, ImageOptions(size=24, bad_images="skip"), POLICY).train
    assert isinstance(train, Decoded)
    requests = [(np.arange(12), epoch) for epoch in range(2)]
    there = list(load_batches(train, requests, workers=2, pin=False))
    assert len(train.unreadable()) == 1
    here = list(load_batches(train, requests, workers=0, pin=False))
    assert all(torch.equal(one.images, other.images) for one, other in zip(there, here, strict=True))


def test_what_stands_for_a_bad_image_does_not_depend_on_what_was_asked_before(root):
    first, second = root / "train" / "dog" / "1.jpeg", root / "train" / "dog" / "2.jpeg"
    first.write_bytes(b"no image at all")
    second.write_bytes(second.read_bytes()[:-300])
    one, other = (open_folder(root, ImageOptions(size=24, bad_images="skip"), POLICY).train for _ in range(2))
    other.fetch(np.arange(12), 0)
    for ids in ([5], [6, 5], [7, 5, 4]):
        assert torch.equal(one.fetch(np.array(ids), 3).images, other.fetch(np.array(ids), 3).images)
    assert isinstance(one, Decoded)
    assert len(one.unreadable()) == 2


def test_an_image_that_is_held_out_never_stands_in_for_a_bad_one(root):
    (root / "train" / "dog" / "1.jpeg").write_bytes(b"no image at all")
    train = open_folder(root, ImageOptions(size=24, bad_images="skip")).train
    without_next = Subset(train, np.array([4, 5, 7]))
    images = without_next.fetch(np.arange(3), None).images
    assert torch.equal(images[1], images[2])
