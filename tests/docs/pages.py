"""What the pages of the docs contain: code blocks, commands, and the files that they tell people to write."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)
VARIABLE = re.compile(r"[A-Z_]+=")
COMMANDS = {"paceline", ".venv/bin/paceline"}
DIAGRAMS = "docs/design.md"
"""A page whose blocks show processes."""
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
)


class Command(NamedTuple):
    """A paceline command of a page, without what starts it; or `cd FOLDER`."""

    variables: dict[str, str]
    words: list[str]
    starter: list[str]
    """What comes before paceline: nothing, or torchrun, srun, mpirun with their flags."""


def write_files(page: str, folder: Path) -> None:
    """Write the Python files of a page under the names that their first lines give; text files without that line."""
    for kind, block in BLOCK.findall((ROOT / page).read_text()):
        name = re.match(r"# (\w+\.py)\n", block)
        if kind == "python" and name is not None:
            (folder / name[1]).write_text(block)
        text = re.match(r"# (\w+\.txt)\n(.*)", block, re.DOTALL)
        if kind == "text" and text is not None:
            (folder / text[1]).write_text(text[2])


def commands(page: str) -> list[Command]:
    """Return the paceline commands of a page, in its order; output that a block shows is no command."""
    if page == DIAGRAMS:
        return []
    found = []
    for kind, block in BLOCK.findall((ROOT / page).read_text()):
        for line in block.splitlines() if not kind else []:
            command = read_command(line)
            if command is not None:
                found.append(command)
    return found


def read_command(line: str) -> Command | None:
    """Return the paceline command of a line; None if there is none."""
    try:
        words = shlex.split(re.split(r"\s+#", line.removeprefix("$ "))[0])
    except ValueError:  # an apostrophe in what a command prints
        return None
    variables = dict(word.split("=", 1) for word in words if VARIABLE.match(word))
    rest = words[len(variables) :]
    if rest[:1] == ["cd"]:
        return Command({}, rest, [])
    for index, word in enumerate(rest):
        if word in COMMANDS and (index == 0 or rest[0] in {"srun", "mpirun"}):
            return Command(variables, rest[index + 1 :], rest[:index]) if len(rest) > index + 1 else None
        if rest[index : index + 2] == ["-m", "paceline"]:
            words = rest[index + 2 :]
            return Command(variables, words[words[:1] == ["--"] :], rest[:index])
    return None
