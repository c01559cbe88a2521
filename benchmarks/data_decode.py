"""JPEG decoding as Paceline does it with simplejpeg, against Pillow, on one thread.

    python -m benchmarks.data_decode [--rounds 9 | --quick]

Variants take turns; CPU seconds per image. Both use libjpeg-turbo and give the same pixels, so what is saved is
everything around it: the finer the quality, the more of the time goes into Huffman codes, where nothing can be saved.
`to 224` also cuts out a box and scales it to 224×224, as training does.
"""

import argparse
import io
import time
from collections.abc import Callable

import numpy as np
from PIL import Image

from benchmarks.interleave import show_rates, take_turns
from paceline.data.decode import decode, decoder_name, image_size
from paceline.data.on_demand import CropBox, crop_and_resize

NUM = 40


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--quick", dest="rounds", action="store_const", const=1, help="one round")
    rounds = parser.parse_args().rounds
    print(f"Paceline decodes JPEG with {decoder_name()}")
    whole = {"Paceline": decode, "Pillow": with_pillow}
    compare("32×32", whole, [photograph(32, 32, seed) for seed in range(NUM)] * 25, rounds)
    for quality in (75, 90, 95):
        files = [photograph(375, 500, seed, quality) for seed in range(NUM)]
        compare(f"500×375, quality {quality}", whole, files, rounds)
    part = {"Paceline": scaled, "Pillow": scaled_with_pillow}
    compare("500×375, box of 300×300 to 224", part, [photograph(375, 500, seed) for seed in range(NUM)], rounds)
    compare("1600×1200, box of 900×900 to 224", part, [photograph(1200, 1600, seed) for seed in range(8)], rounds)


def compare(title: str, variants: dict[str, Callable[[bytes], object]], files: list[bytes], rounds: int) -> None:
    """Run the variants in turn over all files and print images per second."""

    def timed(variant: Callable[[bytes], object]) -> float:
        start = time.process_time()
        for data in files:
            variant(data)
        return (time.process_time() - start) / len(files)

    turns = {name: lambda variant=variant: timed(variant) for name, variant in variants.items()}
    size = sum(map(len, files)) // len(files)
    show_rates(f"JPEG of {title}, {size:,} bytes", take_turns(turns, rounds=rounds))


def with_pillow(data: bytes) -> object:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


def scaled(data: bytes) -> object:
    height, width = image_size(data)
    return crop_and_resize(data, (height, width), box(height, width), 224)


def scaled_with_pillow(data: bytes) -> object:
    with Image.open(io.BytesIO(data)) as image:
        cut = box(image.height, image.width)
        part = image.convert("RGB").crop(
            (int(cut.left), int(cut.top), int(cut.left + cut.width), int(cut.top + cut.height))
        )
        return np.asarray(part.resize((224, 224), Image.Resampling.BICUBIC))


def box(height: int, width: int) -> CropBox:
    side = int(0.8 * height) if height < 500 else int(0.75 * height)
    return CropBox((height - side) // 2, (width - side) // 2, side, side)


def photograph(height: int, width: int, seed: int, quality: int = 90) -> bytes:
    """Return a JPEG with smooth regions, edges and some grain, about as compressible as a photograph."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (max(2, height // 40), max(2, width // 40), 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC), np.float32)
    grain = rng.normal(0, 6, (height, width, 1))
    image = Image.fromarray(np.clip(smooth + grain, 0, 255).astype(np.uint8))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


if __name__ == "__main__":
    main()
