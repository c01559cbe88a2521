"""`paceline audit`: run any training command for a few steps, and name its mistakes."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from paceline.audit.audit_compare import audit_alone, compare_worlds, with_world_findings, world_comparison_text
from paceline.audit.audit_progress import AuditProgress
from paceline.audit.audit_run import AuditedRun, AuditOptions, audit
from paceline.audit.audit_text import findings_sarif, findings_text, findings_values, rule_text, rules_text
from paceline.audit.judge import RULES, find_rule
from paceline.commands.defaults import DEFAULT_RUNS
from paceline.core.errors import ExitCode
from paceline.core.setting_types import Whole
from paceline.observe.attachment import check_command
from paceline.records.folder import find_run
from paceline.records.writer import write_json


def audit_command(
    *command: Annotated[str, Parameter(allow_leading_hyphen=True)],
    ranks: Whole = 2,
    steps: Whole = 6,
    limit: float = 300.0,
    output: Annotated[Literal["text", "json", "sarif"], Parameter(alias="--format")] = "text",
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
    on_cpu: Annotated[bool | None, Parameter(negative="--on-gpu")] = None,
    compare: Annotated[bool, Parameter(negative="")] = False,
    run: Path | None = None,
    runs_dir: Path = DEFAULT_RUNS,
    explain: str | None = None,
    rules: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Run a training command of any origin for a few steps and name its mistakes, with file, line, effect and fix.

    wrong: changes a result or can hang; slow: wastes work; note: depends on what you want. The script runs for real.
    To silence a rule: # paceline: ignore[RULE]. Exit code 0: nothing wrong; 1: something wrong; 2: could not run.

    Examples:

      paceline audit -- torchrun train.py --batch-size 32

    Parameters
    ----------
    command
        The command, after --; a script alone is started by torchrun.
    ranks
        Number of ranks.
    steps
        Training batches per epoch; the order of the rest is read from the sampler.
    limit
        Seconds after which the command is ended.
    output
        text, json or sarif (for code review tools).
    as_json
        The same as --output json.
    on_cpu
        Run CUDA and NCCL calls on the CPU with gloo. Default: if the script mentions them.
    compare
        Run the script with one rank too, with the same global batch, and compare losses and weights.
    run
        An observed run, whose paceline report then shows the findings.
    runs_dir
        Folder of all runs, in which run names are looked up.
    explain
        Print a rule with an example and its fix, and run nothing.
    rules
        List all rules, and run nothing.
    """
    if rules or explain is not None:
        return _print_rules(explain)
    folder = None if run is None else find_run(run, runs_dir)
    check_command(command if not (command and command[0].endswith(".py")) else ["python3", *command])
    options = AuditOptions(ranks=ranks, batches=steps, limit=limit, on_cpu=on_cpu, compare=compare)
    found, alone = _run_audits(command, options)
    if folder is not None:
        write_json(folder.audit, findings_values(found))
    _print_result(found, alone, "json" if as_json else output)
    return ExitCode.DIFFERENT if any(finding.level == "wrong" for finding in found.findings) else ExitCode.FINISHED


def _print_rules(name: str | None) -> int:
    print(rules_text(RULES) if name is None else rule_text(find_rule(name)))
    return ExitCode.FINISHED


def _run_audits(command: Sequence[str], options: AuditOptions) -> tuple[AuditedRun, AuditedRun | None]:
    """Audit the command, to compare it also with one rank."""
    progress = AuditProgress()
    try:
        found = audit(command, options, progress)
        alone = audit_alone(command, options, found, progress) if options.compare else None
    finally:
        progress.clear()
    return found if alone is None else with_world_findings(found, alone), alone


def _print_result(found: AuditedRun, alone: AuditedRun | None, output: str) -> None:
    comparison = None if alone is None else compare_worlds(alone.evidence, found)
    if output == "json":
        worlds = {} if comparison is None else {"compare": comparison.as_dict()}
        print(json.dumps(findings_values(found) | worlds))
    elif output == "sarif":
        print(json.dumps(findings_sarif(found.findings, RULES)))
    else:
        print(findings_text(found))
        print("" if comparison is None else f"\n{world_comparison_text(comparison)}", end="")
