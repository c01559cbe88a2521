"""A DDP script that accumulates gradients, scales and clips them, and resumes: without mistakes."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

PASSES = 2


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    inputs = torch.randn(320, 8)
    data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
    torch.manual_seed(rank)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = DistributedDataParallel(nn.Linear(8, 2))
    if rank == 0:
        torch.save({"model": model.module.state_dict(), "epoch": 3}, "earlier.pt")  # paceline: ignore
    dist.barrier()
    state = torch.load("earlier.pt")
    model.module.load_state_dict(state["model"])
    first = state["epoch"] + 1
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    for epoch in range(first, first + 2):
        sampler.set_epoch(epoch)
        for number, (x, y) in enumerate(loader):
            is_last = (number + 1) % PASSES == 0
            with nullcontext() if is_last else model.no_sync():
                loss = nn.functional.cross_entropy(model(x), y) / PASSES
                scaler.scale(loss).backward()
            if is_last:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
