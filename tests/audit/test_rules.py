"""Every rule finds its mistake in a script that differs from a clean one in nothing else, and names its line."""

import pytest

from paceline.audit.finding import Finding
from paceline.audit.judge import RULES
from tests.audit.audited import SCRIPTS, audit_scripts
from tests.audit.planted import MISTAKES, Planted
from tests.audit.unusual import SCRIPTS as UNUSUAL
from tests.audit.unusual import Unusual

CLEAN = {path.name: path.read_text() for path in SCRIPTS.glob("*.py") if path.name != "on_gpu.py"}
FEW = ("same-order", "eval-padded", "metric-summed", "bypassed-ddp", "accumulate-sync", "same-file")
"""Mistakes that are planted at every change; the others by `make lab`."""
FEW_UNUSUAL = ("labelled and unlabelled", "one data set, two samplers", "fully sharded", "fine-tuning")
"""Correct scripts that are no mistake, at every change."""
ELSEWHERE = {"cuda-only", "same-rank", "clock-before-device", "batch-grows", "lr-not-scaled"}
"""Rules whose scripts need a launcher or two world sizes: test_audit.py and test_audit_compare.py."""


def check(planted: Planted, text: str, findings: list[Finding]) -> None:
    found = [finding for finding in findings if finding.rule.name == planted.rule]
    assert found, f"{planted.rule} is not among {[finding.rule.name for finding in findings]}"
    assert planted.place in text.splitlines()[found[0].line - 1]
    assert (found[0].file, found[0].level) == ("train.py", found[0].rule.level)


def check_all(folder, chosen: list[Planted], correct: list[Unusual]) -> None:
    texts = {planted.rule: planted.text(CLEAN[planted.script]) for planted in chosen}
    others = {unusual.name: unusual.text(CLEAN[unusual.script]) for unusual in correct}
    found = audit_scripts(folder, CLEAN | texts | others)
    for name in others:
        assert [finding.seen for finding in found[name] if finding.level == "wrong"] == [], name
    for name in CLEAN:
        assert [(finding.rule.name, finding.seen) for finding in found[name]] == [], name
    for planted in chosen:
        check(planted, texts[planted.rule], found[planted.rule])


@pytest.mark.slow
def test_some_mistakes_are_found_and_clean_scripts_have_no_finding(tmp_path):
    some = [unusual for unusual in UNUSUAL if unusual.name in FEW_UNUSUAL]
    assert len(some) == len(FEW_UNUSUAL)
    check_all(tmp_path, [planted for planted in MISTAKES if planted.rule in FEW], some)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_mistake_is_found_and_clean_scripts_have_no_finding(tmp_path):
    check_all(tmp_path, list(MISTAKES), list(UNUSUAL))


def test_every_rule_has_a_planted_mistake():
    assert {planted.rule for planted in MISTAKES} | ELSEWHERE == set(RULES)
    assert len(RULES) >= 25


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_rule_has_an_effect_an_example_and_a_fix(rule):
    assert rule.summary
    assert rule.effect
    assert rule.wrong != rule.fix
