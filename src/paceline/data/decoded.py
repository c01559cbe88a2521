"""Large sets: each image is read, decoded, cut to size and augmented when it is asked for; nothing is kept."""

import logging
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from math import ceil
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch.nn.functional import interpolate

from paceline.core.errors import DataError
from paceline.data.augment.draws import Draws
from paceline.data.augment.geometry import Pixels
from paceline.data.augment.pipeline import Augmentation, Normalisation, Pipeline, count_classes
from paceline.data.augment.resizedcrop import Boxes, ResizedCrop, choose_boxes
from paceline.data.decode import BadImageError, Picture, decode, image_size
from paceline.data.split import Batch, Ids

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
MARGIN = 0.875
"""Evaluation cuts this part, side by side, out of the middle of an image of more than SMALL pixels."""
SMALL = 64

BadImages = Literal["fail", "skip"]
"""What to do about an image that cannot be decoded."""

logger = logging.getLogger(__name__)


class Records(Protocol):
    """Encoded images, by number."""

    def __len__(self) -> int:
        """Return how many there are."""
        ...

    def read(self, number: int) -> bytes:
        """Return the bytes of an encoded image; raises BadImageError when they are not what was stored."""
        ...

    def name(self, number: int) -> str:
        """Return what to call the image in a message."""
        ...


class Cut(NamedTuple):
    """A part of an image, in pixels of the image at its full size."""

    top: float
    left: float
    height: float
    width: float


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """A split whose images are decoded on the way, to size×size pixels."""

    records: Records
    labels: torch.Tensor
    _: KW_ONLY
    size: int
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    augmentation: Augmentation | None = None
    pool: Ids | None = None
    """The samples that may be mixed into others or stand in for bad ones; None means all."""
    bad_images: BadImages = "fail"
    bad: torch.Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.uint8))
    """Marks the images that could not be decoded; shared with the worker processes, which find them."""
    _num_classes: int = field(init=False)
    """Counted once: scanning all labels takes longer than mixing a batch."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_num_classes", count_classes(self.labels))
        if len(self.bad) != len(self.labels):
            object.__setattr__(self, "bad", torch.zeros(len(self.labels), dtype=torch.uint8).share_memory_())

    def __len__(self) -> int:
        return len(self.labels)

    def unreadable(self) -> list[str]:
        """Return the names of the images that could not be decoded so far, here or in a worker process."""
        return [self.records.name(number) for number in torch.nonzero(self.bad).flatten().tolist()]

    def fetch(self, ids: Ids, epoch: int | None) -> Batch:
        """Return the images with these ids, augmented where an epoch is given, normalised always."""
        augmentation = self.augmentation
        if augmentation is not None:
            augmentation = replace(augmentation, policy=augmentation.policy.after_decoding())
        pipeline = Pipeline(
            read=self._read,
            labels=self.labels,
            num_classes=self._num_classes,
            normalise=Normalisation(mean=self.mean, std=self.std),
            augmentation=augmentation,
            pool=self.pool,
        )
        return pipeline.batch(ids, epoch)

    def mixing_only(self, ids: Ids) -> "Decoded":
        """Return the split with second images taken from these alone."""
        return replace(self, pool=ids)

    def _read(self, ids: Ids, draws: Draws | None) -> Pixels:
        opened = [self._open(int(number)) for number in ids]
        cuts = [middle(one.height, one.width, self.size) for one in opened]
        if self.augmentation is not None and draws is not None:
            crop = self.augmentation.policy.resized_crop
            cuts = cuts if crop is None else _random_cuts(opened, crop, draws)
        pictures = [self._decode(*pair) for pair in zip(opened, cuts, strict=True)]
        return np.ascontiguousarray(np.stack(pictures).transpose(0, 3, 1, 2))

    def _open(self, number: int) -> "_Opened":
        """Read an image's bytes and size; where that fails, those of another one."""
        try:
            data = self.records.read(number)
            return _Opened(number, data, *image_size(data))
        except BadImageError as cause:
            return self._instead(number, cause)

    def _decode(self, opened: "_Opened", cut: Cut) -> Picture:
        if opened.replaces_bad:
            cut = middle(opened.height, opened.width, self.size)
        try:
            return cut_out(opened.data, (opened.height, opened.width), cut, self.size)
        except BadImageError as cause:
            other = self._instead(opened.number, cause)
            return self._decode(other, cut)

    def _instead(self, number: int, cause: BadImageError) -> "_Opened":
        """Return the next image of the same class that can be decoded, so that the label stays right.

        Which one it is must not depend on what was asked for before, so each candidate is decoded to the end, and its
        middle is shown whichever fault the bad image has.
        """
        self._report(number, cause)
        same = torch.nonzero(self.labels == self.labels[number]).flatten().numpy()
        if self.pool is not None:  # what is held out stays out
            same = same[np.isin(same, np.append(self.pool, number))]
        for other in np.roll(same, -1 - int(np.searchsorted(same, number)))[:-1].tolist():
            try:
                data = self.records.read(other)
                decode(data)
                return _Opened(other, data, *image_size(data), replaces_bad=True)
            except BadImageError as another:
                self._report(other, another)
        name = self.records.name(number)
        raise DataError(f"no image of the class of {name} can be decoded", hint="look at that folder") from cause

    def _report(self, number: int, cause: BadImageError) -> None:
        """Stop at a bad image, or count it and say so once."""
        name = self.records.name(number)
        if self.bad_images == "fail":
            raise DataError(
                f"{name} cannot be decoded: {cause}",
                hint="remove or replace it, or go on without it: --bad-images skip",
            ) from cause
        if not self.bad[number]:
            logger.warning("skipped %s: %s", name, cause)
            self.bad[number] = 1


class _Opened(NamedTuple):
    """The bytes of an image that will be decoded, and its size."""

    number: int
    data: bytes
    height: int
    width: int
    replaces_bad: bool = False


def _random_cuts(opened: Sequence[_Opened], crop: ResizedCrop, draws: Draws) -> list[Cut]:
    sizes = np.array([(one.height, one.width) for one in opened])
    boxes: Boxes = choose_boxes(sizes[:, 0], sizes[:, 1], crop.smallest, draws)
    return [Cut(*box) for box in np.stack(boxes, axis=1).tolist()]


def middle(height: int, width: int, size: int) -> Cut:
    """Return the square in the middle that evaluation sees: all of it for small sizes, else with a margin around it."""
    return central_square(height, width, 1.0 if size <= SMALL else MARGIN)


def central_square(height: int, width: int, share: float) -> Cut:
    """Return the square in the middle with this share of the shorter side."""
    side = min(height, width) * share
    return Cut((height - side) / 2, (width - side) / 2, side, side)


def cut_out(data: bytes, full: tuple[int, int], cut: Cut, size: int) -> Picture:
    """Decode an image as small as its cut allows, and scale the cut (larger or smaller) to size×size pixels."""
    height, width = full
    at_least = (ceil(height * size / cut.height), ceil(width * size / cut.width))
    picture = decode(data, at_least=at_least)
    if picture.shape[:2] == (size, size) == (cut.height, cut.width):
        return picture
    down, across = picture.shape[0] / height, picture.shape[1] / width
    rows = _whole_range(cut.top * down, cut.height * down, picture.shape[0])
    columns = _whole_range(cut.left * across, cut.width * across, picture.shape[1])
    return _scaled(np.array(picture[rows, columns]), size)


def _whole_range(start: float, length: float, limit: int) -> slice:
    """Return the pixels between two places, at least one and all inside the image."""
    first = min(round(start), limit - 1)
    return slice(first, min(limit, max(first + 1, round(start + length))))


def _scaled(picture: Picture, size: int) -> Picture:
    """Return the picture at size×size pixels: the filter of Pillow's bicubic resizing, four times as fast."""
    planes = torch.from_numpy(picture).permute(2, 0, 1)[None]
    scaled = interpolate(planes, size=(size, size), mode="bicubic", antialias=True)
    return scaled[0].permute(1, 2, 0).numpy()
