"""The options of `paceline doctor`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from paceline.core.errors import SettingError
from paceline.core.units import parse_number

CHECKS = Group("Checks", sort_key=0)
DEFAULT_RUNS = Path("runs")
SMALLEST_ALL_REDUCE = 1 << 10


@dataclass(frozen=True, kw_only=True, slots=True)
class DoctorOptions:
    """What to check, and how to print it."""

    runs_dir: Annotated[Path, Parameter(group=CHECKS)] = DEFAULT_RUNS
    """Folder of all runs, to check that every rank can write to it, and how fast."""
    device: Annotated[str, Parameter(group=CHECKS)] = "auto"
    """Device: auto, cpu or cuda."""
    largest: Annotated[str, Parameter(group=CHECKS)] = "64MiB"
    """Size of the largest all-reduce of the sweep, which starts at 1 KiB."""
    gpu: Annotated[bool, Parameter(group=CHECKS, negative="")] = False
    """Train a few steps in every mode on two GPUs, with a killed and a hanging rank, and print a table."""
    only: Annotated[str, Parameter(group=CHECKS)] = ""
    """With --gpu: the checks to run, as in --only ddp,bitwise. Default: all."""
    as_json: Annotated[bool, Parameter(name="--json", group=CHECKS, negative="")] = False
    """Print one JSON object."""

    @property
    def largest_bytes(self) -> int:
        """Bytes of the largest all-reduce."""
        try:
            largest = int(parse_number(self.largest))
        except ValueError:
            raise SettingError("largest", f'is "{self.largest}", but must be a size such as 64MiB') from None
        if largest < SMALLEST_ALL_REDUCE:
            raise SettingError("largest", f'is "{self.largest}", but the smallest all-reduce has 1 KiB')
        return largest
