"""Small sets: all pixels in memory as bytes, a whole batch gathered and normalised at once."""

import torch

from paceline.data.split import Batch, Ids


class InMemory:
    """A split whose images (uint8, N×C×H×W) fit in memory."""

    def __init__(
        self, images: torch.Tensor, labels: torch.Tensor, *, mean: tuple[float, ...], std: tuple[float, ...]
    ) -> None:
        self._images = images
        self._labels = labels
        channels = (1, len(mean), 1, 1)
        self._mean = torch.tensor(mean).mul(255).view(channels)
        self._scale = torch.tensor(std).mul(255).reciprocal().view(channels)

    def __len__(self) -> int:
        return len(self._labels)

    def fetch(self, ids: Ids, epoch: int | None) -> Batch:
        """Return the normalised images with these ids."""
        places = torch.from_numpy(ids)
        images = self._images[places].float().sub_(self._mean).mul_(self._scale)
        return Batch(images, self._labels[places])
