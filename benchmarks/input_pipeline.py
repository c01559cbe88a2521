"""The input pipeline beside a plain DataLoader: CPU time per image with 0, 1 and 2 workers, and of a request.

    python -m benchmarks.input_pipeline [--rounds 5 | --quick]

All decode the same JPEG files (500×375), crop at random, scale to 224×224, flip and normalise. `plain` is what a
script does with the decoder of Paceline (simplejpeg) or with Pillow: a data set that returns normalised images, in a
DataLoader with its usual collate. CPU time is that of the trainer and its workers.
"""

import argparse
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from benchmarks.data_decode import photograph
from paceline.data.augment.pipeline import Augmentation
from paceline.data.augment.policy import parse_policy
from paceline.data.in_memory import InMemory
from paceline.data.loader import load_batches
from paceline.data.on_demand import IMAGENET_MEAN, IMAGENET_STD, OnDemand
from paceline.data.sources.image_folder import ImageFiles
from paceline.data.tree import moved

SIZE, BATCH, NUM_FILES = 224, 32, 64
CPU = torch.device("cpu")


class PlainImages(Dataset[tuple[torch.Tensor, int]]):
    """Images as a script prepares them."""

    def __init__(self, paths: list[Path], *, num: int, pillow: bool) -> None:
        self.paths, self.num, self.pillow = paths, num, pillow
        self.mean = torch.tensor(IMAGENET_MEAN).view(3, 1, 1)
        self.std = torch.tensor(IMAGENET_STD).view(3, 1, 1)

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path = self.paths[index % len(self.paths)]
        area = float(np.random.default_rng(index).uniform(0.08, 1)) ** 0.5
        if self.pillow:
            with Image.open(path) as opened:
                image = opened.convert("RGB")
        else:
            import simplejpeg

            image = Image.fromarray(simplejpeg.decode_jpeg(path.read_bytes(), "RGB"))
        width, height = round(image.width * area), round(image.height * area)
        part = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=(0, 0, width, height))
        pixels = torch.from_numpy(np.asarray(part).transpose(2, 0, 1).copy()).float().div_(255)
        return (pixels.flip(2) if index % 2 else pixels).sub_(self.mean).div_(self.std), 0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", dest="rounds", action="store_const", const=1, help="one round")
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    num = 64 if rounds == 1 else 512
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number}.jpg" for number in range(NUM_FILES)]
        for number, path in enumerate(paths):
            path.write_bytes(photograph(375, 500, number))
        for workers in (0, 1, 2):
            variants = {
                "Paceline": lambda workers=workers: ours(paths, num, workers),
                "plain, simplejpeg": lambda workers=workers: plain(paths, num, workers, pillow=False),
                "plain, Pillow": lambda workers=workers: plain(paths, num, workers, pillow=True),
            }
            show(workers, num, {name: [measured(make) for _ in range(rounds)] for name, make in variants.items()})
    show_requests(100 if rounds == 1 else 1000)


def ours(paths: list[Path], num: int, workers: int) -> Iterator[object]:
    policy = Augmentation(policy=parse_policy("resized-crop,flip"), seed=0)
    names = [path.name for path in paths]
    split = OnDemand(ImageFiles(paths[0].parent, names), torch.zeros(len(paths), dtype=torch.int64), size=SIZE,
                     augmentation=policy)  # fmt: skip
    requests = [(np.arange(start, start + BATCH) % len(paths), 0) for start in range(0, num, BATCH)]
    for batch in load_batches(split, requests, workers=workers, pin=False):
        yield moved(batch, CPU, torch.channels_last)


def plain(paths: list[Path], num: int, workers: int, *, pillow: bool) -> Iterator[object]:
    loader = DataLoader(PlainImages(paths, num=num, pillow=pillow), batch_size=BATCH, num_workers=workers)
    for images, labels in loader:
        yield images.to(memory_format=torch.channels_last), labels


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def measured(make: Callable[[], Iterator[object]]) -> tuple[float, float]:
    """Return CPU and wall seconds of reading all batches."""
    cpu, wall = cpu_seconds(), time.perf_counter()
    for _ in make():
        pass
    return cpu_seconds() - cpu, time.perf_counter() - wall


def show(workers: int, num: int, found: dict[str, list[tuple[float, float]]]) -> None:
    rates = {name: num / statistics.median(cpu for cpu, _ in turns) for name, turns in found.items()}
    walls = {name: num / statistics.median(wall for _, wall in turns) for name, turns in found.items()}
    own = rates["Paceline"]
    for name, rate in rates.items():
        speed = f"{rate:6.0f} images/CPU-s ({own / rate:.2f}x)  {walls[name]:6.0f} images/s"
        print(f"{workers} workers  {name:<18} {speed}", flush=True)


def show_requests(num: int) -> None:
    """Print the CPU time of a request of 16 tiny images with and without a worker, without the start of the worker."""
    images = InMemory(torch.zeros(256, 3, 8, 8, dtype=torch.uint8), torch.zeros(256, dtype=torch.int64),
                      mean=(0.5,) * 3, std=(0.25,) * 3)  # fmt: skip

    def read(number: int, workers: int) -> float:
        requests = [(np.arange(16), 0)] * number
        return measured(lambda: iter(load_batches(images, requests, workers=workers, pin=False)))[0]

    for workers in (0, 1):
        each = statistics.median((read(2 * num, workers) - read(num, workers)) / num for _ in range(3))
        print(f"{workers} workers  {1000 * each:.3f} ms of CPU time per request")


if __name__ == "__main__":
    main()
