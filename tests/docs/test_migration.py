"""The tables that set flags of other programs beside ours: every flag of ours exists."""

import dataclasses
import re

import pytest

from paceline.core.config import SETTINGS
from paceline.core.errors import flag
from paceline.core.start import START_SETTINGS
from paceline.launching.slurm_script import JobRequest
from tests.docs.pages import PAGES, ROOT

TABLES = [page for page in PAGES if page == "docs/migrate.md" or page.startswith("docs/modes/")]
OURS = {flag(name) for name in (*SETTINGS, *START_SETTINGS, *(field.name for field in dataclasses.fields(JobRequest)))}
FILES = {"--resume", "--recipe", "--config"}
"""Where settings come from: flags of `paceline train` that are no settings."""
OTHERS = {"--nproc_per_node", "--logdir"}
"""Flags of torchrun and TensorBoard, in rows that also start those."""


def our_flags(text: str) -> set[str]:
    """Return the flags in the second column of the tables of a page."""
    rows = [row.split(" | ") for row in text.splitlines() if row.startswith("| ")]
    cells = [row[1] for row in rows if len(row) > 1]
    return {found for cell in cells for found in re.findall(r"(?<![\w-])--[a-z][\w-]*", cell)}


@pytest.mark.parametrize("page", TABLES)
def test_every_flag_of_ours_beside_those_of_others_exists(page):
    assert our_flags((ROOT / page).read_text()) - OURS - FILES - OTHERS == set()


def test_a_flag_that_does_not_exist_is_found():
    assert our_flags("| `--bs` | `--global-batsh 4`, `--lr 0.1` |") - OURS == {"--global-batsh"}


def test_the_tables_are_there():
    assert len(TABLES) >= 9
    assert len(our_flags((ROOT / "docs/migrate.md").read_text())) > 30
