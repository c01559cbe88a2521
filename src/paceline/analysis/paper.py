"""A training job of which only a paper's line is known: model size, the step of one device, devices per node, link."""

from dataclasses import dataclass

from paceline.analysis.architectures import Layers
from paceline.analysis.fabric import Algorithm, Fabric
from paceline.analysis.links import NamedLink
from paceline.analysis.predict import Doubt
from paceline.analysis.simulate import Workload

FORWARD, BACKWARD, UPDATE = 0.33, 0.65, 0.02
"""Parts of a step: a backward pass multiplies twice for every time that the forward pass does."""
FIRST_BUCKET, BUCKET = 1 << 20, 25 << 20
"""Bytes after which DDP closes its first bucket and the others."""
SPREAD = 0.010
"""A GPU's computing varies by so much from step to step."""
SLOWDOWN = 0.04
"""NCCL's kernels take a few of a GPU's units while they run."""
OVERHEAD = 0.06
"""Hooks, copies into buckets and starting the collectives, of a step."""
CROWDING = 0.06
"""Each doubling of the nodes costs 4% of the bandwidth between them."""
DOUBT = {"latency": 0.5, "loss": 0.85, "pace": 0.01}


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """What one device does alone."""

    step: float
    """Seconds for `images`, which it computes at once."""
    images: float
    bytes_per_parameter: float = 4.0


def paper_workload(layers: Layers, device: Device, *, bucket: float = BUCKET, accumulate: int = 1) -> Workload:
    """Return the work of a part with the buckets that DDP would make, ready when their share of arithmetic is done.

    What is known of the device is its speed, which holds for any number of parts: the update is a share of all of them.
    """
    ready, sizes = buckets_of(layers, device.bytes_per_parameter, bucket)
    return Workload(
        forward=FORWARD * device.step,
        backward=BACKWARD * device.step,
        update=UPDATE * device.step * accumulate,
        ready=ready,
        sizes=sizes,
        images_per_rank=device.images,
        spread=SPREAD,
        slowdown=SLOWDOWN,
    )


def buckets_of(layers: Layers, bytes_per_parameter: float, bucket: float) -> tuple[tuple[float, ...], ...]:
    """Return when buckets are complete, as parts of the backward pass, and their bytes: the last layer comes first."""
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


def paper_fabric(inter: NamedLink, intra: NamedLink, *, per_node: int, algorithm: Algorithm) -> Fabric:
    """Return the fabric of nodes with several devices."""
    return Fabric(inter=inter.link, intra=intra.link, per_node=per_node, algorithm=algorithm,
                  crowding=CROWDING)  # fmt: skip


def paper_doubt(inter: NamedLink, intra: NamedLink) -> Doubt:
    """Return how sure the defaults are."""
    return Doubt(inter=inter.doubt, intra=intra.doubt, **DOUBT)
