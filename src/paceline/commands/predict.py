"""`paceline predict`: what other ranks, links and batches would do, from a profile or from a paper's line."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from paceline.analysis.predict import predict
from paceline.commands.predict_cases import check_ranks, paper_case, run_case
from paceline.commands.predict_options import Batch, Cluster, Paper
from paceline.core.errors import ConfigError, ExitCode
from paceline.records.folder import find_run
from paceline.report.predictions import predictions_text

HERE, NOTHING, USUAL = Cluster(), Paper(), Batch()
DEFAULT_RUNS = Path("runs")


def predict_command(
    run: Path | None = None,
    *,
    cluster: Annotated[Cluster, Parameter(name="*")] = HERE,
    paper: Annotated[Paper, Parameter(name="*")] = NOTHING,
    batch: Annotated[Batch, Parameter(name="*")] = USUAL,
    runs_dir: Path = DEFAULT_RUNS,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """Predict step time, throughput, efficiency and cost for other ranks, links and batches.

    From a run with a profile (paceline profile), or from what a paper says about one device. Every number comes with
    the interval that should hold the truth nine times of ten, and the rule forward + max(backward, communication)
    stands beside it. docs/prediction.md says what is assumed.

    Examples:

      paceline predict digits-resnet20 --ranks 2,4,8 --link 1gbit

      paceline predict --model resnet50 --images-per-second 360 --per-rank-batch 64 --ranks 8,64,256
          --per-node 8 --link "100gbit rdma" --intra nvlink

      paceline predict --parameters 138M --step-time 0.43 --per-rank-batch 64 --per-node 4 --link 25gbit --intra pcie

    Parameters
    ----------
    run
        Run folder with a profile, or a run's name for its newest.
    runs_dir
        Folder of all runs, where RUN may be a name.
    as_json
        Print one JSON object per number of ranks.
    """
    check_ranks(cluster)
    if run is None:
        case, basis = paper_case(cluster, paper, batch)
    elif paper != NOTHING:
        raise ConfigError("a run and a paper's line are two things", hint="drop RUN, or drop --model and its like")
    else:
        case, basis = run_case(find_run(run, runs_dir), cluster, batch)
    predictions = [predict(case, ranks) for ranks in cluster.ranks]
    if as_json:
        for prediction in predictions:
            print(json.dumps({"basis": basis} | _plain(dataclasses.asdict(prediction))))
    else:
        print(predictions_text(predictions, basis))
    return ExitCode.FINISHED


def _plain(value: Any) -> Any:
    """Return values as JSON has them: what is infinite is null."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
