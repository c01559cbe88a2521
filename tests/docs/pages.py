"""What the pages of the docs contain: code blocks, and the files that they tell people to write."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)


def write_files(page: str, folder: Path) -> None:
    """Write the Python files of a page under the names that their first lines give; text files without that line."""
    for kind, block in BLOCK.findall((ROOT / page).read_text()):
        name = re.match(r"# (\w+\.py)\n", block)
        if kind == "python" and name is not None:
            (folder / name[1]).write_text(block)
        text = re.match(r"# (\w+\.txt)\n(.*)", block, re.DOTALL)
        if kind == "text" and text is not None:
            (folder / text[1]).write_text(text[2])
