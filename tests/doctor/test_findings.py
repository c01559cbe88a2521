"""What the doctor says about planted faults; about a healthy pair of hosts it says nothing."""

from dataclasses import replace

import pytest

from paceline.doctor.checkup import Checkup, FolderCheck, RankCheck
from paceline.doctor.doctor_text import checkup_text
from paceline.doctor.findings import findings
from paceline.parallel.speed_check import RankSpeed, Speeds
from paceline.records.profile import LinkPoint

VERSIONS = {"python": "3.11.7", "paceline": "0.1.0", "torch": "2.13.0"}
RANK = RankCheck(
    rank=0, host="one", device="cpu (fast)", versions=VERSIONS, backends=("gloo",), cores=2, threads=1, load=0.5,
    gpus_there=0, gpus_seen=0, open_files=4096, shared_memory=1 << 30, interface="eth0", line_rate=125e6,
    can_listen=True,
)  # fmt: skip
FAST = RankSpeed(rank=0, host="one", flops=4e10, copy_rate=8e9)
FOLDER = FolderCheck(rank=0, path="runs", kind="nfs4", sync_seconds=0.01, bytes_per_second=1e8)
HEALTHY = Checkup(
    ranks=(RANK, replace(RANK, rank=1, host="two")),
    folder=(FOLDER, replace(FOLDER, rank=1)),
    clocks=(0.0, 0.001),
    sweep=(
        LinkPoint(bytes=1024, in_flight=1, samples=(0.0005,)),
        LinkPoint(bytes=1 << 24, in_flight=1, samples=(0.14, 0.141)),
    ),
    backend="gloo",
    speeds=Speeds(ranks=(FAST, replace(FAST, rank=1, host="two"))),
)


def with_second(**changes):
    """Return a check-up whose second rank is different."""
    return replace(HEALTHY, ranks=(HEALTHY.ranks[0], replace(HEALTHY.ranks[1], **changes)))


def with_folder(**changes):
    return replace(HEALTHY, folder=(FOLDER, replace(FOLDER, rank=1, **changes)))


def test_nothing_is_wrong_with_healthy_hosts():
    assert findings(HEALTHY) == []
    assert "no problems found on 2 ranks" in checkup_text(HEALTHY, [])


@pytest.mark.parametrize(
    ("checkup", "level", "words"),
    [
        (with_second(versions=VERSIONS | {"torch": "2.9.0"}), "problem", "torch is 2.13.0 on one and 2.9.0 on two"),
        (with_second(gpus_there=4), "problem", "two has 4 GPUs, but torch can use only 0"),
        (with_second(device="cuda:0 (V100)", backends=("gloo", "nccl")), "problem", "different devices: cpu, cuda"),
        (with_second(backends=()), "problem", "torch on two has no gloo"),
        (with_second(interface="lo"), "problem", "two uses the loopback interface to reach other hosts"),
        (with_second(can_listen=False), "problem", "no port can be opened on two"),
        (with_second(bf16="without AMX"), "warning", "two announces AMX, but torch crashes when bf16 uses it"),
        (with_second(bf16="fails"), "warning", "torch crashes on two when it computes in bf16"),
        (with_second(threads=8), "warning", "1 rank × 8 threads on two need 8 cores, but there are 2"),
        (with_second(load=7.0), "warning", "two is busy: load 7.0"),
        (with_second(open_files=256), "warning", "a process on two may open 256 files"),
        (with_second(shared_memory=1 << 20), "warning", "/dev/shm on two has 1.05 MB free"),
        (with_folder(error="Permission denied"), "problem", "two cannot write to runs: Permission denied"),
        (with_folder(sees_lead=False), "warning", "runs on two is not the same folder as on rank 0"),
        (with_folder(locks=False), "warning", "file locks do not work on two in runs (nfs4)"),
        (with_folder(replaces=False), "problem", "files in runs cannot be replaced atomically"),
        (with_folder(sync_seconds=0.4), "warning", "runs is slow: 0.40s for a small file"),
        (replace(HEALTHY, clocks=(0.0, 70.0)), "warning", "the clock of two is 1m 10s ahead of that of one"),
        (replace(HEALTHY, clocks=(0.0, -3.0)), "warning", "the clock of two is 3.00s behind that of one"),
    ],
)  # fmt: skip
def test_a_planted_fault_is_named(checkup, level, words):
    (finding,) = findings(checkup)
    assert (finding.level, words in finding.text) == (level, True), finding
    assert finding.hint
    assert words in checkup_text(checkup, [finding])


@pytest.mark.parametrize(
    ("place", "samples", "words"),
    [
        (0, (0.02,), "all-reduce of 1.02 kB takes 20.0 ms"),
        (1, (1.4, 1.41), "links of 1 Gbit/s reach only"),
        (1, (0.14, 0.14, 0.5), "took 0.14 to 0.5 s"),
    ],
)
def test_a_bad_link_is_named(place, samples, words):
    sweep = list(HEALTHY.sweep)
    sweep[place] = replace(sweep[place], samples=samples)
    (finding,) = findings(replace(HEALTHY, sweep=tuple(sweep)))
    assert words in finding.text


def test_problems_come_before_warnings():
    both = replace(with_second(can_listen=False), clocks=(0.0, 70.0))
    assert [finding.level for finding in findings(both)] == ["problem", "warning"]
