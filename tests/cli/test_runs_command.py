"""`paceline runs`: what there is, one run, and two side by side."""

import csv
import json
import os
import re
import shutil
import socket
import statistics
from io import StringIO

from paceline.core.processes import process_start
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
    assert value["test_acc"] == summary.test["top1"]
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
        "best valid top-5",
        "best valid loss",
        "test acc",
        "test top-5",
        "test loss",
        "test samples",
        "run time",
        "CPU time",
        "epoch time",
        "step time",
        "samples/s",
    ]
    value = json.loads(run("runs", "compare", "demo", "slow", "--json").out)
    assert value["settings"]["lr"] == [0.1, 0.01]
    slow = json.loads(run("runs", "show", "slow", "--json").out)
    assert value["results"]["test_acc"][1] == slow["test_acc"]


def test_compare_of_a_run_with_itself_finds_no_difference(run, own_run):
    assert run("runs", "compare", "demo", "demo").out.startswith("the settings are the same\n")
    assert "only the seed differs" not in run("runs", "compare", "demo", "demo").out


def test_runs_that_differ_by_seed_only_have_a_mean_and_a_deviation(run, own_run):
    accuracies = []
    for seed in (1, 2):
        other = own_run.path.parent / f"00{seed + 1}"
        shutil.copytree(own_run.path, other)
        text = (other / "config.toml").read_text(encoding="utf-8")
        (other / "config.toml").write_text(text.replace("seed = 0", f"seed = {seed}"), encoding="utf-8")
        lines = (other / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        score = json.loads(lines[-1]) | {"top1": seed / 4}
        accuracies.append(score["top1"])
        (other / "metrics.jsonl").write_text("\n".join([*lines[:-1], json.dumps(score)]) + "\n", encoding="utf-8")
    answer = run("runs", "compare", "demo/002", "demo/003")
    assert "only the seed differs:\nresult            mean ± deviation of 2 seeds" in answer.out
    assert "test acc          37.50% ± 17.68%" in answer.out
    found = json.loads(run("runs", "compare", "demo/001", "demo/002", "demo/003", "--json").out)
    assert found["settings"] == {"seed": [0, 1, 2]}
    assert found["results"]["test_acc"][1:] == accuracies
    assert found["mean"]["test_acc"] == statistics.fmean(found["results"]["test_acc"])


def test_keys_of_json_have_no_blanks(run, own_run):
    value = json.loads(run("runs", "show", "demo", "--json").out)
    assert [key for key in value if not re.fullmatch(r"[a-z0-9_]+", key)] == []
    assert value["run_seconds"] > 0
    assert value["cpu_seconds"] > 0
    assert value["epoch_seconds"] > 0


def test_show_says_where_it_trained_and_where_its_checkpoints_are(run, own_run):
    out = run("runs", "show", "demo").out
    assert re.search(r"^ranks +1, mode single", out, re.MULTILINE)
    assert re.search(r"^starts +1$", out, re.MULTILINE)
    assert re.search(r"^checkpoints +runs/demo/001/checkpoints$", out, re.MULTILINE)


def test_rm_removes_a_run_and_its_empty_name_but_asks_first(run, own_run, monkeypatch):
    refused = run("runs", "rm", "demo")
    assert (refused.code, refused.hint) == (2, "add --yes")
    for typed in ("n\n", "\n", ""):  # the last is Ctrl-D
        monkeypatch.setattr("sys.stdin", Terminal(typed))
        kept = run("runs", "rm", "demo")
        assert (kept.code, kept.out.splitlines()[-1]) == (1, "remove 1 run? [y/N] nothing was removed")
    assert own_run.path.exists()
    answer = run("runs", "rm", "demo", "--yes")
    assert (answer.code, answer.out.splitlines()[-1]) == (0, "removed 1 run")
    assert not own_run.path.parent.exists()


def test_rm_removes_what_the_user_confirms(run, own_run, monkeypatch):
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert run("runs", "rm", "demo").code == 0
    assert not own_run.path.exists()


class Terminal(StringIO):
    """What a user types."""

    def isatty(self) -> bool:
        return True


def test_rm_does_not_guess_which_run_of_a_name_and_keeps_one_that_trains(run, own_run):
    shutil.copytree(own_run.path, own_run.path.parent / "002")
    answer = run("runs", "rm", "demo", "--yes")
    assert answer.hint == "name the ones to remove: demo/001 demo/002"
    lead = own_run.rank(0)
    state = json.loads(lead.read_text(encoding="utf-8"))
    lead.write_text(json.dumps(state | {"state": "TRAINING", **alive()}), encoding="utf-8")
    answer = run("runs", "rm", "demo/001", "demo/002", "--yes")
    assert answer.message == "runs/demo/001 is being trained"
    assert own_run.path.exists()
    assert (own_run.path.parent / "002").exists()


def alive():
    """Return the facts of this process, as the heartbeat of a rank has them."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "pid_start": process_start(os.getpid())}


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
