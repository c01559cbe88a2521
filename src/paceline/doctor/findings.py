"""Problems of a machine or a cluster, from the measurements of `paceline doctor`."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Literal

from paceline.core.units import bit_rate, duration, plural, size
from paceline.doctor.checkup import Checkup, RankCheck
from paceline.parallel.speed_check import outliers

LARGEST_SKEW = 1.0
SLOW_SYNC = 0.1
SLOW_DISK = 20e6
FEW_FILES = 1024
LITTLE_MEMORY = 64 << 20
SLOW_START = 5e-3
"""Seconds of a small all-reduce above which a warning is given."""
LEAST_SHARE = 0.5
"""Fraction of the line rate below which a warning is given."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A problem stops training or makes its result wrong; a warning slows it or affects measurements."""

    level: Literal["problem", "warning"]
    text: str
    hint: str


def findings(checkup: Checkup) -> list[Diagnosis]:
    """Return all findings, problems first."""
    found = dict.fromkeys(finding for check in CHECKS for finding in check(checkup))  # two ranks may report the same
    return sorted(found, key=lambda finding: finding.level != "problem")


def _versions(checkup: Checkup) -> Iterator[Diagnosis]:
    first = checkup.ranks[0]
    for name, ours in first.versions.items():
        other = next((rank for rank in checkup.ranks if rank.versions.get(name) != ours), None)
        if other is not None:
            theirs = other.versions.get(name)
            where = f"{ours} on {first.host} and {theirs} on {other.host}"
            yield Diagnosis("problem", f"{name} is {where}", "install the same version on every host")


def _devices(checkup: Checkup) -> Iterator[Diagnosis]:
    for rank in _one_per_host(checkup):
        if rank.gpus_there > rank.gpus_seen:
            there = plural(rank.gpus_there, "GPU")
            text = f"{rank.host} has {there}, but torch can use only {rank.gpus_seen}"
            yield Diagnosis("problem", text, "install a CUDA build of torch, and check CUDA_VISIBLE_DEVICES")
        needed = "nccl" if rank.device.startswith("cuda") else "gloo"
        if needed not in rank.backends:
            yield Diagnosis(
                "problem", f"torch on {rank.host} has no {needed}", f"install a build of torch with {needed}"
            )
    kinds = {"cuda" if rank.device.startswith("cuda") else "cpu" for rank in checkup.ranks}
    if len(kinds) > 1:
        yield Diagnosis("problem", f"ranks compute on different devices: {', '.join(sorted(kinds))}", "set --device")


def _bf16(checkup: Checkup) -> Iterator[Diagnosis]:
    for rank in _one_per_host(checkup):
        if rank.bf16 == "without AMX":
            text = f"{rank.host} announces AMX, but torch crashes when bf16 uses it"
            hint = "--precision bf16 disables AMX; for other programs: export ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"
            yield Diagnosis("warning", text, hint)
        if rank.bf16 == "fails":
            yield Diagnosis("warning", f"torch crashes on {rank.host} when it computes in bf16", "use --precision fp32")


def _cores(checkup: Checkup) -> Iterator[Diagnosis]:
    on_host = Counter(rank.host for rank in checkup.ranks)
    for rank in _one_per_host(checkup):
        wanted = on_host[rank.host] * rank.threads
        if wanted > rank.cores:
            ranks, threads = plural(on_host[rank.host], "rank"), plural(rank.threads, "thread")
            text = f"{ranks} × {threads} on {rank.host} need {wanted} cores, but there are {rank.cores}"
            yield Diagnosis(
                "warning", text, f"use --threads {max(1, rank.cores // on_host[rank.host])}, or fewer ranks"
            )
        if rank.load > 1.2 * rank.cores:
            text = f"{rank.host} is busy: load {rank.load:.1f} on {plural(rank.cores, 'core')}"
            yield Diagnosis("warning", text, "times measured here are not reliable; repeat when the host is idle")


def _limits(checkup: Checkup) -> Iterator[Diagnosis]:
    for rank in _one_per_host(checkup):
        if rank.open_files < FEW_FILES:
            text = f"a process on {rank.host} may open {rank.open_files} files"
            yield Diagnosis("warning", text, "run ulimit -n 4096, or data workers may fail")
        if rank.shared_memory < LITTLE_MEMORY:
            text = f"/dev/shm on {rank.host} has {size(rank.shared_memory)} free"
            yield Diagnosis("warning", text, "data workers need more: docker run --shm-size=1g, or --workers 0")
        if not rank.can_listen:
            yield Diagnosis(
                "problem",
                f"no port can be opened on {rank.host}",
                "ranks connect over TCP; check the firewall or container settings",
            )


def _folder(checkup: Checkup) -> Iterator[Diagnosis]:
    for one in checkup.folder:
        host = checkup.ranks[one.rank].host
        if one.error is not None:
            yield Diagnosis("problem", f"{host} cannot write to {one.path}: {one.error}", "choose another --runs-dir")
        elif not one.sees_lead:
            text = f"{one.path} on {host} is not the same folder as on rank 0"
            yield Diagnosis(
                "warning", text, "checkpoints and reports will be on rank 0's host; use a shared --runs-dir"
            )
        elif not one.locks:
            text = f"file locks do not work on {host} in {one.path} ({one.kind})"
            yield Diagnosis(
                "warning", text, "fetch data sets on one host first; mount with locks (nfs: local_lock=none)"
            )
        if one.error is None and not one.replaces:
            yield Diagnosis(
                "problem",
                f"files in {one.path} cannot be replaced atomically",
                "checkpoints need that: choose another --runs-dir",
            )
    times = [one for one in checkup.folder if one.error is None]
    slow = max(times, key=lambda one: one.sync_seconds, default=None)
    if slow is not None and (slow.sync_seconds > SLOW_SYNC or slow.bytes_per_second < SLOW_DISK):
        text = f"{slow.path} is slow: {duration(slow.sync_seconds)} for a small file, {size(slow.bytes_per_second)}/s"
        yield Diagnosis("warning", text, "save less often (--save-every), or in the background (--save-async)")


def _clocks(checkup: Checkup) -> Iterator[Diagnosis]:
    for rank, ahead in zip(checkup.ranks, checkup.clocks, strict=True):
        if abs(ahead) > LARGEST_SKEW:
            word = "ahead of" if ahead > 0 else "behind"
            text = f"the clock of {rank.host} is {duration(abs(ahead))} {word} that of {checkup.ranks[0].host}"
            yield Diagnosis("warning", text, "start chrony or ntpd, or times in logs will not match")


def _links(checkup: Checkup) -> Iterator[Diagnosis]:
    if not checkup.sweep:
        return
    small, large = checkup.sweep[0], checkup.sweep[-1]
    if small.seconds > SLOW_START:
        text = f"an all-reduce of {size(small.bytes)} takes {1e3 * small.seconds:.1f} ms"
        yield Diagnosis(
            "warning", text, "the network is slow or a host is busy: use few large buckets, or --accumulate"
        )
    rates = [rank.line_rate for rank in checkup.ranks if rank.line_rate is not None]
    got = checkup.bus_bandwidth(large)
    if rates and got < LEAST_SHARE * min(rates):
        text = f"links of {bit_rate(min(rates))} reach only {bit_rate(got)}"
        yield Diagnosis("warning", text, "check for a slower switch, or choose another interface (GLOO_SOCKET_IFNAME)")
    if max(large.samples) > 2 * median(large.samples):
        text = f"all-reduces of {size(large.bytes)} took {min(large.samples):.3g} to {max(large.samples):.3g} s"
        yield Diagnosis("warning", text, "other traffic shares the link or the hosts; repeat the measurement")
    for rank in checkup.ranks:
        if rank.interface == "lo":
            text = f"{rank.host} uses the loopback interface to reach other hosts"
            yield Diagnosis("problem", text, "set GLOO_SOCKET_IFNAME to the interface that reaches them")


def _speeds(checkup: Checkup) -> Iterator[Diagnosis]:
    for text in outliers(checkup.speeds):
        yield Diagnosis("warning", text, "every step waits for it: look for other programs, heat or a bad link there")


def _one_per_host(checkup: Checkup) -> list[RankCheck]:
    return list({rank.host: rank for rank in reversed(checkup.ranks)}.values())[::-1]


CHECKS: tuple[Callable[[Checkup], Iterator[Diagnosis]], ...] = (
    _versions,
    _devices,
    _bf16,
    _cores,
    _limits,
    _folder,
    _clocks,
    _links,
    _speeds,
)
