"""`paceline audit --compare`: steps of one rank beside those of two, with the same global batch."""

import json

import pytest

from paceline.audit.audit_compare import compare_worlds, world_comparison_text
from paceline.audit.audit_run import AuditedRun
from paceline.audit.evidence import Evidence
from paceline.audit.judge import RULES
from paceline.observe.journals import CommandJournals, ProcessJournal
from tests.audit.audited import SCRIPTS, audit


def evidence(*losses: list[float]) -> Evidence:
    """Return the evidence of ranks with these losses."""
    ranks = {
        rank: ProcessJournal(
            [
                {"kind": "step", "step": step + 1, "passes": [{"loss": loss}], "norm": 1.0}
                for step, loss in enumerate(own)
            ]
        )
        for rank, own in enumerate(losses)
    }
    return Evidence(journals=CommandJournals(ranks=ranks, others=[]), code=0, folder="/")


def run(findings: tuple[str, ...], *losses: list[float]) -> AuditedRun:
    found = [RULES[name].at("train.py:1", "seen") for name in findings]
    return AuditedRun(
        command=[], code=0, ending="", steps=[len(own) for own in losses], findings=found, num_silenced=0,
        evidence=evidence(*losses), output="",
    )  # fmt: skip


def test_the_mean_loss_of_two_ranks_is_compared_with_that_of_one():
    comparison = compare_worlds(evidence([2.0, 1.5]), run((), [1.5, 1.0], [2.5, 2.0]))
    assert comparison.is_equal
    assert "train alike" in world_comparison_text(comparison)


def test_a_difference_names_its_first_step_and_the_findings_that_explain_it():
    comparison = compare_worlds(evidence([2.0, 1.5]), run(("same-batches", "same-file"), [2.0, 1.0], [2.0, 1.0]))
    assert not comparison.is_equal
    assert "differ from step 2 on; explained by: same-batches" in world_comparison_text(comparison)
    assert "no finding explains it" in world_comparison_text(compare_worlds(evidence([2.0]), run((), [1.0], [1.0])))


def test_without_a_common_step_nothing_is_claimed():
    comparison = compare_worlds(evidence([]), run((), [1.0], [1.0]))
    assert not comparison.is_equal
    assert "have no step in common" in world_comparison_text(comparison)


@pytest.mark.long
def test_a_script_without_mistakes_trains_alike_on_one_rank_and_two(tmp_path):
    (tmp_path / "train.py").write_text((SCRIPTS / "accumulating.py").read_text())
    done = audit(tmp_path, "--compare", "--json", "--", "train.py")
    assert done.returncode == 0, done.stderr
    values = json.loads(done.stdout)
    assert values["compare"]["equal"]
    assert [finding["rule"] for finding in values["findings"]] == ["batch-grows", "lr-not-scaled"]


@pytest.mark.long
def test_a_script_that_divides_its_batch_by_the_ranks_keeps_its_global_batch(tmp_path):
    text = (SCRIPTS / "accumulating.py").read_text()
    assert text.count("batch_size=8") == 1
    (tmp_path / "train.py").write_text(text.replace("batch_size=8", "batch_size=16 // dist.get_world_size()"))
    done = audit(tmp_path, "--compare", "--json", "--", "train.py")
    assert done.returncode == 0, done.stderr
    values = json.loads(done.stdout)
    assert values["compare"]["equal"]
    assert values["findings"] == []
