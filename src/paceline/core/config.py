"""The settings of a run: one flat, frozen record. A Config that exists is valid."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter

from paceline.core.augment_syntax import parse_steps, standard_policy
from paceline.core.config_rules import (
    check_fine_tuning,
    check_own_parts,
    name_of_run,
    refuse_bad_name,
    refuse_bad_numbers,
    refuse_bad_upload,
    refuse_impossible_shards,
    refuse_passwords,
    refuse_unknown_trackers,
    refuse_unused_by_loop,
    stem,
)
from paceline.core.errors import ConfigError, SettingError
from paceline.core.live_code import name_objects
from paceline.core.setting_types import (
    Every,
    Interval,
    MaybeWhole,
    Names,
    Numbers,
    OptimizerName,
    Parts,
    SampleOrder,
    ScheduleName,
    Whole,
)
from paceline.core.settings_record import with_short_repr

DATA = Group("Data", sort_key=1)
MODEL = Group("Model", sort_key=2)
LENGTH = Group("Length and batch", sort_key=3)
OPTIMIZER = Group("Optimizer", sort_key=4)
SCHEDULE = Group("Learning rate", sort_key=5)
MACHINE = Group("Device and parallelism", sort_key=6)
WATCH = Group("Logging and checkpoints", sort_key=7)

EVERY_EPOCH = Interval(1)
LEAST_SAMPLES_PER_SHARD = 32  # with fewer, a step of resnet20 on a CPU takes 10% longer than without shards
DEFAULT_LR = {"sgd": 0.1, "adam": 0.001, "adamw": 0.001}
OWN_LR = 0.001


@with_short_repr
@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Config:
    """All settings of what a run computes and which files it writes."""

    data: Annotated[str, Parameter(group=DATA)] = "digits"
    """Data set: digits, cifar10, cifar100, cinic10, fashion-mnist, imagenet, folder:PATH, packed:PATH, my.py:build;
    alice, text:FILE, tokens:PATH (language), shapes (segmentation), shape-labels, shape-centers (regression)."""
    data_dir: Annotated[Path, Parameter(group=DATA)] = Path("data")
    """Folder where data sets are kept."""
    valid_split: Annotated[float, Parameter(group=DATA)] = 0.1
    """Fraction of the training samples held out for validation; 0 validates on the test set."""
    workers: Annotated[Whole, Parameter(group=DATA)] = 0
    """Data-loading processes per rank; 0 loads batches in the training process."""
    augment: Annotated[str, Parameter(group=DATA)] = "standard"
    """Augmentation: standard (the usual steps for the data set), none, or a list of steps such as crop4,flip;
    my.py:name is a step of your own."""
    image_size: Annotated[MaybeWhole, Parameter(group=DATA)] = None
    """Height and width in pixels of the images of folder:, packed: and imagenet. Default: 224."""
    context: Annotated[MaybeWhole, Parameter(group=DATA)] = None
    """Tokens per sample of alice, text: and tokens:. Default: 128."""
    bad_images: Annotated[Literal["fail", "skip"], Parameter(group=DATA)] = "fail"
    """fail: stop at an image that cannot be decoded; skip: use another image of its class instead."""
    sample_order: Annotated[SampleOrder, Parameter(group=DATA)] = "auto"
    """Shuffle by argsort (of hashes) or feistel (a permutation that needs no memory); auto: feistel above 2^20 samples.
    """

    collate: Annotated[str | None, Parameter(group=DATA)] = None
    """Your own function my.py:pad, which turns a list of samples of my.py:build into a micro-batch."""

    task: Annotated[str | None, Parameter(group=MODEL)] = None
    """What is learnt: classification, language, regression, segmentation, multi-label, or your own as my.py:Task.
    Default: the usual task of the data set."""
    metric: Annotated[Names, Parameter(group=MODEL)] = ()
    """Your own metrics besides those of the task, as in --metric my.py:name."""
    model: Annotated[str, Parameter(alias="-m", group=MODEL)] = "resnet20"
    """Model: a name listed by paceline models, timm:NAME, torchvision:NAME, hf:FOLDER, or your own as my.py:build."""
    loop: Annotated[str | None, Parameter(group=MODEL)] = None
    """Your own training loop, as in --loop gan.py:train: a function of a Run."""
    precision: Annotated[Literal["fp32", "bf16", "fp16"], Parameter(group=MODEL)] = "fp32"
    """Precision of the forward pass (autocast); fp16 uses loss scaling."""
    channels_last: Annotated[bool, Parameter(group=MODEL)] = True
    """Use the channels-last memory format (N×H×W×C), which is faster for convolutions."""
    compile: Annotated[bool, Parameter(group=MODEL)] = False
    """Compile the model with torch.compile."""
    ema: Annotated[float | None, Parameter(group=MODEL)] = None
    """Evaluate an exponential moving average of the weights with this decay, such as 0.999."""
    init: Annotated[str | None, Parameter(group=MODEL)] = None
    """Start from the weights of a run or a file: .pt, .pth, .safetensors, or a folder of Hugging Face."""
    head: Annotated[Literal["keep", "new"], Parameter(group=MODEL)] = "keep"
    """With --init: keep the last layer, or draw a new one, as for other classes."""
    freeze: Annotated[Names, Parameter(group=MODEL)] = ()
    """Layers or parameters that are not trained, as in --freeze "conv1,layer1,*.bias"; their batch norm stays still."""
    checkpoint_activations: Annotated[Names, Parameter(group=MODEL)] = ()
    """Layers that compute their activations again in the backward pass, to save memory, as in "blocks.*"."""

    epochs: Annotated[Whole, Parameter(alias="-e", group=LENGTH)] = 10
    """Number of passes over the training samples."""
    steps: Annotated[MaybeWhole, Parameter(group=LENGTH)] = None
    """Stop after this many steps, regardless of --epochs; below one epoch, scores use fewer samples."""
    global_batch: Annotated[Whole, Parameter(alias="-b", group=LENGTH)] = 128
    """Samples per step over all devices."""
    accumulate: Annotated[Parts, Parameter(group=LENGTH)] = 1
    """Micro-batches per step and device, to save memory (batch norm sees each separately); auto: as few as fit."""
    patience: Annotated[MaybeWhole, Parameter(group=LENGTH)] = None
    """Stop after this many evaluations without a better validation score: the one that picks the best checkpoint."""
    seed: Annotated[Whole, Parameter(group=LENGTH)] = 0
    """Seed for initial weights, sample order, augmentation and dropout."""

    optimizer: Annotated[OptimizerName, Parameter(group=OPTIMIZER)] = "sgd"
    """Optimizer: sgd (with Nesterov momentum), adam, adamw, or your own as my.py:build or torch.optim:RMSprop."""
    lr: Annotated[float | None, Parameter(group=OPTIMIZER)] = None
    """Learning rate. Default: 0.1 for sgd, 0.001 for other optimizers."""
    lr_for: Annotated[Names, Parameter(group=OPTIMIZER)] = ()
    """Factors on the learning rate of layers or parameters, as in --lr-for linear=10,layer1=0.1."""
    momentum: Annotated[float, Parameter(group=OPTIMIZER)] = 0.9
    """Momentum of sgd."""
    weight_decay: Annotated[float, Parameter(group=OPTIMIZER)] = 5e-4
    """Weight decay (L2 penalty; decoupled with adamw)."""
    no_decay_norm: Annotated[bool, Parameter(group=OPTIMIZER, negative="--decay-norm")] = False
    """Apply no weight decay to biases and normalisation layers."""
    label_smoothing: Annotated[float, Parameter(group=OPTIMIZER)] = 0.0
    """Label smoothing: probability spread evenly over all classes."""
    clip: Annotated[float | None, Parameter(group=OPTIMIZER)] = None
    """Clip the gradient to this norm."""

    schedule: Annotated[ScheduleName, Parameter(group=SCHEDULE)] = "cosine"
    """How the learning rate changes over the run: one of these, or your own factor of each step as my.py:factor."""
    milestones: Annotated[Numbers, Parameter(group=SCHEDULE)] = ()
    """Epochs at which the learning rate drops, as in --milestones 60,120,160."""
    decay_every: Annotated[Whole, Parameter(group=SCHEDULE)] = 30
    """Epochs between the drops of --schedule step."""
    decay_rate: Annotated[float, Parameter(group=SCHEDULE)] = 0.1
    """Factor by which the learning rate changes at each drop."""
    warmup: Annotated[float, Parameter(group=SCHEDULE)] = 0.0
    """Epochs over which the learning rate rises from near zero; with one-cycle, 0 means 30% of the run."""
    lr_scaling: Annotated[Literal["none", "linear", "sqrt"], Parameter(group=SCHEDULE)] = "none"
    """Scale the learning rate with the global batch, relative to --reference-batch."""
    reference_batch: Annotated[Whole, Parameter(group=SCHEDULE)] = 128
    """Global batch for which --lr was chosen."""

    mode: Annotated[Literal["auto", "single", "dp", "ddp", "fsdp"], Parameter(group=MACHINE)] = "auto"
    """single: one device; dp: one process, many devices; ddp: a process per device; fsdp: ddp with sharded weights."""
    batch_norm: Annotated[Literal["local", "sync", "ghost"], Parameter(group=MACHINE)] = "local"
    """Samples for batch statistics: local (of each rank), sync (the global batch) or ghost (of each of --shards)."""
    exact: Annotated[Literal["order", "bitwise"], Parameter(group=MACHINE)] = "order"
    """Same result at every world size: order (up to rounding) or bitwise (every bit; uses ghost batch norm)."""
    shards: Annotated[MaybeWhole, Parameter(group=MACHINE)] = None
    """Shards of the global batch for --exact bitwise and --batch-norm ghost; at most one rank per shard.
    Default: 8, or 4 if --global-batch is below 256."""
    balance: Annotated[bool, Parameter(group=MACHINE, negative="")] = False
    """Give faster ranks more shards, by measured time; needs --exact bitwise, and changes no bit of the result."""
    compress: Annotated[Literal["none", "fp16", "bf16"], Parameter(group=MACHINE)] = "none"
    """Cast gradients to this type for all-reduce, to send half the bytes."""
    bucket_mb: Annotated[float | None, Parameter(group=MACHINE)] = None
    """Size of ddp's gradient buckets in MB. Default: 25, and 1 for the first bucket."""
    check_replicas: Annotated[MaybeWhole, Parameter(group=MACHINE)] = None
    """Compare the model and optimizer of all ranks bit by bit every N steps, in addition to every checkpoint."""
    repair_replicas: Annotated[bool, Parameter(group=MACHINE, negative="")] = False
    """Give a rank that differs the tensors of the majority, with a warning, instead of ending the run."""
    check_compute: Annotated[MaybeWhole, Parameter(group=MACHINE)] = None
    """Every N steps, compute a micro-batch of each rank again on another rank, to find wrong gradients."""
    device: Annotated[str, Parameter(group=MACHINE)] = "auto"
    """Device: auto, cpu, cuda, cuda:1, or another accelerator of torch, such as xpu (untested)."""
    threads: Annotated[MaybeWhole, Parameter(group=MACHINE)] = None
    """CPU threads per rank. Default: OMP_NUM_THREADS, else all cores divided evenly; 1 with --exact bitwise."""

    name: Annotated[str | None, Parameter(alias="--run", group=WATCH)] = None
    """Name of the run; each start gets a numbered folder under it. Default: DATA-MODEL."""
    runs_dir: Annotated[Path, Parameter(group=WATCH)] = Path("runs")
    """Folder for all runs."""
    track: Annotated[Names, Parameter(group=WATCH)] = ("auto",)
    """Trackers besides the console and metrics.jsonl: tensorboard, wandb, your own as my.py:Tracker, or none;
    auto: tensorboard if installed."""
    console: Annotated[Literal["quiet", "normal", "verbose"], Parameter(group=WATCH)] = "normal"
    """quiet (or --quiet): warnings and the result only; verbose (or --verbose): also every setting at the start."""
    log_every: Annotated[Whole, Parameter(group=WATCH)] = 50
    """Record training metrics every N steps."""
    profile: Annotated[bool, Parameter(group=WATCH, negative="")] = False
    """Before training, time steps with and without communication, and the link, for paceline explain and predict."""
    eval_every: Annotated[Every, Parameter(group=WATCH)] = EVERY_EPOCH
    """How often to evaluate: 2 (epochs), "2 epochs" or "500 steps"."""
    save_every: Annotated[Every, Parameter(group=WATCH)] = EVERY_EPOCH
    """How often to save a checkpoint: 2 (epochs), "2 epochs" or "500 steps"."""
    keep: Annotated[Whole, Parameter(group=WATCH)] = 2
    """Number of newest checkpoints to keep, besides the best one."""
    save_async: Annotated[bool, Parameter(group=WATCH)] = False
    """Write checkpoints in the background while training continues."""
    upload: Annotated[str | None, Parameter(group=WATCH)] = None
    """Copy the run to an object store after each checkpoint, in the background, as in s3://bucket/runs."""

    def __post_init__(self) -> None:
        name_objects(self)
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        refuse_bad_numbers(values)
        refuse_bad_upload(self.upload)
        _check_choices(self)
        refuse_passwords(values)
        refuse_impossible_shards(values, self.fixed_shards)
        check_fine_tuning(self.init, self.head, self.lr_for)
        refuse_unused_by_loop(self.as_dict(), DEFAULTS_BY_NAME)

    @property
    def base_lr(self) -> float:
        """The learning rate before scaling."""
        return DEFAULT_LR.get(self.optimizer, OWN_LR) if self.lr is None else self.lr

    @property
    def fixed_shards(self) -> int | None:
        """The number of shards of the global batch, the same at every world size; None without shards."""
        if self.exact != "bitwise" and self.batch_norm != "ghost":
            return None
        if self.shards is not None:
            return self.shards
        return 8 if self.global_batch >= 8 * LEAST_SAMPLES_PER_SHARD else 4

    @property
    def micro_batches(self) -> int:
        """The micro-batches per step and device, before auto has found how many fit."""
        return 1 if isinstance(self.accumulate, str) else self.accumulate

    @property
    def augment_policy(self) -> str:
        """The augmentation steps, with "standard" replaced by those of the data set."""
        return standard_policy(self.data) if self.augment == "standard" else self.augment

    @property
    def run_name(self) -> str:
        """The folder under runs_dir that the run belongs to."""
        if self.name is not None:
            return self.name
        return name_of_run(self.data, self.model) if self.loop is None else stem(self.loop)

    def resolved(self) -> "Config":
        """Return the same settings with every derived default written out."""
        batch_norm = self.batch_norm if self.fixed_shards is None else "ghost"
        augment = self.augment_policy if self.loop is None else self.augment
        derived = {"lr": self.base_lr, "augment": augment, "name": self.run_name, "batch_norm": batch_norm}
        return dataclasses.replace(self, shards=self.fixed_shards or self.shards, **derived)

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as plain values, without those that are None."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {key: _plain(value) for key, value in values.items() if value is not None}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Config":
        """Return the settings from the values of `as_dict`."""
        return cls(**{key: _restored(key, value) for key, value in values.items()})


SETTINGS = tuple(field.name for field in dataclasses.fields(Config))
DEFAULTS_BY_NAME = {field.name: field.default for field in dataclasses.fields(Config)}

CHANGEABLE = frozenset({
    "data_dir", "workers", "bad_images", "epochs", "steps", "patience", "mode", "exact", "balance", "device",
    "check_replicas", "repair_replicas", "check_compute", "console", "threads", "name", "runs_dir", "track",
    "log_every", "profile", "eval_every", "save_every", "keep", "save_async", "upload",
})  # fmt: skip
"""Settings that a resumed run may change: where it runs, how long, which files it writes, not what it computes."""


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path | Interval) else list(value) if isinstance(value, tuple) else value


def _restored(name: str, value: Any) -> Any:
    kind = type(DEFAULTS_BY_NAME[name])
    if issubclass(kind, Path):
        return Path(value)
    return Interval.parse(value) if kind is Interval else tuple(value) if kind is tuple else value


def _check_choices(config: Config) -> None:
    parse_steps(config.augment_policy)
    check_own_parts(config.optimizer, config.schedule, momentum=(config.momentum, DEFAULTS_BY_NAME["momentum"]))
    if config.schedule == "milestones" and not config.milestones:
        raise ConfigError("--schedule milestones needs --milestones", hint="add --milestones 60,120,160")
    if config.milestones and config.schedule != "milestones":
        raise ConfigError(f"--milestones is set, but --schedule is {config.schedule}", hint="add --schedule milestones")
    if list(config.milestones) != sorted(set(config.milestones)) or min(config.milestones, default=1) < 1:
        raise SettingError(
            "milestones", f"is {list(config.milestones)}, but must be increasing epochs, the first at least 1"
        )
    refuse_unknown_trackers(config.track)
    refuse_bad_name(config.run_name)
