"""`paceline verify`: prove on this machine that world sizes, kills and resumes do not change the result."""

import json
import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Annotated

from cyclopts import Group, Parameter

from paceline.analysis.trials import ORDER_TOLERANCE, Finding, plan_trials
from paceline.commands.launch import refuse_ranks
from paceline.commands.trials import Bench, tell
from paceline.core.config import Config, Numbers, Whole
from paceline.core.errors import ConfigError, ExitCode, SettingError
from paceline.core.load import Settings
from paceline.core.plan import refuse_more_ranks_than_shards
from paceline.core.start import Start
from paceline.core.units import plural
from paceline.launching.child import interrupted_by_sigterm
from paceline.report.trials import finding_values, findings_text, verdict

VERIFY = Group("Verify", sort_key=0)
DEFAULTS = Config()
DEFAULT_STEPS = 8


def verify_command(
    settings: Settings = DEFAULTS,
    *,
    worlds: Annotated[Numbers, Parameter(group=VERIFY)] = (1, 2, 4),
    kills: Annotated[Whole, Parameter(group=VERIFY)] = 1,
    kill_seed: Annotated[int | None, Parameter(group=VERIFY)] = None,
    tolerance: Annotated[float | None, Parameter(group=VERIFY)] = None,
    as_json: Annotated[bool, Parameter(name="--json", group=VERIFY, negative="")] = False,
    config: Annotated[Path | None, Parameter(group=VERIFY)] = None,
    recipe: Annotated[str | None, Parameter(group=VERIFY)] = None,
) -> int:
    """Show on this machine that your settings give one result, whatever the number of ranks and whoever is killed.

    Takes every setting of paceline train. Trains a few steps at each world size; then kills a rank (SIGKILL) at a
    random step and goes on at another world size; and compares every step with the first world size: --exact bitwise
    to the bit, --exact order within its tolerance. Exit code 0: the same; 1: different; 2: could not tell.

    Examples:

      paceline verify --model cnn --exact bitwise

      paceline verify --config my.toml --worlds 1,2,3 --steps 12 --kills 3

    Parameters
    ----------
    worlds
        Numbers of ranks to try; the first is the reference.
    kills
        Trials in which a rank is killed, and the run goes on at another world size.
    kill_seed
        Decides who is killed when; a new one each time when not given, and printed.
    tolerance
        Largest difference, relative to the largest value of a tensor, for --exact order; 0.001 when not given.
    as_json
        Print one JSON object.
    config
        TOML file with settings.
    recipe
        Settings that ship with Paceline.
    """
    _ = config, recipe  # the layers have read them
    _check(settings, worlds, kills, tolerance)
    refuse_ranks("verify", Start())
    kill_seed = secrets.randbelow(10**6) if kill_seed is None else kill_seed
    settings = replace(settings, steps=settings.steps or DEFAULT_STEPS)
    assert settings.steps is not None
    trials = plan_trials(worlds, steps=settings.steps, kills=kills, random=Random(kill_seed))
    bench = Bench(settings, settings.runs_dir / f"verify-{kill_seed}")
    limit = None if settings.exact == "bitwise" else ORDER_TOLERANCE if tolerance is None else tolerance
    tell(f"{plural(settings.steps, 'step')} with --exact {settings.exact}, kill seed {kill_seed}")
    try:
        with interrupted_by_sigterm():
            findings = bench.run(trials, limit)
    except KeyboardInterrupt:
        bench.clear()
        raise
    except Exception:
        bench.clear(keep_logs=True)
        raise
    bench.clear(keep=[trials[0], *(finding.trial for finding in findings if finding.first is not None)])
    if as_json:
        print(json.dumps(_values(bench, findings, kill_seed, limit)))
    else:
        print(findings_text(str(trials[0]), findings, tolerance=limit))
        print("\n".join(["", *bench.advice(trials[0], findings), verdict(findings, tolerance=limit)]))
    return ExitCode.DIFFERENT if any(finding.first for finding in findings) else ExitCode.FINISHED


def _check(settings: Config, worlds: Sequence[int], kills: int, tolerance: float | None) -> None:
    if not worlds or min(worlds) < 1 or len(set(worlds)) != len(worlds):
        raise SettingError("worlds", "must be different numbers of ranks from 1 on, such as 1,2,4")
    refuse_more_ranks_than_shards(settings, max(worlds))
    if kills > 0 and settings.steps == 1:
        problem = "a rank that is killed in the only step leaves nothing to resume"
        raise ConfigError(problem, hint="use --steps 2 or more, or --kills 0")
    if kills < 0:
        raise SettingError("kills", f"is {kills}, but must be at least 0")
    if kills == 0 and len(worlds) == 1:
        raise ConfigError("one world size and no kill leave nothing to compare", hint="use --worlds 1,2")
    if tolerance is not None and (settings.exact == "bitwise" or not tolerance >= 0):
        raise SettingError(
            "tolerance", f"is {tolerance}, but --exact bitwise allows none, and less than 0 means nothing"
        )
    if settings.mode in {"single", "dp"}:
        raise ConfigError(f"--mode {settings.mode} is one process at any world size", hint="drop --mode")


def _values(bench: Bench, findings: Sequence[Finding], kill_seed: int, tolerance: float | None) -> dict:
    return {
        "exact": bench.config.exact,
        "steps": bench.config.steps,
        "kill_seed": kill_seed,
        "tolerance": tolerance,
        "agrees": all(finding.first is None for finding in findings),
        "trials": [finding_values(finding) for finding in findings],
        "kept": str(bench.folder) if bench.folder.exists() else None,
    }
