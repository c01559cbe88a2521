"""Small image files for the tests."""

from io import BytesIO

import numpy as np
from PIL import Image


def picture(height, width, seed=0, mode="RGB"):
    """Return a smooth colourful picture."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (max(2, height // 8), max(2, width // 8), 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).convert(mode)


def encoded(image, form="JPEG", **options):
    """Return the bytes of an image file."""
    buffer = BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def write_classes(root, classes, num=3, size=(40, 50), form="JPEG"):
    """Write a folder per class with a few images in each."""
    for class_index, name in enumerate(classes):
        (root / name).mkdir(parents=True, exist_ok=True)
        for index in range(num):
            content = encoded(picture(*size, seed=100 * class_index + index), form)
            (root / name / f"{index}.{form.lower()}").write_bytes(content)
    return root
