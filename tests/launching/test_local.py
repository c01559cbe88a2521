"""The ranks of one node: the port where nodes connect, and the stderr of a rank. Whole launches: test_start_ways."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO

import pytest

from paceline.core.errors import RanksError, StoppedError
from paceline.launching import local
from paceline.launching.agent import Agent
from paceline.launching.launch_plan import LaunchPlan
from paceline.launching.local import STDERR, check_rendezvous, place_to_print, run_ranks
from tests.launching.conftest import free_port


@pytest.fixture
def listener():
    """Return a port at which something listens."""
    with socket.socket() as server:
        server.bind(("", 0))
        server.listen()
        yield server.getsockname()[1]


def node(rank, port, timeout=0.2):
    return LaunchPlan(nproc=1, threads=1, nnodes="2", node_rank=rank, rendezvous=f"127.0.0.1:{port}", timeout=timeout)


def test_a_single_node_checks_no_port(capsys):
    check_rendezvous(LaunchPlan(nproc=2, threads=1))
    assert capsys.readouterr() == ("", "")


def test_node_0_says_for_whom_it_waits_and_leaves_its_port_free(capsys):
    port = free_port()
    check_rendezvous(node(0, port))
    assert capsys.readouterr().err == f"paceline: node 0 waits up to 0.2 s for node 1 at 127.0.0.1:{port}\n"
    with socket.socket() as server:
        server.bind(("", port))


def test_another_node_joins_node_0_where_it_listens(listener, capsys):
    check_rendezvous(node(1, listener))
    assert capsys.readouterr().out.startswith(f"node 1 joins node 0 at 127.0.0.1:{listener}")


def test_another_node_gives_up_where_nobody_listens():
    with pytest.raises(RanksError, match=r"node 1 waited 0.2 s for node 0 at .*refused"):
        check_rendezvous(node(1, free_port()))


def test_a_signal_while_torchrun_is_being_started_ends_it(monkeypatch):
    """A launcher that stopped before it handled signals left torchrun waiting for other nodes."""
    started = []

    class Signalled(Agent):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            started.append(self.process)
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(local, "Agent", Signalled)
    with pytest.raises(StoppedError):
        run_ranks(node(0, free_port(), timeout=60), ["models"], os.environ)
    assert started[0].poll() is not None


def test_torchrun_whose_launcher_has_gone_ends_at_once():
    command = [sys.executable, "-m", "paceline.launching.agent", str(os.getppid()), "null", "--help"]
    ended = subprocess.run(command, check=False, capture_output=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (-signal.SIGTERM, b"")


RANK = "import os, sys; from paceline.launching.local import become_rank; become_rank(os.environ); os.write(2, b'new')"


@pytest.mark.parametrize(
    ("name", "expected"), [("log.txt", ("", "old new")), ("gone/log.txt", ("new", "old ")), (None, ("new", "old "))]
)
def test_a_rank_writes_errors_where_its_launcher_does(tmp_path, name, expected):
    log = tmp_path / "log.txt"
    log.write_text("old ")
    environ = os.environ if name is None else os.environ | {STDERR: str(tmp_path / name)}
    found = subprocess.run([sys.executable, "-c", RANK], env=environ, stderr=subprocess.PIPE, text=True, check=True,
                           timeout=60)  # fmt: skip
    assert (found.stderr, log.read_text()) == expected


PRINTING = "import sys; print('epoch 1: größer', flush=True); open(sys.argv[1], 'a').write('a warning\\n')"
PROCESS = f"""
import subprocess, sys
from paceline.launching.local import place_to_print
with place_to_print() as place:
    subprocess.run([sys.executable, "-c", {PRINTING!r}, place.stderr], stdout=place.stdout, check=True)
"""


def test_ranks_of_a_command_print_where_it_prints():
    found = subprocess.run([sys.executable, "-c", PROCESS], capture_output=True, text=True, check=True, timeout=60)
    assert (found.stdout, found.stderr) == ("epoch 1: größer\n", "a warning\n")


def test_what_stands_in_for_stdout_shows_both_streams_of_a_rank():
    shown = StringIO()
    with redirect_stdout(shown), place_to_print() as place:
        subprocess.run([sys.executable, "-c", PRINTING, place.stderr], stdout=place.stdout, check=True, timeout=60)
    assert shown.getvalue() == "epoch 1: größer\na warning\n"


def test_bytes_that_are_no_text_do_not_end_the_output():
    shown = StringIO()
    with redirect_stdout(shown), place_to_print() as place:
        code = r"import os; os.write(1, b'\xff\n'); os.write(1, b'next\n')"
        subprocess.run([sys.executable, "-c", code], stdout=place.stdout, check=True, timeout=60)
    assert shown.getvalue() == "\ufffd\nnext\n"
