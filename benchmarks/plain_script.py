"""The script that everybody writes first: PIL transforms, a DataLoader with two workers, images as N×C×H×W.

    python -m benchmarks.plain_script --data-dir data --steps 60 --skip 10

Trains resnet20 on CIFAR-10 with the settings of the recipe cifar10-resnet20, and prints the seconds of the steps after
the first `--skip`. `cifar_epoch` runs it beside Paceline.
"""

import argparse
import json
import time
from importlib import import_module
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

from benchmarks.cifar import Images, Labels, load, make_torchvision_importable
from paceline.models.zoo import build_model

GLOBAL_BATCH, NUM_WORKERS = 128, 2
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    """What torchvision.datasets.CIFAR10 does: pixels in memory, a PIL image made of each, then the transforms."""

    def __init__(self, images: Images, labels: Labels) -> None:
        transforms = import_module("torchvision.transforms")
        self.images = np.ascontiguousarray(images.transpose(0, 2, 3, 1))
        self.labels = labels.tolist()
        self.transform = transforms.Compose(
            [
                transforms.RandomCrop(32, padding=4),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(MEAN, STD),
            ]
        )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(Image.fromarray(self.images[index])), self.labels[index]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--skip", type=int, default=10)
    options = parser.parse_args()
    make_torchvision_importable()
    images, labels, _ = load(options.data_dir)
    loader = DataLoader(Pictures(images, labels), batch_size=GLOBAL_BATCH, shuffle=True, num_workers=NUM_WORKERS)
    model = build_model("resnet20", num_classes=10, image_shape=(3, 32, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, nesterov=True)
    loss_sum = num_right = num_seen = start = 0
    for step, (batch, targets) in enumerate(loader):
        if step == options.skip:
            start = time.perf_counter()
        logits = model(batch)
        loss = nn.functional.cross_entropy(logits, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss_sum += loss.item() * len(targets)
        num_right += (logits.argmax(dim=1) == targets).sum().item()
        num_seen += len(targets)
        if step + 1 == options.steps:
            break
    seconds = time.perf_counter() - start
    accuracy = num_right / num_seen
    print(json.dumps({"seconds": seconds, "loss": loss_sum / num_seen, "accuracy": accuracy}))


if __name__ == "__main__":
    main()
