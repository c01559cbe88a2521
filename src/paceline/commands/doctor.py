"""`paceline doctor`: look at devices, versions, threads, ports, folder, clocks and links, and say what is wrong."""

import dataclasses
import json
import os
import tempfile
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from paceline.analysis.checkup import findings
from paceline.core.config import Config
from paceline.core.errors import ExitCode, SettingError
from paceline.core.start import Start
from paceline.core.units import parse_number
from paceline.core.world import World
from paceline.launching.child import inherited
from paceline.launching.local import run_ranks
from paceline.launching.plan import LaunchPlan, plan_launch
from paceline.parallel.detect import detect_world
from paceline.parallel.gpus import count_gpus
from paceline.parallel.nodes import join_nodes
from paceline.records.checkup import Checkup
from paceline.report.checkup import checkup_text

LOOK = Group("What to look at", sort_key=0)
ALONE = Start()
DEFAULT_RUNS = Path("runs")
SMALLEST = 1 << 10


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """What to look at, and how to tell."""

    runs_dir: Annotated[Path, Parameter(group=LOOK)] = DEFAULT_RUNS
    """Folder of all runs: can every rank write to it, and how fast?"""
    device: Annotated[str, Parameter(group=LOOK)] = "auto"
    """auto, cpu or cuda."""
    largest: Annotated[str, Parameter(group=LOOK)] = "64MiB"
    """Largest all-reduce of the sweep, which begins at 1 KiB."""
    as_json: Annotated[bool, Parameter(name="--json", group=LOOK, negative="")] = False
    """Print one JSON object."""


EVERYTHING = Look()


def doctor_command(
    *,
    look: Annotated[Look, Parameter(name="*")] = EVERYTHING,
    start: Annotated[Start, Parameter(name="*")] = ALONE,
    result_file: Annotated[Path | None, Parameter(show=False)] = None,
) -> int:
    """Look at this machine, and at the links between ranks when there are several.

    Ranks are started as paceline train starts them. The exit code is 1 when something would stop or spoil training,
    and 0 when there is nothing worse than warnings.

    Examples:

      paceline doctor

      paceline doctor --nproc 2

      paceline doctor --nnodes 2 --node-rank 0 --rendezvous node0:29400      on node0; --node-rank 1 on the other

    Parameters
    ----------
    result_file
        Where the lead writes what it found.
    """
    largest = _largest(look.largest)
    start = join_nodes(start, os.environ)
    world = detect_world(os.environ, start)
    plan = plan_launch(Config(device=look.device), start, world, os.environ)
    if plan is not None:
        return _launch(plan, look, start)
    answer = _look(world, look, start, largest)
    if not world.is_lead:
        return ExitCode.FINISHED
    if result_file is None:
        return _tell(answer, as_json=look.as_json)
    result_file.write_text(json.dumps(answer), encoding="utf-8")
    return ExitCode.FINISHED


def _look(world: World, look: Look, start: Start, largest: int) -> dict[str, Any]:
    """Look at everything as one of the ranks. Collective: every rank must call it."""
    from paceline.parallel.checkup import check_up
    from paceline.parallel.device import choose_device, set_threads
    from paceline.parallel.network import choose_interface
    from paceline.parallel.team import join

    device = choose_device(look.device, world)
    choose_interface(world, os.environ)
    with join(world, device, timeout=start.timeout) as team:
        set_threads(None, num_sharing=team.num_sharing)
        gpus = 0 if look.device == "cpu" else count_gpus(os.environ)
        checkup = check_up(team, look.runs_dir, gpus_there=gpus, largest=largest, environ=os.environ)
    found = findings(checkup)
    return {
        "ok": not any(finding.level == "problem" for finding in found),
        "findings": [dataclasses.asdict(finding) for finding in found],
        "text": checkup_text(checkup, found),
    } | _facts(checkup)


def _launch(plan: LaunchPlan, look: Look, start: Start) -> int:
    """Start the ranks of this node, and tell what their lead found if it is one of them."""
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
        file = Path(folder) / "answer.json"
        words = ["doctor", "--device", look.device, "--largest", look.largest, "--runs-dir", str(look.runs_dir)]
        words += ["--timeout", str(start.timeout), "--result-file", str(file)]
        code = run_ranks(plan, words, inherited(os.environ))
        if code or not file.exists():
            return code
        return _tell(json.loads(file.read_text(encoding="utf-8")), as_json=look.as_json)


def _tell(answer: dict[str, Any], *, as_json: bool) -> int:
    text = answer.pop("text")
    print(json.dumps(answer) if as_json else text)
    return ExitCode.FINISHED if answer["ok"] else ExitCode.FAILED


def _facts(checkup: Checkup) -> dict[str, Any]:
    sweep = [
        {"bytes": point.bytes, "seconds": point.seconds, "bus_bandwidth": checkup.bus_bandwidth(point)}
        for point in checkup.sweep
    ]
    return {
        "ranks": [dataclasses.asdict(rank) for rank in checkup.ranks],
        "folder": [dataclasses.asdict(one) for one in checkup.folder],
        "clocks": list(checkup.clocks),
        "backend": checkup.backend,
        "sweep": sweep,
    }


def _largest(text: str) -> int:
    try:
        largest = int(parse_number(text))
    except ValueError:
        raise SettingError("largest", f'is "{text}", but must be a size such as 64MiB') from None
    if largest < SMALLEST:
        raise SettingError("largest", f'is "{text}", but the smallest all-reduce has 1 KiB')
    return largest
