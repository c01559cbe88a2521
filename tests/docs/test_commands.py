"""What README and docs tell people to type works, in the order in which they read it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from lab.environment import child_environment
from tests.conftest import LONGEST

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)


def commands(page: str) -> list[tuple[dict[str, str], list[str]]]:
    """Return the paceline commands of a page, each with the variables set before it."""
    found = []
    for kind, block in BLOCK.findall((ROOT / page).read_text()):
        for line in block.splitlines() if not kind else []:
            words = re.findall(r'"[^"]*"|\S+', line.partition("  #")[0])
            variables = dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word))
            rest = [word.strip('"') for word in words[len(variables) :]]
            if rest and rest[0] in {".venv/bin/paceline", "paceline"} and len(rest) > 1:
                found.append((variables, rest[1:]))
    return found


def write_files(page: str, folder: Path) -> None:
    """Write the Python files of a page under the names that their first lines give."""
    for kind, block in BLOCK.findall((ROOT / page).read_text()):
        name = re.match(r"# (\w+\.py)\n", block)
        if kind == "python" and name is not None:
            (folder / name[1]).write_text(block)


@pytest.mark.parametrize("page", ["README.md", "docs/training.md", "docs/report.md", "docs/prediction.md"])
def test_the_commands_of_a_page_run(page, elsewhere):
    write_files(page, elsewhere)
    words_of_page = commands(page)
    assert len(words_of_page) >= 4
    for variables, words in words_of_page:
        command = [sys.executable, "-m", "paceline", *words]
        environ = child_environment(OMP_NUM_THREADS="1", **variables)
        result = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=LONGEST, check=False)
        assert result.returncode == 0, f"{page}: {' '.join(words)}\n{result.stderr}"


def test_every_page_that_is_linked_is_there():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), ROOT / "CONTRIBUTING.md"]:
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert link.startswith("http") or (page.parent / link).exists(), f"{page.name} links to {link}"
