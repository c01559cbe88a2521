"""Names become data sets: ours, or the user's own "my.py:build"."""

from dataclasses import dataclass
from pathlib import Path

from paceline.core.errors import DataError
from paceline.core.names import suggestion
from paceline.core.plugin import is_plugin
from paceline.core.units import count
from paceline.data.order import held_out
from paceline.data.sources.digits import open_digits
from paceline.data.sources.own import open_own
from paceline.data.split import DataSet, Split, Subset

KNOWN = ("digits",)


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


def open_data(name: str, *, data_dir: Path, seed: int) -> DataSet:
    """Return the data set of this name."""
    if is_plugin(name):
        return open_own(name, data_dir=data_dir, seed=seed)
    if name == "digits":
        return open_digits()
    raise DataError(f"there is no data set {name}", hint=suggestion(name, [*KNOWN, "my.py:build"]))


def split_data(data: DataSet, *, valid_split: float) -> Splits:
    """Hold out a share of the training images for validation; with none, validate on the test images."""
    train_ids, valid_ids = held_out(images=len(data.train), share=valid_split)
    if valid_split and not (len(train_ids) and len(valid_ids)):
        raise DataError(
            f"--valid-split {valid_split} of {count(len(data.train))} training images leaves a part without images",
            hint="use another share, or --valid-split 0",
        )
    held = valid_split > 0
    return Splits(
        train=Subset(data.train, train_ids) if held else data.train,
        valid=Subset(data.train, valid_ids) if held else data.test,
        test=data.test,
        valid_is_test=not held,
        classes=data.classes,
        image_shape=data.image_shape,
    )
