"""Decodes images: JPEG with simplejpeg when it is installed, everything else with Pillow.

Both use libjpeg-turbo at the same scale, so they return the same pixels.
"""

from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO
from math import ceil, inf
from types import ModuleType

import numpy as np
from numpy.typing import NDArray
from PIL import Image

JPEG_START = b"\xff\xd8"
PIXELS_START = b"P6\n"
SCALES = (8, 4, 2, 1)
"""The factors by which JPEG decoding can shrink an image, cheaper than decoding it in full."""

Picture = NDArray[np.uint8]
"""One image, H×W×3."""


class BadImageError(Exception):
    """The bytes are not an image that can be decoded."""


def decoder_name() -> str:
    """Return the name of the library that decodes JPEG files."""
    return "Pillow" if _simplejpeg() is None else "simplejpeg"


def most_pixels() -> float:
    """Return the limit of Pillow: it refuses larger images, because a file of a few kB may expand to gigabytes."""
    return inf if Image.MAX_IMAGE_PIXELS is None else 2 * Image.MAX_IMAGE_PIXELS


def image_size(data: bytes) -> tuple[int, int]:
    """Return height and width without decoding the pixels."""
    if data.startswith(PIXELS_START):
        height, width, _ = _parse_ppm(data)
        return height, width
    fast = _simplejpeg()
    if fast is not None and data.startswith(JPEG_START):
        try:
            height, width, *_ = fast.decode_jpeg_header(data)
        except ValueError:
            pass
        else:
            return height, width
    with _opened(data) as image:
        return image.height, image.width


def decode(data: bytes, *, at_least: tuple[int, int] | None = None) -> Picture:
    """Return the pixels as RGB; a JPEG may be shrunk by 2, 4 or 8, but not below `at_least` (height, width)."""
    if data.startswith(PIXELS_START):
        height, width, start = _parse_ppm(data)
        return np.frombuffer(data, np.uint8, offset=start).reshape(height, width, 3)
    fast = _simplejpeg()
    if fast is not None and data.startswith(JPEG_START):
        try:
            return _decode_fast(fast, data, at_least)
        except ValueError:
            pass  # Pillow reads more: CMYK, and files with small faults
    return _decode_pillow(data, at_least)


def shrink_factor(size: tuple[int, int], at_least: tuple[int, int] | None) -> int:
    """Return the largest factor that leaves an image of this height and width at least as large as `at_least`."""
    if at_least is None:
        return 1
    return next(
        scale
        for scale in SCALES
        if scale == 1 or all(side // scale >= least for side, least in zip(size, at_least, strict=True))
    )


def as_ppm(picture: Picture) -> bytes:
    """Return the pixels as a PPM file."""
    height, width = picture.shape[:2]
    return b"%b%d %d\n255\n" % (PIXELS_START, width, height) + picture.tobytes()


def _parse_ppm(data: bytes) -> tuple[int, int, int]:
    """Return height, width and the offset of the pixels, for images that `as_ppm` made."""
    try:
        _, sizes, depth, _ = data[:40].split(b"\n", 3)
        width, height = map(int, sizes.split())
    except ValueError as cause:
        raise BadImageError("its header is not that of a PPM with 8 bits per channel") from cause
    start = len(PIXELS_START) + len(sizes) + len(depth) + 2
    if height < 1 or width < 1:
        raise BadImageError("it has no pixels")
    if depth != b"255" or len(data) != start + 3 * height * width:
        raise BadImageError("its length does not match its header")
    return height, width, start


def _decode_fast(fast: ModuleType, data: bytes, at_least: tuple[int, int] | None) -> Picture:
    height, width, colours, _ = fast.decode_jpeg_header(data)
    factor = shrink_factor((height, width), at_least)
    most = most_pixels()
    if ceil(height / factor) * ceil(width / factor) > most:
        raise BadImageError(f"it has {width}×{height} pixels, more than {most:,}")
    if colours in ("CMYK", "YCCK"):
        raise ValueError(colours)
    return fast.decode_jpeg(data, "RGB", min_height=ceil(height / factor), min_width=ceil(width / factor))


def _decode_pillow(data: bytes, at_least: tuple[int, int] | None) -> Picture:
    try:
        with _opened(data) as image:
            factor = shrink_factor((image.height, image.width), at_least)
            if factor > 1:
                image.draft("RGB", (image.width // factor, image.height // factor))
            return np.asarray(_to_rgb(image))
    except BadImageError:
        raise
    except Exception as cause:  # decoders raise errors of many kinds for bad bytes
        raise BadImageError(str(cause) or type(cause).__name__) from cause


def _opened(data: bytes) -> Image.Image:
    try:
        return Image.open(BytesIO(data))
    except Exception as cause:
        reason = (
            "it is not an image format that Pillow knows"
            if isinstance(cause, Image.UnidentifiedImageError)
            else str(cause)
        )
        raise BadImageError(reason) from cause


def _to_rgb(image: Image.Image) -> Image.Image:
    """Convert grey, palette, CMYK and 16-bit images to RGB; transparent pixels become black."""
    if image.mode in ("I", "I;16", "I;16B", "I;16L", "F"):
        values = np.asarray(image).astype(np.float64)
        deepest = 65535.0 if values.max(initial=0) > 255 else 255.0
        image = Image.fromarray(np.clip(values * (255.0 / deepest), 0, 255).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        layer = image.convert("RGBA")
        backdrop = Image.new("RGBA", layer.size, (0, 0, 0, 255))
        image = Image.alpha_composite(backdrop, layer)
    return image.convert("RGB")


@lru_cache
def _simplejpeg() -> ModuleType | None:
    return import_module("simplejpeg") if find_spec("simplejpeg") is not None else None
