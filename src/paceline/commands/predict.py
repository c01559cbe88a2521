"""`paceline predict`: predict performance with other ranks, links and batches, from a profile or a model spec."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from paceline.commands.defaults import DEFAULT_RUNS
from paceline.core.errors import ConfigError, ExitCode, ModelError, flag, suggestion
from paceline.predict.advice import answer, asked_ranks, more_ranks
from paceline.predict.architectures import Layer, list_shapes
from paceline.predict.assumptions import assumptions, range_warnings
from paceline.predict.cases import run_case, spec_case
from paceline.predict.option_values import check_cluster, check_question
from paceline.predict.predict_options import BatchOptions, ClusterOptions, KnownOptions, ModelSpec, QuestionOptions
from paceline.predict.predict_text import prediction_values, predictions_text
from paceline.predict.prediction import predict
from paceline.records.folder import RunFolder
from paceline.records.mirror import open_run
from paceline.records.profile import read_profile

CLUSTER, NO_SPEC, BATCH = ClusterOptions(), ModelSpec(), BatchOptions()
KNOWN, QUESTION = KnownOptions(), QuestionOptions()


def predict_command(
    run: Path | None = None,
    *,
    cluster: Annotated[ClusterOptions, Parameter(name="*")] = CLUSTER,
    spec: Annotated[ModelSpec, Parameter(name="*")] = NO_SPEC,
    batch: Annotated[BatchOptions, Parameter(name="*")] = BATCH,
    known: Annotated[KnownOptions, Parameter(name="*")] = KNOWN,
    question: Annotated[QuestionOptions, Parameter(name="*")] = QUESTION,
    runs_dir: Path = DEFAULT_RUNS,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """Predict step time, throughput, efficiency and cost for other ranks, links and batches.

    Uses a run with a profile (paceline profile), or a model spec: the model and the speed of one device. Prints the
    answer, a table with 90% intervals, and the assumptions that decide. docs/prediction.md explains the model.

    Examples:

      paceline predict digits-resnet20 --ranks 2,4,8 --link 1gbit

      paceline predict --model resnet50 --samples-per-second 360 --per-rank-batch 64 --ranks 8,64,256
          --per-node 8 --link "100gbit rdma" --intra nvlink

      paceline predict --parameters 138M --step-time 0.43 --per-rank-batch 64 --per-node 4 --link 25gbit --intra pcie

      paceline predict --model resnet50 --measured 1:360,8:2456 --per-rank-batch 64 --per-node 8 --ranks 64
          --link "100gbit rdma" --worth 4

    Parameters
    ----------
    run
        Run folder with a profile, or a run name for its newest folder.
    runs_dir
        Folder of all runs, in which run names are looked up.
    as_json
        Print one JSON object per number of ranks.
    """
    check_cluster(cluster)
    folder = None if run is None else open_run(run, runs_dir)
    cluster = _with_more_nodes(cluster, question, folder)
    if folder is None:
        case, basis = spec_case(cluster, spec, batch, _layers_of, known)
    elif spec != NO_SPEC:
        raise ConfigError("RUN cannot be combined with a model spec", hint=f"drop RUN, or drop {_given(spec)}")
    else:
        case, basis = run_case(folder, cluster, batch, known)
    check_question(question, cluster, case.total_samples)
    predictions = [predict(case, ranks) for ranks in asked_ranks(question, cluster, case)]
    if as_json:
        for prediction in predictions:
            print(json.dumps({"basis": basis} | prediction_values(prediction)))
        return ExitCode.FINISHED
    text = answer(question, case, predictions)
    assumed = assumptions(case, predictions[-1].ranks)
    notes = range_warnings(case, [one.ranks for one in predictions])
    print(predictions_text(predictions, basis, answer=text, assumed=assumed, notes=notes))
    return ExitCode.FINISHED


def _with_more_nodes(cluster: ClusterOptions, question: QuestionOptions, folder: RunFolder | None) -> ClusterOptions:
    """Return the cluster with the ranks of now and those of --worth; a run has its own number of ranks now."""
    if question.worth is None or question.worth < 1:
        return cluster
    if folder is not None and cluster.ranks == CLUSTER.ranks:
        cluster = replace(cluster, ranks=(read_profile(folder).world_size,))
    return replace(cluster, ranks=(cluster.ranks[0], more_ranks(question.worth, cluster)))


def _given(spec: ModelSpec) -> str:
    """Return the flags of a model spec that were set."""
    names = (field.name for field in fields(spec) if getattr(spec, field.name) != getattr(NO_SPEC, field.name))
    return " and ".join(flag(name) for name in names)


def _layers_of(name: str) -> list[Layer]:
    """Return the layers of a built-in model, built on the meta device: shapes without data."""
    import torch

    from paceline.models.summary import layer_costs
    from paceline.models.zoo import build_model, list_models, usual_facts

    if ":" not in name and name not in list_models():
        raise ModelError(
            f"there is no model {name}", hint=suggestion(name, [*list_shapes(), *list_models()]) + "; or --parameters"
        )
    facts = usual_facts(name)
    with torch.device("meta"):
        model = build_model(name, **facts)
    return [Layer(parameters, macs) for parameters, macs in layer_costs(model, facts)]
