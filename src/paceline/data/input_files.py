"""Files for inference: which ones, and how an image becomes what the model of a run has seen in training."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from paceline.core.errors import ConfigError, DataError
from paceline.data.decode import BadImageError, image_size
from paceline.data.normalisation import Normalisation
from paceline.data.on_demand import crop_and_resize, evaluation_crop
from paceline.data.source_files import read_regular
from paceline.data.sources.image_folder import ENDINGS
from paceline.data.split import Split

LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in a grey image."""


class InputFile(NamedTuple):
    """A file to predict, and its name below the folder that the user gave."""

    path: Path
    name: Path


def list_inputs(paths: Sequence[Path], endings: tuple[str, ...]) -> list[InputFile]:
    """Return the files, and all files with these endings below the folders, in order; any ending if there are none."""
    found = []
    for path in paths:
        if not path.exists():
            raise DataError(f"{path} does not exist", hint="give files or folders: paceline infer RUN PATH…")
        if not path.is_dir():
            found.append(InputFile(path, Path(path.name)))
            continue
        inside = sorted(each for each in path.rglob("*") if each.is_file() and _has_ending(each, endings))
        if not inside:
            kinds = ", ".join(endings) or "any"
            raise DataError(f"{path} contains no files ({kinds})", hint="give another folder, or the files themselves")
        found += [InputFile(each, each.relative_to(path)) for each in inside]
    return found


def _has_ending(path: Path, endings: tuple[str, ...]) -> bool:
    return not endings or path.suffix.lower() in endings


class ImageReader:
    """Reads image files as evaluation does: the central square, at the size and scale of the training images."""

    endings = ENDINGS

    def __init__(self, split: Split, image_shape: tuple[int, int, int]) -> None:
        self._channels, self._size, width = image_shape
        if self._channels not in (1, 3) or width != self._size:
            shape = "×".join(map(str, image_shape))
            raise ConfigError(f"the model takes images of {shape}, not of 1 or 3 colours in a square", hint=READ_HINT)
        mean, std = (getattr(split, name, None) for name in ("mean", "std"))
        plain = ((0.0,) * self._channels, (1.0,) * self._channels)
        mean, std = plain if mean is None or std is None else (mean, std)
        self._normalise = Normalisation(mean=mean, std=std)

    def __call__(self, path: Path) -> tuple[Tensor]:
        """Return an image as a sample without target."""
        try:
            data = read_regular(path)
            height, width = image_size(data)
            crop = evaluation_crop(height, width, self._size)
            picture = crop_and_resize(data, (height, width), crop, self._size)
        except (BadImageError, OSError) as cause:
            raise DataError(f"{path} cannot be decoded: {cause}", hint="remove or replace it") from cause
        if self._channels == 1:
            picture = np.rint(picture.astype(np.float64) @ LUMA).astype(np.uint8)[..., None]
        planes = np.ascontiguousarray(picture.transpose(2, 0, 1))[None]
        return (self._normalise(torch.from_numpy(planes))[0],)


READ_HINT = "read files with a function of your own, which returns a sample: --read my.py:read"
