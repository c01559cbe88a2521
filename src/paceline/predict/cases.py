"""From the options of `paceline predict` to the case to simulate; impossible ones are refused."""

import math
from collections.abc import Callable
from dataclasses import replace

from paceline.core.errors import ConfigError, RunError, suggestion
from paceline.core.units import number, plural
from paceline.predict.architectures import GPUS, Layer, even, find_shape, is_image_model
from paceline.predict.fabric import Fabric, Link, NamedLink, parse_intra_link, parse_link
from paceline.predict.option_values import check_batch, read_amount, read_data_rate, read_measured, read_seconds
from paceline.predict.predict_options import BatchOptions, ClusterOptions, KnownOptions, ModelSpec
from paceline.predict.profiled import is_observed, profile_link, profile_uncertainty, profile_workload
from paceline.predict.simulate import Overhead
from paceline.predict.spec import (
    IMAGES_PER_NODE,
    TRAINERS,
    Device,
    Trainer,
    spec_fabric,
    spec_overhead,
    spec_uncertainty,
    spec_workload,
)
from paceline.predict.sweep import read_sweep
from paceline.predict.uncertainty import Case
from paceline.records.folder import RunFolder
from paceline.records.profile import Profile, read_profile
from paceline.records.reader import summarise

NOTHING_KNOWN = KnownOptions()
KNOWN_RATE = 0.1
"""Uncertainty of the rate of an input pipeline that the user gives."""
SWEPT = 0.05
"""Uncertainty of a link that doctor measured."""
FIXED = 0.1
"""Fraction of a step's compute time that does not depend on the batch: kernel launches, small layers."""
GUESSED_PACE = 0.25
"""Uncertainty of the speed of a device known only by its name."""
UNUSED = "10gbit"
"""A placeholder for the link between nodes if there is only one node."""
NO_SPEED = "add --step-time 0.345 or --samples-per-second 186, with --per-rank-batch 64"


def run_case(
    folder: RunFolder, cluster: ClusterOptions, batch: BatchOptions, known: KnownOptions = NOTHING_KNOWN
) -> tuple[Case, str]:
    """Return the case of a profiled run, and a description of its source."""
    profile = read_profile(folder)
    if known.trainer != "any":
        raise ConfigError("RUN cannot be combined with --trainer", hint="drop --trainer: the profile measured it")
    if profile.world_size < 2 and cluster.link is None and cluster.sweep is None:
        raise RunError(
            f"{folder.path} was profiled on one rank, so it has no measured link",
            hint="add --link, such as 1gbit, or --sweep doctor.json from paceline doctor --json",
        )
    total, epochs = _length_of(folder)
    case = Case(
        workload=profile_workload(profile),
        fabric=_profile_fabric(profile, cluster),
        uncertainty=profile_uncertainty(profile),
        overhead=Overhead(overlap=0.0 if known.overlap == "none" else 1.0, data_rate=_data_rate(known, math.inf)),
        fixed=FIXED,
        accumulate=batch.accumulate or profile.accumulate,
        total_samples=total,
        measured=read_measured(known.measured),
    )
    where = f"{folder.path}: {plural(profile.world_size, 'rank')}, {profile.model} on {profile.device}"
    check_batch(batch, cluster, is_spec=False)
    source = f"the profile of {where}, {profile.backend}"
    if is_observed(profile) and cluster.link is None and cluster.sweep is None:
        source += "; its link is an estimate from exposed communication"
    return _with_batch(case, cluster, batch, epochs), source


def spec_case(
    cluster: ClusterOptions,
    spec: ModelSpec,
    batch: BatchOptions,
    layers_of: Callable[[str], list[Layer]],
    known: KnownOptions = NOTHING_KNOWN,
) -> tuple[Case, str]:
    """Return the case of a model spec, and a description of its source.

    `layers_of` returns the layers of a model whose shape is not built in.
    """
    if spec.model is None and spec.parameters is None:
        raise ConfigError(
            "no run or model to predict from",
            hint="give a RUN with a profile (from paceline profile), or --model resnet50, or --parameters 25.6M",
        )
    inter, intra = _spec_links(cluster)
    layers = _layers(spec, layers_of)
    measured = read_measured(known.measured)
    device = _device(spec, batch, layers, dict(measured).get(1))
    check_batch(batch, cluster, is_spec=True)
    uncertainty = spec_uncertainty(inter, intra)
    if spec.step_time is None and spec.samples_per_second is None and 1 not in dict(measured):
        uncertainty = replace(uncertainty, pace=GUESSED_PACE)
    if known.data_rate is not None:
        uncertainty = replace(uncertainty, data=KNOWN_RATE)
    usual = IMAGES_PER_NODE if spec.model is not None and is_image_model(spec.model) else math.inf
    parts = batch.accumulate or 1
    bucket = read_amount("bucket", spec.bucket, example="25MiB")
    case = Case(
        workload=spec_workload(layers, device, bucket=bucket, accumulate=parts),
        fabric=spec_fabric(inter, intra, per_node=cluster.per_node, algorithm=cluster.algorithm or "auto"),
        uncertainty=uncertainty,
        overhead=spec_overhead(layers, _trainer(known), _data_rate(known, usual)),
        fixed=FIXED,
        accumulate=parts,
        measured=tuple(point for point in measured if point[0] > 1),
    )
    size = sum(layer.parameters for layer in layers) / 1e6
    speed = f"{number(device.step)} s for {number(device.samples)} samples on one device"
    return _with_batch(case, cluster, batch, None), f"{spec.model or 'a model'} with {size:.4g} M parameters, {speed}"


def _with_batch(case: Case, cluster: ClusterOptions, batch: BatchOptions, epochs: int | None) -> Case:
    """Return the case with the batch and the length from the options."""
    if batch.per_rank_batch is not None:
        case = replace(case, workload=case.workload.with_samples(batch.per_rank_batch, fixed=case.fixed))
    if batch.compress != "none":
        case = replace(case, workload=case.workload.compressed(0.5))
    total = case.total_samples if batch.samples is None else read_amount("samples", batch.samples, example="115M")
    fixed_time = 0.0
    if batch.per_epoch is not None:
        epochs = batch.epochs or epochs
        if epochs is None or total is None:
            raise ConfigError("--per-epoch needs the length of the training", hint="add --samples 115M --epochs 90")
        fixed_time = epochs * read_seconds("per_epoch", batch.per_epoch)
    return replace(case, global_batch=batch.global_batch, total_samples=total, price=cluster.price,
                   fixed_time=fixed_time)  # fmt: skip


def _spec_links(cluster: ClusterOptions) -> tuple[NamedLink, NamedLink]:
    """Return the links between and inside nodes."""
    intra = parse_intra_link(cluster.intra or "pcie")
    if cluster.sweep is not None:
        swept = read_sweep(cluster.sweep)
        found = NamedLink(name=str(cluster.sweep), link=_with_latency(swept.link, cluster), uncertainty=SWEPT,
                          nominal=float(swept.link.bandwidth), transport="tcp")  # fmt: skip
        if not swept.is_inside:
            return found, intra
        intra = found
    if cluster.link is None and max(cluster.ranks) > cluster.per_node:
        hint = 'add the link between nodes: --link 10gbit, or --link "100gbit rdma"'
        raise ConfigError("--link is not set", hint=hint)
    return parse_link(cluster.link or UNUSED, latency=_latency(cluster)), intra


def _with_latency(link: Link, cluster: ClusterOptions) -> Link:
    latency = _latency(cluster)
    return link if latency is None else replace(link, latency=latency)


def _profile_fabric(profile: Profile, cluster: ClusterOptions) -> Fabric:
    """Return the fabric of the options; missing values come from the profile."""
    seen = profile_link(profile)
    inter, latency = seen, _latency(cluster)
    if cluster.sweep is not None:
        inter = _with_latency(read_sweep(cluster.sweep).link, cluster)
    elif cluster.link is not None:
        inter = parse_link(cluster.link, latency=latency).link
        if latency is None and profile.world_size > 1:
            inter = replace(inter, latency=seen.latency)
    intra = parse_intra_link(cluster.intra).link if cluster.intra is not None else _profile_intra_link(profile, seen)
    usual = "ring" if profile.backend == "gloo" or profile.device == "cpu" else "auto"
    return Fabric(inter=inter, intra=intra, per_node=cluster.per_node, algorithm=cluster.algorithm or usual)


def _profile_intra_link(profile: Profile, seen: Link) -> Link:
    """Return the link inside a node: measured if all ranks of the profile were on one node."""
    return seen if profile.world_size > 1 and len(profile.ranks_per_node) == 1 else parse_link("memory").link


def _length_of(folder: RunFolder) -> tuple[float | None, int | None]:
    """Return the total samples and the epochs of a run, as far as its records show."""
    run = summarise(folder)
    if not run.epochs:
        return None, None
    return run.config.epochs * run.config.global_batch * run.step / run.epochs, run.config.epochs


def _layers(spec: ModelSpec, layers_of: Callable[[str], list[Layer]]) -> list[Layer]:
    """Return the layers of the model, scaled to the given size."""
    size = None if spec.parameters is None else read_amount("parameters", spec.parameters, example="25.6M")
    if spec.model is None:
        assert size is not None
        return even(size)
    layers = find_shape(spec.model) or layers_of(spec.model)
    factor = 1.0 if size is None else size / sum(layer.parameters for layer in layers)
    return [Layer(layer.parameters * factor, layer.macs) for layer in layers]


def _device(spec: ModelSpec, batch: BatchOptions, layers: list[Layer], measured: float | None) -> Device:
    """Return the speed of one device, from the model spec or as it was measured."""
    batch_size = batch.per_rank_batch
    width = 4.0 if spec.gradients == "fp32" else 2.0
    given = {"--step-time": spec.step_time, "--samples-per-second": spec.samples_per_second, "--measured 1:": measured}
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise ConfigError(f"{names[0]} cannot be combined with {names[1]}", hint="use one of them")
    rate = spec.samples_per_second if measured is None else measured
    if batch_size is None or batch_size <= 0:
        raise ConfigError("--per-rank-batch is not set", hint=NO_SPEED)
    if spec.step_time is not None:
        step = read_seconds("step_time", spec.step_time)
    elif rate is not None:
        step = batch_size / rate if rate > 0 else 0.0
    else:
        step = _guessed_step(spec, batch_size, layers)
    if step <= 0:
        raise ConfigError("a step must take more than 0 seconds", hint=NO_SPEED)
    return Device(step=step, samples=batch_size, bytes_per_parameter=width)


def _guessed_step(spec: ModelSpec, batch_size: float, layers: list[Layer]) -> float:
    """Return the step of a device known by name: forward once, backward twice, two operations per MAC."""
    if spec.gpu is None:
        raise ConfigError("the speed of one device is not set", hint=NO_SPEED)
    if spec.gpu.lower() not in GPUS:
        raise ConfigError(f"there is no --gpu {spec.gpu}", hint=suggestion(spec.gpu, GPUS))
    if spec.model is None:
        raise ConfigError("--gpu needs --model, which gives the FLOPs", hint=NO_SPEED)
    return 3 * 2 * sum(layer.macs for layer in layers) * batch_size / GPUS[spec.gpu.lower()]


def _trainer(known: KnownOptions) -> Trainer:
    usual = TRAINERS[known.trainer]
    overlaps = {"auto": usual.overlap, "none": 0.0, "full": 1.0}
    return replace(usual, overlap=overlaps[known.overlap])


def _data_rate(known: KnownOptions, usual: float) -> float:
    return usual if known.data_rate is None else read_data_rate(known.data_rate)


def _latency(cluster: ClusterOptions) -> float | None:
    return None if cluster.latency is None else read_seconds("latency", cluster.latency)
