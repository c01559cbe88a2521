"""The syntax of `--augment`: names of the steps and the numbers they take. The data layer implements them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from paceline.core.errors import SettingError, suggestion
from paceline.core.plugin import is_plugin

STANDARD = {
    "cifar10": "crop4,flip",
    "cifar100": "crop4,flip",
    "cinic10": "crop4,flip",
    "fashion-mnist": "crop4,flip",
    "imagenet": "resized-crop,flip",
    "folder": "resized-crop,flip",
    "packed": "resized-crop,flip",
}
"""Standard augmentation by data set; data sets that are not listed (digits, the user's own) get none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One step as it was written."""

    name: str
    """One of ours, or the user's own as my.py:name."""
    number: float = 0.0
    reflect: bool = False
    """Whether a crop mirrors the image at its edges instead of adding black."""
    options: Mapping[str, float] = field(default_factory=dict)
    """The settings of rand, by their full names."""


class _Kind(NamedTuple):
    """The syntax of a step: an example, the range of its number (None: takes no number), and the number's default."""

    example: str
    number: tuple[float, float] | None = None
    default: float | None = None


_KINDS = {
    "crop": _Kind("crop4", (1, 1024)),
    "flip": _Kind("flip"),
    "altflip": _Kind("altflip"),
    "resized-crop": _Kind("resized-crop", (0.01, 1), 0.08),
    "jitter": _Kind("jitter0.4", (0, 10)),
    "brightness": _Kind("brightness0.4", (0, 10)),
    "contrast": _Kind("contrast0.4", (0, 10)),
    "saturation": _Kind("saturation0.4", (0, 10)),
    "erase": _Kind("erase0.25", (0, 1)),
    "cutout": _Kind("cutout8", (1, 1024)),
    "mixup": _Kind("mixup0.2", (0.01, 100)),
    "cutmix": _Kind("cutmix1.0", (0.01, 100)),
}
_WHOLE = ("crop", "cutout")
_REFLECT = "-reflect"
_SAME = {"altflip": ("flip",), "jitter": ("brightness", "contrast", "saturation")}
"""Steps that include others."""
_RAND_EXAMPLE = "rand-m9-mstd0.5-inc1"
_RAND_OPTIONS = {
    "m": "magnitude",
    "mstd": "spread",
    "mmax": "ceiling",
    "n": "layers",
    "p": "chance",
    "inc": "increasing",
}
EXAMPLES = (*(kind.example for kind in _KINDS.values()), f"crop4{_REFLECT}", _RAND_EXAMPLE)
"""An example of every step."""


def standard_policy(data: str) -> str:
    """Return the standard augmentation of a data set."""
    return STANDARD.get(data.partition(":")[0], "none")


def parse_steps(text: str) -> tuple[Step, ...]:
    """Read a comma-separated list of steps; "none" or nothing at all is the empty list."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if words == ["none"]:
        return ()
    steps = tuple(_parse_step(word) for word in words)
    _refuse_twice(steps, text)
    return steps


def own_steps(text: str) -> list[str]:
    """Return the steps of a list that are the user's own code."""
    return [word for word in (word.strip() for word in text.split(",")) if is_plugin(word)]


def _parse_step(word: str) -> Step:
    if is_plugin(word):
        return Step(name=word)
    if word == "rand" or word.startswith("rand-"):
        return _parse_rand(word)
    reflect = word.startswith("crop") and word.endswith(_REFLECT)
    found = re.fullmatch(r"([a-z-]*[a-z])(\d+(?:\.\d*)?|\.\d+)?", word.removesuffix(_REFLECT) if reflect else word)
    if found is None or found[1] not in _KINDS:
        name = word if found is None else found[1]
        hint = suggestion(name, [*_KINDS, "rand", "none", "my.py:name"]) + f"; e.g. {', '.join(EXAMPLES)}"
        raise SettingError("augment", f"lists {word}, which is not a step", hint=hint)
    return Step(name=found[1], number=_number(word, found[1], found[2]), reflect=reflect)


def _number(word: str, name: str, digits: str | None) -> float:
    kind = _KINDS[name]
    if kind.number is None:
        if digits is not None:
            raise SettingError("augment", f"{word}: {name} takes no number", hint=f"write {kind.example}")
        return 0.0
    if digits is None:
        if kind.default is None:
            raise SettingError("augment", f"{word}: {name} needs a number", hint=f"e.g. {kind.example}")
        return kind.default
    number = float(digits)
    low, high = kind.number
    if not low <= number <= high:
        problem = f"{word}: {digits} is not between {low} and {high}"
        raise SettingError("augment", problem, hint=f"e.g. {kind.example}")
    if name in _WHOLE and not number.is_integer():
        raise SettingError("augment", f"{word}: {name} needs a whole number of pixels", hint=f"e.g. {kind.example}")
    return number


def _parse_rand(word: str) -> Step:
    options: dict[str, float] = {}
    for part in word.split("-")[1:]:
        found = re.fullmatch(r"([a-z]+)(\d+(?:\.\d+)?)", part)
        if found is None or found[1] not in _RAND_OPTIONS:
            known = "m (magnitude), mstd (its deviation), mmax (its limit), n (layers), p (probability), inc (0 or 1)"
            hint = f"{known}; e.g. {_RAND_EXAMPLE}"
            raise SettingError("augment", f"{word}: {part} is not an option of rand", hint=hint)
        options[_RAND_OPTIONS[found[1]]] = float(found[2])
    if not 0 <= options.get("chance", 0.5) <= 1 or not 1 <= options.get("layers", 2) <= 15:
        problem = f"{word}: p must be between 0 and 1, n between 1 and 15"
        raise SettingError("augment", problem, hint=f"e.g. {_RAND_EXAMPLE}")
    return Step(name="rand", options=options)


def _refuse_twice(steps: tuple[Step, ...], text: str) -> None:
    """Refuse the same step twice: it would draw the same numbers; flip and altflip would partly cancel out."""
    work = [name for step in steps for name in _SAME.get(step.name, (step.name,))]
    if len(set(work)) < len(work):
        raise SettingError("augment", f"{text} has the same step twice", hint="remove one of them")
