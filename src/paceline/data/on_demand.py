"""Large sets: each image is read, decoded, cropped and augmented on demand; nothing is kept in memory."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import chain
from math import ceil
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch.nn.functional import interpolate

from paceline.core.errors import DataError
from paceline.data.augment.crops import Boxes, ResizedCrop, choose_boxes
from paceline.data.augment.draws import Draws, Pixels
from paceline.data.augment.pipeline import Augmentation, Pipeline, count_classes
from paceline.data.decode import BadImageError, Picture, decode, image_size
from paceline.data.normalisation import Normalisation
from paceline.data.split import Ids, ImageBatch, SampleIds, members

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
MARGIN = 0.875
"""Evaluation at more than SMALL pixels crops a central square with this fraction of the shorter side."""
SMALL = 64
LABELS_READ = 1 << 16
"""Labels that are searched together for images of the same class."""

BadImages = Literal["fail", "skip"]
"""The choices of --bad-images."""

logger = logging.getLogger(__name__)


class EncodedImages(Protocol):
    """Encoded images by index."""

    def __len__(self) -> int:
        """Return the number of images."""
        ...

    def read(self, index: int) -> bytes:
        """Return the bytes of an encoded image; raises BadImageError when they are not what was stored."""
        ...

    def name(self, index: int) -> str:
        """Return the name of the image in messages."""
        ...


class CropBox(NamedTuple):
    """A rectangle of an image, in pixels of the full-size image."""

    top: float
    left: float
    height: float
    width: float


@dataclass(frozen=True, slots=True, eq=False)
class OnDemand:
    """A split whose images are decoded on demand, to size×size pixels."""

    encoded: EncodedImages
    labels: torch.Tensor
    _: KW_ONLY
    size: int
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    augmentation: Augmentation | None = None
    pool: SampleIds | None = None
    """The samples that may be mixed into others or replace bad ones; None means all."""
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
        return [self.encoded.name(index) for index in torch.nonzero(self.bad).flatten().tolist()]

    def fetch(self, ids: Ids, epoch: int | None) -> ImageBatch:
        """Return the samples with these ids, normalised, and augmented if an epoch is given."""
        return self.fetch_unfinished(ids, epoch).finished()

    def fetch_unfinished(self, ids: Ids, epoch: int | None) -> ImageBatch:
        """Return the same samples, as bytes if they are not mixed or erased."""
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
        return pipeline.unfinished(ids, epoch)

    def mixing_only(self, ids: SampleIds) -> "OnDemand":
        """Return the split with second samples taken from these ids only."""
        return replace(self, pool=ids)

    def _read(self, ids: Ids, draws: Draws | None) -> Pixels:
        opened = [self._open(int(index)) for index in ids]
        crops = [evaluation_crop(one.height, one.width, self.size) for one in opened]
        if self.augmentation is not None and draws is not None:
            crop = self.augmentation.policy.resized_crop
            crops = crops if crop is None else _random_crops(opened, crop, draws)
        pictures = [self._decode(*pair) for pair in zip(opened, crops, strict=True)]
        return np.stack(pictures).transpose(0, 3, 1, 2)

    def _open(self, index: int) -> "_Opened":
        """Read the bytes and size of an image, or of a replacement if that fails."""
        try:
            data = self.encoded.read(index)
            return _Opened(index, data, *image_size(data))
        except BadImageError as cause:
            return self._replacement(index, cause)

    def _decode(self, opened: "_Opened", crop: CropBox) -> Picture:
        if opened.replaces_bad:
            crop = evaluation_crop(opened.height, opened.width, self.size)
        try:
            return crop_and_resize(opened.data, (opened.height, opened.width), crop, self.size)
        except BadImageError as cause:
            other = self._replacement(opened.image_index, cause)
            return self._decode(other, crop)

    def _replacement(self, index: int, cause: BadImageError) -> "_Opened":
        """Return the next image of the same class that can be decoded, so that the label stays right.

        The choice must not depend on earlier requests: each candidate is decoded completely, and cropped as in
        evaluation for every kind of fault.
        """
        self._report(index, cause)
        for other in self._same_class(index):
            try:
                data = self.encoded.read(other)
                decode(data)
                return _Opened(other, data, *image_size(data), replaces_bad=True)
            except BadImageError as another:
                self._report(other, another)
        name = self.encoded.name(index)
        raise DataError(
            f"no image of the class of {name} can be decoded", hint="check the files in that folder"
        ) from cause

    def _same_class(self, index: int) -> Iterator[int]:
        """Yield the other images of a class, those that follow an image first; never a held-out one."""
        label, step = self.labels[index], LABELS_READ
        after = ((start, min(start + step, len(self))) for start in range(index + 1, len(self), step))
        before = ((start, min(start + step, index)) for start in range(0, index, step))
        for start, end in chain(after, before):
            same = start + torch.nonzero(self.labels[start:end] == label).flatten().numpy()
            yield from (same if self.pool is None else same[members(same, self.pool)]).tolist()

    def _report(self, index: int, cause: BadImageError) -> None:
        """Fail at a bad image, or mark it and log it once."""
        name = self.encoded.name(index)
        if self.bad_images == "fail":
            raise DataError(
                f"{name} cannot be decoded: {cause}",
                hint="remove or replace it, or skip it: --bad-images skip",
            ) from cause
        if not self.bad[index]:
            logger.warning("skipped %s: %s", name, cause)
            self.bad[index] = 1


class _Opened(NamedTuple):
    """The bytes of an image that will be decoded, and its size."""

    image_index: int
    data: bytes
    height: int
    width: int
    replaces_bad: bool = False


def _random_crops(opened: Sequence[_Opened], crop: ResizedCrop, draws: Draws) -> list[CropBox]:
    sizes = np.array([(one.height, one.width) for one in opened])
    boxes: Boxes = choose_boxes(sizes[:, 0], sizes[:, 1], crop.smallest, draws)
    return [CropBox(*box) for box in np.stack(boxes, axis=1).tolist()]


def evaluation_crop(height: int, width: int, size: int) -> CropBox:
    """Return the central square that evaluation uses: the largest for small sizes, else with a margin around it."""
    return central_square(height, width, 1.0 if size <= SMALL else MARGIN)


def central_square(height: int, width: int, fraction: float) -> CropBox:
    """Return the central square with this fraction of the shorter side."""
    side = min(height, width) * fraction
    return CropBox((height - side) / 2, (width - side) / 2, side, side)


def crop_and_resize(data: bytes, full: tuple[int, int], crop: CropBox, size: int) -> Picture:
    """Decode an image at the smallest sufficient scale, and resize the crop (up or down) to size×size pixels."""
    height, width = full
    at_least = (ceil(height * size / crop.height), ceil(width * size / crop.width))
    picture = decode(data, at_least=at_least)
    if picture.shape[:2] == (size, size) == (crop.height, crop.width):
        return picture
    down, across = picture.shape[0] / height, picture.shape[1] / width
    rows = _whole_range(crop.top * down, crop.height * down, picture.shape[0])
    columns = _whole_range(crop.left * across, crop.width * across, picture.shape[1])
    return _scaled(np.array(picture[rows, columns]), size)


def _whole_range(start: float, length: float, limit: int) -> slice:
    """Return the whole pixels of a range: at least one, all inside the image."""
    first = min(round(start), limit - 1)
    return slice(first, min(limit, max(first + 1, round(start + length))))


def _scaled(picture: Picture, size: int) -> Picture:
    """Return the picture at size×size pixels: Pillow's bicubic filter, four times as fast."""
    planes = torch.from_numpy(picture).permute(2, 0, 1)[None]
    scaled = interpolate(planes, size=(size, size), mode="bicubic", antialias=True)
    return scaled[0].permute(1, 2, 0).numpy()
