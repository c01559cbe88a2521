"""`paceline new NAME`: a folder with a project that trains as it is."""

from importlib.metadata import version
from pathlib import Path

from paceline.core.errors import ExitCode
from paceline.core.new_project import write_project


def new_command(folder: Path, /) -> int:
    """Start a project: model, data, task, settings, tests, notebook, Slurm job and Dockerfile.

    It trains as it is. Replace the parts one by one.

    Examples:

      paceline new flowers

    Parameters
    ----------
    folder
        Folder to make; its name is that of the project.
    """
    files = write_project(folder, version("paceline"))
    print(f"{folder}: {', '.join(files)}\n\nnext:")
    print(f"  cd {folder}\n  paceline train --config train.toml\n  python -m pytest")
    return ExitCode.FINISHED
