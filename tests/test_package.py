"""The package as others import it: its version, and types for their type checkers."""

from importlib.metadata import version
from importlib.resources import files

import paceline


def test_the_package_has_a_version():
    assert paceline.__version__ == version("paceline")
    assert "__version__" in dir(paceline)


def test_type_checkers_may_use_our_annotations():
    assert files("paceline").joinpath("py.typed").is_file()
