"""What README and docs tell people to type works, in the order in which they read it."""

import os
import re
import runpy

import pytest

from lab.environment import child_environment
from paceline import cli
from tests.docs.pages import BLOCK, ROOT, write_files


def slow(page: str):
    return pytest.param(page, marks=pytest.mark.slow)


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


@pytest.mark.parametrize(
    "page",
    [
        slow("README.md"),
        "docs/training.md",
        "docs/report.md",
        "docs/tasks.md",
        slow("docs/own-loop.md"),
        slow("docs/prediction.md"),
    ],
)
def test_the_commands_of_a_page_run(page, elsewhere, capsys, one_thread):
    write_files(page, elsewhere)
    words_of_page = commands(page)
    assert len(words_of_page) >= 4
    for variables, words in words_of_page:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in (child_environment(OMP_NUM_THREADS="1") | variables).items():
                patch.setenv(name, value)
            code = cli.run(words, os.environ)
        assert code == 0, f"{page}: {' '.join(words)}\n{capsys.readouterr().err}"
    if (elsewhere / "load.py").exists():  # the lines of plain PyTorch that load what a command has exported
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(elsewhere))
            assert not runpy.run_path("load.py")["model"].training


def test_every_page_that_is_linked_is_there():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), ROOT / "CONTRIBUTING.md"]:
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert link.startswith("http") or (page.parent / link).exists(), f"{page.name} links to {link}"
