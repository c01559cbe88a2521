"""Memory that a step frees is there for the next one: the kernel need not zero it again."""

import os
import platform
import subprocess
import sys

import pytest

STEPS = """
import resource, sys, torch
from paceline.parallel.device import hold_memory
if sys.argv[1] == "held":
    hold_memory()
def step():
    layers = [torch.ones(2_000_000) for _ in range(12)]
for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


RETURNED = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
"""What glibc begins with. Left alone it moves both as memory comes and goes, so that a small program may get away."""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told to keep memory")
def test_steps_take_no_new_pages_from_the_system():
    held, returned = (
        int(subprocess.check_output([sys.executable, "-c", STEPS, way], env=os.environ | RETURNED, text=True))
        for way in ("held", "returned")
    )
    pages = 5 * 12 * 8_000_000 // 4096
    assert held < pages / 20
    assert returned > pages / 2, "the control: steps fault their memory in again and again"
