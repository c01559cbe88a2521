"""A training job known by its model spec: layers, the step time of one device, devices per node, link."""

from dataclasses import dataclass

from paceline.predict.architectures import Layer
from paceline.predict.fabric import Algorithm, Fabric, NamedLink
from paceline.predict.simulate import Overhead, Workload
from paceline.predict.uncertainty import Uncertainty

FORWARD, BACKWARD, UPDATE = 0.33, 0.65, 0.02
"""Fractions of a step: the backward pass has twice the FLOPs of the forward pass."""
FIRST_BUCKET, BUCKET = 1 << 20, 25 << 20
"""Bytes after which DDP closes its first bucket and the others."""
SPREAD = 0.007
"""Relative standard deviation of a GPU's compute time from step to step."""
SLOWDOWN = 0.10
"""Slowdown of computing by NCCL's kernels, which occupy SMs of a GPU and its memory bandwidth."""
FRACTION = 0.035
"""Lower clocks of devices that share power and cooling, and hooks per layer, as a fraction of the compute time."""
PER_DOUBLING = 0.015
"""Loss for each doubling of the nodes, as a fraction of the compute time: slower hosts, other jobs, remote storage."""
CROWDING = 0.06
"""Each doubling of the nodes costs 4% of the bandwidth between them."""
IMAGES_PER_NODE = 40_000
"""Images per second that the input pipeline of a node decodes and augments."""
REMOTE_STORAGE = 0.7
"""Fraction of that rate if several nodes read from shared storage."""
UNCERTAINTY = {
    "latency": 0.5,
    "loss": 1.4,
    "alone": 0.018,
    "slope": 1.0,
    "overlap": 1.5,
    "data": 0.7,
    "pace": 0.01,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Trainer:
    """How a trainer synchronises gradients."""

    seconds: float
    """Per step: starting collectives, agreeing on what is ready, waking up."""
    per_parameter: float
    """Seconds per step and parameter: copies into and out of buckets, casts, checks for overflow."""
    overlap: float
    """Fraction of the possible overlap with the backward pass."""


TRAINERS = {
    "ddp": Trainer(seconds=1e-3, per_parameter=12e-12, overlap=0.7),
    "horovod": Trainer(seconds=7e-3, per_parameter=35e-12, overlap=0.8),
    "any": Trainer(seconds=5e-3, per_parameter=15e-12, overlap=0.65),
}
"""DDP starts a bucket's all-reduce from a hook. Horovod's ranks agree on the tensors that are ready in cycles of 1 to
5 ms, and copy them into a fusion buffer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """The speed of one device."""

    step: float
    """Seconds per step of `samples` samples."""
    samples: float
    bytes_per_parameter: float = 4.0


def spec_workload(layers: list[Layer], device: Device, *, bucket: float = BUCKET, accumulate: int = 1) -> Workload:
    """Return the workload of a micro-batch with DDP's buckets, ready when their fraction of the FLOPs is done.

    The speed of the device holds for any number of micro-batches: the update is a fraction of all of them.
    """
    ready, sizes = buckets_of(layers, device.bytes_per_parameter, bucket)
    return Workload(
        forward=FORWARD * device.step,
        backward=BACKWARD * device.step,
        update=UPDATE * device.step * accumulate,
        ready=ready,
        sizes=sizes,
        samples_per_rank=device.samples,
        spread=SPREAD,
        slowdown=SLOWDOWN,
    )


def buckets_of(layers: list[Layer], bytes_per_parameter: float, bucket: float) -> tuple[tuple[float, ...], ...]:
    """Return when buckets are complete, as fractions of the backward pass, and their bytes, the last layer first."""
    total = sum(layer.macs for layer in layers) or 1.0
    ready, sizes = [], []
    done = waiting = 0.0
    limit = min(FIRST_BUCKET, bucket)
    for layer in reversed(layers):
        done += layer.macs
        waiting += layer.parameters * bytes_per_parameter
        if waiting >= limit:
            ready.append(done / total)
            sizes.append(waiting)
            waiting, limit = 0.0, bucket
    if waiting:
        ready.append(1.0)
        sizes.append(waiting)
    return tuple(ready), tuple(sizes)


def spec_overhead(layers: list[Layer], trainer: Trainer, data_rate: float) -> Overhead:
    """Return the overhead of a trainer for this model."""
    parameters = sum(layer.parameters for layer in layers)
    return Overhead(
        fraction=FRACTION,
        seconds=trainer.seconds + trainer.per_parameter * parameters,
        per_doubling=PER_DOUBLING,
        overlap=trainer.overlap,
        data_rate=data_rate,
        remote_data=REMOTE_STORAGE,
    )


def spec_fabric(inter: NamedLink, intra: NamedLink, *, per_node: int, algorithm: Algorithm) -> Fabric:
    """Return the fabric of nodes with several devices."""
    return Fabric(inter=inter.link, intra=intra.link, per_node=per_node, algorithm=algorithm,
                  crowding=CROWDING)  # fmt: skip


def spec_uncertainty(inter: NamedLink, intra: NamedLink) -> Uncertainty:
    """Return the uncertainty of the defaults."""
    return Uncertainty(inter=inter.uncertainty, intra=intra.uncertainty, **UNCERTAINTY)
