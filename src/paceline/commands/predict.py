"""`paceline predict`: predict performance with other ranks, links and batches, from a profile or a model spec."""

import json
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from paceline.commands.defaults import DEFAULT_RUNS
from paceline.core.errors import ConfigError, ExitCode, ModelError, suggestion
from paceline.predict.architectures import Layer, list_shapes
from paceline.predict.cases import check_ranks, run_case, spec_case
from paceline.predict.predict_options import BatchOptions, ClusterOptions, ModelSpec
from paceline.predict.predict_text import prediction_values, predictions_text
from paceline.predict.prediction import predict
from paceline.records.folder import find_run

CLUSTER, NO_SPEC, BATCH = ClusterOptions(), ModelSpec(), BatchOptions()


def predict_command(
    run: Path | None = None,
    *,
    cluster: Annotated[ClusterOptions, Parameter(name="*")] = CLUSTER,
    spec: Annotated[ModelSpec, Parameter(name="*")] = NO_SPEC,
    batch: Annotated[BatchOptions, Parameter(name="*")] = BATCH,
    runs_dir: Path = DEFAULT_RUNS,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """Predict step time, throughput, efficiency and cost for other ranks, links and batches.

    Uses a run with a profile (paceline profile), or a model spec: the model and the speed of one device. Every number
    has a 90% interval and, next to it, the estimate forward + max(backward, communication). docs/prediction.md lists
    the assumptions.

    Examples:

      paceline predict digits-resnet20 --ranks 2,4,8 --link 1gbit

      paceline predict --model resnet50 --samples-per-second 360 --per-rank-batch 64 --ranks 8,64,256
          --per-node 8 --link "100gbit rdma" --intra nvlink

      paceline predict --parameters 138M --step-time 0.43 --per-rank-batch 64 --per-node 4 --link 25gbit --intra pcie

    Parameters
    ----------
    run
        Run folder with a profile, or a run name for its newest folder.
    runs_dir
        Folder of all runs, in which run names are looked up.
    as_json
        Print one JSON object per number of ranks.
    """
    check_ranks(cluster)
    if run is None:
        case, basis = spec_case(cluster, spec, batch, _layers_of)
    elif spec != NO_SPEC:
        raise ConfigError(
            "RUN cannot be combined with --model or --parameters", hint="drop RUN, or drop --model and --parameters"
        )
    else:
        case, basis = run_case(find_run(run, runs_dir), cluster, batch)
    predictions = [predict(case, ranks) for ranks in cluster.ranks]
    if as_json:
        for prediction in predictions:
            print(json.dumps({"basis": basis} | prediction_values(prediction)))
    else:
        print(predictions_text(predictions, basis))
    return ExitCode.FINISHED


def _layers_of(name: str) -> list[Layer]:
    """Return the layers of a built-in model, built on the meta device: shapes without data."""
    import torch

    from paceline.models.summary import layer_costs
    from paceline.models.zoo import build_model, list_models, usual_task

    if ":" not in name and name not in list_models():
        raise ModelError(
            f"there is no model {name}", hint=suggestion(name, [*list_shapes(), *list_models()]) + "; or --parameters"
        )
    num_classes, image_shape = usual_task(name)
    with torch.device("meta"):
        model = build_model(name, num_classes=num_classes, image_shape=image_shape)
    return [Layer(parameters, macs) for parameters, macs in layer_costs(model, image_shape)]
