"""Hypothesis strategies for settings."""

from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from paceline.core.config import Config
from paceline.core.config_rules import TRACKERS, UNUSED_BY_LOOP
from paceline.core.setting_types import Interval

above_0 = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
from_0 = st.floats(min_value=0, allow_infinity=False)
fraction = st.floats(0, 1, exclude_max=True)
whole = st.integers(1, 10**12)
text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
folder = text.filter(lambda name: "/" not in name and not name.startswith(("-", ".")) and name.isprintable())
words = st.sampled_from(
    ["none", "null", "true", "1", "-5", "--lr", "a b", "a,b", '"', "\\", "[]", "ö\n", "my.py:build"]
)
names = st.lists(st.sampled_from(["conv1", "layer?.*", "*.bias"])).map(tuple)
interval = st.builds(Interval, whole, st.sampled_from(["epoch", "step"]))
FREE: dict[str, Any] = {
    "data": text | words, "data_dir": (text | words).map(Path), "valid_split": fraction, "workers": st.integers(0, 99),
    "augment": st.sampled_from(["standard", "none", "crop4,flip", "rand-m9-mstd0.5-inc1, erase0.25"
    , "crop4,my.py:step"]),
    "image_size": st.none() | whole, "context": st.none() | whole, "freeze": names, "checkpoint_activations": names,
    "lr_for": st.lists(st.sampled_from(["a=2", "a.*=0.5"])).map(tuple), "init": text | words,
    "head": st.sampled_from(["keep", "new"]), "bad_images": st.sampled_from(["fail", "skip"]),
    "sample_order": st.sampled_from(["auto", "argsort", "feistel"]),
    "model": text | words, "precision": st.sampled_from(["fp32", "bf16", "fp16"]), "channels_last": st.booleans(),
    "compile": st.booleans(), "ema": st.none() | fraction, "epochs": whole, "steps": st.none() | whole,
    "patience": st.none() | whole, "seed": st.integers(0, 2**64),
    "optimizer": st.sampled_from(["sgd", "adam", "adamw"]), "lr": st.none() | above_0, "momentum": from_0,
    "weight_decay": from_0, "no_decay_norm": st.booleans(), "label_smoothing": fraction, "clip": st.none() | above_0,
    "decay_every": whole, "decay_rate": above_0, "warmup": from_0,
    "lr_scaling": st.sampled_from(["none", "linear", "sqrt"]), "reference_batch": whole,
    "device": st.sampled_from(["auto", "cpu", "cuda:1"]), "threads": st.none() | whole,
    "name": folder | st.sampled_from(["none", "null", "1", "true", "a b"]), "runs_dir": text.map(Path),
    "track": st.lists(st.sampled_from(TRACKERS), unique=True).map(tuple), "log_every": whole,
    "eval_every": interval, "save_every": interval, "keep": whole, "save_async": st.booleans(),
    "upload": st.none() | st.sampled_from(["s3://bucket/runs", "gs://bucket"]),
    "bucket_mb": st.none() | above_0, "profile": st.booleans(),
    "mode": st.sampled_from(["auto", "single", "dp", "ddp", "fsdp"]), "shards": st.none() | whole,
    "batch_norm": st.sampled_from(["local", "sync"]), "check_replicas": st.none() | whole,
    "repair_replicas": st.booleans(), "check_compute": st.none() | whole,
    "compress": st.sampled_from(["none", "fp16", "bf16"]), "balance": st.just(False),  # for bitwise only
    "task": st.none() | st.sampled_from(["classification", "language", "my.py:Task"]),
    "metric": st.sampled_from([(), ("my.py:hits",), ("my.py:hits", "my.py:both")]),
    "collate": st.none() | st.just("my.py:pad"), "console": st.sampled_from(["quiet", "normal", "verbose"]),
}  # fmt: skip
BOUND = {"global_batch", "accumulate", "schedule", "milestones", "exact", "loop"}


@st.composite
def configs(draw):
    batch = draw(whole)
    milestones = tuple(sorted(draw(st.sets(whole, max_size=4))))
    schedule = (
        "milestones"
        if milestones
        else draw(st.sampled_from(["constant", "step", "cosine", "one-cycle", "my.py:factor"]))
    )
    free: dict[str, Any] = draw(st.fixed_dictionaries(FREE))
    accumulate: Any = draw(st.integers(1, batch) | st.just("auto"))
    if draw(st.booleans()):
        accumulate = 1
        free |= {"exact": "bitwise", "mode": "ddp", "batch_norm": "ghost", "compile": False, "compress": "none"}
    if draw(st.booleans()):  # settings that a loop of the user leaves unused keep their defaults
        free = {name: value for name, value in free.items() if name not in UNUSED_BY_LOOP} | {"loop": "my.py:train"}
        accumulate = 1 if accumulate == "auto" else accumulate
        free["mode"] = "ddp" if free["mode"] in {"dp", "fsdp"} else free["mode"]
    return Config(global_batch=batch, accumulate=accumulate, schedule=schedule, milestones=milestones, **free)
