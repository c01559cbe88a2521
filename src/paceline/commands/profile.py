"""`paceline profile`: measure the phases of a step, without training."""

import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from paceline.commands.defaults import ALONE, BEGIN, DEFAULTS
from paceline.core.config_rules import refuse_loop
from paceline.core.errors import ExitCode, SettingError
from paceline.core.load import Settings
from paceline.core.setting_types import Whole
from paceline.core.start import Start
from paceline.explain.explain_text import profile_text
from paceline.launching.launch import launch_ranks
from paceline.launching.launch_plan import plan_launch
from paceline.parallel.detect import detect_world
from paceline.parallel.nodes import join_nodes


def profile_command(
    settings: Settings = DEFAULTS,
    *,
    start: Annotated[Start, Parameter(name="*")] = ALONE,
    config: Annotated[Path | None, Parameter(group=BEGIN)] = None,
    recipe: Annotated[str | None, Parameter(group=BEGIN)] = None,
    pairs: Annotated[Whole, Parameter(group=BEGIN)] = 12,
    trace: Annotated[bool, Parameter(group=BEGIN, negative="")] = False,
) -> int:
    """Measure steps with and without communication, the gradient buckets, and the link, without training.

    Takes every setting of paceline train. Writes the profile to a new run folder, for paceline explain and paceline
    predict. paceline train --profile measures the same before training.

    Examples:

      paceline profile --nproc 2 --model resnet20

      paceline profile --config runs/digits-resnet20/001/config.toml --nproc 2 --trace

    Parameters
    ----------
    config
        TOML file with settings, such as a run's own config.toml.
    recipe
        Settings that ship with Paceline; paceline recipes lists them.
    pairs
        Pairs of steps to measure, each one step without communication and one with it.
    trace
        Record three steps of every rank with torch.profiler, to open in Perfetto or chrome://tracing.
    """
    if pairs < 2:
        raise SettingError("pairs", f"is {pairs}, but must be at least 2")
    refuse_loop(settings.loop, "profile")
    start = join_nodes(start, os.environ)
    world = detect_world(os.environ, start)
    plan = plan_launch(settings, start, world, os.environ)
    if plan is not None:
        args = ["--pairs", str(pairs), *(["--trace"] if trace else [])]
        return launch_ranks(plan, settings, start, args, command="profile")
    from paceline.engine.rank import profile_rank

    folder, profile = profile_rank(settings, world, start=start, num_pairs=pairs, trace=trace)
    if world.is_lead:
        print(profile_text(profile))
        print(f"\nsaved as {folder.profile}")
        if trace:
            print(f"traces are in {folder.trace(0).parent}")
    return ExitCode.FINISHED
