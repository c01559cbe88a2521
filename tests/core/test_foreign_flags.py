import pytest

from paceline.core.config import SETTINGS
from paceline.core.errors import flag
from paceline.core.foreign_flags import FOREIGN, foreign_flag_hint
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
