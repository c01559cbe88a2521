"""`paceline data`: list, fetch, pack and verify data sets."""

import json
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from paceline.core import units
from paceline.core.config import Config
from paceline.core.errors import DataError, ExitCode
from paceline.core.units import count, plural
from paceline.report.progress import progress_on
from paceline.report.tables import table

DEFAULT_DATA = Path("data")
OTHERS = "also: --data folder:PATH (a folder per class), packed:PATH (made by paceline data pack), my.py:build"

app = App(name="data", help="List the data sets there are; fetch one; pack a large one into a file; verify a pack.")


@app.default
@app.command(name="list")
def list_command(
    *,
    data_dir: Path = DEFAULT_DATA,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """List the data sets that have a name, and whether they are on this machine.

    Parameters
    ----------
    data_dir
        Folder where data sets are kept.
    as_json
        Print one JSON object per data set.
    """
    rows = _rows(data_dir)
    if as_json:
        for row in rows:
            print(json.dumps(row))
        return ExitCode.FINISHED
    head = ["name", "train", "test", "classes", "image", "download", "there", "where"]
    print(table(head, [_cells(row) for row in rows]))
    print(f"\n{OTHERS}")
    return ExitCode.FINISHED


@app.command
def fetch(name: str, *, data_dir: Path = DEFAULT_DATA) -> int:
    """Download a data set, check it and unpack it; an interrupted download goes on where it stopped.

    Parameters
    ----------
    name
        A name that paceline data list shows.
    data_dir
        Folder where data sets are kept.
    """
    from paceline.data.fetch import fetch as fetch_files
    from paceline.data.shelf import is_there, known_set

    if name == "digits":
        print("digits come with Paceline: there is nothing to fetch")
        return ExitCode.FINISHED
    known = known_set(name)
    found = is_there(known, data_dir)
    if found is not None:
        print(f"{name} is there already: {found}")
        return ExitCode.FINISHED
    with progress_on(sys.stdout, units.size) as tell:
        home = fetch_files(known, data_dir, tell)
    print(f"{name} is in {home}; train on it with: paceline train --data {name} --data-dir {data_dir}")
    return ExitCode.FINISHED


@app.command
def pack(
    source: str,
    out: Path,
    *,
    size: int | None = None,
    keep: Literal["jpeg", "pixels"] = "jpeg",
    bad_images: Literal["fail", "skip"] = "fail",
    data_dir: Path = DEFAULT_DATA,
) -> int:
    """Write a large data set into one file that opens at once; an interrupted call goes on where it stopped.

    Example:

      paceline data pack folder:pictures pictures.pack --size 256

    Parameters
    ----------
    source
        folder:PATH, imagenet or cinic10.
    out
        File to write.
    size
        Shorter side of kept JPEG files, or side of kept pixels; JPEG files stay as they are when not given.
    keep
        jpeg takes little space; pixels need no decoding.
    bad_images
        Stop at an image that cannot be decoded, or leave it out.
    data_dir
        Folder where data sets are kept.
    """
    from paceline.data.catalog import open_data
    from paceline.data.pack import PackOptions
    from paceline.data.pack import pack as write_pack

    data = open_data(Config(data=source, data_dir=data_dir, bad_images=bad_images, augment="none", name="pack"))
    with progress_on(sys.stdout, count) as tell:
        options = PackOptions(size=size, keep=keep, bad_images=bad_images)
        packed = write_pack(data, out, options, lambda done, total: tell(out.name, done, total))
    left_out = f", {plural(packed.num_bad, 'image')} left out" if packed.num_bad else ""
    print(f"{out}: {plural(packed.num_images, 'image')}, {units.size(packed.num_bytes)}{left_out}")
    print(f"train on it with: paceline train --data packed:{out}")
    return ExitCode.FINISHED


@app.command
def verify(file: Path) -> int:
    """Read every image of a pack file and compare its checksum.

    Parameters
    ----------
    file
        A file that paceline data pack made.
    """
    from paceline.data.packed import read_index
    from paceline.data.packed import verify as count_damaged

    num_images, num_damaged = len(read_index(file).entries), count_damaged(file)
    if num_damaged:
        raise DataError(
            f"{file} is damaged: {count(num_damaged)} of {plural(num_images, 'image')} with a wrong checksum",
            hint="pack the data set again, or copy the file again",
        )
    print(f"{file}: {plural(num_images, 'image')}, every checksum is right")
    return ExitCode.FINISHED


def _rows(data_dir: Path) -> list[dict]:
    """Return what is known about each set, as plain values."""
    from paceline.data.catalog import open_data
    from paceline.data.shelf import shelf

    digits = open_data(Config(data="digits"))
    embedded = {
        "name": "digits",
        "num_train": len(digits.train),
        "num_test": len(digits.test),
        "num_classes": digits.num_classes,
        "image": "8×8×1",
        "download_bytes": 0,
        "found": "comes with Paceline",
        "expected": None,
    }
    return [embedded] + [
        {
            "name": known.name,
            "num_train": known.num_train,
            "num_test": known.num_test,
            "num_classes": known.num_classes,
            "image": known.image,
            "download_bytes": known.download_bytes,
            "found": None if found is None else str(found),
            "expected": str(expected),
        }
        for known, expected, found in shelf(data_dir)
    ]


def _cells(row: dict) -> list[str]:
    numbers = [count(row[key]) for key in ("num_train", "num_test", "num_classes")]
    download = units.size(row["download_bytes"]) if row["download_bytes"] else "none"
    there = ["no", row["expected"]] if row["found"] is None else ["yes", row["found"]]
    return [row["name"], *numbers, row["image"], download, *there]
