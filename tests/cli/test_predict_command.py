"""`paceline predict` from a model spec, and its error messages."""

import json

import pytest

LINE = ("--model=resnet50", "--step-time=0.345", "--per-rank-batch=64")
CLUSTER = ("--ranks=8,64", "--per-node=8", "--link=25gbit", "--intra=nvlink")


def test_a_papers_line_gives_two_tables(run):
    answer = run("predict", *LINE, *CLUSTER, "--samples=115M", "--price=2.5")
    assert answer.code == 0
    assert "resnet50 with 25.56 M parameters, 0.345 s for 64 samples" in answer.out
    for word in ("efficiency", "exposed", "rule", "break-even link", "time to finish", "cost"):
        assert word in answer.out


def test_programs_get_every_number_with_its_interval(run):
    rows = [json.loads(line) for line in run("predict", *LINE, *CLUSTER, "--json").out.splitlines()]
    assert [row["ranks"] for row in rows] == [8, 64]
    for row in rows:
        for name in ("step", "throughput", "efficiency", "exposed"):
            assert row[name]["low"] <= row[name]["value"] <= row[name]["high"]
    assert rows[0]["efficiency"]["value"] > rows[1]["efficiency"]["value"]
    assert rows[0]["trivial_step"] == pytest.approx(0.345)


def test_samples_per_second_and_step_time_say_the_same(run):
    same = ("--model=resnet50", "--samples-per-second", str(64 / 0.345), "--per-rank-batch=64")
    first, second = (run("predict", *words, *CLUSTER, "--json").out for words in (LINE, same))
    assert json.loads(first.splitlines()[1])["step"] == pytest.approx(json.loads(second.splitlines()[1])["step"])


def test_earlier_names_of_flags_are_still_accepted(run):
    old, new = ("--images-per-second=360", "--images=115M"), ("--samples-per-second=360", "--samples=115M")
    shared = ("--model=resnet50", "--per-rank-batch=64", *CLUSTER, "--json")
    answers = [run("predict", *shared, *words) for words in (old, new)]
    assert answers[0].code == 0
    assert answers[0].out == answers[1].out


def test_one_of_our_own_models_and_a_bare_size_will_do(run):
    speed = ("--step-time=50ms", "--per-rank-batch=64", "--ranks=2", "--link=1gbit")
    assert run("predict", "--model=resnet20", *speed).code == 0
    assert run("predict", "--parameters=25.6M", *speed).code == 0
    assert run("predict", "--model=resnet50", "--gpu=v100", *speed[1:]).code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "no run or model to predict from"),
        (LINE, "--link is not set"),
        ((*LINE, "--link=fast"), 'no link "fast"'),
        ((*LINE, "--link=0gbit"), "has no bandwidth"),
        ((*LINE, "--link=1gbit", "--ranks=0"), "--ranks has 0"),
        ((*LINE, "--link=1gbit", "--per-node=0"), "--per-node is 0"),
        ((*LINE, "--link=1gbit", "--latency=soon"), '--latency is "soon"'),
        ((*LINE, "--link=1gbit", "--samples=many"), '--samples is "many"'),
        ((*LINE, "--link=1gbit", "--intra=nvlnk"), "did you mean nvlink"),
        (("--model=resnet5x", "--link=1gbit"), "no model resnet5x"),
        (("--model=resnet50", "--link=1gbit"), "--per-rank-batch is not set"),
        (("--model=resnet50", "--link=1gbit", "--per-rank-batch=64"), "--step-time 0.345 or --samples-per-second 186"),
        (("--parameters=none", *LINE[1:], "--link=1gbit"), '--parameters is "none"'),
        (("--model=resnet50", "--step-time=0", "--per-rank-batch=64", "--link=1gbit"), "more than 0 seconds"),
        ((*LINE, "--samples-per-second=3", "--link=1gbit"), "--step-time cannot be combined with --samples-per-second"),
        ((*LINE, "--link=1gbit", "--global-batch=0"), "--global-batch is 0"),
        ((*LINE, "--link=1gbit", "--ranks=8", "--global-batch=4"), "less than one sample for each of 8 ranks"),
        ((*LINE, "--link=-10gbit"), "negative bandwidth"),
        ((*LINE, "--link=100gbit rocve2"), "did you mean rocev2"),
        ((*LINE, "--link=1gbit", "--bucket=0"), '--bucket is "0"'),
        ((*LINE, "--link=1gbit", "--price=2"), "--price needs the length of the training"),
        ((*LINE, "--link=1gbit", "--measured=8"), '--measured has "8"'),
        ((*LINE, "--link=1gbit", "--measured=1:300"), "--step-time cannot be combined with --measured 1:"),
        ((*LINE, "--link=1gbit", "--per-epoch=9s"), "--per-epoch needs the length"),
        ((*LINE, "--link=1gbit", "--deadline=soon", "--samples=1M"), '--deadline is "soon"'),
        ((*LINE, "--sweep=nowhere.json"), "--sweep nowhere.json cannot be read"),
        (("nowhere",), "nowhere does not exist"),
    ],
)
def test_contradictory_options_are_refused(run, words, message):
    answer = run("predict", *words)
    assert answer.code == 2
    assert message in answer.err
    assert "Traceback" not in answer.err


GIVEN = ("--model=resnet50", "--samples-per-second=360", "--per-rank-batch=64", "--link=1gbit", "--json")


def predicted(run, *words):
    """Return the answers by the number of ranks."""
    rows = [json.loads(line) for line in run("predict", *GIVEN, *words).out.splitlines()]
    return {row["ranks"]: row for row in rows}


@pytest.mark.parametrize("parts", [1, 2, 4, 32, 1000])
def test_one_device_has_the_given_speed_for_any_number_of_micro_batches(run, parts):
    for words in ((), (f"--global-batch={64 * parts}",)):
        one = predicted(run, "--ranks=1", f"--accumulate={parts}", *words)[1]
        assert one["throughput"]["value"] == pytest.approx(360, rel=1e-9)
        assert one["efficiency"]["value"] == 1
        assert (one["samples_per_rank"], one["accumulate"]) == (64 * parts, parts)
        assert one["trivial_step"] == pytest.approx(one["step"]["value"])


def test_accumulating_raises_speed_and_efficiency_on_a_slow_link(run):
    answers = [predicted(run, "--ranks=8,64", f"--accumulate={parts}") for parts in (1, 4, 32)]
    for ranks in (8, 64):
        for name in ("throughput", "efficiency"):
            few, more, many = (answer[ranks][name]["value"] for answer in answers)
            assert few < more < many
        assert answers[2][ranks]["throughput"]["value"] < 360 * ranks
    exchanges = [answer[8]["exposed"]["value"] for answer in answers]
    assert exchanges == pytest.approx([exchanges[0]] * 3), "one exchange per step, whatever its samples"


def test_the_micro_batches_of_a_step_are_shown(run):
    assert "4 × 64 × 8  " in run("predict", *GIVEN[:-1], "--ranks=8", "--accumulate=4").out
    assert "× 64 × 8" not in run("predict", *GIVEN[:-1], "--ranks=8").out
    answer = run("predict", *GIVEN, "--accumulate=0")
    assert (answer.code, answer.message) == (2, "--accumulate is 0, but must be at least 1")


def test_the_answer_comes_first_and_nothing_is_wider_than_100_columns(run):
    answer = run("predict", *LINE, *CLUSTER, "--samples=115M", "--price=2.5", "--accumulate=4")
    first = answer.out.partition("\n\n")[0]
    assert first.startswith("8 nodes (64 ranks) finish in ")
    assert "× the device-hours." in " ".join(first.split())
    assert max(map(len, answer.out.splitlines())) <= 100
    assert "--measured" in answer.out


def test_more_nodes_are_compared_with_those_of_now(run):
    rows = [json.loads(line) for line in run("predict", *LINE, *CLUSTER, "--worth=2", "--json").out.splitlines()]
    assert [(row["ranks"], row["nodes"]) for row in rows] == [(8, 1), (24, 3)]


def test_a_measured_point_is_what_is_predicted_there(run):
    known = ("--model=resnet50", "--per-rank-batch=64", "--measured=1:186,8:1200", *CLUSTER, "--json")
    rows = [json.loads(line) for line in run("predict", *known).out.splitlines()]
    assert rows[0]["throughput"]["value"] == pytest.approx(1200)
    assert rows[0]["throughput"]["high"] - rows[0]["throughput"]["low"] < 0.05 * 1200


def test_fixed_costs_per_epoch_do_not_shrink_with_ranks(run):
    args = ("predict", *LINE, *CLUSTER, "--samples=1M", "--epochs=10", "--json")
    plain, fixed = (
        [json.loads(line) for line in run(*args, *more).out.splitlines()] for more in ((), ("--per-epoch=9s",))
    )
    for one, other in zip(plain, fixed, strict=True):
        assert other["finish"]["value"] - one["finish"]["value"] == pytest.approx(90)


def test_sending_after_the_backward_pass_exposes_all_communication(run):
    base = ("predict", *LINE, *CLUSTER, "--data-rate=synthetic", "--json")
    exposed = []
    for how in ("none", "full"):
        last = run(*base, f"--overlap={how}", "--bucket=1GB").out.splitlines()[-1]
        exposed.append(json.loads(last)["exposed"]["value"])
    assert exposed[0] >= exposed[1] > 0


def test_a_link_that_doctor_measured_replaces_its_name(run, tmp_path):
    points = [
        {"bytes": 1024, "seconds": 1e-4, "bus_bandwidth": 1e7},
        {"bytes": 1 << 26, "seconds": 1.0, "bus_bandwidth": 1.2e8},
    ]
    (tmp_path / "doctor.json").write_text(json.dumps({"ranks": [{"host": "a"}, {"host": "b"}], "sweep": points}))
    args = ("predict", *LINE, "--ranks=4", "--json")
    swept = json.loads(run(*args, "--sweep", str(tmp_path / "doctor.json")).out)
    named = json.loads(run(*args, "--link=1gbit").out)
    assert swept["step"]["value"] == pytest.approx(named["step"]["value"], rel=0.05)
