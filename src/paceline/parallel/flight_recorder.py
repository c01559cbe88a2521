"""The last collectives of a rank, from torch's Flight Recorder, written when another rank does not answer."""

import json
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

MODULE = "torch._C._distributed_c10d"
DUMPS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")
"""Functions of torch for NCCL, in builds for CUDA, and for other backends. They have no public name."""


def write_collectives(path: Path) -> bool:
    """Write the recorded collectives as JSON; False if torch has none, or the folder cannot be written to."""
    for entries in filter(None, map(_recorded, DUMPS)):
        with suppress(OSError):
            path.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
            return True
    return False


def _recorded(name: str) -> list[Any]:
    """Return the entries of a dump, the oldest first; none if this torch lacks it. It never fails."""
    try:
        return json.loads(getattr(import_module(MODULE), name)()).get("entries", [])
    except Exception:  # noqa: BLE001 - a private function, called on the way out
        return []
