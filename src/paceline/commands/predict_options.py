"""What `paceline predict` can be told about a cluster, a paper's line and a batch."""

from dataclasses import dataclass
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from paceline.analysis.fabric import Algorithm
from paceline.core.config import MaybeWhole, Numbers, Whole

CLUSTER = Group("The cluster", sort_key=1)
PAPER = Group("Instead of a run: what a paper says", sort_key=2)
BATCH = Group("Batch and length", sort_key=3)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """What the ranks run on."""

    ranks: Annotated[Numbers, Parameter(group=CLUSTER)] = (2, 4, 8, 64)
    """Ranks to predict, as in 2,4,8,64."""
    per_node: Annotated[Whole, Parameter(group=CLUSTER)] = 1
    """Devices on each node."""
    link: Annotated[str | None, Parameter(group=CLUSTER)] = None
    """Between nodes: 10gbit (TCP), "25gbit rdma", "100gbit infiniband", EDR, 4xEDR; a profile's own when not given."""
    latency: Annotated[str | None, Parameter(group=CLUSTER)] = None
    """Of a message between nodes, software included, as in 50us."""
    intra: Annotated[str | None, Parameter(group=CLUSTER)] = None
    """Inside a node: nvlink (V100), nvlink1 (P100), nvlink3, nvswitch, pcie, pcie4, or a rate such as 10GB/s."""
    algorithm: Annotated[Algorithm | None, Parameter(group=CLUSTER)] = None
    """How gradients are summed; NCCL chooses between ring and tree, gloo uses a ring."""
    price: Annotated[float | None, Parameter(group=CLUSTER)] = None
    """Price of a device for an hour."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Paper:
    """What is known of a training job that never ran here."""

    model: Annotated[str | None, Parameter(group=PAPER)] = None
    """Model by name: resnet50, vgg16, bert-large, or one that paceline models lists."""
    parameters: Annotated[str | None, Parameter(group=PAPER)] = None
    """Its size, as in 25.6M, where the name is not known or another size is meant."""
    step_time: Annotated[str | None, Parameter(group=PAPER)] = None
    """Seconds of a step on one device, as in 0.345 or 345ms; needs --per-rank-batch."""
    images_per_second: Annotated[float | None, Parameter(group=PAPER)] = None
    """Images (or sequences) a second of one device, in place of --step-time."""
    gpu: Annotated[str | None, Parameter(group=PAPER)] = None
    """Device whose usual speed to take where neither is known: p100, v100, v100-fp16, a100, a100-fp16, h100-fp16."""
    gradients: Annotated[Literal["fp32", "fp16", "bf16"], Parameter(group=PAPER)] = "fp32"
    """Numbers that travel."""
    bucket: Annotated[str, Parameter(group=PAPER)] = "25MiB"
    """Bytes of gradients that travel together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """How many images, and for how long."""

    per_rank_batch: Annotated[float | None, Parameter(group=BATCH)] = None
    """Images that each rank computes at once, the same for any number of ranks (weak scaling)."""
    global_batch: Annotated[float | None, Parameter(group=BATCH)] = None
    """Images of a step over all ranks, shared among them (strong scaling)."""
    accumulate: Annotated[MaybeWhole, Parameter(group=BATCH)] = None
    """Micro-batches per step; gradients are exchanged once, in the last. Each has --per-rank-batch images, or an equal
    part of --global-batch. Default: as in the run, or 1."""
    compress: Annotated[Literal["none", "fp16", "bf16"], Parameter(group=BATCH)] = "none"
    """Let gradients travel in half the bytes."""
    images: Annotated[str | None, Parameter(group=BATCH)] = None
    """Images to train on in all, as in 115M (90 epochs of ImageNet), for time and cost."""
