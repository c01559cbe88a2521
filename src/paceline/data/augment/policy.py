"""The setting `--augment`: turns "crop4,flip,erase0.25" into the steps that it names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from paceline.core.augment_syntax import Step, parse_steps
from paceline.core.plugin import is_plugin
from paceline.data.augment.colour import Brightness, Contrast, Saturation
from paceline.data.augment.crops import AlternatingFlip, Crop, Flip, ResizedCrop
from paceline.data.augment.draws import Draws, Pixels, Values
from paceline.data.augment.erasing import Cutout, Erase
from paceline.data.augment.mixing import Mixing
from paceline.data.augment.randaugment import RandAugment
from paceline.data.augment.user_step import load_user_step


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
    """The augmentation of training images: steps on bytes in the given order, on normalised values, and mixing."""

    text: str = "none"
    pixel_steps: tuple[PixelStep, ...] = ()
    value_steps: tuple[ValueStep, ...] = ()
    mixing: Mixing | None = None

    @property
    def resized_crop(self) -> ResizedCrop | None:
        """Return the resized crop, if there is one: on-demand splits crop while they decode."""
        return next((step for step in self.pixel_steps if isinstance(step, ResizedCrop)), None)

    def after_decoding(self) -> "Policy":
        """Return the policy without the resized crop."""
        steps = tuple(step for step in self.pixel_steps if not isinstance(step, ResizedCrop))
        return replace(self, pixel_steps=steps)

    def filled(self, colour: tuple[int, ...]) -> "Policy":
        """Return the policy with this colour for pixels from outside an image."""
        steps = tuple(
            replace(step, fill=colour) if isinstance(step, RandAugment) else step for step in self.pixel_steps
        )
        return replace(self, pixel_steps=steps)


AnyStep = PixelStep | ValueStep | Mixing

_MAKE: dict[str, Callable[[float], tuple[AnyStep, ...]]] = {
    "flip": lambda _: (Flip(),),
    "altflip": lambda _: (AlternatingFlip(),),
    "resized-crop": lambda number: (ResizedCrop(number),),
    "jitter": lambda number: (Brightness(number), Contrast(number), Saturation(number)),
    "brightness": lambda number: (Brightness(number),),
    "contrast": lambda number: (Contrast(number),),
    "saturation": lambda number: (Saturation(number),),
    "erase": lambda number: (Erase(number),),
    "cutout": lambda number: (Cutout(int(number)),),
    "mixup": lambda number: (Mixing(mixup=number),),
    "cutmix": lambda number: (Mixing(cutmix=number),),
}


def parse_policy(text: str) -> Policy:
    """Read a comma-separated list of steps; "none" or an empty text leaves the images unchanged."""
    steps: list[Any] = [made for step in parse_steps(text) for made in _make(step)]
    if not steps:
        return Policy()
    mixes = [step for step in steps if isinstance(step, Mixing)]
    return Policy(
        text=",".join(step.strip() for step in text.split(",") if step.strip()),
        pixel_steps=tuple(step for step in steps if not isinstance(step, Mixing | Erase | Cutout)),
        value_steps=tuple(step for step in steps if isinstance(step, Erase | Cutout)),
        mixing=_joined(mixes) if mixes else None,
    )


def _make(step: Step) -> tuple[AnyStep, ...]:
    if is_plugin(step.name):
        return (load_user_step(step.name),)
    if step.name == "rand":
        return (_make_rand(step.options),)
    if step.name == "crop":
        return (Crop(int(step.number), "reflect") if step.reflect else Crop(int(step.number)),)
    return _MAKE[step.name](step.number)


def _make_rand(options: Mapping[str, float]) -> RandAugment:
    whole = {"layers": int(options.get("layers", 2)), "increasing": bool(options.get("increasing", 0))}
    return RandAugment(**(dict(options) | whole))  # pyright: ignore[reportArgumentType] - each has its field's type


def _joined(mixes: list[Mixing]) -> Mixing:
    return Mixing(
        mixup=next((mix.mixup for mix in mixes if mix.mixup is not None), None),
        cutmix=next((mix.cutmix for mix in mixes if mix.cutmix is not None), None),
    )
