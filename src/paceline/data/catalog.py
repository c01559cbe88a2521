"""Opens data sets by name: published ones, folders, packs, or the user's own "my.py:build"."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.core.config import Config
from paceline.core.errors import DataError, SettingError, suggestion
from paceline.core.plugin import is_plugin
from paceline.core.units import count
from paceline.data.augment.pipeline import Augmentation
from paceline.data.augment.policy import parse_policy
from paceline.data.inventory import list_published
from paceline.data.order import held_out
from paceline.data.pack_reader import open_packed
from paceline.data.sources.cifar import open_cifar10, open_cifar100
from paceline.data.sources.cinic import open_cinic10
from paceline.data.sources.digits import open_digits
from paceline.data.sources.fashion import open_fashion_mnist
from paceline.data.sources.image_folder import ImageOptions, open_image_folder
from paceline.data.sources.imagenet import open_imagenet
from paceline.data.sources.user import open_user_data
from paceline.data.split import DataSet, Split, Subset

DEFAULT_SIZE = 224
"""Pixels to which images of varying size are cropped."""

Opener = Callable[[Config, Augmentation | None], DataSet]

_FIXED: dict[str, Opener] = {
    "digits": lambda _config, augmentation: open_digits(augmentation),
    "cifar10": lambda config, augmentation: open_cifar10(config.data_dir, augmentation),
    "cifar100": lambda config, augmentation: open_cifar100(config.data_dir, augmentation),
    "cinic10": lambda config, augmentation: open_cinic10(config.data_dir, augmentation, config.bad_images),
    "fashion-mnist": lambda config, augmentation: open_fashion_mnist(config.data_dir, augmentation),
}
"""Sets whose images have one size."""
_SIZED: dict[str, Opener] = {
    "imagenet": lambda config, augmentation: open_imagenet(config.data_dir, _options(config), augmentation),
    "folder": lambda config, augmentation: open_image_folder(_path(config), _options(config), augmentation),
    "packed": lambda config, augmentation: open_packed(
        _path(config), config.image_size, augmentation, config.bad_images
    ),
}
"""Sets whose images are cropped to a size."""
_WITH_PATH = ("folder", "packed")
KNOWN = (*_FIXED, "imagenet", *(f"{kind}:PATH" for kind in _WITH_PATH), "my.py:build")
"""Every data set, as the user writes it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Splits:
    """The three splits of a run."""

    train: Split
    valid: Split
    test: Split
    valid_is_test: bool
    """True if nothing is held out: every epoch is evaluated on the test split."""
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]

    @property
    def num_classes(self) -> int:
        """Return the number of classes."""
        return len(self.classes)

    def __str__(self) -> str:
        valid = "on the test samples" if self.valid_is_test else count(len(self.valid))
        return f"train {count(len(self.train))} – valid {valid} – test {count(len(self.test))}"


def open_data(config: Config) -> DataSet:
    """Return the data set of the settings, with their augmentation of training images."""
    kind, separator, _ = config.data.partition(":")
    if (separator and kind in _WITH_PATH) or config.data == "imagenet":
        return _SIZED[kind](config, _augmentation(config))
    if not is_plugin(config.data) and config.data not in _FIXED:
        raise DataError(f"there is no data set {config.data}", hint=suggestion(config.data, KNOWN))
    if config.image_size is not None:
        hint = "drop it, or use --data folder:PATH, packed:PATH or imagenet"
        raise SettingError("image_size", f"is set, but the images of {config.data} have a fixed size", hint=hint)
    if config.data in _FIXED:
        return _FIXED[config.data](config, _augmentation(config))
    if _augmentation(config) is not None:
        problem = f"is {config.augment}, but {config.data} augments its images itself"
        raise SettingError("augment", problem, hint="drop --augment, and augment the images in your data set")
    return open_user_data(config.data, data_dir=config.data_dir, seed=config.seed)


def _augmentation(config: Config) -> Augmentation | None:
    """Return the augmentation of training images; None if there is none, which lets small sets skip the pipeline."""
    policy = parse_policy(config.augment_policy)
    is_none = not policy.pixel_steps and not policy.value_steps and policy.mixing is None
    return None if is_none else Augmentation(policy=policy, seed=config.seed)


def _path(config: Config) -> Path:
    """Return what follows the colon."""
    kind, _, rest = config.data.partition(":")
    if not rest:
        raise DataError(f"--data {config.data} has no path", hint=f"write {kind}:PATH")
    return Path(rest).expanduser()


def _options(config: Config) -> ImageOptions:
    return ImageOptions(size=config.image_size or DEFAULT_SIZE, bad_images=config.bad_images)


def split_data(data: DataSet, *, valid_split: float) -> Splits:
    """Hold out a fraction of the training samples for validation; with 0, validate on the test split."""
    held = valid_split > 0
    train, valid = _held_out(data.train, valid_split) if held else (data.train, data.test)
    return Splits(
        train=train,
        valid=valid,
        test=data.test,
        valid_is_test=not held,
        classes=data.classes,
        image_shape=data.image_shape,
    )


def _held_out(train: Split, fraction: float) -> tuple[Subset, Subset]:
    train_ids, valid_ids = held_out(num_samples=len(train), fraction=fraction)
    if not (len(train_ids) and len(valid_ids)):
        raise DataError(
            f"--valid-split {fraction} of {count(len(train))} training samples leaves an empty split",
            hint="use another fraction, or --valid-split 0",
        )
    return Subset(train, train_ids), Subset(train, valid_ids)


def list_data_sets(data_dir: Path) -> list[dict[str, Any]]:
    """Return the facts about each built-in data set, as plain values."""
    digits = open_data(Config(data="digits"))
    embedded = {
        "name": "digits",
        "num_train": len(digits.train),
        "num_test": len(digits.test),
        "num_classes": digits.num_classes,
        "image": "8×8×1",
        "download_bytes": 0,
        "found": "ships with Paceline",
        "expected": None,
    }
    return [embedded] + [
        {
            "name": published.name,
            "num_train": published.num_train,
            "num_test": published.num_test,
            "num_classes": published.num_classes,
            "image": published.image,
            "download_bytes": published.download_bytes,
            "found": None if found is None else str(found),
            "expected": str(expected),
        }
        for published, expected, found in list_published(data_dir)
    ]
