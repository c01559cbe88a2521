"""From the options of `paceline predict` to the case to simulate; impossible ones are refused."""

from collections.abc import Callable
from dataclasses import replace

from paceline.core.errors import ConfigError, RunError, SettingError, suggestion
from paceline.core.units import number, parse_number, parse_seconds, plural
from paceline.predict.architectures import GPUS, Layer, even, find_shape
from paceline.predict.fabric import Fabric, Link, parse_intra_link, parse_link
from paceline.predict.predict_options import BatchOptions, ClusterOptions, ModelSpec
from paceline.predict.prediction import Case
from paceline.predict.profiled import profile_link, profile_uncertainty, profile_workload
from paceline.predict.spec import OVERHEAD, Device, spec_fabric, spec_uncertainty, spec_workload
from paceline.records.folder import RunFolder
from paceline.records.profile import Profile, read_profile
from paceline.records.reader import summarise

MOST_RANKS = 10**6
FIXED = 0.1
"""Fraction of a step's compute time that does not depend on the batch: kernel launches, small layers."""
GUESSED_PACE = 0.25
"""Uncertainty of the speed of a device known only by its name."""
UNUSED = "10gbit"
"""A placeholder for the link between nodes if there is only one node."""
NO_SPEED = "add --step-time 0.345 or --samples-per-second 186, with --per-rank-batch 64"


def check_ranks(cluster: ClusterOptions) -> None:
    """Refuse numbers of ranks and devices that are out of range."""
    if not cluster.ranks:
        raise SettingError("ranks", "is empty", hint="use --ranks 2,4,8")
    for ranks in cluster.ranks:
        if not 1 <= ranks <= MOST_RANKS:
            raise SettingError(
                "ranks", f"has {ranks}, but must be between 1 and {MOST_RANKS:,}", hint="use --ranks 2,4,8"
            )
    if cluster.per_node < 1:
        raise SettingError("per_node", f"is {cluster.per_node}, but must be at least 1")
    if cluster.price is not None and cluster.price < 0:
        raise SettingError("price", f"is {cluster.price}, but must be at least 0")


def run_case(folder: RunFolder, cluster: ClusterOptions, batch: BatchOptions) -> tuple[Case, str]:
    """Return the case of a profiled run, and a description of its source."""
    profile = read_profile(folder)
    if profile.world_size < 2 and cluster.link is None:
        raise RunError(
            f"{folder.path} was profiled on one rank, so it has no measured link", hint="add --link, such as 1gbit"
        )
    case = Case(
        workload=profile_workload(profile),
        fabric=_profile_fabric(profile, cluster),
        uncertainty=profile_uncertainty(profile),
        fixed=FIXED,
        accumulate=batch.accumulate or profile.accumulate,
        total_samples=_samples_of(folder),
    )
    where = f"{folder.path}: {plural(profile.world_size, 'rank')}, {profile.model} on {profile.device}"
    return _with_batch(case, cluster, batch), f"the profile of {where}, {profile.backend}"


def spec_case(
    cluster: ClusterOptions, spec: ModelSpec, batch: BatchOptions, layers_of: Callable[[str], list[Layer]]
) -> tuple[Case, str]:
    """Return the case of a model spec, and a description of its source.

    `layers_of` returns the layers of a model whose shape is not built in.
    """
    if spec.model is None and spec.parameters is None:
        raise ConfigError(
            "no run or model to predict from",
            hint="give a RUN with a profile (from paceline profile), or --model resnet50, or --parameters 25.6M",
        )
    if cluster.link is None and max(cluster.ranks) > cluster.per_node:
        raise ConfigError(
            "--link is not set", hint='add the link between nodes: --link 10gbit, or --link "100gbit rdma"'
        )
    layers = _layers(spec, layers_of)
    device = _device(spec, batch, layers)
    inter = parse_link(cluster.link or UNUSED, latency=_latency(cluster))
    intra = parse_intra_link(cluster.intra or "pcie")
    uncertainty = spec_uncertainty(inter, intra)
    if spec.step_time is None and spec.samples_per_second is None:
        uncertainty = replace(uncertainty, pace=GUESSED_PACE)
    parts = batch.accumulate or 1
    case = Case(
        workload=spec_workload(layers, device, bucket=_amount("bucket", spec.bucket), accumulate=parts),
        fabric=spec_fabric(inter, intra, per_node=cluster.per_node, algorithm=cluster.algorithm or "auto"),
        uncertainty=uncertainty,
        overhead=OVERHEAD,
        fixed=FIXED,
        accumulate=parts,
    )
    size = sum(layer.parameters for layer in layers) / 1e6
    speed = f"{number(device.step)} s for {number(device.samples)} samples on one device"
    return _with_batch(
        case, cluster, batch, is_spec=True
    ), f"{spec.model or 'a model'} with {size:.4g} M parameters, {speed}"


def _with_batch(case: Case, cluster: ClusterOptions, batch: BatchOptions, *, is_spec: bool = False) -> Case:
    """Return the case with the batch and the length from the options."""
    if batch.global_batch is not None and batch.per_rank_batch is not None and not is_spec:
        raise ConfigError("--global-batch cannot be combined with --per-rank-batch", hint="use one of them")
    for name in ("global_batch", "per_rank_batch", "accumulate"):
        value = getattr(batch, name)
        if value is not None and value < 1:
            raise SettingError(name, f"is {number(value)}, but must be at least 1")
    if batch.per_rank_batch is not None:
        case = replace(case, workload=case.workload.with_samples(batch.per_rank_batch, fixed=case.fixed))
    if batch.compress != "none":
        case = replace(case, workload=case.workload.compressed(0.5))
    total = case.total_samples if batch.samples is None else _amount("samples", batch.samples)
    return replace(case, global_batch=batch.global_batch, total_samples=total, price=cluster.price)


def _profile_fabric(profile: Profile, cluster: ClusterOptions) -> Fabric:
    """Return the fabric of the options; missing values come from the profile."""
    seen = profile_link(profile)
    inter = seen
    if cluster.link is not None:
        latency = _latency(cluster)
        named = parse_link(cluster.link, latency=latency)
        inter = named.link
        if latency is None and profile.world_size > 1:
            inter = replace(inter, latency=seen.latency)
    intra = parse_intra_link(cluster.intra).link if cluster.intra is not None else _profile_intra_link(profile, seen)
    usual = "ring" if profile.backend == "gloo" else "auto"
    return Fabric(inter=inter, intra=intra, per_node=cluster.per_node, algorithm=cluster.algorithm or usual)


def _profile_intra_link(profile: Profile, seen: Link) -> Link:
    """Return the link inside a node: measured if all ranks of the profile were on one node."""
    return seen if profile.world_size > 1 and len(profile.ranks_per_node) == 1 else parse_link("memory").link


def _samples_of(folder: RunFolder) -> float | None:
    """Return the total samples of a run, as far as its records show."""
    run = summarise(folder)
    if not run.epochs:
        return None
    return run.config.epochs * run.config.global_batch * run.step / run.epochs


def _layers(spec: ModelSpec, layers_of: Callable[[str], list[Layer]]) -> list[Layer]:
    """Return the layers of the model, scaled to the given size."""
    size = None if spec.parameters is None else _amount("parameters", spec.parameters)
    if size is not None and size < 1:
        raise SettingError("parameters", f'is "{spec.parameters}", but must be at least 1')
    if spec.model is None:
        assert size is not None
        return even(size)
    layers = find_shape(spec.model) or layers_of(spec.model)
    factor = 1.0 if size is None else size / sum(layer.parameters for layer in layers)
    return [Layer(layer.parameters * factor, layer.macs) for layer in layers]


def _device(spec: ModelSpec, batch: BatchOptions, layers: list[Layer]) -> Device:
    """Return the speed of one device from the model spec."""
    batch_size = batch.per_rank_batch
    width = 4.0 if spec.gradients == "fp32" else 2.0
    if spec.step_time is not None and spec.samples_per_second is not None:
        raise ConfigError("--step-time cannot be combined with --samples-per-second", hint="use one of them")
    if batch_size is None or batch_size <= 0:
        raise ConfigError("--per-rank-batch is not set", hint=NO_SPEED)
    if spec.step_time is not None:
        step = _seconds("step_time", spec.step_time)
    elif spec.samples_per_second is not None:
        step = batch_size / spec.samples_per_second if spec.samples_per_second > 0 else 0.0
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


def _latency(cluster: ClusterOptions) -> float | None:
    return None if cluster.latency is None else _seconds("latency", cluster.latency)


def _seconds(setting: str, text: str) -> float:
    try:
        return parse_seconds(text)
    except ValueError as cause:
        raise SettingError(setting, f'is "{text}": {cause}') from None


def _amount(setting: str, text: str) -> float:
    try:
        return parse_number(text)
    except ValueError as cause:
        raise SettingError(setting, f'is "{text}": {cause}') from None
