"""Memory that a step frees is there for the next one: the kernel need not zero it again."""

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


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told to keep memory")
def test_steps_take_no_new_pages_from_the_system():
    held, default = (
        int(subprocess.run([sys.executable, "-c", STEPS, way], capture_output=True, check=True, text=True).stdout)
        for way in ("held", "default")
    )
    pages = 5 * 12 * 8_000_000 // 4096
    assert held < pages / 20
    assert default > pages / 4  # the control: without it, steps fault memory in again and again
