"""A new project: files for a model, data, a task and their settings, which train as they are."""

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from paceline.core.errors import ConfigError

TEMPLATES = Path(__file__).parent.parent / "project"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def write_project(folder: Path, version: str) -> list[str]:
    """Write a project into a folder that does not exist yet, all or nothing; return the names of its files."""
    name = folder.name
    if not NAME.fullmatch(name):
        raise ConfigError(
            f'"{name}" cannot be the name of a project: use letters, digits, - and _',
            hint="paceline new my-project",
        )
    files = render_project({"@NAME@": name, "@VERSION@": version})
    scratch = folder.with_name(f".{name}.{os.getpid()}.partial")
    try:
        if folder.exists():
            raise ConfigError(f"{folder} exists already", hint="choose another name")
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch.mkdir()
    except OSError as cause:
        raise ConfigError(f"cannot create {folder}: {cause.strerror}", hint="choose another folder") from cause
    try:
        for file, text in files.items():
            (scratch / file).write_text(text, encoding="utf-8")
        scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return list(files)


def render_project(values: Mapping[str, str]) -> dict[str, str]:
    """Return the files of a project by name, with these values in place of their marks."""
    files = {}
    for template in sorted(TEMPLATES.glob("*.txt")):
        text = template.read_text(encoding="utf-8")
        for mark, value in values.items():
            text = text.replace(mark, value)
        files["." * (template.stem == "gitignore") + template.stem] = text
    return files
