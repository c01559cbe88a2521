"""Settings that are written to a file read back the same, whatever they are."""

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.config import SETTINGS
from paceline.core.errors import ConfigError
from paceline.core.load import KNOWN, load_config, write_config
from tests.core.strategies import BOUND, FREE, configs


@settings(max_examples=50)
@given(configs())
def test_settings_that_were_written_read_back_the_same(tmp_path_factory, config):
    path = tmp_path_factory.getbasetemp() / "round-trip.toml"
    write_config(config, path)
    assert load_config(path) == config


def test_the_round_trip_covers_every_setting():
    """A setting that is added must be added to the strategy too."""
    assert FREE.keys() | BOUND == set(SETTINGS)


@settings(max_examples=30)
@given(st.text(string.ascii_lowercase + "_", min_size=1).filter(lambda key: key not in KNOWN))
def test_no_unknown_key_is_ignored(tmp_path_factory, key):
    path = tmp_path_factory.getbasetemp() / "unknown.toml"
    path.write_text(f"{key} = 1")
    with pytest.raises(ConfigError, match=r"is not a setting(?m:$)"):
        load_config(path)
