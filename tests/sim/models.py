"""Models for the simulated GPU: one with dropout, and ones with a planted fault each."""

import torch
from torch import Tensor, nn


def dropout(num_classes: int, image_shape: tuple[int, int, int]) -> nn.Module:
    """Return a model without convolutions, so that its images are not channels-last, that draws random numbers."""
    channels, height, width = image_shape
    return nn.Sequential(
        nn.Flatten(), nn.Linear(channels * height * width, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, num_classes)
    )


class GpuOnly(nn.Module):
    """A classifier with a kernel for GPUs only."""

    def __init__(self, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.classify = nn.Linear(num_features, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        if images.device.type == "cpu":
            raise NotImplementedError("this kernel is for GPUs only")
        return self.classify(images.flatten(1))


def gpu_only(num_classes: int, image_shape: tuple[int, int, int]) -> nn.Module:
    channels, height, width = image_shape
    return GpuOnly(channels * height * width, num_classes)


class Faulty(nn.Module):
    """A small classifier with a fault in its training steps."""

    def __init__(self, fault: str, num_classes: int, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        channels, height, width = image_shape
        self.fault = fault
        self.classify = nn.Linear(channels * height * width, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        scores = self.classify(images.flatten(1))
        return FAULTS[self.fault](scores) if self.training and scores.device.type != "cpu" else scores


def _item(scores: Tensor) -> Tensor:
    return scores * (1.0 if scores.sum().item() else 0.5)


def _host_tensor(scores: Tensor) -> Tensor:
    return scores + torch.zeros(scores.shape[1])


def _numpy(scores: Tensor) -> Tensor:
    return scores * float(scores.detach().numpy().max())


def _freed_buffer(scores: Tensor) -> Tensor:
    """Use a buffer on a side stream, and free it before its own stream has waited for that one."""
    device: object = getattr(torch, scores.device.type)
    buffer = torch.zeros_like(scores)
    with device.stream(device.Stream()):  # pyright: ignore[reportAttributeAccessIssue] - named when it is installed
        buffer.add_(1.0)
    return scores


def _out_of_memory(scores: Tensor) -> Tensor:
    message = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.90 GiB"
    raise torch.OutOfMemoryError(message)


FAULTS = {
    "item": _item,
    "host_tensor": _host_tensor,
    "numpy": _numpy,
    "freed_buffer": _freed_buffer,
    "out_of_memory": _out_of_memory,
}


def item(num_classes: int, image_shape: tuple[int, int, int]) -> nn.Module:
    return Faulty("item", num_classes, image_shape)


def host_tensor(num_classes: int, image_shape: tuple[int, int, int]) -> nn.Module:
    return Faulty("host_tensor", num_classes, image_shape)


def numpy(num_classes: int, image_shape: tuple[int, int, int]) -> nn.Module:
    return Faulty("numpy", num_classes, image_shape)


def freed_buffer(num_classes: int, image_shape: tuple[int, int, int]) -> nn.Module:
    return Faulty("freed_buffer", num_classes, image_shape)


def out_of_memory(num_classes: int, image_shape: tuple[int, int, int]) -> nn.Module:
    return Faulty("out_of_memory", num_classes, image_shape)
