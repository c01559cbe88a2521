"""A model that runs out of memory above a number of samples."""

NARROW = """
import os
import torch

class Narrow(torch.nn.Module):
    # A model that has memory for MOST samples with gradients; rank 1 for half of them.

    def __init__(self, num_classes):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, num_classes), torch.nn.Dropout(0.1))

    def forward(self, images):
        most = MOST
        if torch.distributed.is_initialized():
            most //= 1 + torch.distributed.get_rank()
        if self.training and len(images) > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB. Planted.")
        return self.layers(images)
"""
