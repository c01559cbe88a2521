"""Ranks on a host whose AMX crashes, simulated by a probe that kills itself with SIGILL: they train without it."""

import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from paceline.core.config import Config
from paceline.core.errors import ConfigError, RunError
from paceline.doctor.findings import findings
from paceline.doctor.probe import check_up
from paceline.engine.evaluate import score_checkpoint
from paceline.parallel import amx
from paceline.parallel.team import Team
from paceline.records.folder import RunFolder
from paceline.records.reader import read_environments
from tests.parallel.amx_probes import DIES, DIES_WITH_AMX, LIMITED
from tests.ranks.checkups import quiet
from tests.ranks.runs import exact_settings, train_rank
from tests.states import final_state


def with_crashing_amx(team: Team, probe: str, log: Path, function, *args: Any) -> Any:
    """Call a function where every rank's CPU announces AMX; each probe leaves a line in the log."""
    count = f"open({str(log)!r}, 'a').write('tried\\n')\n"
    flags = patch.object(amx, "vector_instructions", lambda: ["amx_bf16", "amx_tile"])
    with flags, patch.object(amx, "PROBE", count + probe), patch.dict(os.environ):
        for name in amx.LIMITS:
            os.environ.pop(name, None)
        return function(team, *args)


def train_and_read_limit(team: Team, settings: dict[str, Any], resume: Path | None = None) -> tuple[Path, str | None]:
    """Train, and return the run folder and the limit of instructions that training has set."""
    return train_rank(team, settings, resume).folder, os.environ.get(amx.LIMIT)


def bitwise(tmp_path: Path, **settings: Any) -> dict[str, Any]:
    usual = {"model": "cnn", "steps": 2, "global_batch": 96, "precision": "bf16"}
    return exact_settings(tmp_path, **(usual | settings))


@pytest.mark.long
@pytest.mark.bf16
def test_ranks_train_without_amx_after_one_probe_for_their_host(ranks, tmp_path):
    log = tmp_path / "probes"
    answers = ranks(2).run(with_crashing_amx, DIES_WITH_AMX, log, train_and_read_limit, bitwise(tmp_path))
    assert [limit for _, limit in answers] == ["AVX512_CORE_BF16"] * 2
    assert log.read_text() == "tried\n" * 2, "with AMX, and without"
    folder = RunFolder(answers[0][0])
    assert "when bf16 uses AMX; ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 was set" in folder.log.read_text()
    assert read_environments(folder)[0]["variables"] | LIMITED == read_environments(folder)[0]["variables"]
    assert final_state(folder.path)["fingerprint"] | LIMITED == final_state(folder.path)["fingerprint"]


@pytest.mark.bf16
def test_a_bitwise_run_without_amx_is_not_continued_with_it(ranks, tmp_path):
    log = tmp_path / "probes"
    settings = bitwise(tmp_path)
    ((folder, _),) = ranks(1).run(with_crashing_amx, DIES_WITH_AMX, log, train_and_read_limit, settings)
    with pytest.raises(RunError, match="ONEDNN_MAX_CPU_ISA was AVX512_CORE_BF16 when saved and is not set here"):
        ranks(2).run(with_crashing_amx, "", log, train_and_read_limit, settings | {"steps": 4}, folder)


def score(team: Team, settings: dict[str, Any]) -> tuple[int, str | None]:
    folder, _ = train_and_read_limit(team, settings)
    del os.environ[amx.LIMIT]
    said: list[str] = []
    run = RunFolder(folder)
    scored = score_checkpoint(Config(**settings), run, checkpoint="last", split="test", warn=said.append)
    assert "when bf16 uses AMX" in said[0]
    return scored.samples, os.environ.get(amx.LIMIT)


@pytest.mark.bf16
def test_a_checkpoint_is_evaluated_without_amx_too(ranks, tmp_path):
    answers = ranks(1).run(with_crashing_amx, DIES_WITH_AMX, tmp_path / "probes", score, bitwise(tmp_path))
    assert answers == [(360, "AVX512_CORE_BF16")]


def test_ranks_that_cannot_compute_in_bf16_are_refused(ranks, tmp_path):
    with pytest.raises(ConfigError, match=r"torch crashes on \S+ when it computes in bf16") as refused:
        ranks(2).run(with_crashing_amx, DIES, tmp_path / "probes", train_and_read_limit, bitwise(tmp_path))
    assert refused.value.hint == "use --precision fp32"
    assert not (tmp_path / "runs").exists()


def test_fp32_tries_nothing(ranks, tmp_path):
    log = tmp_path / "probes"
    answers = ranks(2).run(with_crashing_amx, DIES, log, train_and_read_limit, bitwise(tmp_path, precision="fp32"))
    assert [limit for _, limit in answers] == [None] * 2
    assert not log.exists()


def look(team: Team, folder: Path) -> Any:
    return check_up(team, folder, gpus_there=0, largest=1 << 10, environ={})


@pytest.mark.parametrize(
    ("probe", "text", "hint"),
    [
        (DIES_WITH_AMX, "announces AMX, but torch crashes when bf16 uses it", "export ONEDNN_MAX_CPU_ISA="),
        (DIES, "when it computes in bf16", "use --precision fp32"),
    ],
)
def test_the_doctor_names_it_once(ranks, tmp_path, probe, text, hint):
    checkup = ranks(2).run(with_crashing_amx, probe, tmp_path / "probes", look, tmp_path / "runs")[0]
    (finding,) = findings(quiet(checkup))
    assert (finding.level, text in finding.text, hint in finding.hint) == ("warning", True, True), finding
