"""The variants of a benchmark, and how each of their runs is started. Refusals: tests/cli/test_bench_command."""

import os

import pytest

from paceline.bench.bench_folder import Variant
from paceline.bench.variants import child_run, fair_threads, oversubscribed, plan_variants
from paceline.core.config import Config
from paceline.core.start import Start

NODES = Start(nnodes="2", node_rank=1, rendezvous="node0:29400")
CONFIG = Config(global_batch=128, device="cpu")
SINGLE = Variant(mode="single", global_batch=128)


def labels(start=None, **options):
    usual = {"modes": ["single", "ddp"], "ranks": ["1", "2"], "scaling": ["strong"]}
    return [one.label for one in plan_variants(CONFIG, start or Start(), **(usual | options))]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["single", "ddp 2 (strong)"]),
        ({"scaling": ["weak", "strong"]}, ["single", "ddp 2 (strong)", "ddp 2 (weak)"]),
        ({"modes": ["dp", "ddp"]}, ["single", "dp 2 (strong)", "ddp 2 (strong)"]),
        ({"modes": ["ddp"], "ranks": ["2", "4"]}, ["ddp 2 (strong)", "ddp 4 (strong)"]),
        ({"modes": ["single"], "ranks": ["1", "1"]}, ["single", "single #2"]),
        ({"start": NODES, "modes": ["dp", "ddp"], "ranks": ["2", "2x2"]},
         ["dp 2 (strong)", "ddp 2 (strong)", "ddp 2×2 (strong)"]),
    ],
)  # fmt: skip
def test_one_device_counts_once_and_dp_stays_on_one_node(options, expected):
    assert labels(**options) == expected


def test_weak_scaling_gives_every_device_the_whole_batch():
    variants = plan_variants(CONFIG, Start(), modes=["ddp"], ranks=["2", "4"], scaling=["strong", "weak"])
    assert [one.global_batch for one in variants] == [128, 128, 256, 512]


def test_a_run_neither_saves_nor_tracks():
    run = child_run(Config(), Start(timeout=30.0, devices=(0, 1)), SINGLE, threads=2, number=1)
    assert run.args == ("--timeout", "30.0", "--devices", "0,1")
    assert (run.config.track, run.config.threads, run.config.name) == ((), 2, "single")
    assert run.config.save_every == run.config.eval_every
    assert run.config.save_every.number > 10**6


def test_nodes_take_two_ports_in_turn():
    variant = Variant(mode="ddp", nodes=2, per_node=4, scaling="strong", global_batch=64)
    first, second = (child_run(CONFIG, NODES, variant, threads=1, number=number).args for number in (1, 2))
    assert first[2:] == ("--nproc", "4", "--nnodes", "2", "--node-rank", "1", "--rendezvous", "node0:29401")
    assert second[-1] == "node0:29400"


@pytest.mark.parametrize(("mode", "threads", "is_profiled"), [("single", 3, False), ("ddp", 3, True), ("dp", 6, False)])
def test_dp_has_the_threads_of_all_its_devices_and_only_ddp_is_profiled(mode, threads, is_profiled):
    variant = Variant(mode=mode, per_node=1 if mode == "single" else 2, global_batch=128)
    run = child_run(Config(profile=True), Start(), variant, threads=3, number=1)
    assert (run.config.threads, run.config.profile) == (threads, is_profiled)


def test_cores_are_shared_by_the_devices_of_the_largest_variant():
    cores = len(os.sched_getaffinity(0))
    variants = [SINGLE, Variant(mode="ddp", per_node=2 * cores, global_batch=128)]
    assert fair_threads(CONFIG, variants, {}) == 1
    assert fair_threads(CONFIG, variants[:1], {}) == cores
    assert fair_threads(Config(device="cpu", threads=7), variants, {}) == 7
    assert fair_threads(Config(device="auto"), variants, {"CUDA_VISIBLE_DEVICES": "0"}) is None
    assert "they slow each other down" in (oversubscribed(variants, 1) or "")
    assert oversubscribed(variants[:1], cores) is None
    assert oversubscribed(variants, None) is None
