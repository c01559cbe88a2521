"""Predictions: links by name, shapes of models, worlds that are drawn, break-even, best batch, cost."""

import math
from dataclasses import replace

import pytest

from paceline.analysis.architectures import even, find_shape, list_shapes
from paceline.analysis.fabric import Fabric, Link
from paceline.analysis.links import find_inside, find_link
from paceline.analysis.paper import OVERHEAD, Device, buckets_of, paper_doubt, paper_fabric, paper_workload
from paceline.analysis.predict import Case, Doubt, predict
from paceline.analysis.simulate import Workload, simulate_step
from paceline.core.errors import ConfigError

SURE = Doubt()
WORK = Workload(forward=1.0, backward=2.0, update=0.0, ready=(1.0,), sizes=(1e6,), images_per_rank=30)


def case(bandwidth=1e6, **changes):
    return replace(Case(workload=WORK, fabric=Fabric(inter=Link(bandwidth=bandwidth)), doubt=SURE), **changes)


def published(model, images_per_second, batch, **cluster):
    """Return the case of a paper's line."""
    inter, intra = find_link(cluster["link"]), find_link(cluster["intra"])
    device = Device(step=batch / images_per_second, images=batch)
    fabric = paper_fabric(inter, intra, per_node=cluster["per_node"], algorithm="auto")
    layers = find_shape(model)
    assert layers is not None
    return Case(workload=paper_workload(layers, device), fabric=fabric, doubt=paper_doubt(inter, intra),
                overhead=OVERHEAD)  # fmt: skip


def test_throughput_and_efficiency_follow_from_the_step():
    two = predict(case(), 2)
    assert two.step.value == pytest.approx(4.0)
    assert two.throughput.value == pytest.approx(15)
    assert two.efficiency.value == pytest.approx(0.75)
    assert (two.step.low, two.step.high) == (two.step.value, two.step.value), "nothing is in doubt"


def test_with_one_global_batch_each_rank_has_its_share():
    two = predict(case(global_batch=30), 2)
    assert two.images_per_rank == 15
    assert two.step.value == pytest.approx(1.5 + 1.0)
    assert two.efficiency.value == pytest.approx(3.0 / (2 * 2.5))


def test_two_ranks_break_even_where_a_step_takes_twice_as_long():
    assert predict(case(), 2).break_even.value == pytest.approx(1e6 / 3.0, rel=1e-4)


def test_efficiency_is_90_percent_at_the_bandwidth_that_is_given_for_it():
    bandwidth = predict(case(), 2).link_for_good.value
    assert predict(case(bandwidth), 2).efficiency.value == pytest.approx(0.9, rel=1e-4)


def test_no_bandwidth_helps_against_latency():
    slow = replace(case(), fabric=Fabric(inter=Link(bandwidth=1e6, latency=10.0)))
    assert math.isinf(predict(slow, 2).break_even.value)


def test_the_best_batch_is_the_smallest_that_hides_enough():
    best = predict(case(), 2).best_batch.value
    assert best == 128  # 0.1 s an image: 9 s of computing for 1 s of exchange need 90 images
    assert predict(replace(case(), workload=WORK.with_images(128)), 2).efficiency.value >= 0.9


def test_time_and_cost_follow_from_throughput():
    two = predict(case(total_images=15 * 3600, price=2.0), 2)
    assert two.finish is not None
    assert two.cost is not None
    assert (two.finish.value, two.cost.value) == (pytest.approx(3600), pytest.approx(4.0))


def test_doubt_widens_the_interval_around_the_best_guess():
    sure = predict(case(), 2)
    unsure = predict(case(doubt=Doubt(pace=0.05, inter=0.1)), 2)
    assert unsure.step.value == pytest.approx(sure.step.value)
    assert unsure.step.low < sure.step.value < unsure.step.high
    assert predict(case(doubt=Doubt(pace=0.05, inter=0.1)), 2) == unsure, "the same question has the same answer"


@pytest.mark.parametrize(
    ("text", "gbit", "transport"),
    [
        ("100mbit", 0.0956, "tcp"),
        ("1gbit", 0.9556, "tcp"),
        ("10 Gb/s", 8.77, "tcp"),
        ("25gbit rdma", 22.0, "rdma"),
        ("100gbit-ib", 88.0, "rdma"),
        ("EDR", 88.0, "rdma"),
        ("4xEDR", 352.0, "rdma"),
        ("nvlink", 960.0, "local"),
        ("12GB/s", 21.4, "tcp"),
    ],
)
def test_links_have_the_names_people_give_them(text, gbit, transport):
    link = find_link(text)
    assert float(link.link.bandwidth) * 8e-9 == pytest.approx(gbit, rel=0.01)
    assert link.transport == transport


def test_a_rate_inside_a_node_is_what_it_says():
    assert find_inside("10 GB/s").link.bandwidth == 10e9
    assert find_inside("nvlink") == find_link("nvlink")
    with pytest.raises(ConfigError, match="no link"):
        find_inside("wire")


@pytest.mark.parametrize("text", ["fast", "", "10", "gbit", "10gbit pigeon", "0gbit", "10 parsec"])
def test_what_is_no_link_is_refused_with_what_would_be(text):
    with pytest.raises(ConfigError) as refused:
        find_link(text)
    assert "10gbit" in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("name", "millions", "giga_macs"),
    [("ResNet-50", 25.6, 4.1), ("resnet101", 44.5, 7.8), ("VGG16", 138.4, 15.5), ("bert_large", 335, 40)],
)
def test_known_models_have_the_size_that_is_quoted(name, millions, giga_macs):
    layers = find_shape(name)
    assert layers is not None
    assert sum(layer.parameters for layer in layers) / 1e6 == pytest.approx(millions, rel=0.01)
    assert sum(layer.macs for layer in layers) / 1e9 == pytest.approx(giga_macs, rel=0.02)


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
    assert answer.value == pytest.approx(efficiency, rel=0.1)


def test_compressing_and_accumulating_help_where_the_link_is_slow():
    slow = case(0.1e6)
    plain = predict(slow, 2).throughput.value
    assert predict(replace(slow, workload=WORK.compressed(0.5)), 2).throughput.value > 1.5 * plain
    assert predict(replace(slow, accumulate=4), 2).throughput.value > 2 * plain
    same = replace(slow, accumulate=4, global_batch=240)
    assert predict(same, 2).step == predict(replace(slow, accumulate=4), 2).step


def test_a_step_has_the_computing_of_all_its_parts_and_one_exchange():
    four = predict(case(accumulate=4), 2)
    assert four.images_per_rank == 120
    assert four.step.value == pytest.approx(4 * 3.0 + 1.0)
    assert four.efficiency.value == pytest.approx(12 / 13)
    assert predict(case(accumulate=4), 1).throughput.value == pytest.approx(10), "30 images in 3 s, as without"


def test_parts_of_one_global_batch_save_no_exchange():
    """Only the backward pass of the last part hides it, so that there is nothing to gain."""
    early = replace(WORK, ready=(0.5,))
    whole, parts = (predict(case(0.7e6, workload=early, global_batch=60, accumulate=n), 2) for n in (1, 4))
    assert whole.step.value == pytest.approx(1.0 + 1.0 + 1 / 0.7)
    assert parts.step.value == pytest.approx(0.75 * 3.0 + 0.25 * 2.0 + 1 / 0.7)
    assert parts.throughput.value < whole.throughput.value


def test_only_the_part_that_exchanges_pays_for_taking_part():
    assert predict(case(overhead=0.1, accumulate=4), 2).step.value == pytest.approx(3 * 3.0 + 3.3 + 1.0)
    assert predict(case(overhead=0.1, accumulate=4), 1).step.value == pytest.approx(4 * 3.0)


def test_the_best_batch_of_several_parts_has_no_part_of_less_than_an_image():
    best = predict(case(accumulate=8), 2).best_batch.value
    assert best == 128
    assert predict(case(1e12, accumulate=8), 2).best_batch.value == 8


def test_a_thousand_ranks_are_simulated_bucket_by_bucket():
    answer = simulate_step(published("bert-large", 20, 8, link="EDR", intra="nvlink", per_node=8).workload,
                           Fabric(inter=Link(bandwidth=1e10, latency=1e-5), per_node=8), 1024)  # fmt: skip
    assert len(answer.buckets) > 20
