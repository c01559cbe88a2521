"""`paceline verify`: check on this machine that world sizes, kills and resumes do not change the result."""

import json
import secrets
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Annotated

from cyclopts import Group, Parameter

from paceline.commands.defaults import DEFAULTS
from paceline.core.errors import ExitCode
from paceline.core.load import Settings
from paceline.core.messages import say
from paceline.core.setting_types import Numbers, Whole
from paceline.core.start import Start
from paceline.core.units import plural
from paceline.launching.launch import refuse_ranks
from paceline.verify.trials import check_trials, order_tolerance, plan_trials
from paceline.verify.verify_text import trials_text, trials_verdict

VERIFY = Group("Verify", sort_key=0)
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
    """Check that your settings give the same result at every world size and after a kill.

    Takes every setting of paceline train. Trains a few steps at each world size, then kills a rank (SIGKILL) at a
    random step and resumes at another world size, and compares every step with the first world size: bit by bit with
    --exact bitwise, within --tolerance with --exact order. Exit code 0: equal; 1: different; 2: could not tell.

    Examples:

      paceline verify --model cnn --exact bitwise

      paceline verify --config my.toml --worlds 1,2,3 --steps 12 --kills 3

    Parameters
    ----------
    worlds
        World sizes to try; the first is the reference.
    kills
        Number of trials that kill a rank and resume at another world size.
    kill_seed
        Seed for the rank and the step of each kill. Default: random, and printed.
    tolerance
        Largest difference for --exact order, relative to the largest value of a tensor. Default: 0.001.
    as_json
        Print one JSON object.
    config
        TOML file with settings.
    recipe
        Settings that ship with Paceline.
    """
    from paceline.verify.runner import PREFIX, TrialRunner

    _ = config, recipe  # read by the settings layers
    check_trials(settings, worlds, kills=kills, tolerance=tolerance)
    refuse_ranks("verify", Start())
    kill_seed = secrets.randbelow(10**6) if kill_seed is None else kill_seed
    steps = settings.steps or DEFAULT_STEPS
    trials = plan_trials(worlds, steps=steps, kills=kills, random=Random(kill_seed))
    limit = order_tolerance(settings, tolerance)
    runner = TrialRunner(replace(settings, steps=steps), settings.runs_dir / f"verify-{kill_seed}", limit)
    say(f"{plural(steps, 'step')} with --exact {settings.exact}, kill seed {kill_seed}", prefix=PREFIX)
    results = runner.run_and_clear(trials)
    if as_json:
        print(json.dumps(runner.values(results, kill_seed)))
    else:
        print(trials_text(str(trials[0]), results, tolerance=limit))
        print("\n".join(["", *runner.advice(trials[0], results), trials_verdict(results, tolerance=limit)]))
    return ExitCode.DIFFERENT if any(result.fails for result in results) else ExitCode.FINISHED
