"""A script for GPUs that starts its own ranks, both as rank 0 of the group if it is asked to."""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def train(gpu, claims, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    rank = 0 if claims == "same" else gpu
    dist.init_process_group("nccl", rank=rank, world_size=torch.cuda.device_count())
    torch.cuda.set_device(gpu)
    inputs = torch.arange(640.0).reshape(160, 4) / 640
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler, pin_memory=True, num_workers=1)
    model = DistributedDataParallel(torch.nn.Linear(4, 1).cuda(gpu), device_ids=[gpu])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in loader:
            x, y = x.cuda(gpu, non_blocking=True), y.to(f"cuda:{gpu}")
            with torch.autocast("cuda"):
                loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        torch.cuda.synchronize()


if __name__ == "__main__":
    mp.spawn(train, (sys.argv[1], sys.argv[2]), nprocs=torch.cuda.device_count())
