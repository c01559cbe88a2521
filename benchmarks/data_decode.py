"""JPEG decoding as Paceline does it with simplejpeg, against Pillow, on one thread.

    PYTHONPATH=src python benchmarks/data_decode.py [--rounds 9]

Contenders take turns; medians of CPU seconds per image. `to 224` also cuts and scales to 224×224, as training does.
"""

import argparse
import io
import time
from collections.abc import Callable
from statistics import median

import numpy as np
from PIL import Image

from paceline.data.decode import decode, decoder_name, image_size
from paceline.data.decoded import Cut, cut_out

NUM = 40


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    print(f"Paceline decodes JPEG with {decoder_name()}")
    for height, width, repeat in ((32, 32, 25), (375, 500, 1)):
        files = [photograph(height, width, seed) for seed in range(NUM)]
        compare(
            f"{width}×{height} JPEG of {sum(map(len, files)) // NUM:,} bytes",
            {"Paceline": decode, "Pillow": with_pillow},
            files * repeat,
            options.rounds,
        )
    compare(
        "500×375 JPEG, box of 300×300 to 224", {"Paceline": scaled, "Pillow": scaled_with_pillow}, files, options.rounds
    )
    large = [photograph(1200, 1600, seed) for seed in range(8)]
    compare(
        "1600×1200 JPEG, box of 900×900 to 224",
        {"Paceline": scaled, "Pillow": scaled_with_pillow},
        large,
        options.rounds,
    )


def compare(title: str, contenders: dict[str, Callable[[bytes], object]], files: list[bytes], rounds: int) -> None:
    """Run the contenders in turn and print images per second and the ratio of the first to each."""
    costs: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds + 1):
        for name, contender in contenders.items():
            start = time.process_time()
            for data in files:
                contender(data)
            costs[name].append((time.process_time() - start) / len(files))
    ours = next(iter(costs.values()))[1:]
    print(title)
    for name, seconds in costs.items():
        ratio = median(other / own for other, own in zip(seconds[1:], ours, strict=True))
        print(f"  {name:10s} {1 / median(seconds[1:]):9,.0f} images/s   {ratio:5.2f}×")


def with_pillow(data: bytes) -> object:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


def scaled(data: bytes) -> object:
    height, width = image_size(data)
    return cut_out(data, (height, width), box(height, width), 224)


def scaled_with_pillow(data: bytes) -> object:
    with Image.open(io.BytesIO(data)) as image:
        cut = box(image.height, image.width)
        part = image.convert("RGB").crop(
            (int(cut.left), int(cut.top), int(cut.left + cut.width), int(cut.top + cut.height))
        )
        return np.asarray(part.resize((224, 224), Image.Resampling.BICUBIC))


def box(height: int, width: int) -> Cut:
    side = int(0.8 * height) if height < 500 else int(0.75 * height)
    return Cut((height - side) // 2, (width - side) // 2, side, side)


def photograph(height: int, width: int, seed: int) -> bytes:
    """Return a JPEG with smooth regions, edges and some grain, about as compressible as a photograph."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (max(2, height // 40), max(2, width // 40), 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC), np.float32)
    grain = rng.normal(0, 6, (height, width, 1))
    image = Image.fromarray(np.clip(smooth + grain, 0, 255).astype(np.uint8))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


if __name__ == "__main__":
    main()
