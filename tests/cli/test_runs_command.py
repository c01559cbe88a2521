"""`paceline runs`: what there is, one run, and two side by side."""

import csv
import json
import re

from paceline.records.reader import read_metrics, summarise


def test_no_runs_yet_says_how_to_make_one(run):
    assert run("runs") == (0, "no runs in runs yet; to start one: paceline train\n", "")


def test_runs_lists_name_time_model_data_epochs_accuracy_and_state(run, own_run):
    answer = run("runs")
    head, rule, row = answer.out.splitlines()
    assert (answer.code, answer.err) == (0, "")
    assert re.split(r"\s{2,}", head) == ["run", "started", "model", "data", "epochs", "best", "state"]
    assert set(rule) == {"─", " "}
    best = summarise(own_run).best
    assert best is not None
    cells = re.split(r"\s{2,}", row)
    assert cells[0] == "demo/001"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d", cells[1])
    assert cells[2:] == ["mlp", "digits", "2/2", f"{100 * best['top1']:.2f}%", "FINISHED"]


def test_runs_as_json_has_one_object_per_run(run, own_run):
    lines = run("runs", "--json").out.splitlines()
    (value,) = map(json.loads, lines)
    assert value["run"] == "runs/demo/001"
    assert (value["state"], value["epochs"], value["config"]["model"]) == ("FINISHED", 2, "mlp")


def test_show_has_results_and_settings(run, own_run):
    out = run("runs", "show", "demo").out
    summary = summarise(own_run)
    assert summary.test is not None
    assert out.startswith("runs/demo/001  started ")
    assert re.search(rf"^test acc +{100 * summary.test['top1']:.2f}%$", out, re.MULTILINE)
    assert re.search(r"^steps +22$", out, re.MULTILINE)
    assert re.search(r"^global_batch +128$", out, re.MULTILINE)
    value = json.loads(run("runs", "show", "demo", "--json").out)
    assert value["test acc"] == summary.test["top1"]
    assert value["config"] == summary.config.as_dict()


def test_show_of_a_failed_run_says_with_what(run, train):
    assert train("--lr=1e30", "--schedule=constant").code == 3
    assert re.search(r"^failed with +DivergedError: the loss became ", run("runs", "show", "digits-mlp").out, re.M)


def test_compare_shows_the_settings_that_differ_and_all_results(run, train, own_run):
    assert train("--lr=0.01", "--name=slow", "--device=cpu").code == 0
    out = run("runs", "compare", "demo", "slow").out
    settings, results = out.split("\n\n")
    assert [line.split()[0] for line in settings.splitlines()[2:]] == ["lr", "name", "runs_dir"]
    assert re.search(r"^lr +0.1 +0.01$", settings, re.MULTILINE)
    assert settings.splitlines()[0].split() == ["setting", "runs/demo/001", "runs/slow/001"]
    assert re.search(r"^state +FINISHED +FINISHED$", results, re.MULTILINE)
    names = [re.split(r"\s{2,}", line)[0] for line in results.splitlines()[2:]]
    assert names == [
        "state",
        "epochs",
        "steps",
        "best valid acc",
        "best valid loss",
        "test acc",
        "test loss",
        "test samples",
        "samples/s",
    ]
    value = json.loads(run("runs", "compare", "demo", "slow", "--json").out)
    assert value["settings"]["lr"] == [0.1, 0.01]
    slow = json.loads(run("runs", "show", "slow", "--json").out)
    assert value["results"]["test acc"][1] == slow["test acc"]


def test_compare_of_a_run_with_itself_finds_no_difference(run, own_run):
    assert run("runs", "compare", "demo", "demo").out.startswith("the settings are the same\n")


def test_csv_has_a_row_per_record_that_the_csv_module_reads_back(run, own_run):
    answer = run("runs", "csv", "demo")
    assert (answer.code, answer.err) == (0, "")
    rows = list(csv.DictReader(answer.out.splitlines()))
    records = list(read_metrics(own_run))
    assert len(rows) == len(records)
    assert list(rows[0])[:5] == ["run", "kind", "split", "step", "epoch"]
    for row, record in zip(rows, records, strict=True):
        assert (row["run"], row["kind"], int(row["step"])) == ("demo/001", record["kind"], record["step"])
        assert float(row["phases.forward"] or 0) == record.get("phases", {}).get("forward", 0)
    assert float(rows[-1]["loss"]) == records[-1]["loss"]
    assert len(run("runs", "csv", "demo", "demo/001").out.splitlines()) == 1 + 2 * len(rows)


def test_csv_of_no_run_is_refused(run):
    assert run("runs", "csv").code == 2
    assert "nothing does not exist" in run("runs", "csv", "nothing").err
