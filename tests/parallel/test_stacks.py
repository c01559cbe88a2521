"""The stack of a rank that hangs: written when it is asked for, and the user's function is named."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from lab.environment import child_environment
from paceline.core.processes import process_start
from paceline.core.world import World
from paceline.parallel.stacks import _is_whole, describe_collective, describe_stacks, place_of, stack_on_request
from paceline.records.entries import State
from paceline.records.folder import RunFolder
from paceline.records.reader import read_rank
from paceline.records.writer import write_rank

HANGS = """
import sys, threading, time
from pathlib import Path
from paceline.parallel.stacks import stack_on_request
from paceline.records.folder import RunFolder

def forward():
    print("ready", flush=True)
    time.sleep(1000)

threading.Thread(target=time.sleep, args=[1000], daemon=True).start()
if sys.argv[2] == "asked":
    with stack_on_request(RunFolder(Path(sys.argv[1])).rank_stack(1)):
        forward()
forward()
"""


def hanging_rank(folder: RunFolder, how: str, script) -> subprocess.Popen[str]:
    script.write_text(HANGS)
    line: list[Any] = [sys.executable, script, folder.path, how]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=child_environment())
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def roll_call(folder: RunFolder, pid: int) -> list[str]:
    write_rank(folder.rank(1), World(rank=1, pid=pid, pid_start=process_start(pid)), State.TRAINING, step=3)
    return describe_stacks(folder, {1: read_rank(folder.rank(1)), 2: None}, World().host)


def test_a_rank_that_hangs_is_named_with_the_users_function_and_line(tmp_path):
    folder = RunFolder(tmp_path)
    folder.rank(1).parent.mkdir()
    process = hanging_rank(folder, "asked", tmp_path / "my.py")
    lines = [number for number, text in enumerate(HANGS.splitlines(), 1) if text.startswith("    ")][:2]
    (found,) = roll_call(folder, process.pid)  # it may be asked between its print and its sleep
    assert found in [f"rank 1 is in forward ({tmp_path}/my.py, line {line})" for line in lines]
    assert process.poll() is None
    process.kill()
    process.communicate()


def test_a_process_that_would_die_of_the_question_is_not_asked(tmp_path):
    folder = RunFolder(tmp_path)
    folder.rank(1).parent.mkdir()
    process = hanging_rank(folder, "not asked", tmp_path / "my.py")
    assert roll_call(folder, process.pid) == []
    assert process.poll() is None
    process.kill()
    process.communicate()


def test_nothing_is_left_where_nobody_asked(tmp_path):
    with stack_on_request(tmp_path / "ranks" / "a.stack"):
        assert (tmp_path / "ranks" / "a.stack").exists()
    assert list((tmp_path / "ranks").iterdir()) == []


def test_without_a_function_of_the_user_the_innermost_is_named():
    here = os.__file__
    assert place_of(f'Current thread 0x1 (most recent call first):\n  File "{here}", line 5 in wait\n') == (
        f"wait ({here}, line 5)"
    )
    assert place_of("garbage") is None


def test_a_dump_that_is_still_being_written_is_waited_for():
    other = 'Thread 0x2 (most recent call first):\n  File "/lib/threading.py", line 982 in run\n'
    main = 'Current thread 0x1 (most recent call first):\n  File "/my.py", line 9 in forward\n'
    assert not any(_is_whole(text) for text in ("", other, other + main))
    assert _is_whole(other + main + '  File "/my.py", line 20 in <module>\n')


ENTRY = {"profiling_name": "gloo:all_reduce", "input_sizes": [[11, 5]], "collective_seq_id": 2}


@pytest.mark.parametrize(
    ("trace", "text"),
    [
        (
            json.dumps({"entries": [{"profiling_name": "gloo:broadcast"}, ENTRY]}),
            "all_reduce of 11×5 numbers, number 2",
        ),
        (json.dumps({"entries": []}), None),
        ("[]", None),
        ("{", None),
    ],
)
def test_the_last_collective_of_a_flight_record_is_described(trace, text):
    assert describe_collective(trace) == text
