"""`paceline bench`: the same work in several modes and world sizes, compared fairly."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from paceline.analysis.scaling import compare, smallest_visible
from paceline.commands.rounds import Contest
from paceline.commands.train import ALONE, BEGIN, DEFAULTS
from paceline.core.config import Names, Whole
from paceline.core.errors import ExitCode
from paceline.core.load import Settings
from paceline.core.start import Start
from paceline.launching.contenders import line_up
from paceline.records.bench import Bench
from paceline.report.standings import standings_text

BENCH = Group("Comparison", sort_key=0)
MODES = ("single", "ddp")
RANKS = ("1", "2")
STRONG: tuple[str, ...] = ("strong",)
SCALINGS: tuple[Literal["strong", "weak"], ...] = ("strong", "weak")


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
    """Compare modes and world sizes at the same work.

    Every round runs every contender once, each time in another order; the first steps of a run do not count. A winner
    is called only where the intervals of the medians are apart and the training loss is right. --steps sets how long a
    run is (60 when not given). Ctrl-C keeps what was measured.

    Examples:

      paceline bench --model resnet20 --modes single,dp,ddp --ranks 1,2

      paceline bench --ranks 1,2,4 --scaling strong,weak --steps 100

      paceline bench --ranks 1,1                       twice the same: shows what the noise can do

      paceline bench --ranks 1,2,2x2 --nnodes 2 --rendezvous node0:29400 --node-rank 0
                                                       the same on every node with its own --node-rank

    Parameters
    ----------
    modes
        single, dp, ddp, fsdp; single is one device.
    ranks
        Devices: 2 on this node, 2x4 on two nodes with four each.
    scaling
        strong: the same --global-batch; weak: --global-batch for each device; or both with a comma.
    repeats
        Rounds; five give intervals of 94%.
    cut
        Steps at the beginning of a run that do not count; a quarter of them when not given.
    as_json
        Print the results as one JSON object.
    config
        TOML file with settings.
    recipe
        Settings that ship with Paceline; paceline recipes lists them.
    """
    lineup = line_up(settings, start, modes=modes, ranks=ranks, scaling=scaling)
    contest = Contest(settings, start, lineup, repeats=repeats, cut=cut)
    stopped = contest.run(lambda line: print(line, file=sys.stderr, flush=True))
    if contest.folder is None:
        return ExitCode.INTERRUPTED if stopped else ExitCode.FINISHED
    bench = contest.bench
    print(json.dumps(as_object(bench, contest.folder.path)) if as_json else _text(bench, contest.folder.path))
    if stopped:
        return ExitCode.INTERRUPTED
    return ExitCode.FINISHED if bench.samples else ExitCode.FAILED


def as_object(bench: Bench, folder: Path) -> dict[str, object]:
    """Return what a benchmark found, for programs."""
    groups = [group for name in SCALINGS if (group := compare(bench, name)) is not None]
    return {
        "folder": str(folder),
        "complete_rounds": bench.complete_rounds,
        "smallest_visible_difference": smallest_visible(bench),
        "failures": bench.failures,
        "groups": [asdict(group) for group in groups],
    }


def _text(bench: Bench, folder: Path) -> str:
    groups = [group for name in SCALINGS if (group := compare(bench, name)) is not None]
    return standings_text(bench, groups, smallest_visible(bench)) + f"\n{folder}; paceline report {folder} draws it"
