"""From options to the case that is simulated. Refusals of whole commands: tests/cli/test_predict_command."""

import shutil

import pytest

from paceline.commands.predict import _with_more_nodes
from paceline.core.errors import ConfigError, RunError
from paceline.predict.cases import run_case, spec_case
from paceline.predict.option_values import check_cluster
from paceline.predict.predict_options import BatchOptions, ClusterOptions, KnownOptions, ModelSpec, QuestionOptions
from paceline.records.folder import RunFolder
from paceline.records.profile import write_profile
from tests.report.sample_runs import make_profile

CLUSTER = ClusterOptions(ranks=(8, 64), per_node=8, link="25gbit")
BATCH = BatchOptions(per_rank_batch=64)
SPEC = ModelSpec(model="resnet50", step_time="345ms")


@pytest.fixture
def profiled(finished_run, tmp_path):
    """Return a function that gives a run the profile of so many ranks."""

    def with_profile(ranks):
        folder = RunFolder(shutil.copytree(finished_run.path, tmp_path / str(ranks)))
        write_profile(folder, make_profile(ranks=ranks))
        return folder

    return with_profile


def nothing(_name):
    raise AssertionError("its shape is built in")


def spec(cluster=CLUSTER, batch=BATCH, **settings):
    return spec_case(cluster, ModelSpec(**settings) if settings else SPEC, batch, nothing)


def test_a_model_spec_has_the_size_and_speed_it_says():
    case, text = spec()
    assert text == "resnet50 with 25.56 M parameters, 0.345 s for 64 samples on one device"
    assert case.workload.compute == pytest.approx(0.345)
    assert case.workload.gradient_bytes == pytest.approx(4 * 25.56e6, rel=1e-3)
    assert case.workload.samples_per_rank == 64


def test_a_size_scales_the_parameters_of_a_shape():
    case, text = spec(model="resnet50", parameters="51.1M", step_time="345ms")
    assert text.startswith("resnet50 with 51.1 M parameters")
    assert case.workload.gradient_bytes == pytest.approx(4 * 51.1e6)


def test_a_model_of_another_kind_is_asked_for_its_layers():
    with pytest.raises(AssertionError, match="built in"):
        spec(model="mine", step_time="1s")


def test_a_gpu_by_name_gives_a_speed_of_which_little_is_certain():
    known, _ = spec()
    guessed, _ = spec(model="resnet50", gpu="V100")
    assert guessed.workload.compute == pytest.approx(6 * 4.1e9 * 64 / 8.8e12, rel=0.02)
    assert guessed.uncertainty.pace > 10 * known.uncertainty.pace


def test_gradients_in_half_the_bytes_are_said_in_two_ways():
    half, _ = spec(model="resnet50", step_time="345ms", gradients="fp16")
    compressed, _ = spec(batch=BatchOptions(per_rank_batch=64, compress="fp16"))
    assert half.workload.gradient_bytes == pytest.approx(compressed.workload.gradient_bytes)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"parameters": "25M", "gpu": "v100"}, "--gpu needs --model"),
        ({"model": "resnet50", "gpu": "k80"}, "there is no --gpu k80"),
        ({"model": "resnet50", "parameters": "0", "step_time": "1s"}, "--parameters is"),
    ],
)
def test_a_spec_that_says_too_little_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        spec(**settings)


def test_one_node_needs_no_link_between_nodes():
    spec(cluster=ClusterOptions(ranks=(8,), per_node=8))
    with pytest.raises(ConfigError, match="--link is not set"):
        spec(cluster=ClusterOptions(ranks=(9,), per_node=8))


@pytest.mark.parametrize(
    ("options", "message"),
    [({"ranks": ()}, "--ranks is empty"), ({"ranks": (2, 0)}, "has 0"), ({"price": -1.0}, "--price is -1.0")],
)
def test_ranks_and_prices_out_of_range_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        check_cluster(ClusterOptions(**options))


def test_a_profile_gives_its_own_link_and_the_length_of_its_run(profiled):
    case, text = run_case(profiled(2), ClusterOptions(), BatchOptions())
    assert text.startswith("the profile of ")
    assert (case.fabric.inter.bandwidth, case.fabric.inter.latency, case.fabric.algorithm) == (1e8, 1e-4, "ring")
    assert case.total_samples == 2 * 128 * 11, "2 epochs of 11 steps"


def test_another_link_keeps_the_latency_that_was_measured_unless_it_is_given(profiled):
    folder = profiled(2)
    case, _ = run_case(folder, ClusterOptions(link="10gbit"), BatchOptions())
    assert case.fabric.inter.bandwidth > 1e9
    assert case.fabric.inter.latency == 1e-4
    case, _ = run_case(folder, ClusterOptions(link="10gbit", latency="50us"), BatchOptions())
    assert case.fabric.inter.latency == pytest.approx(50e-6)


def test_a_profile_of_one_rank_needs_a_link(profiled):
    folder = profiled(1)
    with pytest.raises(RunError, match="was profiled on one rank"):
        run_case(folder, ClusterOptions(), BatchOptions())
    case, _ = run_case(folder, ClusterOptions(link="1gbit"), BatchOptions())
    assert case.fabric.inter.latency == pytest.approx(30e-6)


def test_a_run_has_one_kind_of_batch(profiled):
    with pytest.raises(ConfigError, match="cannot be combined with"):
        run_case(profiled(2), ClusterOptions(), BatchOptions(global_batch=128, per_rank_batch=64))


def test_more_nodes_are_counted_from_the_ranks_of_the_run(profiled):
    asked, folder = QuestionOptions(worth=4), profiled(2)
    assert _with_more_nodes(ClusterOptions(), asked, folder).ranks == (2, 6)
    assert _with_more_nodes(ClusterOptions(ranks=(8,), per_node=8), asked, folder).ranks == (8, 40)
    assert _with_more_nodes(ClusterOptions(), QuestionOptions(), folder) == ClusterOptions()


def test_a_run_takes_measured_points_and_refuses_a_trainer(profiled):
    folder = profiled(2)
    case, _ = run_case(folder, ClusterOptions(), BatchOptions(), KnownOptions(measured=("4:900",), overlap="none"))
    assert case.measured == ((4, 900.0),)
    assert case.overhead.overlap == 0
    with pytest.raises(ConfigError, match="RUN cannot be combined with --trainer"):
        run_case(folder, ClusterOptions(), BatchOptions(), KnownOptions(trainer="ddp"))
