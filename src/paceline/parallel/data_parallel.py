"""DataParallel on GPUs: torch's own, with the precision and the seeds that its replicas would not get."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel

from paceline.core.config import Config
from paceline.core.errors import ConfigError
from paceline.parallel.ddp_hooks import DTYPES


def data_parallel(model: nn.Module, config: Config, first: torch.device, num_devices: int) -> nn.Module:
    """Return the model on several GPUs of this process, beginning with the one that holds it."""
    if config.compile:
        raise ConfigError("--compile is not supported with --mode dp on GPUs", hint="use --mode ddp, or drop --compile")
    called = model if config.precision == "fp32" else Autocasting(model, first.type, DTYPES[config.precision])
    others = [index for index in range(torch.cuda.device_count()) if index != first.index]
    return SeededDataParallel(called, device_ids=[first.index, *others][:num_devices])


class Autocasting(nn.Module):
    """A model that enters autocast itself: the replicas' threads do not inherit its type, and would use fp16."""

    def __init__(self, model: nn.Module, device_type: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.model = model
        self.device_type = device_type
        self.dtype = dtype

    def forward(self, images: Tensor) -> Tensor:
        """Run the model with autocast to its type."""
        with torch.autocast(self.device_type, dtype=self.dtype):
            return self.model(images)


class SeededDataParallel(DataParallel):
    """Seeds the generators of the other GPUs from that of the first, which is seeded before every micro-batch."""

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Run the replicas, each with its own random numbers."""
        seed = torch.cuda.initial_seed()
        for index in self.device_ids[1:]:
            torch.cuda.default_generators[index].manual_seed(seed + index)
        return super().forward(*inputs, **kwargs)
