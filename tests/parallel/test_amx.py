"""bf16 on a CPU that reports AMX but crashes on it, simulated by a probe that kills itself with SIGILL."""

import subprocess
import sys

import pytest
import torch

from paceline.core.config import Config
from paceline.core.errors import ConfigError
from paceline.core.world import World
from paceline.parallel import amx
from paceline.parallel.exact.determinism import fingerprint
from paceline.parallel.team import Team
from tests.parallel.amx_probes import DIES, DIES_WITH_AMX, LIMITED

ALONE = Team(World(host="node1"), torch.device("cpu"))


@pytest.fixture
def announced(monkeypatch):
    """Return a function that makes this a CPU with AMX on which the probe is this program."""

    def announce(probe):
        monkeypatch.setattr(amx, "vector_instructions", lambda: ["amx_bf16", "amx_tile", "avx512_bf16"])
        monkeypatch.setattr(amx, "PROBE", probe)

    return announce


@pytest.mark.bf16
def test_the_real_probe_runs_to_its_end():
    done = subprocess.run([sys.executable, "-c", amx.PROBE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("probe", "found"),
    [("", "works"), (DIES_WITH_AMX, "without AMX"), (DIES, "fails"), ("raise ImportError('torch')", "works")],
)
def test_a_crash_of_the_probe_tells_what_works(announced, probe, found):
    announced(probe)
    assert amx.try_bf16({}) == found


def test_amx_that_works_is_left_alone(announced):
    announced("")
    environ = {}
    assert amx.limit_isa(ALONE, environ) is None
    assert environ == {}


def test_amx_that_crashes_is_turned_off_and_named(announced):
    announced(DIES_WITH_AMX)
    environ = {}
    assert amx.limit_isa(ALONE, environ) == (
        "torch crashes on node1 when bf16 uses AMX; ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 was set, so bf16 uses AVX-512"
    )
    assert environ == LIMITED


def test_a_cpu_that_crashes_without_amx_too_is_refused_with_what_to_type(announced):
    announced(DIES)
    with pytest.raises(ConfigError, match="torch crashes on node1 when it computes in bf16") as refused:
        amx.limit_isa(ALONE, {})
    assert refused.value.hint == "use --precision fp32"


@pytest.mark.parametrize("name", ["ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"])
def test_a_limit_that_the_user_has_set_stays(announced, name):
    announced(DIES)
    environ = {name: "AVX2"}
    assert amx.limit_isa(ALONE, environ) is None
    assert environ == {name: "AVX2"}


def test_nothing_is_tried_on_a_gpu_or_where_no_amx_is_announced(announced, monkeypatch):
    announced(DIES)
    assert amx.limit_isa(Team(World(), torch.device("cuda")), {}) is None
    monkeypatch.setattr(amx, "vector_instructions", lambda: ["avx2", "avx512_bf16"])
    assert amx.limit_isa(ALONE, {}) is None


def test_the_instruction_limit_is_part_of_the_fingerprint(monkeypatch):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    facts = fingerprint(Config(exact="bitwise", shards=8), torch.device("cpu"))
    assert facts["ONEDNN_MAX_CPU_ISA"] == "AVX512_CORE_BF16"
