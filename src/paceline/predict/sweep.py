"""The link measured by `paceline doctor --json`: all-reduces of many sizes over the real ranks."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.core.errors import ConfigError
from paceline.predict.fabric import Link

HINT = "write it with: paceline doctor --json > doctor.json, on the ranks of the real link"


@dataclass(frozen=True, kw_only=True, slots=True)
class SweptLink:
    """A link from a sweep."""

    link: Link
    is_inside: bool
    """Whether all ranks were on one host."""
    ranks: int


def read_sweep(path: Path) -> SweptLink:
    """Return the link of a file; a file without a sweep is an error."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return _swept(values)
    except OSError as cause:
        raise ConfigError(f"--sweep {path} cannot be read: {cause.strerror}", hint=HINT) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(f"--sweep {path} has no results of paceline doctor --json", hint=HINT) from None


def _swept(values: dict[str, Any]) -> SweptLink:
    points, ranks = values["sweep"], values["ranks"]
    if len(ranks) < 2 or not points:
        raise ConfigError(
            "the sweep was made with one rank, so it has no link",
            hint="paceline doctor --nproc 2 --json, or --nnodes 2 on both nodes",
        )
    hops = 2 * (len(ranks) - 1)
    largest = max(points, key=lambda point: point["bytes"])  # smaller ones may pass in a burst
    bandwidth = float(largest["bus_bandwidth"])
    link = Link(bandwidth=bandwidth, latency=min(float(point["seconds"]) for point in points) / hops)
    return SweptLink(link=link, is_inside=len({rank["host"] for rank in ranks}) == 1, ranks=len(ranks))
