"""Defaults that several commands share."""

from cyclopts import Group

from paceline.core.config import Config
from paceline.core.start import Start

BEGIN = Group("Start", sort_key=0)
DEFAULTS = Config()
ALONE = Start()
DEFAULT_RUNS = DEFAULTS.runs_dir
DEFAULT_DATA = DEFAULTS.data_dir
SHORT_FORMS = {"--quiet": "--console=quiet", "-q": "--console=quiet", "--verbose": "--console=verbose"}
"""Flags of `paceline train` that stand for a setting."""
