"""A step of the user's own, "my.py:name": changes one sample at a time, with generators seeded for each."""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from paceline.core.errors import DataError, PacelineError
from paceline.core.plugin import code_place, load_plugin
from paceline.data.augment.draws import Draws, Pixels, Purpose
from paceline.data.collate import stack_samples
from paceline.data.seeding import seed_generators
from paceline.data.split import Ids, Split
from paceline.data.tree import Tree, first_sample

NO_IMAGES = "uint8 tensors of channels × height × width"


@dataclass(frozen=True, slots=True)
class UserStep:
    """A function that takes a sample and returns it changed; random, numpy.random and torch are seeded for it."""

    name: str
    function: Callable[[Any], Any]

    def __call__(self, images: Pixels, draws: Draws) -> Pixels:
        """Return images, each changed by the function, which gets a uint8 tensor of channels × height × width."""
        changed = np.empty_like(images)
        for place, bits in enumerate(draws.bits(Purpose.USER, self._detail).tolist()):
            seed_generators(bits)
            image = self.change(torch.from_numpy(images[place].copy()))
            if not isinstance(image, torch.Tensor) or image.dtype != torch.uint8 or image.shape != images.shape[1:]:
                raise DataError(
                    f"{self.name} returned {_describe(image)} for an image of {_size(images.shape[1:])}",
                    hint=f"it gets and returns {NO_IMAGES}, of the same size",
                )
            changed[place] = image.numpy()
        return changed

    @property
    def _detail(self) -> int:
        """Lets two steps draw different numbers, from wherever they are loaded."""
        return zlib.crc32(self.name.rpartition(":")[2].encode())

    def change(self, sample: Any) -> Any:
        """Return the changed sample."""
        try:
            changed = self.function(sample)
        except PacelineError:
            raise
        except Exception as cause:
            problem = f"{self.name} raised {type(cause).__name__}: {cause}"
            raise DataError(problem, hint=f"{code_place(cause, self.function)}; it gets one sample") from cause
        if changed is None:
            raise DataError(f"{self.name} returned None", hint="end the function with: return sample")
        return changed


def load_user_step(name: str) -> UserStep:
    """Return the step of "my.py:name"."""
    return UserStep(name, load_plugin(name, DataError))


def change_sample(steps: Sequence[UserStep], sample: Any) -> Any:
    """Return a sample after all steps; the generators are seeded already."""
    for step in steps:
        sample = step.change(sample)
    return sample


class ChangedSamples:
    """A split whose training samples, of any structure, the user's own steps change one by one."""

    def __init__(self, split: Split, steps: Sequence[UserStep], seed: int) -> None:
        self._split = split
        self._steps = steps
        self._seed = seed

    def __len__(self) -> int:
        return len(self._split)

    def fetch(self, ids: Ids, epoch: int | None) -> Tree:
        """Return these samples, changed if an epoch is given."""
        if epoch is None:
            return self._split.fetch(ids, None)
        samples = []
        for index, bits in enumerate(Draws(seed=self._seed, epoch=epoch, ids=ids).bits(Purpose.USER).tolist()):
            sample = first_sample(self._split.fetch(ids[index : index + 1], epoch))
            seed_generators(bits)
            samples.append(change_sample(self._steps, sample))
        return stack_samples(samples, ids.tolist())


def _describe(image: Any) -> str:
    if not isinstance(image, torch.Tensor):
        return f"an object of type {type(image).__name__}"
    return f"a {str(image.dtype).removeprefix('torch.')} tensor of {_size(image.shape)}"


def _size(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape)) or "no dimensions"
