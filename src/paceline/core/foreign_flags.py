"""Unknown flags: those of other trainers and launchers, and those that are mistyped."""

from collections.abc import Iterable

BATCH = ("--global-batch", "the samples per step over all devices; elsewhere it is often the batch of one device")
WORKERS = ("--workers", "data-loading processes per rank")
RUNS = ("--runs-dir", "the folder for all runs; each run gets a numbered folder below its --name")
PRECISION = ("--precision bf16", "or --precision fp16, which scales the loss")
PARTS = ("--accumulate", "micro-batches per step; --global-batch stays the same")
EPOCHS = ("--epochs", "")
STEPS = ("--steps", "optimizer steps")
CLIP = ("--clip", "the largest norm of the gradient")
LOG = ("--log-every", "steps between two records")
SAVE = ("--save-every", 'epochs, or steps as in "500 steps"')
EVALUATE = ("--eval-every", 'epochs, or steps as in "500 steps"')
TRACK = ("--track", "tensorboard, wandb, your own as my.py:Tracker, or none")
RESUME = ("--resume", "a run folder, or auto for the newest run of this --name")
RANKS = ("--nproc", "ranks on this machine, one per GPU by default")
MEET = ("--rendezvous HOST:PORT", "with --nnodes and --node-rank; --init-method tcp://HOST:PORT with --rank")
MODE = ("--mode", "ddp, fsdp, dp or single")
DATA = ("--data", "a data set, folder:PATH or my.py:build")
NAME = ("--name", "")
CPU = ("--device cpu", "")
DEVICE = ("--device", "cpu, cuda or cuda:1")
MIX = ("--augment", "a list of steps, such as crop4,flip,mixup0.2,cutmix1")
LONG_NAME = len("--12345678")
"""The length from which two typing mistakes are believed."""

FOREIGN = {
    "--batch-size": BATCH, "--train-batch-size": BATCH, "--per-device-train-batch-size": BATCH,
    "--per-gpu-train-batch-size": BATCH, "--micro-batch-size": BATCH, "--bs": BATCH,
    "--num-workers": WORKERS, "--dataloader-num-workers": WORKERS, "--n-workers": WORKERS,
    "--output-dir": RUNS, "--save-dir": RUNS, "--out-dir": RUNS, "--default-root-dir": RUNS, "--log-dir": RUNS,
    "--amp": PRECISION, "--mixed-precision": PRECISION, "--bf16": PRECISION,
    "--fp16": ("--precision fp16", ""), "--half": PRECISION,
    "--gradient-accumulation-steps": PARTS, "--accumulate-grad-batches": PARTS, "--grad-accum-steps": PARTS,
    "--max-epochs": EPOCHS, "--num-epochs": EPOCHS, "--num-train-epochs": EPOCHS,
    "--max-steps": STEPS, "--num-steps": STEPS, "--max-iters": STEPS, "--dry-run": ("--steps 1", ""),
    "--fast-dev-run": ("--steps 1", "one step, one evaluation, one test"),
    "--learning-rate": ("--lr", ""), "--wd": ("--weight-decay", ""), "--optim": ("--optimizer", ""),
    "--opt": ("--optimizer", ""), "--lr-scheduler": ("--schedule", ""), "--lr-scheduler-type": ("--schedule", ""),
    "--sched": ("--schedule", ""), "--warmup-epochs": ("--warmup", "epochs"), "--warmup-steps": ("--warmup", "epochs"),
    "--accelerator": DEVICE, "--gpu": DEVICE, "--local-batch-size": BATCH, "--seed-everything": ("--seed", ""),
    "--mixup": MIX, "--cutmix": MIX, "--color-jitter": MIX, "--reprob": MIX, "--auto-augment": MIX, "--aa": MIX,
    "--label-smoothing-factor": ("--label-smoothing", ""), "--weight-decay-rate": ("--weight-decay", ""),
    "--output": RUNS, "--output-folder": RUNS, "--workdir": RUNS, "--save": SAVE, "--checkpoint-freq": SAVE,
    "--clip-grad-norm": CLIP, "--clip-value": CLIP,
    "--grad-clip": CLIP, "--clip-grad": CLIP, "--max-grad-norm": CLIP, "--gradient-clip-val": CLIP,
    "--log-interval": LOG, "--logging-steps": LOG, "--log-freq": LOG, "--print-freq": LOG, "--log-every-n-steps": LOG,
    "--save-steps": SAVE, "--save-freq": SAVE, "--save-interval": SAVE, "--checkpoint-interval": SAVE,
    "--eval-steps": EVALUATE, "--eval-interval": EVALUATE, "--val-check-interval": EVALUATE,
    "--save-total-limit": ("--keep", "the newest checkpoints, besides the best one"),
    "--report-to": TRACK, "--logger": TRACK, "--wandb": TRACK, "--use-wandb": TRACK, "--log-wandb": TRACK,
    "--resume-from-checkpoint": RESUME, "--ckpt-path": RESUME, "--resume-from": RESUME, "--auto-resume": RESUME,
    "--pretrained": ("--init", "the weights of a run or a file"),
    "--gpus": RANKS, "--num-gpus": RANKS, "--num-processes": RANKS, "--n-gpus": RANKS, "--ngpus": RANKS,
    "--num-nodes": ("--nnodes", ""), "--num-machines": ("--nnodes", ""), "--machine-rank": ("--node-rank", ""),
    "--master-addr": MEET, "--master-port": MEET, "--main-process-ip": MEET, "--rdzv-endpoint": MEET,
    "--dist-url": ("--init-method", "tcp://HOST:PORT, file:///path or env://"),
    "--strategy": MODE, "--distributed": MODE, "--ddp": MODE, "--fsdp": MODE,
    "--dataset": DATA, "--data-path": DATA, "--data-root": DATA, "--arch": ("--model", ""),
    "--run-name": NAME, "--exp-name": NAME, "--experiment-name": NAME, "--experiment": NAME,
    "--sync-bn": ("--batch-norm sync", ""), "--sync-batchnorm": ("--batch-norm sync", ""),
    "--deterministic": ("--exact bitwise", "the same bits at every world size"),
    "--torch-compile": ("--compile", ""), "--img-size": ("--image-size", ""), "--resolution": ("--image-size", ""),
    "--gradient-checkpointing": ("--checkpoint-activations", 'the layers, as in "blocks.*"'),
    "--val-split": ("--valid-split", ""), "--smoothing": ("--label-smoothing", ""), "--model-ema": ("--ema", ""),
    "--early-stopping-patience": ("--patience", ""), "--no-cuda": CPU, "--cpu": CPU, "--use-cpu": CPU,
    "--g": RANKS, "--gpu-nums": RANKS, "--li": LOG, "--td": RUNS, "--train-dir": RUNS, "--dd": ("--data-dir", ""),
    "--dataset-dir": ("--data-dir", ""), "--sm": SAVE, "--save-model": SAVE, "--n-epochs": EPOCHS,
    "--optimiser": ("--optimizer", ""), "--decay-milestones": ("--milestones", "with --schedule milestones"),
    "--decay-steps": ("--decay-every", "epochs, with --schedule step"), "--padding": ("--augment", "crop4,flip"),
    "--brightness": MIX, "--contrast": MIX, "--load-checkpoint-dir": RESUME, "--half-precision": PRECISION,
    "--no-distributed": ("--mode single", "or dp, for several devices"), "--gpu-devices": ("--devices", ""),
    "--dist-backend": ("--backend", "the default is that of the device: nccl for cuda, gloo for cpu"),
}  # fmt: skip
"""By the spelling with hyphens."""


def foreign_flag_hint(name: str, own: set[str]) -> str | None:
    """Return which of a command's own flags does what a flag of another program does; None if it is not known."""
    found = FOREIGN.get(_spelling(name))
    if found is None or found[0].split()[0] not in own:
        return None
    return f"use {found[0]}: {found[1]}" if found[1] else f"use {found[0]}"


CHOICES = {
    "bf16-mixed": "bf16", "bf16-true": "bf16", "bfloat16": "bf16", "16-mixed": "fp16", "16": "fp16", "16-true": "fp16",
    "float16": "fp16", "half": "fp16", "32": "fp32", "32-true": "fp32", "float32": "fp32", "no": "fp32", "full": "fp32",
    "dataparallel": "dp", "distributed": "ddp", "onecycle": "one-cycle", "syncbn": "sync", "validation": "valid",
    "val": "valid",
}  # fmt: skip
"""Values of settings in other programs."""


def meant_choice(value: str, choices: Iterable[str]) -> str | None:
    """Return the choice that a value stands for, in another program or without a typing mistake; None if unclear."""
    known = list(choices)
    typed = value.strip().lower().replace("_", "-")
    found = CHOICES.get(typed, typed)
    return found if found in known else next((one for one in known if len(one) > 3 and mistakes(typed, one) == 1), None)


def nearest_flag(name: str, own: Iterable[str]) -> str | None:
    """Return the flag that a mistyped one most likely stands for; None where that would be a guess.

    Likely is one typing mistake, two in a long name, or a name of ours with more words after it.
    """
    if not name.startswith("--"):
        return None
    typed, known = _spelling(name), sorted({flag for flag in own if flag.startswith("--")})
    longer = [flag for flag in known if typed.startswith(f"{flag}-")]
    if longer:
        return max(longer, key=len)
    most = 1 if len(typed) < LONG_NAME else 2
    close = [(mistakes(typed, flag), abs(len(typed) - len(flag)), flag) for flag in known]
    return next((flag for number, _, flag in sorted(close) if number <= most), None)


def mistakes(typed: str, meant: str) -> int:
    """Return the number of letters that were added, left out, replaced or swapped with their neighbour."""
    before: list[int] = []
    row = list(range(len(meant) + 1))
    for line, letter in enumerate(typed, start=1):
        earlier, before, row = before, row, [line]
        for column, other in enumerate(meant, start=1):
            swapped = line > 1 and column > 1 and (letter, other) == (meant[column - 2], typed[line - 2])
            ways = [before[column] + 1, row[-1] + 1, before[column - 1] + (letter != other)]
            row.append(min([*ways, earlier[column - 2] + 1] if swapped else ways))
    return row[-1]


def _spelling(name: str) -> str:
    return "--" + name.lstrip("-").partition("=")[0].replace("_", "-").lower()
