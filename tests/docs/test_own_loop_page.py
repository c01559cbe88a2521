"""The scripts of docs/own-loop.md: alone and under torchrun, beside the raw DDP script."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from lab.environment import child_environment
from tests.conftest import LONGEST
from tests.docs.pages import write_files

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def python(*words: str) -> str:
    environ = child_environment(OMP_NUM_THREADS="1")
    done = subprocess.run(
        [sys.executable, *words], env=environ, capture_output=True, text=True, timeout=LONGEST, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_script_of_the_page_gives_the_same_result_alone_and_under_torchrun(elsewhere, monkeypatch):
    write_files("docs/own-loop.md", elsewhere)
    assert "accuracy" in python("script.py")
    assert "2 ranks, started by torchrun" in python(*TORCHRUN, "script.py")
    one, two = (load_file(f"runs/script/{name}/checkpoints/step-00000016/model.safetensors") for name in ("001", "002"))
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, rtol=1e-4, atol=1e-6)
    python(*TORCHRUN, "raw.py")
    Path("runs/script").rename("runs/my")
    monkeypatch.syspath_prepend(str(elsewhere))
    read = runpy.run_path("read.py")["net"].state_dict()
    assert {f"net.{name}" for name in read} == one.keys()
