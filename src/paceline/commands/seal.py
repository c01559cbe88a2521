"""`paceline seal DIR`: give a folder a manifest, by which `paceline check` finds any change."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from paceline.core.errors import ExitCode
from paceline.core.units import plural, size
from paceline.records.manifest import MANIFEST
from paceline.records.sealing import seal_folder


def seal_command(folder: Path, *, replace: Annotated[bool, Parameter(negative="")] = False) -> int:
    """Give anyone's checkpoint folder a manifest: the sha256 of every file, the hash of every tensor.

    Writes manifest.json and manifest.sha256, and changes no other file. Hashes of tensors are for .safetensors files.

    Examples:

      paceline seal outputs/checkpoint-500

      paceline check outputs/checkpoint-500

    Parameters
    ----------
    folder
        Folder to seal, with all folders below it.
    replace
        Replace the manifest of a folder that was sealed before.
    """
    sealed = seal_folder(folder, replace=replace)
    print(
        f"sealed {folder}: {plural(sealed.num_files, 'file')}, {size(sealed.num_bytes)}, "
        f"{plural(sealed.num_tensors, 'tensor')} in {folder / MANIFEST}"
    )
    return ExitCode.FINISHED
