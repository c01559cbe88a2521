"""From modes, world sizes and kinds of scaling to the variants of a benchmark; unfair comparisons are refused."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from paceline.bench.bench_folder import Scaling, Variant
from paceline.core.config import Config
from paceline.core.config_rules import refuse_loop
from paceline.core.errors import ConfigError, SettingError, suggestion
from paceline.core.setting_types import Interval
from paceline.core.start import Start
from paceline.core.units import plural
from paceline.parallel.visible_gpus import count_gpus

MODES = ("single", "dp", "ddp", "fsdp")
SIZE = re.compile(r"(?:(\d+)[x×])?(\d+)")
NEVER = Interval(10**9)


def plan_variants(
    config: Config, start: Start, *, modes: Sequence[str], ranks: Sequence[str], scaling: Sequence[str]
) -> list[Variant]:
    """Return the variants by number of devices; all modes and kinds of scaling are one variant on one device."""
    refuse_loop(config.loop, "bench")
    _check_names("modes", modes, MODES)
    _check_names("scaling", scaling, get_args(Scaling))
    sizes = [_size(text, start) for text in ranks]
    alone = [size for size in sizes if size == (1, 1)] or ([(1, 1)] if "single" in modes else [])
    found = [Variant(mode="single", global_batch=config.global_batch) for _ in alone]
    for kind in get_args(Scaling):
        for mode in modes:
            for nodes, per_node in sizes:
                devices = nodes * per_node
                if kind not in scaling or mode == "single" or devices == 1 or (mode == "dp" and nodes > 1):
                    continue
                batch = config.global_batch * (devices if kind == "weak" else 1)
                shape = {"nodes": nodes, "per_node": per_node, "scaling": kind, "global_batch": batch}
                found.append(Variant(mode=mode, **shape))
    variants = [replace(one, again=found[:index].count(one)) for index, one in enumerate(found)]
    _refuse_unfair(config, variants)
    return variants


def _size(text: str, start: Start) -> tuple[int, int]:
    match = SIZE.fullmatch(text)
    nodes, per_node = (0, 0) if match is None else (int(match[1] or 1), int(match[2]))
    if not nodes or not per_node:
        raise SettingError(
            "ranks",
            f'lists "{text}", which is not a number of devices',
            hint="use 2 for this node, 2x4 for two nodes with four each",
        )
    if nodes > 1 and nodes != start.node_range[1]:
        raise ConfigError(
            f"--ranks {text} needs {nodes} nodes, but --nnodes is {start.nnodes or 1}",
            hint=f"add --nnodes {nodes} --rendezvous HOST:PORT, and run it on every node, each with its --node-rank",
        )
    if nodes > 1 and start.node_rank is None:
        raise ConfigError(f"--ranks {text} needs --node-rank", hint="add --node-rank 0, 1, …")
    return nodes, per_node


def _check_names(setting: str, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise SettingError(setting, f'lists "{name}", which does not exist', hint=suggestion(name, known))
    if not names:
        raise SettingError(setting, "is empty", hint="known: " + ", ".join(known))


def _refuse_unfair(config: Config, variants: Sequence[Variant]) -> None:
    """Refuse variants that would do different work."""
    if len(variants) < 2:
        names = variants[0].name if variants else "no variant"
        raise ConfigError(f"nothing to compare: the only variant is {names}", hint="use --modes single,ddp --ranks 1,2")
    for one in variants:
        if one.scaling == "strong" and one.global_batch % one.devices:
            raise ConfigError(
                f"--global-batch {one.global_batch} does not divide by the {one.devices} devices of {one.name}: "
                "some would do more work than others",
                hint=f"use --global-batch {-(-one.global_batch // one.devices) * one.devices}",
            )
    if config.patience is not None:
        raise ConfigError("--patience can end one variant before another", hint="drop --patience")
    if config.compress != "none" and any(one.mode != "ddp" for one in variants):
        raise ConfigError(
            f"--compress {config.compress} changes the work of ddp only",
            hint="use --modes ddp with --ranks 2,4, or drop --compress",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ChildRun:
    """The settings and command-line arguments of one run of a variant."""

    config: Config
    args: tuple[str, ...]


def child_run(config: Config, start: Start, variant: Variant, *, threads: int | None, number: int) -> ChildRun:
    """Return settings and arguments of the number-th run; only steps are measured, so it neither saves nor tracks.

    Only ddp is profiled, before the measured steps.
    """
    process_threads = threads * variant.per_node if threads and variant.mode == "dp" else threads
    settings = replace(
        config,
        mode=variant.mode,
        global_batch=variant.global_batch,
        threads=process_threads,
        name=variant.folder_name,
        track=(),
        profile=config.profile and variant.mode == "ddp",
        eval_every=NEVER,
        save_every=NEVER,
        keep=1,
    )
    args = ["--timeout", str(start.timeout)]
    if start.devices:
        args += ["--devices", ",".join(map(str, start.devices))]
    if variant.devices > 1:
        args += ["--nproc", str(variant.per_node)]
    if variant.nodes > 1:
        args += ["--nnodes", str(variant.nodes), "--node-rank", str(start.node_rank)]
        args += ["--rendezvous", _rendezvous(start, number)]
    return ChildRun(config=settings, args=tuple(args))


def _rendezvous(start: Start, number: int) -> str:
    """Return the rendezvous of the nodes: two ports in turn, so that no node connects to the store of the last run."""
    assert start.rendezvous is not None
    host, _, port = start.rendezvous.rpartition(":")
    return f"{host}:{int(port) + number % 2}"


def fair_threads(config: Config, variants: Sequence[Variant], environ: Mapping[str, str]) -> int | None:
    """Return the CPU threads per device, the same for every variant; None if the devices are GPUs."""
    if config.device != "cpu" and count_gpus(environ):
        return config.threads
    return config.threads or max(1, len(os.sched_getaffinity(0)) // max(one.per_node for one in variants))


def oversubscribed(variants: Sequence[Variant], threads: int | None) -> str | None:
    """Return a warning if a node has fewer cores than its devices need."""
    cores = len(os.sched_getaffinity(0))
    most = max(one.per_node for one in variants)
    if threads is None or most * threads <= cores:
        return None
    return f"{most} devices of {plural(threads, 'thread')} share {plural(cores, 'core')}: they slow each other down"
