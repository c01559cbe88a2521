"""Flags of other trainers and launchers, and the flag of Paceline to use instead."""

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
TRACK = ("--track", "tensorboard, wandb, both separated by a comma, or none")
RESUME = ("--resume", "a run folder, or auto for the newest run of this --name")
RANKS = ("--nproc", "ranks on this machine, one per GPU by default")
MEET = ("--rendezvous HOST:PORT", "with --nnodes and --node-rank; --init-method tcp://HOST:PORT with --rank")
MODE = ("--mode", "ddp, fsdp, dp or single")
DATA = ("--data", "a data set, folder:PATH or my.py:build")
NAME = ("--name", "")
CPU = ("--device cpu", "")

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
    "--learning-rate": ("--lr", ""), "--wd": ("--weight-decay", ""), "--optim": ("--optimizer", ""),
    "--opt": ("--optimizer", ""), "--lr-scheduler": ("--schedule", ""), "--lr-scheduler-type": ("--schedule", ""),
    "--sched": ("--schedule", ""), "--warmup-epochs": ("--warmup", "epochs"), "--warmup-steps": ("--warmup", "epochs"),
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
    "--dist-backend": ("--device", "which decides the backend: nccl for cuda, gloo for cpu"),
    "--backend": ("--device", "which decides the backend: nccl for cuda, gloo for cpu"),
}  # fmt: skip
"""By the spelling with hyphens."""


def foreign_flag_hint(name: str, own: set[str]) -> str | None:
    """Return which of a command's own flags does what a flag of another program does; None if it is not known."""
    found = FOREIGN.get("--" + name.lstrip("-").partition("=")[0].replace("_", "-").lower())
    if found is None or found[0].split()[0] not in own:
        return None
    return f"use {found[0]}: {found[1]}" if found[1] else f"use {found[0]}"
