"""The results of `paceline doctor` on one screen, the problems last."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from paceline.core.units import bit_rate, duration, plural, size, table
from paceline.doctor.checkup import Checkup
from paceline.doctor.findings import Diagnosis

MOST_RANKS = 16
MOST_PAIRS = 6


def checkup_text(checkup: Checkup, found: Sequence[Diagnosis]) -> str:
    """Return the measurements and the problems."""
    parts = [_versions(checkup), _ranks(checkup), _folder(checkup)]
    if checkup.sweep:
        parts += [_sweep(checkup), *_pairs(checkup)]
    return "\n\n".join([*parts, _verdict(checkup, found)])


def checkup_values(checkup: Checkup, found: Sequence[Diagnosis]) -> dict[str, Any]:
    """Return the measurements and the problems as plain values for JSON."""
    sweep = [
        {"bytes": point.bytes, "seconds": point.seconds, "bus_bandwidth": checkup.bus_bandwidth(point)}
        for point in checkup.sweep
    ]
    return {
        "ok": not any(finding.level == "problem" for finding in found),
        "findings": [asdict(finding) for finding in found],
        "ranks": [asdict(rank) for rank in checkup.ranks],
        "folder": [asdict(one) for one in checkup.folder],
        "clocks": list(checkup.clocks),
        "backend": checkup.backend,
        "sweep": sweep,
        "speeds": asdict(checkup.speeds),
    }


def _versions(checkup: Checkup) -> str:
    first = checkup.ranks[0]
    packages = ", ".join(f"{name} {number}" for name, number in first.versions.items())
    return f"{packages}; backends {', '.join(first.backends) or 'none'}"


def _ranks(checkup: Checkup) -> str:
    head = ["rank", "host", "device", "threads", "cores", "load", "compute", "memory", "interface", "clock"]
    rows = [
        [str(rank.rank), rank.host, rank.device, str(rank.threads), str(rank.cores), f"{rank.load:.1f}",
         f"{speed.flops / 1e9:.3g} GFLOP/s", f"{size(speed.copy_rate)}/s",
         rank.interface or "–", f"{1e3 * ahead:+.1f} ms"]
        for rank, speed, ahead in zip(checkup.ranks, checkup.speeds.ranks, checkup.clocks, strict=True)
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
    who = "" if checkup.world_size == 1 else ", shared by all ranks" if shared else ", NOT shared by all ranks"
    speed = f"{size(slowest)}/s, {duration(sync)} to sync a small file"
    return f"folder {first.path} ({first.kind}){who}: {locks}, {speed}"


def _sweep(checkup: Checkup) -> str:
    rows = [
        [_power(point.bytes), f"{1e3 * point.seconds:.3g} ms", bit_rate(checkup.bus_bandwidth(point))]
        for point in checkup.sweep
    ]
    hops = 2 * (checkup.world_size - 1)
    small, large = checkup.sweep[0], checkup.sweep[-1]
    message, rate = 1e6 * min(small.samples) / hops, bit_rate(checkup.bus_bandwidth(large))
    found = f"{message:.0f} µs per message, {rate} at {_power(large.bytes)}"
    return table([f"all-reduce ({checkup.backend})", "takes", "bus bandwidth"], rows) + f"\n{found}"


def _pairs(checkup: Checkup) -> list[str]:
    """Return the links in pairs: a table of the slowest, if there are several."""
    pairs = sorted(checkup.speeds.pairs, key=lambda pair: pair.rate)
    hosts = [rank.host for rank in checkup.ranks]
    rows = [
        [f"{pair.first} – {pair.second}", f"{hosts[pair.first]} – {hosts[pair.second]}", bit_rate(pair.rate)]
        for pair in pairs[:MOST_PAIRS]
    ]
    rest = len(pairs) - MOST_PAIRS
    more = f"\n… and {plural(rest, 'pair')} more, the fastest {bit_rate(pairs[-1].rate)}" if rest > 0 else ""
    return [table(["pair", "hosts", "both ways"], rows) + more] if len(rows) > 1 else []


def _verdict(checkup: Checkup, found: Sequence[Diagnosis]) -> str:
    lines = [f"{finding.level}: {finding.text}\n  hint: {finding.hint}" for finding in found]
    if not found:
        alone = "; to check the links between ranks too, add --nproc 2" if checkup.world_size == 1 else ""
        lines = [f"no problems found on {plural(checkup.world_size, 'rank')}{alone}"]
    return "\n".join(lines)


def _power(num_bytes: int) -> str:
    """Return a power of two with its unit."""
    return f"{num_bytes >> 20} MiB" if num_bytes >= 1 << 20 else f"{num_bytes >> 10} KiB"
