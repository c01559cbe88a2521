"""The package as others import it: its version, and types for their type checkers."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import paceline

ROOT = Path(__file__).parents[1]
CPU_SECONDS = """
import time
start = time.process_time()
import paceline
paceline.Config
print(time.process_time() - start, "torch" in __import__("sys").modules)
"""


def direct_dependencies() -> set[str]:
    found = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    return {re.split(r"[<>=\[ ]", name)[0] for name in found}


def test_there_are_few_direct_dependencies_and_each_is_justified():
    names = direct_dependencies()
    assert len(names) <= 12
    section = (ROOT / "docs" / "design.md").read_text(encoding="utf-8").split("## Dependencies")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `([a-z0-9-]+)` \|", section, re.MULTILINE)) == names


def test_the_package_is_imported_without_torch():
    answer = subprocess.run(
        [sys.executable, "-c", CPU_SECONDS], capture_output=True, text=True, check=True, timeout=100
    )
    seconds, has_torch = answer.stdout.split()
    assert has_torch == "False"
    assert float(seconds) < 1.5, "CPU seconds, 0.11 on an idle machine; ten times the target is a mistake"


def test_the_package_has_a_version():
    assert paceline.__version__ == version("paceline")
    assert "__version__" in dir(paceline)


def test_type_checkers_may_use_our_annotations():
    assert files("paceline").joinpath("py.typed").is_file()
