"""docs/design.md names files, functions and packages that exist, and its walks go forward."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "paceline"
TEXT = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`([\w/]+\.py)` `(\w+)`")


def section(title: str) -> str:
    """Return the text below a heading, up to the next one."""
    return TEXT.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def walks() -> list[str]:
    """Return the three walks."""
    return re.split(r"\n(?=\*\*)", section("Three walks").strip())


def test_every_file_that_is_named_exists():
    files = set(re.findall(r"`((?:[\w.]+/)+(?:[\w.]+)?|cli\.py)`", TEXT))
    assert len(files) > 40
    assert not [file for file in files if not (SOURCE / file).exists() and not (ROOT / file).exists()]


def test_every_function_and_class_that_is_named_is_in_its_file():
    named = NAMED.findall(TEXT)
    assert len(named) > 25
    for file, name in named:
        tree = ast.parse((SOURCE / file).read_text(encoding="utf-8"))
        assert name in {getattr(node, "name", None) for node in tree.body}, f"{file} does not define {name}"


@pytest.mark.parametrize("walk", walks(), ids=["batch", "report number", "bitwise gradient"])
def test_a_walk_never_goes_back_to_a_file(walk):
    files = re.findall(r"`([\w/]+\.py)`", walk)
    assert len(files) >= 5
    assert len(files) == len(set(files))


def test_the_tree_shows_the_packages_and_where_torch_is_absent():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    layers, forbidden = contracts
    packages = {name for layer in layers["layers"] for name in layer.split(" | ")} - {"__main__", "cli"}
    tree = dict(re.findall(r"\b(\w+)/ +(○?)", section("The tree")))
    assert set(tree) - {"exact"} == packages
    assert {name for name, mark in tree.items() if mark} == {
        module.removeprefix("paceline.") for module in forbidden["source_modules"]
    }
