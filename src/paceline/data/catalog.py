"""Opens data sets by name: published ones, folders, packs, or the user's own "my.py:build"."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.core.augment_syntax import parse_steps
from paceline.core.config import Config
from paceline.core.entry_points import entry_names, is_own_part
from paceline.core.errors import DataError, SettingError, suggestion
from paceline.core.setting_types import SampleOrder
from paceline.core.units import count
from paceline.data.augment.pipeline import Augmentation
from paceline.data.augment.policy import parse_policy
from paceline.data.augment.user_step import ChangedSamples, UserStep
from paceline.data.collate import load_collate
from paceline.data.inventory import list_published
from paceline.data.order import held_out
from paceline.data.pack_reader import open_packed
from paceline.data.sources.cifar import open_cifar10, open_cifar100
from paceline.data.sources.cinic import open_cinic10
from paceline.data.sources.digits import open_digits
from paceline.data.sources.fashion import open_fashion_mnist
from paceline.data.sources.image_folder import ImageOptions, open_image_folder
from paceline.data.sources.imagenet import open_imagenet
from paceline.data.sources.shapes import open_shape_centers, open_shape_labels, open_shapes
from paceline.data.sources.text import open_alice, open_text, open_tokens
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
DEFAULT_CONTEXT = 128
"""Tokens of a sample of text."""
_OTHER: dict[str, Callable[[Config], DataSet]] = {
    "alice": lambda config: open_alice(config.context or DEFAULT_CONTEXT),
    "text": lambda config: open_text(_path(config), config.context or DEFAULT_CONTEXT),
    "tokens": lambda config: open_tokens(_path(config), config.context or DEFAULT_CONTEXT),
    "shapes": lambda _config: open_shapes(),
    "shape-labels": lambda _config: open_shape_labels(),
    "shape-centers": lambda _config: open_shape_centers(),
}
"""Sets for other tasks than image classification, without augmentation."""
_TEXT = ("alice", "text", "tokens")
_OTHER_WITH_PATH = ("text", "tokens")
KNOWN = (
    *_FIXED, "imagenet", *(name for name in _OTHER if name not in _OTHER_WITH_PATH),
    *(f"{kind}:PATH" for kind in (*_WITH_PATH, *_OTHER_WITH_PATH)), "my.py:build",
)  # fmt: skip
"""Every data set, as the user writes it."""


def is_own_data(name: str) -> bool:
    """Tell whether a data set is code: my.py:build, or an entry point of a package."""
    return name.partition(":")[0] not in (*_FIXED, *_SIZED, *_OTHER) and is_own_part("data", name)


@dataclass(frozen=True, kw_only=True, slots=True)
class Splits:
    """The three splits of a run."""

    train: Split
    valid: Split
    test: Split
    valid_is_test: bool
    """True if nothing is held out: every epoch is evaluated on the test split."""
    task: str
    """The usual task of the data set."""
    facts: Mapping[str, Any]
    """What models and tasks may ask for by name."""

    def __str__(self) -> str:
        valid = "on the test samples" if self.valid_is_test else count(len(self.valid))
        return f"train {count(len(self.train))} – valid {valid} – test {count(len(self.test))}"


def open_data(config: Config) -> DataSet:
    """Return the data set of the settings, with their augmentation of training images."""
    if config.collate is not None and not is_own_data(config.data):
        problem = f"is {config.collate}, but {config.data} makes its batches itself"
        raise SettingError("collate", problem, hint="drop --collate, or use your own data: --data my.py:build")
    kind, separator, _ = config.data.partition(":")
    _refuse_context(config, kind)
    if kind in _OTHER and bool(separator) == (kind in _OTHER_WITH_PATH):
        return _open_other(config, kind)
    if (separator and kind in _WITH_PATH) or config.data == "imagenet":
        return _SIZED[kind](config, _augmentation(config))
    if config.data not in _FIXED and not is_own_data(config.data):
        is_folder = Path(config.data).expanduser().is_dir()
        known = [*KNOWN, *entry_names("data")]
        hint = f"to use this folder: --data folder:{config.data}" if is_folder else suggestion(config.data, known)
        raise DataError(f"there is no data set {config.data}", hint=hint)
    if config.image_size is not None:
        hint = "drop it, or use --data folder:PATH, packed:PATH or imagenet"
        raise SettingError("image_size", f"is set, but the images of {config.data} have a fixed size", hint=hint)
    if config.data in _FIXED:
        return _FIXED[config.data](config, _augmentation(config))
    return open_user_data(
        config.data,
        data_dir=config.data_dir,
        seed=config.seed,
        task=config.task,
        collate=None if config.collate is None else load_collate(config.collate),
        order=config.sample_order,
        steps=_user_steps(config),
    )


def _open_other(config: Config, kind: str) -> DataSet:
    for setting in ("image_size", "collate"):
        if getattr(config, setting, None) is not None:
            raise SettingError(setting, f"is set, but has no effect on {config.data}", hint="drop it")
    steps, data = _user_steps(config), _OTHER[kind](config)
    return replace(data, train=ChangedSamples(data.train, steps, config.seed)) if steps else data


def _user_steps(config: Config) -> tuple[UserStep, ...]:
    """Return the steps of --augment for data that is not images of ours: all must be the user's own."""
    policy = parse_policy(config.augment_policy)
    steps = tuple(step for step in policy.pixel_steps if isinstance(step, UserStep))
    if len(steps) < len(parse_steps(policy.text)):
        problem = f"is {config.augment}, but these steps do not fit the samples of {config.data}"
        raise SettingError("augment", problem, hint="drop it, or write a step: --augment my.py:name")
    return steps


def _refuse_context(config: Config, kind: str) -> None:
    if config.context is not None and kind not in _TEXT:
        problem = f"is {config.context}, but the samples of {config.data} are not token ids"
        raise SettingError("context", problem, hint="drop it, or use --data alice, text:FILE or tokens:PATH")


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
    size = config.image_size or DEFAULT_SIZE
    return ImageOptions(size=size, bad_images=config.bad_images, order=config.sample_order)


def split_data(data: DataSet, *, valid_split: float, order: SampleOrder = "auto") -> Splits:
    """Hold out a fraction of the training samples for validation; with 0, validate on the test split."""
    held = valid_split > 0
    train, valid = _held_out(data.train, valid_split, order) if held else (data.train, data.test)
    return Splits(
        train=train,
        valid=valid,
        test=data.test,
        valid_is_test=not held,
        task=data.task,
        facts=data.facts,
    )


def _held_out(train: Split, fraction: float, order: SampleOrder) -> tuple[Subset, Subset]:
    train_ids, valid_ids = held_out(num_samples=len(train), fraction=fraction, order=order)
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
