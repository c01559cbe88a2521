"""A model file that was edited after a run: the run folder has the version that trained, and commands say so."""

import json
import re
import subprocess
import sys

import pytest

from lab.environment import child_environment
from paceline.records.folder import RunFolder

OWN = """
from torch import nn


def build(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, num_classes))
"""
EDITED = OWN.replace("ReLU", "GELU")


@pytest.fixture
def trained(train, write, elsewhere):
    """Return the folder of a run of the user's own model."""
    write("my.py", OWN)
    assert train("--model=my.py:build").code == 0
    return RunFolder(elsewhere / "runs" / "digits-my" / "001")


def warnings(text):
    return [line for line in text.splitlines() if line.startswith("warning: ")]


def test_an_unedited_file_is_not_mentioned(run, trained):
    assert (trained.path / "code").is_dir()
    for answer in (run("eval", trained.path), run("train", "--resume", trained.path, "--epochs=3")):
        assert answer.code == 0
        assert warnings(answer.out + answer.err) == []


def test_eval_and_resume_say_that_the_model_file_has_changed(run, trained, write):
    before = json.loads(run("eval", trained.path, "--json").out)
    write("my.py", EDITED)
    evaluated = run("eval", trained.path, "--json")
    assert (evaluated.code, json.loads(evaluated.out) == before) == (0, False)
    resumed = run("train", "--resume", trained.path, "--epochs=3")
    assert resumed.code == 0
    for text in (evaluated.err, resumed.out):
        (line,) = warnings(text)
        found = re.fullmatch(
            r"warning: my.py has changed: this checkpoint was trained with another version; "
            r"to compare: diff (\S+) my.py",
            line,
        )
        assert found is not None, line
        assert (trained.path.parents[2] / found[1]).read_text() == OWN


def test_both_versions_are_kept_and_a_checkpoint_knows_its_own(run, trained, write):
    write("my.py", EDITED)
    run("train", "--resume", trained.path, "--epochs=3")
    assert sorted(path.read_text() for path in (trained.path / "code").iterdir()) == sorted([OWN, EDITED])
    assert warnings(run("eval", trained.path, "--checkpoint=last").err) == []
    assert len(warnings(run("eval", trained.path, "--checkpoint=step-00000022").err)) == 1
    write("my.py", OWN)
    assert len(warnings(run("eval", trained.path, "--checkpoint=last").err)) == 1
    assert warnings(run("eval", trained.path, "--checkpoint=step-00000022").err) == []


def test_code_alone_makes_no_difference_between_checkpoints(run, train, trained, write):
    write("my.py", OWN + "# a comment\n")
    assert train("--model=my.py:build").code == 0
    answer = run("compare", trained.path, trained.path.with_name("002"))
    assert answer.code == 0, answer.out


def test_ranks_with_different_code_are_refused(start, elsewhere):
    words = ["train", "--model=my.py:build", "--steps=2", "--threads=1", "--track=none", "--world-size=2"]
    words += [f"--init-method=file://{elsewhere}/meet", f"--runs-dir={elsewhere}/runs"]
    processes = []
    for rank, code in enumerate((OWN, EDITED)):
        (elsewhere / str(rank)).mkdir()
        (elsewhere / str(rank) / "my.py").write_text(code)
        processes.append(start(*words, f"--rank={rank}", cwd=elsewhere / str(rank)))
    for process in processes:
        _, err = process.communicate(timeout=300)
        assert process.returncode == 2
        assert re.search(
            r"ranks do not agree: sha256 of my.py is [0-9a-f]{12} on rank 0 and [0-9a-f]{12} on rank 1", err
        )


@pytest.mark.slow
def test_a_script_that_trains_and_a_module_that_only_the_lead_imports_are_no_reason_to_complain(run, elsewhere, write):
    write("plots_of_the_lead.py", "")
    write("my.py", "import os\nif os.environ.get('RANK', '0') == '0':\n    import plots_of_the_lead\n" + OWN)
    settings = 'model="my.py:build", steps=2, threads=1, track=()'
    write("script.py", f"import paceline\npaceline.launch(paceline.Config({settings}), nproc=2)\n")
    subprocess.run([sys.executable, "script.py"], cwd=elsewhere, env=child_environment(), timeout=300, check=True)
    assert warnings(run("eval", "digits-my").err) == []


def test_the_script_that_calls_train_is_not_part_of_the_model(run, elsewhere, write):
    write("my.py", OWN)
    settings = 'model="my.py:build", steps=2, threads=1, track=()'
    write("script.py", f"import paceline\npaceline.train(paceline.Config({settings}))\n")
    subprocess.run([sys.executable, "script.py"], cwd=elsewhere, env=child_environment(), timeout=300, check=True)
    assert [path.read_text() for path in elsewhere.glob("runs/*/*/code/*")] == [OWN]
    assert warnings(run("eval", "digits-my").err) == []


@pytest.mark.parametrize(
    "words", [["eval"], ["export"], ["train", "--epochs=3", "--resume"]], ids=lambda words: words[0]
)
def test_code_that_came_with_a_run_folder_runs_only_when_it_is_trusted(run, trained, write, words):
    write("runs/digits-my/001/my.py", "from pathlib import Path\nPath('ran').touch()\n" + OWN)
    text = trained.config.read_text().replace("my.py:build", "runs/digits-my/001/my.py:build")
    trained.config.write_text(text)
    refused = run(*words, trained.path)
    assert (refused.code, "--trust" in refused.err) == (2, True)
    ran = trained.path.parents[2] / "ran"
    assert not ran.exists()
    run(*words, trained.path, "--trust")
    assert ran.exists(), "the control"
