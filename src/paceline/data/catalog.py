"""Names become data sets: published ones, folders, packs, or the user's own "my.py:build"."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from paceline.core.config import Config
from paceline.core.errors import DataError, SettingError
from paceline.core.names import suggestion
from paceline.core.plugin import is_plugin
from paceline.core.units import count
from paceline.data.augment.pipeline import Augmentation
from paceline.data.augment.policy import parse_policy
from paceline.data.order import held_out
from paceline.data.packed import open_packed
from paceline.data.sources.cifar import open_cifar10, open_cifar100
from paceline.data.sources.cinic import open_cinic10
from paceline.data.sources.digits import open_digits
from paceline.data.sources.fashion import open_fashion_mnist
from paceline.data.sources.folder import ImageOptions, open_folder
from paceline.data.sources.imagenet import open_imagenet
from paceline.data.sources.own import open_own
from paceline.data.split import DataSet, Split, Subset

DEFAULT_SIZE = 224
"""Pixels to which images that come in many sizes are cut."""

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
    "folder": lambda config, augmentation: open_folder(_path(config), _options(config), augmentation),
    "packed": lambda config, augmentation: open_packed(
        _path(config), config.image_size, augmentation, config.bad_images
    ),
}
"""Sets whose images are cut to a size."""
_WITH_PATH = ("folder", "packed")
KNOWN = (*_FIXED, "imagenet", *(f"{kind}:PATH" for kind in _WITH_PATH), "my.py:build")
"""Every data set there is, as one would write it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Splits:
    """The three parts that a run works with."""

    train: Split
    valid: Split
    test: Split
    valid_is_test: bool
    """True when nothing was held out, so that every epoch is evaluated on the test images."""
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]

    @property
    def num_classes(self) -> int:
        """Return how many different labels there are."""
        return len(self.classes)

    def __str__(self) -> str:
        valid = "on the test images" if self.valid_is_test else count(len(self.valid))
        return f"train {count(len(self.train))} – valid {valid} – test {count(len(self.test))}"


def open_data(config: Config) -> DataSet:
    """Return the data set that the settings name, its training images augmented as they say."""
    kind, separator, _ = config.data.partition(":")
    if (separator and kind in _WITH_PATH) or config.data == "imagenet":
        return _SIZED[kind](config, _augmentation(config))
    if not is_plugin(config.data) and config.data not in _FIXED:
        raise DataError(f"there is no data set {config.data}", hint=suggestion(config.data, KNOWN))
    if config.image_size is not None:
        hint = "drop it, or use --data folder:PATH, packed:PATH or imagenet"
        raise SettingError("image_size", f"is set, but the images of {config.data} have a size of their own", hint=hint)
    if config.data in _FIXED:
        return _FIXED[config.data](config, _augmentation(config))
    if _augmentation(config) is not None:
        problem = f"is {config.augment}, but {config.data} changes its images itself"
        raise SettingError("augment", problem, hint="drop it, and augment where your data set reads an image")
    return open_own(config.data, data_dir=config.data_dir, seed=config.seed)


def _augmentation(config: Config) -> Augmentation | None:
    """Return what is done to training images; None, when it is nothing, lets small sets take a short cut."""
    policy = parse_policy(config.augment_policy)
    is_none = not policy.pixel_steps and not policy.value_steps and policy.mixing is None
    return None if is_none else Augmentation(policy=policy, seed=config.seed)


def _path(config: Config) -> Path:
    """Return what follows the colon."""
    kind, _, rest = config.data.partition(":")
    if not rest:
        raise DataError(f"--data {config.data} does not say where", hint=f"write {kind}:PATH")
    return Path(rest).expanduser()


def _options(config: Config) -> ImageOptions:
    return ImageOptions(size=config.image_size or DEFAULT_SIZE, bad_images=config.bad_images)


def split_data(data: DataSet, *, valid_split: float) -> Splits:
    """Hold out a share of the training images for validation; with none, validate on the test images."""
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


def _held_out(train: Split, share: float) -> tuple[Subset, Subset]:
    train_ids, valid_ids = held_out(images=len(train), share=share)
    if not (len(train_ids) and len(valid_ids)):
        raise DataError(
            f"--valid-split {share} of {count(len(train))} training images leaves a part without images",
            hint="use another share, or --valid-split 0",
        )
    return Subset(train, train_ids), Subset(train, valid_ids)
