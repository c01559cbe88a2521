"""The options of `paceline predict`: the cluster, the model spec and the batch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from paceline.core.setting_types import MaybeWhole, Names, Numbers, Whole
from paceline.predict.fabric import Algorithm

CLUSTER = Group("Cluster", sort_key=1)
MODEL_SPEC = Group("Model spec, instead of a run", sort_key=2)
BATCH = Group("Batch and length", sort_key=3)
KNOWN = Group("What is known", sort_key=4)
QUESTION = Group("Question", sort_key=5)


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterOptions:
    """Ranks, nodes and links."""

    ranks: Annotated[Numbers, Parameter(group=CLUSTER)] = (2, 4, 8, 64)
    """Numbers of ranks to predict, such as 2,4,8,64."""
    per_node: Annotated[Whole, Parameter(group=CLUSTER)] = 1
    """Devices per node."""
    link: Annotated[str | None, Parameter(group=CLUSTER)] = None
    """Link between nodes: 10gbit (TCP), "25gbit rdma", "100gbit infiniband", EDR, 4xEDR. Default: from the profile."""
    latency: Annotated[str | None, Parameter(group=CLUSTER)] = None
    """Latency of a message between nodes, including software, such as 50us."""
    intra: Annotated[str | None, Parameter(group=CLUSTER)] = None
    """Link inside a node: nvlink (V100), nvlink1 (P100), nvlink3, nvswitch, pcie, pcie4, or a rate such as 10GB/s."""
    sweep: Annotated[Path | None, Parameter(group=CLUSTER)] = None
    """File with the output of paceline doctor --json on the real link, instead of --link."""
    algorithm: Annotated[Algorithm | None, Parameter(group=CLUSTER)] = None
    """All-reduce algorithm; NCCL chooses between ring and tree, gloo uses a ring."""
    price: Annotated[float | None, Parameter(group=CLUSTER)] = None
    """Price per device and hour."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec:
    """The spec of a training job that has not run here: the model, and the speed of one device."""

    model: Annotated[str | None, Parameter(group=MODEL_SPEC)] = None
    """Model: resnet50, vgg16, bert-large, or a name listed by paceline models."""
    parameters: Annotated[str | None, Parameter(group=MODEL_SPEC)] = None
    """Number of parameters, such as 25.6M, for an unknown model or another size."""
    step_time: Annotated[str | None, Parameter(group=MODEL_SPEC)] = None
    """Time of a step on one device, such as 0.345 (seconds) or 345ms; needs --per-rank-batch."""
    samples_per_second: Annotated[float | None, Parameter(alias="--images-per-second", group=MODEL_SPEC)] = None
    """Samples per second of one device, instead of --step-time."""
    gpu: Annotated[str | None, Parameter(group=MODEL_SPEC)] = None
    """Device with a known typical speed, instead of both: p100, v100, v100-fp16, a100, a100-fp16, h100-fp16."""
    gradients: Annotated[Literal["fp32", "fp16", "bf16"], Parameter(group=MODEL_SPEC)] = "fp32"
    """Data type in which gradients are sent."""
    bucket: Annotated[str, Parameter(group=MODEL_SPEC)] = "25MiB"
    """Size of a gradient bucket."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchOptions:
    """Batch size and length of training."""

    per_rank_batch: Annotated[float | None, Parameter(group=BATCH)] = None
    """Samples per rank and micro-batch, the same for any number of ranks (weak scaling)."""
    global_batch: Annotated[float | None, Parameter(group=BATCH)] = None
    """Samples per step over all ranks, divided among them (strong scaling)."""
    accumulate: Annotated[MaybeWhole, Parameter(group=BATCH)] = None
    """Micro-batches per step; gradients are synchronised once, in the last. Each has --per-rank-batch samples, or an
    equal part of --global-batch. Default: as in the run, or 1."""
    compress: Annotated[Literal["none", "fp16", "bf16"], Parameter(group=BATCH)] = "none"
    """Cast gradients to 16 bits for all-reduce, to send half the bytes."""
    samples: Annotated[str | None, Parameter(alias="--images", group=BATCH)] = None
    """Total samples to train on, such as 115M (90 epochs of ImageNet), for time and cost."""
    epochs: Annotated[MaybeWhole, Parameter(group=BATCH)] = None
    """Epochs in which these samples are trained, for --per-epoch. Default: as in the run."""
    per_epoch: Annotated[str | None, Parameter(group=BATCH)] = None
    """Time per epoch that does not depend on the ranks, such as 9s: evaluation, checkpoints."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownOptions:
    """What is known about the trainer, and was measured with it."""

    measured: Annotated[Names, Parameter(group=KNOWN)] = ()
    """Measured samples per second of all ranks, as ranks:rate, such as 8:2456; several allowed."""
    trainer: Annotated[Literal["any", "ddp", "horovod"], Parameter(group=KNOWN)] = "any"
    """How gradients are synchronised: ddp (PyTorch), horovod, or any, which is between them."""
    overlap: Annotated[Literal["auto", "none", "full"], Parameter(group=KNOWN)] = "auto"
    """Overlap of communication with the backward pass: none for trainers that exchange gradients after it."""
    data_rate: Annotated[str | None, Parameter(group=KNOWN)] = None
    """Samples per second that the input pipeline of a node can prepare, such as 5000, or "synthetic" for no limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QuestionOptions:
    """The question to answer first."""

    worth: Annotated[MaybeWhole, Parameter(group=QUESTION)] = None
    """Compare the first number of --ranks with this many more nodes."""
    budget: Annotated[float | None, Parameter(group=QUESTION)] = None
    """Choose the number of nodes that finishes first for at most this price; needs --price and --samples."""
    deadline: Annotated[str | None, Parameter(group=QUESTION)] = None
    """Choose the smallest number of nodes that finishes within this time, such as 12h; needs --samples."""
