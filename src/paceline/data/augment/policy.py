"""The setting `--augment`: turns "crop4,flip,erase0.25" into the steps that it names."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from paceline.core.errors import ConfigError
from paceline.core.names import suggestion
from paceline.data.augment.colour import Brightness, Contrast, Saturation
from paceline.data.augment.draws import Draws
from paceline.data.augment.erasing import Cutout, Erase, Values
from paceline.data.augment.geometry import AlternatingFlip, Crop, Flip, Pixels
from paceline.data.augment.mixing import Mixing
from paceline.data.augment.randaugment import RandAugment
from paceline.data.augment.resizedcrop import ResizedCrop


class PixelStep(Protocol):
    """Changes images as bytes."""

    def __call__(self, images: Pixels, draws: Draws) -> Pixels:
        """Return the changed images."""
        ...


class ValueStep(Protocol):
    """Changes normalised images."""

    def __call__(self, images: Values, draws: Draws) -> Values:
        """Return the changed images."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """What happens to a training image: steps on bytes in the order given, then on normalised values, then mixing."""

    text: str = "none"
    pixel_steps: tuple[PixelStep, ...] = ()
    value_steps: tuple[ValueStep, ...] = ()
    mixing: Mixing | None = None

    @property
    def resized_crop(self) -> ResizedCrop | None:
        """Return the resized crop, if there is one: sets that decode do it while they decode."""
        return next((step for step in self.pixel_steps if isinstance(step, ResizedCrop)), None)

    def after_decoding(self) -> "Policy":
        """Return the policy without the resized crop."""
        steps = tuple(step for step in self.pixel_steps if not isinstance(step, ResizedCrop))
        return replace(self, pixel_steps=steps)

    def filled(self, colour: tuple[int, ...]) -> "Policy":
        """Return the policy with the colour of what moves in from outside an image."""
        steps = tuple(
            replace(step, fill=colour) if isinstance(step, RandAugment) else step for step in self.pixel_steps
        )
        return replace(self, pixel_steps=steps)


class _Kind(NamedTuple):
    """How a step is written and made: an example, whether its number may be left out, its range, what it makes."""

    example: str
    number: tuple[float, float] | None
    make: Callable[[float], tuple[PixelStep | ValueStep | Mixing, ...]]
    default: float | None = None


_KINDS = {
    "crop": _Kind("crop4", (1, 1024), lambda number: (Crop(int(number)),)),
    "flip": _Kind("flip", None, lambda _: (Flip(),)),
    "altflip": _Kind("altflip", None, lambda _: (AlternatingFlip(),)),
    "resized-crop": _Kind("resized-crop", (0.01, 1), lambda number: (ResizedCrop(number),), 0.08),
    "jitter": _Kind("jitter0.4", (0, 10), lambda number: (Brightness(number), Contrast(number), Saturation(number))),
    "brightness": _Kind("brightness0.4", (0, 10), lambda number: (Brightness(number),)),
    "contrast": _Kind("contrast0.4", (0, 10), lambda number: (Contrast(number),)),
    "saturation": _Kind("saturation0.4", (0, 10), lambda number: (Saturation(number),)),
    "erase": _Kind("erase0.25", (0, 1), lambda number: (Erase(number),)),
    "cutout": _Kind("cutout8", (1, 1024), lambda number: (Cutout(int(number)),)),
    "mixup": _Kind("mixup0.2", (0.01, 100), lambda number: (Mixing(mixup=number),)),
    "cutmix": _Kind("cutmix1.0", (0.01, 100), lambda number: (Mixing(cutmix=number),)),
}
_WHOLE = ("crop", "cutout")
_REFLECT = "-reflect"
_RAND_EXAMPLE = "rand-m9-mstd0.5-inc1"
EXAMPLES = (*(kind.example for kind in _KINDS.values()), f"crop4{_REFLECT}", _RAND_EXAMPLE)
"""Every step there is, as one would write it."""

_RAND_SETTINGS = {
    "m": "magnitude",
    "mstd": "spread",
    "mmax": "ceiling",
    "n": "layers",
    "p": "chance",
    "inc": "increasing",
}


def parse_policy(text: str) -> Policy:
    """Read a comma-separated list of steps; "none" or nothing at all means: leave the images as they are."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if words in ([], ["none"]):
        return Policy()
    steps = [step for word in words for step in _parse_step(word)]
    _refuse_twice(steps, text)
    mixes = [step for step in steps if isinstance(step, Mixing)]
    return Policy(
        text=",".join(words),
        pixel_steps=tuple(step for step in steps if not isinstance(step, Mixing | Erase | Cutout)),
        value_steps=tuple(step for step in steps if isinstance(step, Erase | Cutout)),
        mixing=_joined(mixes) if mixes else None,
    )


def _parse_step(word: str) -> tuple:
    if word == "rand" or word.startswith("rand-"):
        return (_parse_rand(word),)
    reflect = word.startswith("crop") and word.endswith(_REFLECT)
    found = re.fullmatch(r"([a-z-]*[a-z])(\d+(?:\.\d*)?|\.\d+)?", word.removesuffix(_REFLECT) if reflect else word)
    if found is None or found[1] not in _KINDS:
        name = word if found is None else found[1]
        names = [*_KINDS, "rand"]
        raise ConfigError(
            f"--augment has no step {word}", hint=suggestion(name, names) + f"; e.g. {', '.join(EXAMPLES)}"
        )
    number = _number(word, found[1], found[2])
    return (Crop(int(number), "reflect"),) if reflect else _KINDS[found[1]].make(number)


def _number(word: str, name: str, digits: str | None) -> float:
    kind = _KINDS[name]
    if kind.number is None:
        if digits is not None:
            raise ConfigError(f"--augment {word}: {name} takes no number", hint=f"write {kind.example}")
        return 0.0
    if digits is None:
        if kind.default is None:
            raise ConfigError(f"--augment {word}: {name} needs a number", hint=f"e.g. {kind.example}")
        return kind.default
    number = float(digits)
    low, high = kind.number
    if not low <= number <= high:
        raise ConfigError(f"--augment {word}: {digits} is not between {low} and {high}", hint=f"e.g. {kind.example}")
    if name in _WHOLE and not number.is_integer():
        raise ConfigError(f"--augment {word}: {name} counts whole pixels", hint=f"e.g. {kind.example}")
    return number


def _parse_rand(word: str) -> RandAugment:
    settings: dict[str, float | int | bool] = {}
    for part in word.split("-")[1:]:
        found = re.fullmatch(r"([a-z]+)(\d+(?:\.\d+)?)", part)
        if found is None or found[1] not in _RAND_SETTINGS:
            known = "m (magnitude), mstd (its spread), mmax (its limit), n (layers), p (chance of each), inc (0 or 1)"
            raise ConfigError(f"--augment {word}: {part} is no setting of rand", hint=f"{known}; e.g. {_RAND_EXAMPLE}")
        settings[_RAND_SETTINGS[found[1]]] = float(found[2])
    if not 0 <= settings.get("chance", 0.5) <= 1 or not 1 <= settings.get("layers", 2) <= 15:
        raise ConfigError(f"--augment {word}: p lies between 0 and 1, n between 1 and 15", hint=f"e.g. {_RAND_EXAMPLE}")
    settings["layers"] = int(settings.get("layers", 2))
    settings["increasing"] = bool(settings.get("increasing", 0))
    return RandAugment(**settings)  # pyright: ignore[reportArgumentType] - each value has the type of its field


def _refuse_twice(steps: list, text: str) -> None:
    """Two equal steps would draw the same numbers; both flips would undo each other half of the time."""
    kinds = [
        Flip if isinstance(step, AlternatingFlip) else type(step) for step in steps if not isinstance(step, Mixing)
    ]
    kinds += [("mixup" if step.mixup is not None else "cutmix") for step in steps if isinstance(step, Mixing)]
    if len(set(kinds)) < len(kinds):
        raise ConfigError(f"--augment {text} has the same step twice", hint="leave one of them out")


def _joined(mixes: list[Mixing]) -> Mixing:
    return Mixing(
        mixup=next((mix.mixup for mix in mixes if mix.mixup is not None), None),
        cutmix=next((mix.cutmix for mix in mixes if mix.cutmix is not None), None),
    )
