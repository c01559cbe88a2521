"""The settings of a run: one flat, frozen record. A Config that exists is valid."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter, Token

from paceline.core.augment import parse_steps, standard_policy
from paceline.core.errors import ConfigError, SettingError
from paceline.core.exact import refuse_inexact
from paceline.core.interval import Interval
from paceline.core.names import suggestion
from paceline.core.units import count

DATA = Group("Data", sort_key=1)
MODEL = Group("Model", sort_key=2)
LENGTH = Group("Length and batch", sort_key=3)
OPTIMIZER = Group("Optimizer", sort_key=4)
SCHEDULE = Group("Learning rate", sort_key=5)
MACHINE = Group("Machine", sort_key=6)
WATCH = Group("Watching and saving", sort_key=7)

CHOICES_OF_TRACK = ("tensorboard", "wandb")
EVERY_EPOCH = Interval(1)
LEAST_IMAGES_A_SHARD = 32  # with fewer a step of resnet20 takes a CPU a tenth longer than one whole batch does
DEFAULT_LR = {"sgd": 0.1, "adam": 0.001, "adamw": 0.001}


def _words(_type: Any, tokens: Sequence[Token]) -> tuple[str, ...]:
    """Read a list given as "a,b", as repeated flags, or as a TOML array; "none" is the empty list."""
    words = [word.strip() for token in tokens for word in token.value.split(",")]
    return tuple(word for word in words if word not in {"", "none"})


def _numbers(_type: Any, tokens: Sequence[Token]) -> tuple[int, ...]:
    return tuple(int(word) for word in _words(_type, tokens))


def _whole(_type: Any, tokens: Sequence[Token]) -> int:
    """Read a whole number; 1.5 is refused rather than rounded."""
    return int(tokens[0].value.replace("_", ""))


def _interval(_type: Any, tokens: Sequence[Token]) -> Interval:
    return Interval.parse(tokens[0].value)


def _listed(values: Sequence[Any]) -> str:
    return ",".join(map(str, values)) or "none"


Whole = Annotated[int, Parameter(converter=_whole)]
MaybeWhole = Annotated[int | None, Parameter(converter=_whole)]
Names = Annotated[tuple[str, ...], Parameter(converter=_words, n_tokens=1, negative="", show_default=_listed)]
Numbers = Annotated[tuple[int, ...], Parameter(converter=_numbers, n_tokens=1, negative="", show_default=_listed)]
Every = Annotated[Interval, Parameter(converter=_interval, n_tokens=1, accepts_keys=False)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Everything that decides what a run computes and what it leaves behind."""

    data: Annotated[str, Parameter(group=DATA)] = "digits"
    """Data set: digits, cifar10, cifar100, cinic10, fashion-mnist, imagenet, folder:PATH, packed:PATH, my.py:build."""
    data_dir: Annotated[Path, Parameter(group=DATA)] = Path("data")
    """Folder where data sets are kept."""
    valid_split: Annotated[float, Parameter(group=DATA)] = 0.1
    """Share of the training images held out for validation; 0 validates on the test images."""
    workers: Annotated[Whole, Parameter(group=DATA)] = 0
    """Processes that prepare batches; 0 prepares them in the training process."""
    augment: Annotated[str, Parameter(group=DATA)] = "standard"
    """Random changes of training images: standard (what the data set usually gets), none, or steps like crop4,flip."""
    image_size: Annotated[MaybeWhole, Parameter(group=DATA)] = None
    """Side in pixels to which images of a folder, a pack or imagenet are cut; 224 when not given."""
    bad_images: Annotated[Literal["fail", "skip"], Parameter(group=DATA)] = "fail"
    """Stop at an image that cannot be decoded, or show another one of its class instead."""

    model: Annotated[str, Parameter(alias="-m", group=MODEL)] = "resnet20"
    """Model: a name that paceline models lists, timm:NAME, torchvision:NAME, or your own as my.py:build."""
    precision: Annotated[Literal["fp32", "bf16", "fp16"], Parameter(group=MODEL)] = "fp32"
    """Arithmetic of the forward pass; fp16 scales the loss."""
    channels_last: Annotated[bool, Parameter(group=MODEL)] = True
    """Keep images as N×H×W×C in memory, which convolutions prefer."""
    compile: Annotated[bool, Parameter(group=MODEL)] = False
    """Compile the model with torch.compile."""
    ema: Annotated[float | None, Parameter(group=MODEL)] = None
    """Evaluate a moving average of the weights with this decay, such as 0.999."""

    epochs: Annotated[Whole, Parameter(alias="-e", group=LENGTH)] = 10
    """How many times to go over the training images."""
    steps: Annotated[MaybeWhole, Parameter(group=LENGTH)] = None
    """Stop after this many steps in all, whatever --epochs says; less than an epoch scores fewer images."""
    global_batch: Annotated[Whole, Parameter(alias="-b", group=LENGTH)] = 128
    """Images per step over all devices together."""
    accumulate: Annotated[Whole, Parameter(group=LENGTH)] = 1
    """Parts in which a device computes its share of the batch, to save memory; batch norm sees each part alone."""
    patience: Annotated[MaybeWhole, Parameter(group=LENGTH)] = None
    """Stop after this many evaluations without a better validation accuracy."""
    seed: Annotated[Whole, Parameter(group=LENGTH)] = 0
    """Decides initial weights, order, augmentation and dropout."""

    optimizer: Annotated[Literal["sgd", "adam", "adamw"], Parameter(group=OPTIMIZER)] = "sgd"
    """Optimizer; sgd uses Nesterov momentum."""
    lr: Annotated[float | None, Parameter(group=OPTIMIZER)] = None
    """Learning rate; 0.1 for sgd and 0.001 for adam and adamw when not given."""
    momentum: Annotated[float, Parameter(group=OPTIMIZER)] = 0.9
    """Momentum of sgd."""
    weight_decay: Annotated[float, Parameter(group=OPTIMIZER)] = 5e-4
    """Weight decay."""
    no_decay_norm: Annotated[bool, Parameter(group=OPTIMIZER, negative="--decay-norm")] = False
    """Do not decay biases and the parameters of normalisation layers."""
    label_smoothing: Annotated[float, Parameter(group=OPTIMIZER)] = 0.0
    """Probability spread over the wrong classes."""
    clip: Annotated[float | None, Parameter(group=OPTIMIZER)] = None
    """Largest norm of the gradient."""

    schedule: Annotated[Literal["constant", "milestones", "step", "cosine", "one-cycle"], Parameter(group=SCHEDULE)] = (
        "cosine"
    )
    """How the learning rate changes over the run."""
    milestones: Annotated[Numbers, Parameter(group=SCHEDULE)] = ()
    """Epochs at which the learning rate drops, as in --milestones 60,120,160."""
    decay_every: Annotated[Whole, Parameter(group=SCHEDULE)] = 30
    """Epochs between the drops of --schedule step."""
    decay_rate: Annotated[float, Parameter(group=SCHEDULE)] = 0.1
    """Factor of each drop."""
    warmup: Annotated[float, Parameter(group=SCHEDULE)] = 0.0
    """Epochs over which the learning rate rises from near zero; one-cycle rises over 30% of the run when 0."""
    lr_scaling: Annotated[Literal["none", "linear", "sqrt"], Parameter(group=SCHEDULE)] = "none"
    """Scale the learning rate with the global batch, relative to --reference-batch."""
    reference_batch: Annotated[Whole, Parameter(group=SCHEDULE)] = 128
    """Global batch for which --lr was chosen."""

    mode: Annotated[Literal["auto", "single", "dp", "ddp", "fsdp"], Parameter(group=MACHINE)] = "auto"
    """single: one device; dp: one process, many devices; ddp: a process per device; fsdp: ddp with sharded weights."""
    batch_norm: Annotated[Literal["local", "sync", "ghost"], Parameter(group=MACHINE)] = "local"
    """Batch statistics over each rank's images, over the global batch, or over --shards fixed parts of it."""
    exact: Annotated[Literal["order", "bitwise"], Parameter(group=MACHINE)] = "order"
    """order: equal up to rounding at every world size; bitwise: equal to the last bit, with ghost batch norm."""
    shards: Annotated[MaybeWhole, Parameter(group=MACHINE)] = None
    """Fixed parts of the batch for bitwise and ghost; no more ranks than that. 8, below --global-batch 256 4."""
    compress: Annotated[Literal["none", "fp16", "bf16", "powersgd"], Parameter(group=MACHINE)] = "none"
    """Send gradients in fewer bytes."""
    bucket_mb: Annotated[float | None, Parameter(group=MACHINE)] = None
    """Megabytes of gradients that ddp sends at once; 25, and 1 for the first, when not given."""
    check_replicas: Annotated[MaybeWhole, Parameter(group=MACHINE)] = None
    """Compare the weights of all ranks, bit by bit, every so many steps; every checkpoint does so anyway."""
    device: Annotated[str, Parameter(group=MACHINE)] = "auto"
    """auto, cpu, cuda or cuda:1."""
    threads: Annotated[MaybeWhole, Parameter(group=MACHINE)] = None
    """CPU threads of each rank; OMP_NUM_THREADS, or else all cores shared evenly, when not given; bitwise takes 1."""

    name: Annotated[str | None, Parameter(alias="--run", group=WATCH)] = None
    """Name of the run; DATA-MODEL when not given. Each start gets a numbered folder under it."""
    runs_dir: Annotated[Path, Parameter(group=WATCH)] = Path("runs")
    """Folder for all runs."""
    track: Annotated[Names, Parameter(group=WATCH)] = ("tensorboard",)
    """Trackers beside console and metrics.jsonl: tensorboard, wandb, both with a comma, or none."""
    log_every: Annotated[Whole, Parameter(group=WATCH)] = 50
    """Steps between two records of the training metrics."""
    profile: Annotated[bool, Parameter(group=WATCH, negative="")] = False
    """First measure steps with and without communication, and the link, for paceline explain and predict."""
    eval_every: Annotated[Every, Parameter(group=WATCH)] = EVERY_EPOCH
    """When to evaluate: 1 (epochs), "2 epochs" or "500 steps"."""
    save_every: Annotated[Every, Parameter(group=WATCH)] = EVERY_EPOCH
    """When to save a checkpoint: 1 (epochs), "2 epochs" or "500 steps"."""
    keep: Annotated[Whole, Parameter(group=WATCH)] = 2
    """Newest checkpoints to keep, beside the best one."""
    save_async: Annotated[bool, Parameter(group=WATCH)] = False
    """Go on training while a checkpoint is written."""

    def __post_init__(self) -> None:
        _check_least(self)
        _check_numbers(self)
        _check_choices(self)
        _check_shards(self)

    @property
    def base_lr(self) -> float:
        """The learning rate before scaling."""
        return DEFAULT_LR[self.optimizer] if self.lr is None else self.lr

    @property
    def fixed_shards(self) -> int | None:
        """The parts in which the global batch is computed at every world size, where there are such."""
        if self.exact != "bitwise" and self.batch_norm != "ghost":
            return None
        if self.shards is not None:
            return self.shards
        return 8 if self.global_batch >= 8 * LEAST_IMAGES_A_SHARD else 4

    @property
    def augment_policy(self) -> str:
        """The steps of augmentation, those of the data set where they are left to it."""
        return standard_policy(self.data) if self.augment == "standard" else self.augment

    @property
    def run_name(self) -> str:
        """The folder under runs_dir that the run belongs to."""
        if self.name is not None:
            return self.name
        return f"{_stem(self.data)}-{_stem(self.model)}"

    def resolved(self) -> "Config":
        """Return the same settings with every derived default written out."""
        batch_norm = self.batch_norm if self.fixed_shards is None else "ghost"
        derived = {"lr": self.base_lr, "augment": self.augment_policy, "name": self.run_name, "batch_norm": batch_norm}
        return dataclasses.replace(self, shards=self.fixed_shards or self.shards, **derived)

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as plain values, those that are not set left out."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {key: _plain(value) for key, value in values.items() if value is not None}


SETTINGS = tuple(field.name for field in dataclasses.fields(Config))

CHANGEABLE = frozenset({
    "data_dir", "workers", "bad_images", "epochs", "steps", "patience", "mode", "exact", "check_replicas", "device",
    "threads", "name", "runs_dir", "track", "log_every", "profile", "eval_every", "save_every", "keep", "save_async",
})  # fmt: skip
"""Settings that a resumed run may change: where it runs, how long, what it leaves behind, not what it computes."""


def flag(setting: str) -> str:
    """Return the flag of a setting: "--global-batch" for "global_batch"."""
    return "--" + setting.replace("_", "-")


def _plain(value: Any) -> Any:
    if isinstance(value, Path | Interval):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def _stem(name: str) -> str:
    """Return the part of "my.py:build", "folder:/a/b" or "resnet20" that serves as a folder name."""
    file, _, rest = name.partition(":")
    return Path(file).stem if file.endswith(".py") or not rest else Path(rest).name or file


_AT_LEAST: dict[str, float] = {
    "epochs": 1, "steps": 1, "global_batch": 1, "accumulate": 1, "patience": 1, "threads": 1, "log_every": 1, "keep": 1,
    "workers": 0, "image_size": 1, "seed": 0, "shards": 1, "check_replicas": 1,
    "momentum": 0, "weight_decay": 0, "warmup": 0, "decay_every": 1, "reference_batch": 1,
}  # fmt: skip


def _check_least(config: Config) -> None:
    for name, least in _AT_LEAST.items():
        value = getattr(config, name)
        if value is not None and not value >= least:
            raise SettingError(name, f"is {value}, but must be at least {least:g}")
        if value == float("inf"):
            raise SettingError(name, f"is {value}, but must be a finite number")


def _check_numbers(config: Config) -> None:
    for name in ("lr", "clip", "decay_rate", "bucket_mb"):
        value = getattr(config, name)
        if value is not None and not 0 < value < float("inf"):
            raise SettingError(name, f"is {value}, but must be a number above 0")
    for name in ("valid_split", "label_smoothing", "ema"):
        value = getattr(config, name)
        if value is not None and not 0 <= value < 1:
            raise SettingError(name, f"is {value}, but must be at least 0 and below 1")
    if config.accumulate > config.global_batch:
        raise ConfigError(
            f"--global-batch {count(config.global_batch)} cannot be computed in {config.accumulate} micro-batches",
            hint=f"use --accumulate {config.global_batch} or less",
        )


def _check_choices(config: Config) -> None:
    parse_steps(config.augment_policy)
    if config.schedule == "milestones" and not config.milestones:
        raise ConfigError("--schedule milestones needs to know when", hint="add --milestones 60,120,160")
    if config.milestones and config.schedule != "milestones":
        raise ConfigError(f"--milestones is set, but --schedule is {config.schedule}", hint="add --schedule milestones")
    if list(config.milestones) != sorted(set(config.milestones)) or min(config.milestones, default=1) < 1:
        raise SettingError("milestones", f"is {list(config.milestones)}, but must be rising epoch numbers from 1 on")
    for tracker in config.track:
        if tracker not in CHOICES_OF_TRACK:
            raise SettingError("track", f'names "{tracker}"', hint=suggestion(tracker, [*CHOICES_OF_TRACK, "none"]))
    name = config.run_name
    if name in {"", ".", ".."} or "/" in name or name.startswith(("-", ".")):
        raise SettingError("name", f'is "{name}", which is not a folder name', hint="use letters, digits, - and _")


def _check_shards(config: Config) -> None:
    if config.exact == "bitwise":
        refuse_inexact({field.name: getattr(config, field.name) for field in dataclasses.fields(config)})
    if config.fixed_shards is not None and config.accumulate > 1:
        cause = "--exact bitwise" if config.exact == "bitwise" else "--batch-norm ghost"
        raise ConfigError(
            f"{cause} computes the batch in --shards parts already",
            hint="drop --accumulate; more shards need less memory",
        )
