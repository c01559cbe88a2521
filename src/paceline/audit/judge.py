"""From evidence to findings: all rules, without those that a comment silences, the worst first."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.audit.evidence import Evidence
from paceline.audit.finding import LEVELS, Finding, Rule
from paceline.audit.rules import (
    control_rules,
    data_rules,
    evaluation_rules,
    file_rules,
    metric_rules,
    model_rules,
    schedule_rules,
    setup_rules,
    timing_rules,
    world_rules,
)
from paceline.audit.source import is_silenced
from paceline.core.errors import ConfigError, suggestion

MODULES = (
    data_rules, evaluation_rules, metric_rules, model_rules, schedule_rules, control_rules, file_rules, timing_rules,
    setup_rules, world_rules,
)  # fmt: skip
RULES: dict[str, Rule] = {rule.name: rule for module in MODULES for rule in module.RULES}


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The findings of an audit, and how many a comment silenced."""

    findings: list[Finding]
    num_silenced: int


def judge_evidence(evidence: Evidence) -> Judgement:
    """Return the findings."""
    found = list(dict.fromkeys(_findings(evidence)))
    kept = judged(evidence, found)
    return Judgement(findings=kept, num_silenced=len(found) - len(kept))


def judged(evidence: Evidence, found: Iterable[Finding]) -> list[Finding]:
    """Return the findings that no comment silences, with short paths, the worst first."""
    kept = [finding for finding in found if not _is_silenced(finding)]
    kept = [replace(finding, file=_short(finding.file, evidence.folder)) for finding in kept]
    return sorted(kept, key=lambda finding: (LEVELS.index(finding.level), finding.file, finding.line))


def _findings(evidence: Evidence) -> Iterator[Finding]:
    if not evidence.ranks:  # no process could join: the claims are all there is
        yield from control_rules.check_ranks(evidence)
        return
    for module in MODULES:
        for check in module.CHECKS:
            yield from check(evidence)


def _is_silenced(finding: Finding) -> bool:
    return bool(finding.file) and is_silenced(Path(finding.file), finding.line, finding.rule.name)


def _short(file: str, folder: str) -> str:
    """Return a path relative to the working directory, where it lies below it."""
    path = Path(file)
    return str(path.relative_to(folder)) if file and path.is_relative_to(folder) else file


def find_rule(name: str) -> Rule:
    """Return the rule of a name."""
    if name not in RULES:
        raise ConfigError(f"there is no rule {name}", hint=suggestion(name, RULES))
    return RULES[name]
