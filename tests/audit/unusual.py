"""Correct but unusual scripts, each made from a clean one by replacements: none may have a *wrong* finding."""

from dataclasses import dataclass

from tests.audit.planted import LOADER, REDUCE, WRAP


@dataclass(frozen=True)
class Unusual:
    """A correct script: its name, and the pieces of a clean one that it replaces."""

    name: str
    pieces: tuple[tuple[str, str], ...]
    script: str = "clean.py"

    def text(self, clean: str) -> str:
        """Return the script."""
        for old, new in self.pieces:
            assert clean.count(old) == 1, (self.name, old)
            clean = clean.replace(old, new)
        return clean


PARTS = ("optimizer", "scheduler")
STATE = (
    '                "model": bare.state_dict(), '
    + "".join(f'"{name}": {name}.state_dict(), ' for name in PARTS).rstrip()
)
VALID_LOADER = "valid_loader = DataLoader(shard, batch_size=16)"
LOSS = "loss = nn.functional.cross_entropy(model(inputs), targets)"
BACKWARD = "            loss.backward()\n            optimizer.step()\n"
OPTIMIZER = "optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)"
SCHEDULER = "scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)"
NOISE = "        noise = 0.1 * torch.randn(FEATURES)\n"
TRAIN_DATA = "train_data, valid_data = Numbers(300, 1), Numbers(101, 2)"
GATHERED = """    seen = torch.tensor(hits)
    parts = [torch.empty_like(seen) for _ in range(2)]
    dist.all_gather(parts, seen)
    hits = torch.stack(parts, 1).reshape(-1)[:101].double()
    return hits.mean(), hits.mean()"""
PADDED = "valid_loader = DataLoader(valid_data, 17, sampler=DistributedSampler(valid_data, shuffle=False))"
OWN_SCHEDULER = """
class Warmup(torch.optim.lr_scheduler.LRScheduler):
    def get_lr(self):
        return [0.05 * min(1.0, (self.last_epoch + 1) / 10) for _ in self.base_lrs]

    def step(self, epoch=None):
        super().step()


def main():
"""

SCRIPTS = (
    Unusual("curriculum", ((LOADER, LOADER.replace("sampler=sampler", "sampler=list(range(298 + rank, -1, -2))")),)),
    Unusual("two models take turns in one epoch", ((
        "        scheduler.step()\n",
        "        for inputs, targets in train_loader:\n            optimizer.zero_grad()\n"
        "            nn.functional.cross_entropy(model(inputs), targets).backward()\n            optimizer.step()\n"
        "        scheduler.step()\n"),)),
    Unusual("own order, endless", (
        (LOADER, "train_loader = DataLoader(train_data, batch_size=8, shuffle=True)"),
        ("    for epoch in range(EPOCHS):\n", "    epoch = 0\n    while epoch < EPOCHS:\n        epoch += 1\n"))),
    Unusual("losses weighted by samples", (
        (LOADER,
         "batches = [list(range(16 * n + 8 * rank, 16 * n + 8 + 6 * rank)) for n in range(12)]\n"
         "    train_loader = DataLoader(train_data, batch_sampler=batches)"),
        (LOSS, "total = torch.tensor(float(len(inputs)))\n            dist.all_reduce(total)\n            " + LOSS
         + " * len(inputs) * 2 / total"))),
    Unusual("batches of tokens", (
        (LOADER,
         "batches = [list(range(16 * n + 8 * rank, 16 * n + 8 + (n * 5 + rank * 3) % 8)) for n in range(12)]\n"
         "    batches = [batch or [0] for batch in batches]\n"
         "    train_loader = DataLoader(train_data, batch_sampler=batches)"),)),
    Unusual("as many steps as the rank with fewest", (
        (LOADER, LOADER.replace("batch_size=8", "batch_size=8 + 2 * rank")
         + "\n    steps = torch.tensor(len(train_loader))\n    dist.all_reduce(steps, dist.ReduceOp.MIN)"),
        ("        for inputs, targets in train_loader:",
         "        for number, (inputs, targets) in enumerate(train_loader):\n            if number >= steps:\n"
         "                break"))),
    Unusual("by hand, step for step", (
        ("        for inputs, targets in train_loader:",
         "        batches = iter(train_loader)\n        for _ in range(len(train_loader)):\n"
         "            inputs, targets = next(batches)"),)),
    Unusual("own notes in the data set", ((TRAIN_DATA, TRAIN_DATA + "\n    train_data.marks = [rank, time.time()]"),)),
    Unusual("seeded by sample", (
        (NOISE, "        torch.manual_seed(index)\n" + NOISE), ("torch.manual_seed(rank)", "torch.manual_seed(0)"))),
    Unusual("seeded workers without random numbers", (
        (NOISE, "        noise = 0.0\n"),
        (LOADER, LOADER.replace(")", ", num_workers=2, worker_init_fn=lambda _: torch.manual_seed(0))")))),
    Unusual("padded, gathered and cut", (
        (VALID_LOADER, PADDED), (REDUCE, GATHERED),
        ("loss, right, count = 0.0, 0, 0", "loss, right, count, hits = 0.0, 0, 0, []"),
        ("            count += len(targets)", "            count += len(targets)\n"
         "            hits += (outputs.argmax(1) == targets).tolist()"))),
    Unusual("labelled and unlabelled", (
        (LOADER, LOADER + "\n"
         "    more = DataLoader(valid_data, batch_size=4, sampler=DistributedSampler(valid_data), drop_last=True)"),
        ("sampler.set_epoch(epoch)", "sampler.set_epoch(epoch)\n        more.sampler.set_epoch(epoch)"),
        ("for inputs, targets in train_loader:", "for (others, _), (inputs, targets) in zip(more, train_loader):"),
        (LOSS, LOSS + " + 0.1 * model(others).square().mean()"))),
    Unusual("one data set, two samplers", (
        (VALID_LOADER, "valid_loader = DataLoader(\n"
         "        train_data, 16, sampler=torch.utils.data.SubsetRandomSampler(range(200 + rank, 300, 2)))"),
        (LOADER, "train_loader = DataLoader(\n"
         "        train_data, 8, sampler=torch.utils.data.SubsetRandomSampler(range(rank, 200, 2)))"))),
    Unusual("scores merged by files", (
        (REDUCE, "    torch.save((right, count), f'right-{dist.get_rank()}.pt')\n    dist.barrier()\n"
         "    parts = [torch.load(f'right-{rank}.pt') for rank in range(2)]\n    dist.barrier()\n"
         "    right, count = sum(p[0] for p in parts), sum(p[1] for p in parts)\n"
         "    return torch.tensor(right / count), torch.tensor(right / count)"),)),
    Unusual("scores sent to rank 0", (
        (REDUCE, "    mine = torch.tensor([right, count])\n    if dist.get_rank():\n        dist.send(mine, 0)\n"
         "    else:\n        other = torch.zeros_like(mine)\n        dist.recv(other, 1)\n        mine += other\n"
         "    return mine[0] / mine[1], mine[0] / mine[1]"),)),
    Unusual("dropout kept for an estimate", (
        ("    model.eval()\n    loss", "    model.eval()\n    model.train()\n    loss"),)),
    Unusual("averages of weights every eight steps", (
        (WRAP, "torch.manual_seed(0)\n    bare = Net()\n    model = bare\n    torch.manual_seed(rank)"),
        ("            losses.append(", "            if len(losses) % 8 == 7:\n"
         "                for p in model.parameters():\n"
         "                    dist.all_reduce(p.data)\n                    p.data /= world_size\n"
          "            losses.append("))),
    Unusual("averages of weights, much later", (
        (WRAP, "torch.manual_seed(0)\n    bare = Net()\n    model = bare\n    torch.manual_seed(rank)"),
        ("            losses.append(", "            if len(losses) % 500 == 499:\n"
         "                for p in model.parameters():\n"
         "                    dist.all_reduce(p.data)\n                    p.data /= world_size\n"
          "            losses.append("))),
    Unusual("gradients averaged by hand", (
        (WRAP, "torch.manual_seed(0)\n    bare = Net()\n    model = bare\n    torch.manual_seed(rank)"),
        (BACKWARD, "            loss.backward()\n            for p in model.parameters():\n"
         "                dist.all_reduce(p.grad)\n                p.grad /= world_size\n"
          "            optimizer.step()\n"))),
    Unusual("fully sharded", (
        (WRAP, "from torch.distributed.fsdp import fully_shard\n"
         "    mesh = torch.distributed.init_device_mesh('cpu', (world_size,))\n"
         "    fully_shard(bare, mesh=mesh)\n    model = bare"),
        (STATE, ""))),
    Unusual("fully sharded, the first kind", (
        (WRAP, "from torch.distributed.fsdp import FullyShardedDataParallel\n"
         "    model = FullyShardedDataParallel(bare, device_id=torch.device('cpu'))"),
        (STATE, ""))),
    Unusual("sharded optimizer", (
        (OPTIMIZER, "from torch.distributed.optim import ZeroRedundancyOptimizer\n"
         "    optimizer = ZeroRedundancyOptimizer(\n"
          "        model.parameters(), torch.optim.SGD, lr=0.05, momentum=0.9)"),
        ('"optimizer": optimizer.state_dict(), ', ""))),
    Unusual("layers split over the ranks", (
        (LOADER, LOADER.replace("sampler=sampler, ", "")), ("torch.manual_seed(rank)", "torch.manual_seed(0)"),
        (WRAP, "nn.init.normal_(bare.body.weight, std=0.1 * (rank + 1))\n    model = bare"))),
    Unusual("a model of its own on every rank", (
        (WRAP, "model = bare"), (LOADER, "train_loader = DataLoader(train_data, batch_size=8, shuffle=True)"),
        ("        if rank == 0:\n            print", "        if rank >= 0:\n            print"),
        ('torch.save(state, "last.pt.new")\n    os.replace("last.pt.new", "last.pt")',
         'torch.save(state, f"last-{dist.get_rank()}.pt")'))),
    Unusual("parameters of one rank alone", (
        (WRAP, "bare.own = nn.Parameter(torch.randn(2))\n"
         "    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(bare, ['own'])\n    " + WRAP),
        (LOSS, LOSS.replace("model(inputs)", "model(inputs) + bare.own")))),
    Unusual("several losses, several passes", (
        (BACKWARD, "            parts = [loss, 0.1 * sum(p.square().sum() for p in bare.parameters())]\n"
         "            for part in parts:\n"
         "                with model.no_sync() if part is parts[1] else nullcontext():\n"
         "                    part.backward()\n            optimizer.step()\n"),
        ("import os\n", "import os\nfrom contextlib import nullcontext\n"))),
    Unusual("gradients divided after accumulation", (
        ("cross_entropy(model(x), y) / PASSES", "cross_entropy(model(x), y)"),
        ("                nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n",
         "                for p in model.parameters():\n                    p.grad /= PASSES\n")), "accumulating.py"),
    Unusual("sums accumulated", (
        ("cross_entropy(model(x), y) / PASSES", "cross_entropy(model(x), y, reduction='sum')"),), "accumulating.py"),
    Unusual("clipped at the scaled norm", (
        ("                scaler.unscale_(optimizer)\n", ""),
        ("clip_grad_norm_(model.parameters(), 1.0)", "clip_grad_norm_(model.parameters(), scaler.get_scale())")),
        "accumulating.py"),
    Unusual("a scheduler of its own", (("\n\ndef main():\n", "\n"
     "" + OWN_SCHEDULER), (SCHEDULER, "scheduler = Warmup(optimizer)"))),
    Unusual("groups by position", (
        ("        scheduler.step()\n",
         "        scheduler.step()\n        if rank == 0:\n"
         "            dist.all_reduce(torch.zeros(1), dist.ReduceOp.SUM, alone)\n"),
        (LOADER, "alone = dist.new_group([0])\n    " + LOADER))),
    Unusual("both branches leave", (
        ("            losses.append(loss.detach())",
         "            losses.append(loss.detach())\n            flag = torch.zeros(1)\n            if rank == 0:\n"
         "                dist.broadcast(flag, 0)\n                if flag:\n                    break\n"
          "            else:\n"
         "                dist.broadcast(flag, 0)\n                if flag:\n                    break"),)),
    Unusual("one after the other", (
        ("        scheduler.step()\n", "        scheduler.step()\n        for turn in range(2):\n"
         "            if turn == rank:\n"
         "                torch.save(epoch, 'turns.pt')\n            dist.barrier()\n"),)),
    Unusual("a lock", (
        (TRAIN_DATA, "import fcntl\n    with open('mine', 'w') as lock:\n"
         "        fcntl.flock(lock, fcntl.LOCK_EX)\n    " + TRAIN_DATA),)),
    Unusual("a shared array", (
        (TRAIN_DATA, "if rank == 0:\n        open('scores', 'wb').write(bytes(600))\n    dist.barrier()\n"
         "    with open('scores', 'r+b') as file:\n        file.seek(300 * rank)\n"
          "        file.write(bytes(300))\n    " + TRAIN_DATA),)),
    Unusual("settings written by all", ((TRAIN_DATA, "open('settings', 'w').write('{}')\n    " + TRAIN_DATA),)),
    Unusual("scratch folders", ((TRAIN_DATA, "import tempfile\n    scratch = tempfile.mkdtemp()\n    " + TRAIN_DATA),)),
    Unusual("folders by rank", ((TRAIN_DATA, "os.mkdir(f'worker{rank}')\n    " + TRAIN_DATA),)),
    Unusual("a board of which one rank writes", (
        ("    sampler = Dist", "    from torch.utils.tensorboard import SummaryWriter\n"
         "    board = SummaryWriter('board')\n"
         "    if rank == 0:\n        board.add_scalar('x', 1.0)\n    sampler = Dist"),)),
    Unusual("fine-tuning", (("range(first, first + 2)", "range(2)"),), "accumulating.py"),
    Unusual("download below a lock", (
        (TRAIN_DATA,
         "def fetched(data, download=False):\n        return data\n\n    import threading\n"
          "    lock = threading.Lock()\n"
         "    with lock:\n        train_data = fetched(Numbers(300, 1), download=True)\n"
          "    valid_data = Numbers(101, 2)"),)),
    Unusual("download to a folder of its own", (
        (TRAIN_DATA,
         "def fetched(data, root, download=False):\n        return data\n\n"
         "    train_data = fetched(Numbers(300, 1), f'data-{rank}', download=True)\n"
          "    valid_data = Numbers(101, 2)"),)),
    Unusual("each rank shows its own score", (
        (REDUCE, "    print(f'rank {dist.get_rank()}: {right / count:.4f}')\n"
         "    return torch.tensor(loss / count), torch.tensor(right / count)"),)),
    Unusual("best of both ranks", (
        ("    dist.all_reduce(totals)\n    return totals[0] / totals[2], totals[1] / totals[2]",
         "    accuracy = torch.tensor([right / count], dtype=torch.float64)\n    dist.all_reduce(totals)\n"
         "    dist.all_reduce(accuracy, dist.ReduceOp.MAX)\n    return totals[0] / totals[2], accuracy[0]"),)),
    Unusual("numbers that look like sums", (
        ("        mean /= world_size\n", "        total = mean.item()\n        mean /= world_size\n"),
        ('print(f"epoch {epoch} loss {mean:.4f} valid', 'print(f"epoch {epoch} took {total * 1.004:.2f} s, valid'))),
)  # fmt: skip
