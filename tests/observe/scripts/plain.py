"""A DDP script as people write them, which knows nothing of Paceline; PLANT slows down one part of it."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

PLANT = os.environ.get("PLANT", "")
SECONDS = 0.03


class Numbers(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(320, 32, generator=generator)
        self.targets = (self.inputs.sum(1) > 0).long()

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        if PLANT == "slow loader":
            time.sleep(SECONDS / 8)
        return self.inputs[index], self.targets[index]


class Slow(nn.Module):
    def forward(self, inputs):
        if PLANT == "slow rank" and self.training and dist.get_rank() == 1:
            time.sleep(SECONDS)
        return inputs


def train(epochs=3):
    torch.manual_seed(0)
    data = Numbers()
    model = nn.Sequential(Slow(), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 2))
    sampler = None
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        model, sampler = DistributedDataParallel(model), DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler, shuffle=sampler is None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        model.train()
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            right = sum((model(inputs).argmax(1) == targets).sum().item() for inputs, targets in loader)
        print("epoch", epoch, "right", right, flush=True)
    if sampler is None or dist.get_rank() == 0:
        torch.save(model.state_dict(), "weights.pt")


def spawned(rank, port):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    train()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        torch.multiprocessing.spawn(spawned, (sys.argv[1],), nprocs=2)
    else:
        train()
