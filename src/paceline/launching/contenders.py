"""From modes, world sizes and kinds of scaling to the contenders of a benchmark, or the reason why they are unlike."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from paceline.core.config import Config
from paceline.core.errors import ConfigError, SettingError
from paceline.core.interval import Interval
from paceline.core.names import suggestion
from paceline.core.start import Start
from paceline.core.units import plural
from paceline.parallel.gpus import count_gpus
from paceline.records.bench import Contender, Scaling

MODES = ("single", "dp", "ddp", "fsdp")
SIZE = re.compile(r"(?:(\d+)[x×])?(\d+)")
NEVER = Interval(10**9)


def line_up(
    config: Config, start: Start, *, modes: Sequence[str], ranks: Sequence[str], scaling: Sequence[str]
) -> list[Contender]:
    """Return the contenders, those with few devices first; one device counts once, whatever the mode and scaling."""
    _check_names("modes", modes, MODES)
    _check_names("scaling", scaling, get_args(Scaling))
    sizes = [_size(text, start) for text in ranks]
    alone = [size for size in sizes if size == (1, 1)] or ([(1, 1)] if "single" in modes else [])
    found = [Contender(mode="single", global_batch=config.global_batch) for _ in alone]
    for kind in get_args(Scaling):
        for mode in modes:
            for nodes, per_node in sizes:
                devices = nodes * per_node
                if kind not in scaling or mode == "single" or devices == 1 or (mode == "dp" and nodes > 1):
                    continue
                batch = config.global_batch * (devices if kind == "weak" else 1)
                shape = {"nodes": nodes, "per_node": per_node, "scaling": kind, "global_batch": batch}
                found.append(Contender(mode=mode, **shape))
    contenders = [replace(one, again=found[:index].count(one)) for index, one in enumerate(found)]
    _refuse_unfair(config, contenders)
    return contenders


def _size(text: str, start: Start) -> tuple[int, int]:
    match = SIZE.fullmatch(text)
    nodes, per_node = (0, 0) if match is None else (int(match[1] or 1), int(match[2]))
    if not nodes or not per_node:
        raise SettingError("ranks", f'names "{text}"', hint="use 2 for this node, 2x4 for two nodes with four each")
    if nodes > 1 and nodes != start.node_range[1]:
        raise ConfigError(
            f"--ranks {text} takes {nodes} nodes, but --nnodes says {start.nnodes or 1}",
            hint=f"add --nnodes {nodes} --rendezvous HOST:PORT, and start the same on every node with its --node-rank",
        )
    if nodes > 1 and start.node_rank is None:
        raise ConfigError(f"--ranks {text} needs to know which node this is", hint="add --node-rank 0, 1, …")
    return nodes, per_node


def _check_names(setting: str, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise SettingError(setting, f'names "{name}"', hint=suggestion(name, known))
    if not names:
        raise SettingError(setting, "is empty", hint="known: " + ", ".join(known))


def _refuse_unfair(config: Config, contenders: Sequence[Contender]) -> None:
    """Refuse what would compare different work."""
    if len(contenders) < 2:
        names = contenders[0].name if contenders else "nobody"
        raise ConfigError(
            f"there is nothing to compare: only {names} takes part", hint="use --modes single,ddp --ranks 1,2"
        )
    for one in contenders:
        if one.scaling == "strong" and one.global_batch % one.devices:
            raise ConfigError(
                f"--global-batch {one.global_batch} does not divide by the {one.devices} devices of {one.name}: "
                "some would do more than others",
                hint=f"use --global-batch {-(-one.global_batch // one.devices) * one.devices}",
            )
    if config.patience is not None:
        raise ConfigError("--patience could end one contender before another", hint="drop --patience")
    if config.compress != "none" and any(one.mode != "ddp" for one in contenders):
        raise ConfigError(
            f"--compress {config.compress} would change what ddp computes and nothing else: that is not the same work",
            hint="use --modes ddp with --ranks 2,4, or drop --compress",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """How one run of a contender is started."""

    config: Config
    words: tuple[str, ...]


def prepare(config: Config, start: Start, contender: Contender, *, threads: int | None, number: int) -> Turn:
    """Return settings and words of the number-th run; only its steps are measured, so it neither saves nor tracks.

    A profile is of ddp alone, and before the steps that are measured.
    """
    process_threads = threads * contender.per_node if threads and contender.mode == "dp" else threads
    settings = replace(
        config,
        mode=contender.mode,
        global_batch=contender.global_batch,
        threads=process_threads,
        name=contender.folder_name,
        track=(),
        profile=config.profile and contender.mode == "ddp",
        eval_every=NEVER,
        save_every=NEVER,
        keep=1,
    )
    words = ["--timeout", str(start.timeout)]
    if start.devices:
        words += ["--devices", ",".join(map(str, start.devices))]
    if contender.devices > 1:
        words += ["--nproc", str(contender.per_node)]
    if contender.nodes > 1:
        words += ["--nnodes", str(contender.nodes), "--node-rank", str(start.node_rank)]
        words += ["--rendezvous", _meeting(start, number)]
    return Turn(config=settings, words=tuple(words))


def _meeting(start: Start, number: int) -> str:
    """Return where the nodes meet: at two ports in turn, so that nobody meets the store of the run before."""
    assert start.rendezvous is not None
    host, _, port = start.rendezvous.rpartition(":")
    return f"{host}:{int(port) + number % 2}"


def fair_threads(config: Config, contenders: Sequence[Contender], environ: Mapping[str, str]) -> int | None:
    """Return the CPU threads of a device, the same for every contender; None where the devices are GPUs."""
    if config.device != "cpu" and count_gpus(environ):
        return config.threads
    return config.threads or max(1, len(os.sched_getaffinity(0)) // max(one.per_node for one in contenders))


def crowded(contenders: Sequence[Contender], threads: int | None) -> str | None:
    """Return a warning where a node has fewer cores than its devices need."""
    cores = len(os.sched_getaffinity(0))
    most = max(one.per_node for one in contenders)
    if threads is None or most * threads <= cores:
        return None
    return f"{most} devices of {plural(threads, 'thread')} share {plural(cores, 'core')}: they slow each other down"
