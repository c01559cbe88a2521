"""The user's own code: its hashes, the copies in a run folder, what has changed since, and code that came with one."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from paceline.core.config import Config
from paceline.core.errors import RunError
from paceline.core.plugin import is_plugin, plugin_path
from paceline.records.folder import RunFolder
from paceline.records.writer import replacing


def hash_code(files: Mapping[str, Path]) -> dict[str, str]:
    """Return the sha256 of each file."""
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}


def keep_code(folder: RunFolder, files: Mapping[str, Path]) -> None:
    """Copy the files into a run folder; earlier versions stay. Only the lead calls it."""
    for name, sha256 in hash_code(files).items():
        copy = folder.code(name, sha256)
        if not copy.exists():
            copy.parent.mkdir(exist_ok=True)
            with replacing(copy) as scratch:
                scratch.write_bytes(files[name].read_bytes())


def code_changes(folder: RunFolder, before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return a sentence for each file that differs from the version of a checkpoint."""
    sentences = []
    for name, sha256 in before.items():
        file = Path(name).expanduser()
        if name not in now and file.is_file():  # not imported in this process, or not yet
            now = {**now, **hash_code({name: file})}
        if now.get(name) == sha256:
            continue
        what = "has changed" if name in now else "is missing"
        copy = folder.code(name, sha256)
        compare = f"; to compare: diff {copy} {name}" if copy.exists() else ""
        sentences.append(f"{name} {what}: this checkpoint was trained with another version{compare}")
    return sentences


def refuse_own_loop(folder: RunFolder, config: Config) -> None:
    """Refuse a run with a loop of the user: only that loop knows how to build its models."""
    if config.loop is not None:
        raise RunError(
            f"{folder.path} was trained with a loop of your own, {config.loop}, which this command cannot run",
            hint="evaluate with run.evaluate in the loop, or read model.safetensors of a checkpoint",
        )


def refuse_code_inside(folder: RunFolder, config: Config) -> None:
    """Refuse settings that name code inside the run folder: it may have come with the folder from someone else."""
    home = folder.path.resolve()
    for value in config.as_dict().values():
        names = [str(name) for name in value] if isinstance(value, list) else str(value).split(",")
        for name in filter(is_plugin, (name.strip() for name in names)):
            file = plugin_path(name)
            is_code = ".py" in name or file.exists() or file.with_suffix("").exists()  # or a name with dots and a colon
            if is_code and file.resolve().is_relative_to(home):
                raise RunError(
                    f"the settings of {folder.path} name code inside the folder itself: {file}",
                    hint=f"read {file}; if you trust it, add --trust",
                )
