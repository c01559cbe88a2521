"""Mistakes, each planted in a script without any by replacing a piece of it: script and twin differ in nothing else."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Planted:
    """A mistake: the rule that must find it, and the replacement that makes it."""

    rule: str
    old: str
    new: str
    script: str = "clean.py"
    line: str | None = None
    """A piece of the line that must be named; the first line of `new` by default."""

    def text(self, clean: str) -> str:
        """Return the script with the mistake."""
        assert clean.count(self.old) == 1, (self.rule, self.old)
        return clean.replace(self.old, self.new)

    @property
    def place(self) -> str:
        """A piece of the line that must be named."""
        return self.line or next(line for line in self.new.strip().splitlines()).strip()


LOADER = "train_loader = DataLoader(train_data, batch_size=8, sampler=sampler, drop_last=True)"
VALID = "shard = Subset(valid_data, range(rank, len(valid_data), world_size))"
REDUCE = """    totals = torch.tensor([loss, right, count], dtype=torch.float64)
    dist.all_reduce(totals)
    return totals[0] / totals[2], totals[1] / totals[2]"""
TRAIN_LOOP = "for inputs, targets in train_loader:"
STEP = "optimizer.step()\n            losses"
WRAP = "model = DistributedDataParallel(bare)"

MISTAKES = (
    Planted("same-order", "sampler.set_epoch(epoch)", "pass", line=TRAIN_LOOP),
    Planted("never-shuffled", "DistributedSampler(train_data, seed=3)", "DistributedSampler(train_data, shuffle=False)",
            line=TRAIN_LOOP),
    Planted("same-batches", LOADER, LOADER.replace("sampler=sampler, ", ""), line=TRAIN_LOOP),
    Planted("not-sharded", LOADER, LOADER.replace("sampler=sampler", "shuffle=True"), line=TRAIN_LOOP),
    Planted("lost-samples", "DistributedSampler(train_data, seed=3)",
            "DistributedSampler(train_data, num_replicas=4, rank=rank)", line=TRAIN_LOOP),
    Planted("uneven-batches", LOADER,
            "batches = [list(range(16 * n + 8 * rank, 16 * n + 8 + 8 * rank)) for n in range(11)]\n"
            "    batches.append(list(range(176 + 8 * rank, 184 + 6 * rank)))\n"
            "    train_loader = DataLoader(train_data, batch_sampler=batches)", line=TRAIN_LOOP),
    Planted("uneven-steps", LOADER, LOADER.replace("batch_size=8", "batch_size=8 + 2 * rank"), line=TRAIN_LOOP),
    Planted("split-differs", "train_data, valid_data = Numbers(300, 1), Numbers(101, 2)",
            "train_data, valid_data = torch.utils.data.random_split(Numbers(400, 1), [300, 100])", line=LOADER),
    Planted("dataset-differs", "Numbers(300, 1)", "Numbers(300, rank)", line=LOADER),
    Planted("same-augmentation", "torch.manual_seed(rank)", "torch.manual_seed(0)", line=LOADER),
    Planted("same-dropout", "torch.manual_seed(rank)", "torch.manual_seed(0)", line="loss.backward()"),
    Planted("same-workers", LOADER,
            LOADER.replace(")", ", num_workers=2, worker_init_fn=lambda _: torch.manual_seed(0))"), line="num_workers"),
    Planted("eval-padded", "valid_loader = DataLoader(shard, batch_size=16)",
            "valid_loader = DataLoader(valid_data, 16, sampler=DistributedSampler(valid_data, shuffle=False))"),
    Planted("eval-dropped", "valid_loader = DataLoader(shard, batch_size=16)",
            "valid_loader = DataLoader(shard, batch_size=16, drop_last=True)"),
    Planted("eval-everywhere", "DataLoader(shard, batch_size=16)", "DataLoader(valid_data, batch_size=16)",
            line="for inputs, targets in loader:"),
    Planted("eval-not-reduced", REDUCE, "    return torch.tensor(loss / count), torch.tensor(right / count)",
            line="for inputs, targets in loader:"),
    Planted("metric-summed", "        mean /= world_size\n", "", line="dist.all_reduce(mean)"),
    Planted("mean-of-means", "    dist.all_reduce(totals)\n    return totals[0] / totals[2], totals[1] / totals[2]",
            "    accuracy = torch.tensor([right / count], dtype=torch.float64)\n    dist.all_reduce(accuracy)\n"
            "    return totals[0], accuracy[0] / 2", line="dist.all_reduce(accuracy)"),
    Planted("eval-models", WRAP,
            "bare.norm = nn.BatchNorm1d(32)\n    model = DistributedDataParallel(bare, broadcast_buffers=False)",
            line="outputs = model(inputs)"),
    Planted("eval-in-training-mode", "    model.eval()\n", "", line="outputs = model(inputs)"),
    Planted("stays-in-eval-mode", "        model.train()\n", "", line="loss.backward()"),
    Planted("replicas-differ", "loss.backward()", "loss.backward()\n            bare.head.bias.grad += rank",
            line=WRAP),
    Planted("bypassed-ddp", "cross_entropy(model(inputs), targets)", "cross_entropy(bare(inputs), targets)",
            line="loss.backward()"),
    Planted("loaded-on-one-rank", WRAP,
            WRAP + "\n    if rank == 0:\n        bare.load_state_dict(Net().state_dict())", line="load_state_dict"),
    Planted("unused-parameters", "        self.head = nn.Linear(32, 2)",
            "        self.head = nn.Linear(32, 2)\n        self.other = nn.Linear(32, 2)", line=WRAP),
    Planted("needless-search", WRAP, "model = DistributedDataParallel(bare, find_unused_parameters=True)"),
    Planted("nothing-learned", "torch.optim.SGD(model.parameters()", "torch.optim.SGD(Net().parameters()",
            line="loss.backward()"),
    Planted("gradients-kept", "            optimizer.zero_grad()\n", "", line="loss.backward()"),
    Planted("local-batch-norm", "nn.LayerNorm(32)", "nn.BatchNorm1d(32)", line=WRAP),
    Planted("accumulate-sync", "nullcontext() if is_last else model.no_sync()", "nullcontext()", "accumulating.py",
            line="backward()"),
    Planted("accumulate-scale", "cross_entropy(model(x), y) / PASSES", "cross_entropy(model(x), y)", "accumulating.py",
            line="backward()"),
    Planted("clip-scaled", "                scaler.unscale_(optimizer)\n", "", "accumulating.py",
            line="clip_grad_norm_"),
    Planted("schedule-unit", "loss.detach())\n        scheduler.step()",
            "loss.detach())\n            scheduler.step()", line="scheduler.step()"),
    Planted("schedule-first", "            optimizer.step()\n            losses",
            "            scheduler.step()\n            optimizer.step()\n            losses", line="scheduler.step()"),
    Planted("collectives-differ", "        scheduler.step()\n",
            "        scheduler.step()\n        if rank == 0:\n            dist.broadcast(torch.zeros(1), 0)\n",
            line="dist."),
    Planted("one-rank-leaves", "            losses.append(loss.detach())",
            "            losses.append(loss.detach())\n            if rank == 0:\n                if loss < 1e-9:\n"
            "                    break", line="break"),
    Planted("one-rank-fails", "        scheduler.step()\n",
            "        scheduler.step()\n        if rank == 1:\n            raise ValueError('no space')\n",
            line="raise"),
    Planted("barrier-in-loop", STEP, "optimizer.step()\n            dist.barrier()\n            losses",
            line="dist.barrier()"),
    Planted("same-file", "        if rank == 0:\n            print", "        if True:\n            print",
            line="torch.save"),
    Planted("same-log", "        scheduler.step()\n",
            "        scheduler.step()\n        open('log.txt', 'a').write('epoch\\n')\n", line="log.txt"),
    Planted("own-folder", "    sampler = Dist", "    os.mkdir(f'run-{time.time_ns()}')\n    sampler = Dist",
            line="os.mkdir"),
    Planted("same-board", "    sampler = Dist",
            "    from torch.utils.tensorboard import SummaryWriter\n    SummaryWriter('board').add_scalar('x', 1.0)\n"
            "    sampler = Dist", line="SummaryWriter('board')"),
    Planted("incomplete-checkpoint", '"optimizer": optimizer.state_dict(), ', "", line="torch.save"),
    Planted("overwritten-checkpoint", '    torch.save(state, "last.pt.new")\n    os.replace("last.pt.new", "last.pt")',
            '    torch.save(state, "last.pt")'),
    Planted("resume-at-zero", "range(first, first + 2)",
            "(optimizer.load_state_dict(optimizer.state_dict()), 0, 1)[1:]", "accumulating.py", line="torch.load"),
    Planted("download-by-all", "    train_data, valid_data = Numbers(300, 1), Numbers(101, 2)",
            "    def fetched(data, download=False):\n        return data\n\n"
            "    train_data, valid_data = fetched(Numbers(300, 1), download=True), Numbers(101, 2)",
            line="download=True"),
    Planted("fixed-address", 'dist.init_process_group("gloo")\n    rank, world_size',
            "url, rank = 'tcp://127.0.0.1:' + os.environ['MASTER_PORT'], int(os.environ['RANK'])\n"
            '    dist.init_process_group("gloo", url, world_size=2, rank=rank)\n'
            "    rank, world_size", line="dist.init_process_group"),
    Planted("read-every-step", "losses.append(loss.detach())",
            "losses.append(loss.detach())\n            print(loss.item())", line="loss.item()"),
    Planted("schedule-per-rank", "loss.detach())\n        scheduler.step()",
            "loss.detach())\n            for _ in range(world_size):\n                scheduler.step()",
            line="scheduler.step()"),
    Planted("clock-after-batch", "            optimizer.zero_grad()\n",
            "            start = time.time()\n            optimizer.zero_grad()\n", "timed.py"),
    Planted("fork-with-threads", LOADER,
            "import threading\n    threading.Thread(target=time.sleep, args=(20,), daemon=True).start()\n    "
            + LOADER.replace(")", ", num_workers=1)"), line=TRAIN_LOOP),
    Planted("no-workers", "        noise =", "        time.sleep(0.01)\n        noise =", line=LOADER),
)  # fmt: skip
