"""`paceline data`: list, fetch, pack and verify data sets."""

import json
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from paceline.commands.defaults import DEFAULT_DATA
from paceline.commands.status_line import progress_on
from paceline.core import units
from paceline.core.config import Config
from paceline.core.errors import DataError, ExitCode
from paceline.core.units import count, fitted_table, plural

OTHERS = "also: --data folder:PATH (a folder per class), packed:PATH (made by paceline data pack), my.py:build"

app = App(name="data", help="List, fetch, pack and verify data sets.")


@app.default
@app.command(name="list")
def list_data_command(
    *,
    data_dir: Path = DEFAULT_DATA,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """List the built-in data sets, and whether they are on this machine.

    Parameters
    ----------
    data_dir
        Folder where data sets are kept.
    as_json
        Print one JSON object per data set.
    """
    from paceline.data.catalog import list_data_sets

    rows = list_data_sets(data_dir)
    if as_json:
        for row in rows:
            print(json.dumps(row))
        return ExitCode.FINISHED
    head = ["name", "train", "test", "classes", "image", "download", "there", "where"]
    print(f"{fitted_table(head, [_cells(row) for row in rows])}\n\n{OTHERS}")
    return ExitCode.FINISHED


@app.command
def fetch(name: str, *, data_dir: Path = DEFAULT_DATA) -> int:
    """Download a data set, check and unpack it; an interrupted download is resumed.

    Parameters
    ----------
    name
        Name of a data set, as listed by paceline data list.
    data_dir
        Folder where data sets are kept.
    """
    from paceline.data.fetch import fetch_files
    from paceline.data.inventory import find_ready, published_set

    if name == "digits":
        print("digits ships with Paceline: nothing to fetch")
        return ExitCode.FINISHED
    published = published_set(name)
    found = find_ready(published, data_dir)
    if found is not None:
        print(f"{name} is already in {found}")
        return ExitCode.FINISHED
    with progress_on(sys.stdout, units.size) as tell:
        home = fetch_files(published, data_dir, tell)
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
    """Write a large data set into one file that opens fast; an interrupted call is resumed.

    Example:

      paceline data pack folder:pictures pictures.pack --size 256

    Parameters
    ----------
    source
        folder:PATH, imagenet or cinic10.
    out
        File to write.
    size
        Shorter side of images kept as JPEG, or side of images kept as pixels. Default: JPEG files are copied unchanged.
    keep
        jpeg: small file; pixels: no decoding during training.
    bad_images
        fail: stop at an image that cannot be decoded; skip: leave it out.
    data_dir
        Folder where data sets are kept.
    """
    from paceline.data.catalog import open_data
    from paceline.data.pack_writer import PackOptions, write_pack

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
        Pack file, written by paceline data pack.
    """
    from paceline.data.pack_reader import count_damaged, read_index

    num_images, num_damaged = len(read_index(file).entries), count_damaged(file)
    if num_damaged:
        raise DataError(
            f"{file} is damaged: {count(num_damaged)} of {plural(num_images, 'image')} have a wrong checksum",
            hint="pack the data set again, or copy the file again",
        )
    print(f"{file}: {plural(num_images, 'image')}, all checksums are correct")
    return ExitCode.FINISHED


def _cells(row: dict) -> list[str]:
    numbers = [count(row[key]) for key in ("num_train", "num_test", "num_classes")]
    download = units.size(row["download_bytes"]) if row["download_bytes"] else "none"
    there = ["no", row["expected"]] if row["found"] is None else ["yes", row["found"]]
    return [row["name"], *numbers, row["image"], download, *there]
