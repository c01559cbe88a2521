"""What `paceline doctor` found, on one screen: the verdict last, where people look."""

from collections.abc import Sequence

from paceline.analysis.checkup import Finding
from paceline.core.units import bit_rate, duration, plural, size
from paceline.records.checkup import Checkup
from paceline.report.tables import table

MOST_RANKS = 16


def checkup_text(checkup: Checkup, found: Sequence[Finding]) -> str:
    """Return what was looked at and what is wrong."""
    parts = [_versions(checkup), _ranks(checkup), _folder(checkup)]
    if checkup.sweep:
        parts.append(_sweep(checkup))
    return "\n\n".join([*parts, _verdict(checkup, found)])


def _versions(checkup: Checkup) -> str:
    first = checkup.ranks[0]
    packages = ", ".join(f"{name} {number}" for name, number in first.versions.items())
    return f"{packages}; backends {', '.join(first.backends) or 'none'}"


def _ranks(checkup: Checkup) -> str:
    head = ["rank", "host", "device", "threads", "cores", "load", "interface", "clock"]
    rows = [
        [str(rank.rank), rank.host, rank.device, str(rank.threads), str(rank.cores), f"{rank.load:.1f}",
         rank.interface or "–", f"{1e3 * ahead:+.1f} ms"]
        for rank, ahead in zip(checkup.ranks, checkup.clocks, strict=True)
    ]  # fmt: skip
    hidden = len(rows) - MOST_RANKS
    return table(head, rows[:MOST_RANKS]) + (f"\n… and {plural(hidden, 'rank')} more" if hidden > 0 else "")


def _folder(checkup: Checkup) -> str:
    first = checkup.folder[0]
    if first.error is not None:
        return f"folder {first.path}: {first.error}"
    shared = all(one.sees_lead for one in checkup.folder)
    locks = "locks work" if all(one.locks for one in checkup.folder) else "locks do not work"
    slowest = min(one.bytes_per_second for one in checkup.folder)
    sync = max(one.sync_seconds for one in checkup.folder)
    who = "" if checkup.world_size == 1 else ", seen by all ranks" if shared else ", NOT seen by all ranks"
    speed = f"{size(slowest)}/s, {duration(sync)} until a small file is safe"
    return f"folder {first.path} ({first.kind}){who}: {locks}, {speed}"


def _sweep(checkup: Checkup) -> str:
    rows = [
        [_power(point.bytes), f"{1e3 * point.seconds:.3g} ms", bit_rate(checkup.bus_bandwidth(point))]
        for point in checkup.sweep
    ]
    hops = 2 * (checkup.world_size - 1)
    small, large = checkup.sweep[0], checkup.sweep[-1]
    message, rate = 1e6 * min(small.samples) / hops, bit_rate(checkup.bus_bandwidth(large))
    found = f"{message:.0f} µs a message, {rate} at {_power(large.bytes)}"
    return table([f"all-reduce ({checkup.backend})", "takes", "bus bandwidth"], rows) + f"\n{found}"


def _verdict(checkup: Checkup, found: Sequence[Finding]) -> str:
    lines = [f"{finding.level}: {finding.text}\n  hint: {finding.hint}" for finding in found]
    if not found:
        alone = "; --nproc 2 looks at the links between ranks too" if checkup.world_size == 1 else ""
        lines = [f"nothing wrong was found on {plural(checkup.world_size, 'rank')}{alone}"]
    return "\n".join(lines)


def _power(num_bytes: int) -> str:
    """Return a power of two as people write it."""
    return f"{num_bytes >> 20} MiB" if num_bytes >= 1 << 20 else f"{num_bytes >> 10} KiB"
