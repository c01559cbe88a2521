"""A DDP script without mistakes: tests plant one at a time by replacing a line."""

import os
import random
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset

EPOCHS = 2
FEATURES = 12


class Numbers(Dataset):
    def __init__(self, length, seed):
        generator = torch.Generator().manual_seed(seed)
        self.inputs = torch.randn(length, FEATURES, generator=generator)
        self.targets = (self.inputs.sum(1) > 0).long()

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        noise = 0.1 * torch.randn(FEATURES)
        return self.inputs[index] + noise, self.targets[index]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(FEATURES, 32)
        self.norm = nn.LayerNorm(32)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(32, 2)

    def forward(self, inputs):
        return self.head(self.drop(self.norm(self.body(inputs)).relu()))


def evaluate(model, loader):
    model.eval()
    loss, right, count = 0.0, 0, 0
    with torch.no_grad():
        for inputs, targets in loader:
            outputs = model(inputs)
            loss += nn.functional.cross_entropy(outputs, targets, reduction="sum").item()
            right += (outputs.argmax(1) == targets).sum().item()
            count += len(targets)
    totals = torch.tensor([loss, right, count], dtype=torch.float64)
    dist.all_reduce(totals)
    return totals[0] / totals[2], totals[1] / totals[2]


def save(state):
    torch.save(state, "last.pt.new")
    os.replace("last.pt.new", "last.pt")


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    random.seed(rank)
    train_data, valid_data = Numbers(300, 1), Numbers(101, 2)
    sampler = DistributedSampler(train_data, seed=3)
    train_loader = DataLoader(train_data, batch_size=8, sampler=sampler, drop_last=True)
    shard = Subset(valid_data, range(rank, len(valid_data), world_size))
    valid_loader = DataLoader(shard, batch_size=16)
    bare = Net()
    model = DistributedDataParallel(bare)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        model.train()
        losses = []
        for inputs, targets in train_loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        scheduler.step()
        mean = torch.stack(losses).mean()
        dist.all_reduce(mean)
        mean /= world_size
        valid_loss, accuracy = evaluate(model, valid_loader)
        if rank == 0:
            print(f"epoch {epoch} loss {mean:.4f} valid {valid_loss:.4f} accuracy {accuracy:.3f}", flush=True)
            save({
                "model": bare.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict(),
                "epoch": epoch,
            })  # fmt: skip
        time.sleep(0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
