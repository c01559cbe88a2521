"""What is shown of an exception: its message and the lines of the user's code, also from another process."""

import os
import pickle
import subprocess
import sys

import pytest

from paceline.core.errors import PacelineError
from paceline.core.first_cause import LONGEST, describe_exception, exits_reported, first_cause, keep_places
from tests.conftest import LONGEST as LONGEST_WAIT

OWN = """
def load(index):
    return inner(index)

def inner(index):
    raise ValueError("no such item")
"""


@pytest.fixture
def problem(tmp_path) -> ValueError:
    """Return an exception that a file of a user raised."""
    path = tmp_path / "mydata.py"
    path.write_text(OWN)
    scope: dict = {}
    exec(compile(OWN, str(path), "exec"), scope)
    with pytest.raises(ValueError, match="no such item") as caught:
        scope["load"](3)
    return caught.value


def test_the_innermost_line_of_the_users_code_comes_first(problem):
    cause = first_cause(problem)
    assert cause is not None
    assert cause.message == "ValueError: no such item"
    assert [place.partition("mydata.py")[2] for place in cause.places[:2]] == [
        ', line 6, in inner: raise ValueError("no such item")',
        ", line 3, in load: return inner(index)",
    ]


def test_places_survive_the_way_from_a_worker(problem):
    keep_places(problem)
    there = pickle.loads(pickle.dumps(problem))
    assert there.__traceback__ is None
    assert first_cause(there) == first_cause(problem)


def test_an_error_that_never_met_the_users_code_has_no_such_cause():
    assert first_cause(ValueError("made here, raised nowhere")) is None


def test_a_message_of_megabytes_is_cut():
    text = describe_exception(ValueError("wide\n" * 1_000_000))
    assert len(text) < LONGEST + 100
    assert text.endswith("more characters)")
    assert describe_exception(KeyError()) == "KeyError"


def test_an_exit_of_the_users_code_is_reported_and_one_of_python_is_not(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing, os\n"
        "from paceline.core.first_cause import exits_reported\n"
        "with exits_reported(lambda problem: print(problem.message, problem.hint, flush=True)):\n"
        "    worker = multiprocessing.get_context('fork').Process(target=print, args=('worker',))\n"
        "    worker.start(); worker.join()\n"
        "    os._exit(7)\n"
    )
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=LONGEST_WAIT, check=False)
    assert ended.returncode == 7, ended.stderr
    assert ended.stdout == f"worker\nyour code ended the process with os._exit(7) see {script}, line 6\n"


def test_the_function_is_itself_again_afterwards():
    real = os._exit
    with exits_reported(lambda problem: isinstance(problem, PacelineError)):
        assert os._exit is not real
    assert os._exit is real
