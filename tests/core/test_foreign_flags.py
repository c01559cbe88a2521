import pytest

from paceline.core.config import SETTINGS
from paceline.core.errors import flag
from paceline.core.foreign_flags import FOREIGN, foreign_flag_hint, meant_choice, mistakes, nearest_flag
from paceline.core.start import START_SETTINGS

OWN = {flag(name) for name in (*SETTINGS, *START_SETTINGS)} | {"--resume"}


@pytest.mark.parametrize("name", FOREIGN)
def test_every_foreign_flag_leads_to_a_flag_that_exists_and_is_none_itself(name):
    hint = foreign_flag_hint(name, OWN)
    assert hint is not None
    assert hint.startswith("use --")
    assert name not in OWN


def test_underscores_and_values_are_understood_and_nothing_is_guessed():
    assert foreign_flag_hint("--batch_size=32", OWN) == foreign_flag_hint("--batch-size", OWN)
    assert foreign_flag_hint("--frobnicate", OWN) is None
    assert foreign_flag_hint("--batch-size", {"--json"}) is None


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--modle", "--model"), ("--epoch", "--epochs"), ("--epocs", "--epochs"), ("--gloabl-batch", "--global-batch"),
        ("--weigth-decy", "--weight-decay"), ("--lr-decay", "--lr"), ("--save_evry=2", "--save-every"),
        ("--output", None), ("--foo", None), ("--quit", None), ("--accelerate", None), ("--no-cuda", None),
        ("-li", None),
    ],
)  # fmt: skip
def test_a_typing_mistake_is_corrected_and_nothing_else_is_guessed(typed, meant):
    assert nearest_flag(typed, OWN) == meant


def test_mistakes_are_letters_added_left_out_replaced_or_swapped():
    assert [mistakes("model", other) for other in ("model", "modl", "modell", "mobel", "mdoel")] == [0, 1, 1, 1, 1]
    assert mistakes("", "abc") == 3


@pytest.mark.parametrize(
    ("value", "choice"),
    [("bf16-mixed", "bf16"), ("16-mixed", "fp16"), ("FP16", "fp16"), ("bf61", "bf16"), ("int8", None)],
)
def test_a_choice_of_another_program_leads_to_ours(value, choice):
    assert meant_choice(value, ("fp32", "bf16", "fp16")) == choice
