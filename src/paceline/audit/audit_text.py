"""Findings as text for a terminal, as JSON and as SARIF for code review tools; and rules as text."""

import textwrap
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from paceline.audit.audit_run import AuditedRun
from paceline.audit.finding import LEVELS, Finding, Rule
from paceline.core.units import plural, table

SARIF_LEVELS = {"wrong": "error", "slow": "warning", "note": "note"}
WIDTH = 110


def findings_text(run: AuditedRun) -> str:
    """Return all findings, the worst first."""
    blocks = [_block(finding) for finding in run.findings]
    return "\n\n".join([*blocks, _summary(run)])


def _block(finding: Finding) -> str:
    rows = [("effect", finding.rule.effect), ("fix", finding.rule.fix)]
    lines = [f"{finding.level.upper():5}  {finding.rule.name}  {finding.place}", *_wrapped("       ", finding.seen)]
    for name, text in rows:
        for number, part in enumerate(text.splitlines()):
            label = f"       {name + ':':8}" if number == 0 else " " * 15
            lines += _wrapped(label, part)
    return "\n".join(lines)


def _wrapped(label: str, text: str) -> list[str]:
    indent = len(text) - len(text.lstrip())
    return textwrap.wrap(
        text.lstrip(), WIDTH, initial_indent=label + " " * indent, subsequent_indent=" " * (len(label) + indent)
    )


def _summary(run: AuditedRun) -> str:
    counts = [f"{sum(f.level == level for f in run.findings)} {level}" for level in LEVELS]
    steps = f"{plural(max(run.steps, default=0), 'step')} on {plural(len(run.steps), 'rank')}"
    silenced = f", {run.num_silenced} silenced" if run.num_silenced else ""
    return f"{', '.join(counts)}{silenced}; audited {steps}{f' ({run.ending})' if run.ending else ''}"


def findings_values(run: AuditedRun) -> dict[str, Any]:
    """Return the audit as plain values for JSON."""
    return {
        "command": list(run.command),
        "exit_code": run.code,
        "ending": run.ending,
        "steps": run.steps,
        "silenced": run.num_silenced,
        "findings": [finding.as_dict() for finding in run.findings],
    }


def findings_sarif(findings: Sequence[Finding], rules: Mapping[str, Rule]) -> dict[str, Any]:
    """Return the findings in the Static Analysis Results Interchange Format, version 2.1.0."""
    driver = {
        "name": "paceline audit",
        "version": version("paceline"),
        "rules": [
            {
                "id": rule.name,
                "shortDescription": {"text": rule.summary},
                "fullDescription": {"text": rule.effect},
                "help": {"text": f"Instead of:\n{rule.wrong}\n\nWrite:\n{rule.fix}"},
                "defaultConfiguration": {"level": SARIF_LEVELS[rule.level]},
            }
            for rule in rules.values()
        ],
    }
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": [_result(finding) for finding in findings]}],
    }


def _result(finding: Finding) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.rule.name,
        "level": SARIF_LEVELS[finding.level],
        "message": {"text": f"{finding.seen}. Effect: {finding.rule.effect}. Fix: {finding.rule.fix}"},
    }
    if finding.file:
        place = {"artifactLocation": {"uri": finding.file}, "region": {"startLine": max(1, finding.line)}}
        result["locations"] = [{"physicalLocation": place}]
    return result


def rule_text(rule: Rule) -> str:
    """Return a rule with its example and its fix."""
    parts = [f"{rule.name} ({rule.level}): {rule.summary}.", f"Effect: {rule.effect}."]
    parts += ["Instead of:", textwrap.indent(rule.wrong, "    "), "Write:", textwrap.indent(rule.fix, "    ")]
    return "\n".join([*parts, f"To silence it on a line: # paceline: ignore[{rule.name}]"])


def rules_text(rules: Mapping[str, Rule]) -> str:
    """Return a table of all rules."""
    return table(["rule", "level", ""], [[rule.name, rule.level, rule.summary] for rule in rules.values()])
