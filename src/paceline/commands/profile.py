"""`paceline profile`: measure what a step consists of, without training."""

import os
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from paceline.commands.launch import launch_ranks
from paceline.core.config import Config, Whole
from paceline.core.errors import ExitCode, SettingError
from paceline.core.load import Settings
from paceline.core.start import Start
from paceline.launching.plan import plan_launch
from paceline.parallel.detect import detect_world
from paceline.parallel.nodes import join_nodes
from paceline.report.profile import profile_text

BEGIN = Group("Start", sort_key=0)
DEFAULTS = Config()
ALONE = Start()


def profile_command(
    settings: Settings = DEFAULTS,
    *,
    start: Annotated[Start, Parameter(name="*")] = ALONE,
    config: Annotated[Path | None, Parameter(group=BEGIN)] = None,
    recipe: Annotated[str | None, Parameter(group=BEGIN)] = None,
    pairs: Annotated[Whole, Parameter(group=BEGIN)] = 12,
    trace: Annotated[bool, Parameter(group=BEGIN, negative="")] = False,
) -> int:
    """Measure steps with and without communication in turn, the buckets of gradients, and the link.

    The settings are those of paceline train. The profile goes into a run folder of its own, for paceline explain and
    paceline predict; nothing is trained. paceline train --profile measures the same before it trains.

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
        How many pairs of steps, one without communication and one real, to measure.
    trace
        Keep what torch.profiler sees in three steps of every rank, to be opened in Perfetto or chrome://tracing.
    """
    if pairs < 2:
        raise SettingError("pairs", f"is {pairs}, but must be at least 2")
    start = join_nodes(start, os.environ)
    world = detect_world(os.environ, start)
    plan = plan_launch(settings, start, world, os.environ)
    if plan is not None:
        words = ["--pairs", str(pairs), *(["--trace"] if trace else [])]
        return launch_ranks(plan, settings, start, words, command="profile")
    from paceline.engine.rank import profile_rank

    folder, profile = profile_rank(settings, world, start=start, num_pairs=pairs, trace=trace)
    if world.is_lead:
        print(profile_text(profile))
        print(f"\nkept as {folder.profile}")
        if trace:
            print(f"traces are in {folder.trace(0).parent}")
    return ExitCode.FINISHED
