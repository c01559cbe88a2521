"""Facts about the process, its model and its batches."""

import os
import socket
from typing import Any

import torch
import torch.distributed as dist

MOST_SIZES = 20_000


def num_samples(values: tuple[Any, ...]) -> int:
    """Return the size of the first dimension of the first tensor in the arguments of a forward pass."""
    for value in values:
        inner = list(value.values()) if isinstance(value, dict) else value
        if isinstance(inner, list | tuple):
            inner = next((item for item in inner if isinstance(item, torch.Tensor)), None)
        if isinstance(inner, torch.Tensor) and inner.dim():
            return inner.shape[0]
    return 0


def rank_facts() -> dict[str, Any]:
    """Return the place of this process among the ranks."""
    return {
        "rank": dist.get_rank(),
        "world_size": dist.get_world_size(),
        "backend": str(dist.get_backend()),
    } | machine_facts()


def machine_facts() -> dict[str, Any]:
    """Return host, threads and cores of this process."""
    return {
        "host": socket.gethostname(),
        "threads": torch.get_num_threads(),
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
    }


def ddp_facts(model: Any) -> dict[str, Any]:
    """Return how DistributedDataParallel was set up."""
    return {
        "broadcast_buffers": model.broadcast_buffers,
        "find_unused": model.find_unused_parameters,
        "bucket_cap": model.bucket_bytes_cap,
        "is_world": model.process_group.size() == dist.get_world_size(),
    }


def model_facts(module: Any) -> dict[str, Any]:
    """Return name, size and device of a model."""
    return {"name": type(module).__name__} | size_facts([p for p in module.parameters() if p.requires_grad])


def size_facts(parameters: list[Any]) -> dict[str, Any]:
    """Return number, bytes, device and sizes of trained parameters."""
    return {
        "parameters": sum(p.numel() for p in parameters),
        "gradient_bytes": sum(p.numel() * p.element_size() for p in parameters),
        "device": parameters[0].device.type if parameters else "cpu",
        "sizes": [p.numel() * p.element_size() for p in parameters][:MOST_SIZES],
    }
