"""From what `paceline predict` was told to the case that is simulated, refusing what makes no sense."""

from dataclasses import replace

from paceline.analysis.architectures import GPUS, Layer, Layers, even, find_shape, list_shapes
from paceline.analysis.fabric import Fabric, Link
from paceline.analysis.links import find_inside, find_link
from paceline.analysis.measured import measured_doubt, measured_link, measured_workload
from paceline.analysis.paper import OVERHEAD, Device, paper_doubt, paper_fabric, paper_workload
from paceline.analysis.predict import Case
from paceline.commands.predict_options import Batch, Cluster, Paper
from paceline.core.errors import ConfigError, ModelError, RunError, SettingError
from paceline.core.names import suggestion
from paceline.core.units import number, parse_number, parse_seconds, plural
from paceline.records.folder import RunFolder
from paceline.records.profile import Profile, read_profile
from paceline.records.reader import summarise

MOST_RANKS = 10**6
FIXED = 0.1
"""Part of a step's computing that another batch leaves as it is: starting kernels, small layers."""
GUESSED_PACE = 0.25
"""Doubt about the speed of a device that is known only by its name."""
UNUSED = "10gbit"
"""A link between nodes where there is only one."""
NO_SPEED = "say how fast one device is: --step-time 0.345 or --images-per-second 186, with --per-rank-batch 64"


def check_ranks(cluster: Cluster) -> None:
    """Refuse numbers of ranks and devices that nobody has."""
    if not cluster.ranks:
        raise SettingError("ranks", "names no number of ranks", hint="use --ranks 2,4,8")
    for ranks in cluster.ranks:
        if not 1 <= ranks <= MOST_RANKS:
            raise SettingError("ranks", f"has {ranks}, but must be from 1 to {MOST_RANKS:,}", hint="use --ranks 2,4,8")
    if cluster.per_node < 1:
        raise SettingError("per_node", f"is {cluster.per_node}, but a node has at least 1 device")
    if cluster.price is not None and cluster.price < 0:
        raise SettingError("price", f"is {cluster.price}, but must be at least 0")


def run_case(folder: RunFolder, cluster: Cluster, batch: Batch) -> tuple[Case, str]:
    """Return the case of a run that was profiled, and what it rests on."""
    profile = read_profile(folder)
    if profile.world_size < 2 and cluster.link is None:
        raise RunError(
            f"{folder.path} was profiled on one rank, which says nothing about links", hint="add --link, such as 1gbit"
        )
    case = Case(
        workload=measured_workload(profile),
        fabric=_measured_fabric(profile, cluster),
        doubt=measured_doubt(profile),
        fixed=FIXED,
        accumulate=batch.accumulate or profile.accumulate,
        total_images=_images_of(folder),
    )
    where = f"{folder.path}: {plural(profile.world_size, 'rank')}, {profile.model} on {profile.device}"
    return _with_batch(case, cluster, batch), f"the profile of {where}, {profile.backend}"


def paper_case(cluster: Cluster, paper: Paper, batch: Batch) -> tuple[Case, str]:
    """Return the case of a cluster that is only on paper, and what it rests on."""
    if paper.model is None and paper.parameters is None:
        raise ConfigError(
            "there is nothing to predict from",
            hint="name a RUN with a profile (paceline profile makes one), or --model resnet50, or --parameters 25.6M",
        )
    if cluster.link is None and max(cluster.ranks) > cluster.per_node:
        raise ConfigError("--link is not set", hint='say what connects the nodes: --link 10gbit, --link "100gbit rdma"')
    layers = _layers(paper)
    device = _device(paper, batch, layers)
    inter = find_link(cluster.link or UNUSED, latency=_latency(cluster))
    intra = find_inside(cluster.intra or "pcie")
    doubt = paper_doubt(inter, intra)
    if paper.step_time is None and paper.images_per_second is None:
        doubt = replace(doubt, pace=GUESSED_PACE)
    parts = batch.accumulate or 1
    case = Case(
        workload=paper_workload(layers, device, bucket=_amount("bucket", paper.bucket), accumulate=parts),
        fabric=paper_fabric(inter, intra, per_node=cluster.per_node, algorithm=cluster.algorithm or "auto"),
        doubt=doubt,
        overhead=OVERHEAD,
        fixed=FIXED,
        accumulate=parts,
    )
    size = sum(layer.parameters for layer in layers) / 1e6
    speed = f"{number(device.step)} s for {number(device.images)} images on one device"
    return _with_batch(
        case, cluster, batch, is_paper=True
    ), f"{paper.model or 'a model'} with {size:.4g} M parameters, {speed}"


def _with_batch(case: Case, cluster: Cluster, batch: Batch, *, is_paper: bool = False) -> Case:
    """Return the case with the batch and the length that were asked for."""
    if batch.global_batch is not None and batch.per_rank_batch is not None and not is_paper:
        raise ConfigError("--global-batch and --per-rank-batch exclude each other", hint="use one of them")
    for name in ("global_batch", "per_rank_batch", "accumulate"):
        value = getattr(batch, name)
        if value is not None and value < 1:
            raise SettingError(name, f"is {number(value)}, but must be at least 1")
    if batch.per_rank_batch is not None:
        case = replace(case, workload=case.workload.with_images(batch.per_rank_batch, fixed=case.fixed))
    if batch.compress != "none":
        case = replace(case, workload=case.workload.compressed(0.5))
    total = case.total_images if batch.images is None else _amount("images", batch.images)
    return replace(case, global_batch=batch.global_batch, total_images=total, price=cluster.price)


def _measured_fabric(profile: Profile, cluster: Cluster) -> Fabric:
    """Return the fabric asked for; what nobody said is as the profile measured it."""
    seen = measured_link(profile)
    inter = seen
    if cluster.link is not None:
        latency = _latency(cluster)
        named = find_link(cluster.link, latency=latency)
        inter = named.link
        if latency is None and profile.world_size > 1:
            inter = replace(inter, latency=seen.latency)
    intra = find_inside(cluster.intra).link if cluster.intra is not None else _seen_inside(profile, seen)
    usual = "ring" if profile.backend == "gloo" else "auto"
    return Fabric(inter=inter, intra=intra, per_node=cluster.per_node, algorithm=cluster.algorithm or usual)


def _seen_inside(profile: Profile, seen: Link) -> Link:
    """Return the link inside a node where the profile saw it: all its ranks were on one."""
    return seen if profile.world_size > 1 and len(profile.ranks_per_node) == 1 else find_link("memory").link


def _images_of(folder: RunFolder) -> float | None:
    """Return the images that the whole of a run trains on, as far as its records tell."""
    run = summarise(folder)
    if not run.epochs:
        return None
    return run.config.epochs * run.config.global_batch * run.step / run.epochs


def _layers(paper: Paper) -> Layers:
    """Return the shape of the model, scaled to the size that was given."""
    size = None if paper.parameters is None else _amount("parameters", paper.parameters)
    if size is not None and size < 1:
        raise SettingError("parameters", f'is "{paper.parameters}", but must be at least 1')
    if paper.model is None:
        assert size is not None
        return even(size)
    layers = find_shape(paper.model) or _zoo_layers(paper.model)
    factor = 1.0 if size is None else size / sum(layer.parameters for layer in layers)
    return [Layer(layer.parameters * factor, layer.macs) for layer in layers]


def _zoo_layers(name: str) -> Layers:
    """Return the layers of one of our own models; on the meta device it has shapes but no content."""
    import torch

    from paceline.models.shape import layer_costs
    from paceline.models.zoo import build_model, list_models, usual_task

    if ":" not in name and name not in list_models():
        raise ModelError(
            f"there is no model {name}", hint=suggestion(name, [*list_shapes(), *list_models()]) + "; or --parameters"
        )
    num_classes, image_shape = usual_task(name)
    with torch.device("meta"):
        model = build_model(name, num_classes=num_classes, image_shape=image_shape)
    return [Layer(parameters, macs) for parameters, macs in layer_costs(model, image_shape)]


def _device(paper: Paper, batch: Batch, layers: Layers) -> Device:
    """Return what one device does, from whatever the paper says about it."""
    images = batch.per_rank_batch
    width = 4.0 if paper.gradients == "fp32" else 2.0
    if paper.step_time is not None and paper.images_per_second is not None:
        raise ConfigError("--step-time and --images-per-second say the same thing", hint="use one of them")
    if images is None or images <= 0:
        raise ConfigError("--per-rank-batch is not set", hint=NO_SPEED)
    if paper.step_time is not None:
        step = _seconds("step_time", paper.step_time)
    elif paper.images_per_second is not None:
        step = images / paper.images_per_second if paper.images_per_second > 0 else 0.0
    else:
        step = _guessed_step(paper, images, layers)
    if step <= 0:
        raise ConfigError("a step must take more than 0 seconds", hint=NO_SPEED)
    return Device(step=step, images=images, bytes_per_parameter=width)


def _guessed_step(paper: Paper, images: float, layers: Layers) -> float:
    """Return the step of a device known by name: forward once, backward twice, two operations for each pair."""
    if paper.gpu is None:
        raise ConfigError("nobody said how fast one device is", hint=NO_SPEED)
    if paper.gpu.lower() not in GPUS:
        raise ConfigError(f"there is no --gpu {paper.gpu}", hint=suggestion(paper.gpu, GPUS))
    if paper.model is None:
        raise ConfigError("--gpu needs --model, whose arithmetic is known", hint=NO_SPEED)
    return 3 * 2 * sum(layer.macs for layer in layers) * images / GPUS[paper.gpu.lower()]


def _latency(cluster: Cluster) -> float | None:
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
