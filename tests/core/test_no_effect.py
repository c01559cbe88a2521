"""Settings that change nothing are named, those that do are not."""

from typing import Any

import pytest

from paceline.core.config import DEFAULTS_BY_NAME, Config
from paceline.core.no_effect import NEEDS, without_effect


def told(world_size: int = 2, **settings: Any) -> list[str]:
    values = {name: getattr(Config(**settings), name) for name in DEFAULTS_BY_NAME}
    return list(without_effect(values, DEFAULTS_BY_NAME, world_size=world_size))


@pytest.mark.parametrize(
    ("useless", "useful"),
    [
        ({"decay_every": 5}, {"schedule": "step"}),
        ({"decay_rate": 0.2}, {"schedule": "step"}),
        ({"reference_batch": 256}, {"lr_scaling": "linear"}),
        ({"momentum": 0.8, "optimizer": "adam"}, {"optimizer": "sgd"}),
        ({"shards": 2}, {"batch_norm": "ghost"}),
    ],
)
def test_a_setting_without_what_it_needs_is_named(useless, useful):
    (sentence,) = told(**useless)
    first = next(iter(useless))
    assert sentence.startswith(f"--{first.replace('_', '-')} {useless[first]} has no effect with")
    assert told(**(useless | useful)) == []


def test_settings_of_several_ranks_have_no_effect_on_one():
    assert told(1, compress="fp16", bucket_mb=1.0) == [
        "--compress fp16 has no effect on one rank",
        "--bucket-mb 1.0 has no effect on one rank",
    ]
    assert told(2, compress="fp16", bucket_mb=1.0) == []


def test_the_defaults_are_never_named():
    assert told(1) == []
    assert {name for name, other, _ in NEEDS} | {other for _, other, _ in NEEDS} <= set(DEFAULTS_BY_NAME)
