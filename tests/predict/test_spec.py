"""Model specs: the buckets of DDP, and efficiencies that others have published."""

import math

import pytest

from paceline.predict.architectures import Layer, even, find_shape, list_shapes
from paceline.predict.fabric import Fabric, Link, parse_link
from paceline.predict.prediction import predict
from paceline.predict.simulate import simulate_step
from paceline.predict.spec import (
    TRAINERS,
    Device,
    buckets_of,
    spec_fabric,
    spec_overhead,
    spec_uncertainty,
    spec_workload,
)
from paceline.predict.uncertainty import Case


def published(model, samples_per_second, batch, **cluster):
    """Return the case of a model spec."""
    inter, intra = parse_link(cluster["link"]), parse_link(cluster["intra"])
    device = Device(step=batch / samples_per_second, samples=batch)
    fabric = spec_fabric(inter, intra, per_node=cluster["per_node"], algorithm="auto")
    layers = find_shape(model)
    assert layers is not None
    return Case(workload=spec_workload(layers, device), fabric=fabric, uncertainty=spec_uncertainty(inter, intra),
                overhead=spec_overhead(layers, TRAINERS["horovod"], math.inf))  # fmt: skip


@pytest.mark.parametrize("name", list_shapes())
def test_buckets_hold_every_gradient_and_are_ready_in_order(name):
    layers = find_shape(name)
    assert layers is not None
    ready, sizes = buckets_of(layers, 4.0, 25 << 20)
    assert sum(sizes) == pytest.approx(4 * sum(layer.parameters for layer in layers))
    assert list(ready) == sorted(ready)
    assert ready[-1] == pytest.approx(1.0)


def test_the_first_gradients_of_vgg_are_almost_all():
    """Its dense layers come first on the way back: they travel while the convolutions compute."""
    layers = find_shape("vgg16")
    assert layers is not None
    ready, sizes = buckets_of(layers, 4.0, 25 << 20)
    assert sum(size for part, size in zip(ready, sizes, strict=True) if part < 0.05) > 0.85 * sum(sizes)


def test_a_model_of_which_only_the_size_is_known_is_even():
    ready, sizes = buckets_of(even(100e6), 4.0, 25 << 20)
    assert sum(sizes) == pytest.approx(400e6)
    assert ready[len(ready) // 2] == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize(
    ("model", "speed", "ranks", "efficiency"),
    [("resnet101", 119.4, 512, 0.90), ("inception3", 134.4, 512, 0.90), ("vgg16", 130.9, 512, 0.68)],
)
def test_published_efficiencies_lie_in_the_interval(model, speed, ranks, efficiency):
    """Horovod on 128 servers of 4 P100 with 25 Gbit/s RoCE, 64 images each: its benchmark page."""
    answer = predict(published(model, speed, 64, link="25gbit rdma", intra="pcie", per_node=4), ranks).efficiency
    assert answer.low < efficiency < answer.high
    assert answer.value == pytest.approx(efficiency, rel=0.15)


def test_a_thousand_ranks_are_simulated_bucket_by_bucket():
    answer = simulate_step(published("bert-large", 20, 8, link="EDR", intra="nvlink", per_node=8).workload,
                           Fabric(inter=Link(bandwidth=1e10, latency=1e-5), per_node=8), 1024)  # fmt: skip
    assert len(answer.buckets) > 20


def test_the_first_bucket_is_smaller_so_that_sending_starts_early():
    layers = [Layer(parameters=2.0**18, macs=1.0)] * 60  # 1 MiB each
    ready, sizes = buckets_of(layers, 4.0, 25 << 20)
    assert [size / (1 << 20) for size in sizes] == [1, 25, 25, 9]
    assert ready == pytest.approx((1 / 60, 26 / 60, 51 / 60, 1.0))


def test_half_precision_gradients_are_half_the_bytes():
    layers = even(1e6)
    full, half = (spec_workload(layers, Device(step=1.0, samples=8, bytes_per_parameter=width)) for width in (4.0, 2.0))
    assert (full.gradient_bytes, half.gradient_bytes) == (pytest.approx(4e6), pytest.approx(2e6))


def test_a_device_alone_takes_the_step_time_it_is_given_for_every_micro_batch():
    for parts in (1, 4):
        work = spec_workload(even(1e6), Device(step=0.5, samples=8), accumulate=parts)
        alone = simulate_step(work, Fabric(inter=Link(bandwidth=1.0)), 1, accumulate=parts)
        assert alone.seconds == pytest.approx(parts * 0.5)
