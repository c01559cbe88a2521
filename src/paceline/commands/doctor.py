"""`paceline doctor`: check devices, versions, threads, ports, run folder, clocks and links, and report problems."""

import json
import os
import tempfile
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from paceline.commands.defaults import ALONE
from paceline.core.config import Config
from paceline.core.errors import ExitCode
from paceline.core.start import Start
from paceline.doctor.doctor_options import DoctorOptions
from paceline.doctor.doctor_text import checkup_text, checkup_values
from paceline.doctor.findings import findings
from paceline.launching.child import inherited
from paceline.launching.launch_plan import LaunchPlan, plan_launch
from paceline.launching.local import run_ranks
from paceline.parallel.detect import detect_world
from paceline.parallel.nodes import join_nodes
from paceline.parallel.visible_gpus import count_gpus, visible_devices
from paceline.verify.gpu_acceptance import Acceptance, outcome_line, refuse_too_few

EVERYTHING = DoctorOptions()


def doctor_command(
    *,
    options: Annotated[DoctorOptions, Parameter(name="*")] = EVERYTHING,
    start: Annotated[Start, Parameter(name="*")] = ALONE,
    result_file: Annotated[Path | None, Parameter(show=False)] = None,
) -> int:
    """Check this machine, and the links between ranks if there are several.

    Starts ranks in the same way as paceline train. Exit code 1: training would fail or give a wrong result; 0: no
    problems, or only warnings.

    Examples:

      paceline doctor

      paceline doctor --nproc 2

      paceline doctor --gpu                       acceptance of a machine with two GPUs or more

      paceline doctor --nnodes 2 --node-rank 0 --rendezvous node0:29400      on node0; --node-rank 1 on the other

    Parameters
    ----------
    result_file
        File for the results, written by rank 0.
    """
    largest = options.largest_bytes
    if start.devices:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible_devices(start.devices, os.environ)
    if options.gpu:
        return _accept_gpus(options)
    start = join_nodes(start, os.environ)
    world = detect_world(os.environ, start)
    plan = plan_launch(Config(device=options.device), start, world, os.environ)
    if plan is not None:
        return _launch(plan, options, start)
    from paceline.doctor.probe import join_and_check

    checkup = join_and_check(world, options, largest=largest, timeout=start.timeout, environ=os.environ)
    if not world.is_lead:
        return ExitCode.FINISHED
    found = findings(checkup)
    answer = checkup_values(checkup, found) | {"text": checkup_text(checkup, found)}
    if result_file is None:
        return _print(answer, as_json=options.as_json)
    result_file.write_text(json.dumps(answer), encoding="utf-8")
    return ExitCode.FINISHED


def _launch(plan: LaunchPlan, options: DoctorOptions, start: Start) -> int:
    """Start the ranks of this node, and print the results if rank 0 is one of them."""
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
        file = Path(folder) / "answer.json"
        args = ["doctor", "--device", options.device, "--largest", options.largest]
        args += ["--runs-dir", str(options.runs_dir), "--timeout", str(start.timeout), "--result-file", str(file)]
        code = run_ranks(plan, args, inherited(os.environ))  # with the GPUs that --devices has made visible
        if code or not file.exists():
            return code
        return _print(json.loads(file.read_text(encoding="utf-8")), as_json=options.as_json)


def _accept_gpus(options: DoctorOptions) -> int:
    """Check every mode on the GPUs of this machine."""
    refuse_too_few(count_gpus(os.environ))
    device = "cuda" if options.device == "auto" else options.device
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
        names = [name for name in options.only.split(",") if name]
        problems = 0
        for outcome in Acceptance(Path(folder), os.environ, device).run(names):
            print(outcome_line(outcome), flush=True)
            problems += outcome.problem is not None
    return ExitCode.FAILED if problems else ExitCode.FINISHED


def _print(answer: dict[str, Any], *, as_json: bool) -> int:
    text = answer.pop("text")
    print(json.dumps(answer) if as_json else text)
    return ExitCode.FINISHED if answer["ok"] else ExitCode.FAILED
