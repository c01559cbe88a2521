"""Rules for settings: least values, `--exact bitwise`, fine-tuning, names, and no passwords in addresses."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_args

from paceline.core.addresses import has_password, storage_address
from paceline.core.entry_points import entry_names, is_own_part
from paceline.core.errors import ConfigError, SettingError, flag, suggestion
from paceline.core.live_code import is_called_code
from paceline.core.plugin import is_plugin
from paceline.core.setting_types import OptimizerName, ScheduleName
from paceline.core.units import count

TRACKERS = ("auto", "tensorboard", "wandb", "ray")
LONGEST_NAME = 255
"""Bytes of a file name, on most file systems."""


class Unfit(NamedTuple):
    """A value of a setting that makes the result depend on more than the settings and shards."""

    setting: str
    value: Any
    why: str
    hint: str


UNFIT = (
    Unfit("batch_norm", "sync", "sums statistics in an order that depends on the world size", "use --batch-norm ghost"),
    Unfit("mode", "dp", "splits the batch by device, not into fixed shards", "use --mode ddp or single"),
    Unfit("compile", value=True, why="may generate different arithmetic in every process", hint="drop --compile"),
    Unfit(
        "compress",
        "fp16",
        "rounds the gradients of each rank, so the result depends on the world size",
        "drop --compress",
    ),
    Unfit(
        "compress",
        "bf16",
        "rounds the gradients of each rank, so the result depends on the world size",
        "drop --compress",
    ),
)


def refuse_inexact(settings: Mapping[str, Any]) -> None:
    """Refuse settings under which a bitwise result is impossible."""
    for setting, value, why, hint in UNFIT:
        if settings[setting] == value:
            shown = "" if value is True else f" {value}"
            raise ConfigError(
                f"{flag(setting)}{shown} cannot be combined with --exact bitwise: it {why}",
                hint=f"{hint}, or use --exact order",
            )


def check_own_parts(optimizer: str, schedule: str, *, momentum: tuple[float, Any]) -> None:
    """Refuse an optimizer or a schedule that is neither ours nor code, and a momentum that the user's would not get."""
    for setting, name, names in (("optimizer", optimizer, OptimizerName), ("schedule", schedule, ScheduleName)):
        known = get_args(get_args(names)[0])
        if name not in known and not is_plugin(name):
            raise SettingError(setting, f"is {name}, which is not known", hint=suggestion(name, [*known, "my.py:name"]))
    if is_plugin(optimizer) and momentum[0] != momentum[1]:
        problem = f"is {momentum[0]:g}, but the optimizer is {optimizer}"
        raise SettingError("momentum", problem, hint="drop it, and set the momentum in your optimizer")


def check_fine_tuning(init: str | None, head: str, lr_for: Iterable[str]) -> None:
    """Refuse a new head without weights to start from, and malformed factors."""
    if head == "new" and init is None:
        raise ConfigError("--head new has no effect without --init", hint="add --init FILE, or drop --head")
    for text in lr_for:
        parse_factor(text)


def parse_factor(text: str) -> tuple[str, float]:
    """Return the pattern and the factor of "layer1=0.1"."""
    pattern, _, number = text.rpartition("=")
    try:
        factor = float(number)
    except ValueError:
        factor = 0.0
    if not pattern or not 0 < factor < float("inf"):
        raise SettingError(
            "lr_for",
            f'has "{text}", which is not PATTERN=FACTOR with a factor above 0',
            hint="write --lr-for layer1=0.1; to keep layers as they are, use --freeze layer1",
        )
    return pattern, factor


def name_of_run(data: str, model: str) -> str:
    """Return the folder name of a run: of its data and its model, or of the functions if both lie in one file."""
    parts = [stem(data), stem(model)]
    if parts[0] == parts[1] and is_plugin(data) and is_plugin(model):
        parts = [name.partition(":")[2] or stem(name) for name in (data, model)]
    return "-".join(parts)


def refuse_bad_upload(upload: str | None) -> None:
    """Refuse a place for uploads that is no address of an object store."""
    if upload is not None and storage_address(upload) != upload.rstrip("/"):
        raise SettingError("upload", f"is {upload}, which is no address", hint="write s3://BUCKET/FOLDER or gs://…")


def stem(name: str) -> str:
    """Return the part of "my.py:build", "folder:/a/b" or "resnet20" that serves as a folder name."""
    file, _, rest = name.partition(":")
    if is_called_code(name):
        return rest
    return Path(file).stem if file.endswith(".py") or not rest else Path(rest).name or file


def refuse_unknown_trackers(trackers: Iterable[str]) -> None:
    """Refuse a tracker that there is not."""
    for tracker in trackers:
        if tracker not in TRACKERS and not is_own_part("trackers", tracker):
            known = [*TRACKERS, *entry_names("trackers"), "none", "my.py:Tracker"]
            problem = f'lists "{tracker}", which is not a tracker'
            raise SettingError("track", problem, hint=suggestion(tracker, known))


def refuse_bad_name(name: str) -> None:
    """Refuse a name of a run that is not a folder name, or that a terminal would not show as it is."""
    if name in {"", ".", ".."} or "/" in name or name.startswith(("-", ".")) or not name.isprintable():
        raise SettingError(
            "name", f"is {_shown(name)}, which is not a folder name", hint="use letters, digits, - and _"
        )
    length = len(name.encode(errors="surrogateescape"))
    if length > LONGEST_NAME:
        raise SettingError("name", f"has {length} bytes, but a folder name has at most {LONGEST_NAME}")


def refuse_passwords(settings: Mapping[str, Any]) -> None:
    """Refuse an address with a password: settings are written to the run folder, its checkpoints and its report."""
    for setting, value in settings.items():
        if isinstance(value, str | Path) and has_password(str(value)):
            raise SettingError(
                setting,
                "has a password in its address, which every file of the run would show",
                hint="leave the password out, and give it in the environment or in ~/.netrc",
            )


def _shown(name: str) -> str:
    return f'"{name}"' if name.isprintable() else ascii(name)


def refuse_impossible_shards(settings: Mapping[str, Any], fixed_shards: int | None) -> None:
    """Refuse settings that fixed shards of the batch, or their absence, make impossible."""
    if settings["exact"] == "bitwise":
        refuse_inexact(settings)
    elif settings["balance"]:
        raise ConfigError("--balance needs fixed shards of the batch", hint="add --exact bitwise, or drop --balance")
    if fixed_shards is not None and settings["accumulate"] != 1:
        cause = "--exact bitwise" if settings["exact"] == "bitwise" else "--batch-norm ghost"
        raise ConfigError(
            f"--accumulate {settings['accumulate']} cannot be combined with {cause}: the batch is already split into "
            "shards",
            hint="drop --accumulate; to save memory, use more --shards",
        )


UNUSED_BY_LOOP = (
    "data", "valid_split", "augment", "image_size", "context", "bad_images", "collate", "task", "metric", "model",
    "channels_last", "compile", "ema", "init", "head", "freeze", "checkpoint_activations", "patience", "lr_for",
    "label_smoothing", "balance", "compress", "profile", "eval_every", "check_compute",
)  # fmt: skip
"""Settings of Paceline's own loop. A loop of the user may read the others, such as run.config.lr."""


def refuse_unused_by_loop(settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Refuse settings that have no effect on a loop of the user, where there is one."""
    if "loop" not in settings:
        return
    for name in UNUSED_BY_LOOP:
        value, usual = settings.get(name), defaults[name]
        if value is not None and value not in (usual, str(usual), list(usual) if isinstance(usual, tuple) else usual):
            raise ConfigError(
                f"{flag(name)} {value} has no effect on a loop of your own",
                hint=f"drop {flag(name)}, and do it in the loop",
            )
    if settings["accumulate"] == "auto":
        raise ConfigError("--accumulate auto has no effect on a loop of your own", hint="give a number")
    if settings["mode"] in {"dp", "fsdp"}:
        raise ConfigError(
            f"--mode {settings['mode']} is not supported with a loop of your own", hint="use --mode ddp, or drop --mode"
        )


def refuse_loop(loop: str | None, command: str) -> None:
    """Refuse a loop of the user where a command measures Paceline's own loop."""
    if loop is not None:
        raise ConfigError(
            f"paceline {command} measures Paceline's own loop, not {loop}",
            hint=f"train with it, and see where its time went: paceline train --loop {loop}, then paceline explain RUN",
        )


_AT_LEAST: dict[str, float] = {
    "epochs": 1, "steps": 1, "global_batch": 1, "accumulate": 1, "patience": 1, "threads": 1, "log_every": 1, "keep": 1,
    "workers": 0, "image_size": 1, "context": 1, "seed": 0, "shards": 1, "check_replicas": 1, "check_compute": 1,
    "momentum": 0, "weight_decay": 0, "warmup": 0, "decay_every": 1, "reference_batch": 1,
}  # fmt: skip


def refuse_bad_numbers(values: Mapping[str, Any]) -> None:
    """Refuse settings out of range, infinite ones, and more micro-batches than samples."""
    _refuse_out_of_range(values)
    numbers = {name: value for name, value in values.items() if value not in {None, "auto"}}
    for name, least in _AT_LEAST.items():
        value = numbers.get(name, least)
        if not value >= least:
            raise SettingError(name, f"is {value}, but must be at least {least:g}")
        if value == float("inf"):
            raise SettingError(name, f"is {value}, but must be a finite number")
    if numbers.get("accumulate", 1) > values["global_batch"]:
        raise ConfigError(
            f"--global-batch {count(values['global_batch'])} cannot be computed in {numbers['accumulate']} "
            "micro-batches",
            hint=f"use --accumulate {values['global_batch']} or less",
        )


def _refuse_out_of_range(values: Mapping[str, Any]) -> None:
    for name in ("lr", "clip", "decay_rate", "bucket_mb"):
        value = values[name]
        if value is not None and not 0 < value < float("inf"):
            raise SettingError(name, f"is {value}, but must be a number above 0")
    for name in ("valid_split", "label_smoothing", "ema"):
        value = values[name]
        if value is not None and not 0 <= value < 1:
            raise SettingError(name, f"is {value}, but must be at least 0 and below 1")
