"""Images that are decoded on demand: crops, augmentation, and replacements for bad images."""

import pickle

import numpy as np
import pytest
import torch
from PIL import Image

from paceline.core.errors import DataError
from paceline.data.augment.pipeline import Augmentation
from paceline.data.augment.policy import parse_policy
from paceline.data.loader import load_batches
from paceline.data.on_demand import CropBox, OnDemand, crop_and_resize, evaluation_crop
from paceline.data.sources.image_folder import ImageOptions, open_image_folder
from paceline.data.split import Subset
from paceline.data.tree import moved
from tests.data.pictures import encoded, picture, write_classes

SMALL = ImageOptions(size=24)
CLASSES = ["cat", "dog", "fox"]
POLICY = Augmentation(policy=parse_policy("resized-crop,flip,jitter0.4,erase0.25,mixup0.2"), seed=5)


@pytest.fixture
def root(tmp_path):
    write_classes(tmp_path / "train", CLASSES, num=4)
    write_classes(tmp_path / "val", CLASSES, num=2, form="PNG")
    return tmp_path


def test_a_sample_does_not_depend_on_the_batch_it_is_decoded_in(root):
    train = open_image_folder(root, SMALL, POLICY).train
    whole = train.fetch(np.arange(12), 3)
    for ids in ([5], [11, 0, 7], [3, 3]):
        some = train.fetch(np.array(ids), 3)
        assert torch.equal(some.images, whole.images[ids])
        assert some.targets is not None
        assert whole.targets is not None
        assert torch.equal(some.targets, whole.targets[ids])
    assert not torch.equal(whole.images, train.fetch(np.arange(12), 4).images)


def test_a_worker_process_gets_the_same_images(root):
    train = open_image_folder(root, SMALL, POLICY).train
    copied = pickle.loads(pickle.dumps(train))
    assert torch.equal(train.fetch(np.arange(12), 1).images, copied.fetch(np.arange(12), 1).images)


def test_evaluation_crops_the_central_square():
    assert evaluation_crop(100, 60, 32) == CropBox(20, 0, 60, 60)
    assert evaluation_crop(256, 256, 224) == CropBox(16, 16, 224, 224)
    image = Image.new("RGB", (60, 100), (255, 0, 0))
    image.paste((0, 0, 255), (0, 20, 60, 80))
    pixels = crop_and_resize(encoded(image, "PNG"), (100, 60), evaluation_crop(100, 60, 20), 20)
    assert np.all(pixels == (0, 0, 255))


@pytest.mark.parametrize(
    "crop", [CropBox(5, 9, 30, 44), CropBox(0, 0, 60, 80), CropBox(20, 30, 12, 9), CropBox(59, 79, 1, 1)]
)
def test_cropping_and_resizing_agree_with_pillow(crop):
    image = picture(60, 80)
    box = (crop.left, crop.top, crop.left + crop.width, crop.top + crop.height)
    expected = np.asarray(image.crop(box).resize((24, 24), Image.Resampling.BICUBIC)).astype(int)
    assert np.abs(crop_and_resize(encoded(image, "PNG"), (60, 80), crop, 24) - expected).max() <= 1


@pytest.mark.parametrize("size", [(5, 7), (1, 1), (3, 200)])
def test_an_image_smaller_than_the_crop_is_enlarged(tmp_path, size):
    for split in ("train", "test"):
        write_classes(tmp_path / split, ["a", "b"], num=2, size=size, form="PNG")
    data = open_image_folder(tmp_path, SMALL, POLICY)
    assert data.train.fetch(np.arange(4), 0).images.shape == (4, 3, 24, 24)
    assert torch.isfinite(data.test.fetch(np.arange(4), None).images).all()


def test_an_image_of_the_right_size_is_left_as_it_is(tmp_path):
    write_classes(tmp_path, ["a", "b"], num=3, size=(24, 24), form="PNG")
    train = open_image_folder(tmp_path, ImageOptions(size=24, mean=(0, 0, 0), std=(1, 1, 1))).train
    assert isinstance(train, OnDemand)
    pixels = (train.fetch(np.array([0]), None).images[0] * 255).round().byte().permute(1, 2, 0)
    assert np.array_equal(pixels.numpy(), np.asarray(Image.open(train.encoded.name(0))))


def test_grey_palette_and_cmyk_images_fit_into_one_batch(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for index, mode in enumerate(("L", "P", "CMYK", "RGB")):
            form = "JPEG" if mode == "CMYK" else "PNG"
            (tmp_path / name / f"{index}.{form.lower()}").write_bytes(encoded(picture(30, 30, mode=mode), form))
    train = open_image_folder(tmp_path, SMALL).train
    assert train.fetch(np.arange(len(train)), None).images.shape[1:] == (3, 24, 24)


def test_an_unreadable_image_is_named_and_stops_the_run(root):
    (root / "train" / "dog" / "1.jpeg").write_bytes(b"no image at all")
    train = open_image_folder(root, SMALL).train
    with pytest.raises(DataError, match=r"train/dog/1.jpeg cannot be decoded") as caught:
        train.fetch(np.arange(12), 0)
    assert "--bad-images skip" in (caught.value.hint or "")


@pytest.mark.parametrize("content", [b"no image at all", None])
def test_a_skipped_image_is_counted_and_replaced_by_one_of_its_class(root, caplog, content):
    path = root / "train" / "dog" / "1.jpeg"
    path.write_bytes(path.read_bytes()[:-300] if content is None else content)
    train = open_image_folder(root, ImageOptions(size=24, bad_images="skip")).train
    assert isinstance(train, OnDemand)
    first, again = train.fetch(np.arange(12), None), train.fetch(np.arange(12), None)
    assert torch.equal(first.images, again.images)
    assert torch.equal(first.images[5], first.images[6])
    assert first.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert len(train.unreadable()) == 1
    assert [str(path) in message for message in caplog.messages] == [True]


def test_a_class_without_any_readable_image_is_refused_even_when_skipping(root):
    for path in (root / "train" / "fox").iterdir():
        path.write_bytes(b"")
    train = open_image_folder(root, ImageOptions(size=24, bad_images="skip")).train
    with pytest.raises(DataError, match=r"no image of the class of .*fox"):
        train.fetch(np.arange(12), None)


def test_bad_images_that_worker_processes_find_are_counted_here(root):
    (root / "train" / "dog" / "1.jpeg").write_bytes(b"no image at all")
    train = open_image_folder(root, ImageOptions(size=24, bad_images="skip"), POLICY).train
    assert isinstance(train, OnDemand)
    requests = [(np.arange(12), epoch) for epoch in range(2)]
    there = list(load_batches(train, requests, workers=2, pin=False))
    assert len(train.unreadable()) == 1
    here = list(load_batches(train, requests, workers=0, pin=False))
    assert all(torch.equal(one.images, other.images) for one, other in zip(there, here, strict=True))


def test_the_replacement_of_a_bad_image_does_not_depend_on_earlier_requests(root):
    first, second = root / "train" / "dog" / "1.jpeg", root / "train" / "dog" / "2.jpeg"
    first.write_bytes(b"no image at all")
    second.write_bytes(second.read_bytes()[:-300])
    one, other = (open_image_folder(root, ImageOptions(size=24, bad_images="skip"), POLICY).train for _ in range(2))
    other.fetch(np.arange(12), 0)
    for ids in ([5], [6, 5], [7, 5, 4]):
        assert torch.equal(one.fetch(np.array(ids), 3).images, other.fetch(np.array(ids), 3).images)
    assert isinstance(one, OnDemand)
    assert len(one.unreadable()) == 2


def test_a_held_out_image_never_replaces_a_bad_one(root):
    (root / "train" / "dog" / "1.jpeg").write_bytes(b"no image at all")
    train = open_image_folder(root, ImageOptions(size=24, bad_images="skip")).train
    without_next = Subset(train, np.array([4, 5, 7]))
    images = without_next.fetch(np.arange(3), None).images
    assert torch.equal(images[1], images[2])


@pytest.mark.parametrize(("policy", "epoch", "bytes_per_value"), [
    ("resized-crop,flip", 2, 1), ("resized-crop,flip", None, 1), ("resized-crop,flip,erase0.25", 2, 4),
    ("resized-crop,mixup0.2", 2, 4),
])  # fmt: skip
@pytest.mark.parametrize("workers", [0, 1])
def test_a_worker_sends_bytes_that_become_the_same_values(root, workers, policy, epoch, bytes_per_value):
    train = open_image_folder(root, SMALL, Augmentation(policy=parse_policy(policy), seed=5)).train
    split, ids = Subset(train, np.arange(12)[::-1].copy()), np.arange(8)
    (sent,) = load_batches(split, [(ids, epoch)], workers=workers, pin=False)
    assert sent.images.nbytes == 8 * 3 * 24 * 24 * bytes_per_value
    used, expected = moved(sent, torch.device("cpu"), torch.channels_last), split.fetch(ids, epoch)
    assert used.images.dtype == torch.float32
    assert torch.equal(used.images, expected.images)
    assert used.images.stride() == expected.images.stride()
    assert used.normalise is None
