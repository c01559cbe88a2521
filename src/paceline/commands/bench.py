"""`paceline bench`: compare the speed of modes and world sizes on the same work."""

import json
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from paceline.bench.bench_text import bench_values, results_text
from paceline.bench.rounds import BenchRun
from paceline.bench.variants import plan_variants
from paceline.commands.defaults import ALONE, BEGIN, DEFAULTS
from paceline.core.errors import ExitCode
from paceline.core.load import Settings
from paceline.core.setting_types import Names, Whole
from paceline.core.start import Start

BENCH = Group("Comparison", sort_key=0)
MODES = ("single", "ddp")
RANKS = ("1", "2")
STRONG: tuple[str, ...] = ("strong",)


def bench_command(
    settings: Settings = DEFAULTS,
    *,
    modes: Annotated[Names, Parameter(group=BENCH)] = MODES,
    ranks: Annotated[Names, Parameter(group=BENCH)] = RANKS,
    scaling: Annotated[Names, Parameter(group=BENCH)] = STRONG,
    repeats: Annotated[Whole, Parameter(group=BENCH)] = 5,
    cut: Annotated[Whole | None, Parameter(group=BENCH)] = None,
    as_json: Annotated[bool, Parameter(name="--json", group=BENCH, negative="")] = False,
    start: Annotated[Start, Parameter(name="*")] = ALONE,
    config: Annotated[Path | None, Parameter(group=BEGIN)] = None,
    recipe: Annotated[str | None, Parameter(group=BEGIN)] = None,
) -> int:
    """Compare the speed of modes and world sizes on the same work.

    Every round runs every variant once, each round in another order, and skips the first steps of each run. A winner
    is reported only if the intervals of the medians do not overlap and the training losses agree. --steps sets the
    length of a run (default: 60). Ctrl-C keeps the finished measurements.

    Examples:

      paceline bench --model resnet20 --modes single,dp,ddp --ranks 1,2

      paceline bench --ranks 1,2,4 --scaling strong,weak --steps 100

      paceline bench --ranks 1,1                       the same variant twice: shows the noise

      paceline bench --ranks 1,2,2x2 --nnodes 2 --rendezvous node0:29400 --node-rank 0
                                                       on every node, each with its own --node-rank

    Parameters
    ----------
    modes
        Modes to compare: single (one device), dp, ddp, fsdp.
    ranks
        Numbers of devices: 2 on this node, or 2x4 on two nodes with four devices each.
    scaling
        strong: --global-batch in total; weak: --global-batch per device; or strong,weak.
    repeats
        Number of rounds; five give 94% intervals.
    cut
        Steps to skip at the start of each run. Default: a quarter of the steps.
    as_json
        Print the results as one JSON object.
    config
        TOML file with settings.
    recipe
        Settings that ship with Paceline; paceline recipes lists them.
    """
    variants = plan_variants(settings, start, modes=modes, ranks=ranks, scaling=scaling)
    bench_run = BenchRun(settings, start, variants, repeats=repeats, cut=cut)
    stopped = bench_run.run(lambda line: print(line, file=sys.stderr, flush=True))
    if bench_run.folder is None:
        return ExitCode.INTERRUPTED if stopped else ExitCode.FINISHED
    bench, folder = bench_run.bench, bench_run.folder.path
    if as_json:
        print(json.dumps(bench_values(bench, folder)))
    else:
        print(f"{results_text(bench)}\n{folder}; to plot it: paceline report {folder}")
    return ExitCode.INTERRUPTED if stopped else ExitCode.FINISHED if bench.measurements else ExitCode.FAILED
