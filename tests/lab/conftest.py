"""The lab: hosts and a cluster that are brought up for a module and torn down after it, and runs to compare with."""

from pathlib import Path

import pytest

import paceline
from lab import cluster
from lab.environment import child_environment
from lab.hosts import Hosts, why_not
from lab.runs import PACELINE, train
from tests.conftest import make_small_config


def pytest_collection_modifyitems(items):
    """Give every test of this folder its marker."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("lab")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """Bring up three hosts."""
    reason = why_not()
    if reason is not None:
        pytest.skip(f"no lab here: {reason}")
    with Hosts(3, tmp_path_factory.mktemp("hosts")) as lab:
        yield lab


@pytest.fixture(scope="module")
def slurm(hosts, tmp_path_factory):
    """Bring up a Slurm of three nodes."""
    reason = cluster.why_not()
    if reason is not None:
        pytest.skip(reason)
    with cluster.Slurm(hosts, tmp_path_factory.mktemp("slurm")) as lab:
        yield lab


@pytest.fixture
def on(hosts, tmp_path):
    """Return a function that starts a command on a host, in a folder that all hosts share."""

    def start(host, *words, **environment):
        usual = {"cwd": tmp_path, "env": child_environment(**environment)}
        return hosts.start(host, *words, **usual)

    yield start
    hosts.stop_all()


@pytest.fixture
def train_on(on):
    """Return a function that starts `paceline train` on a host."""
    return lambda host, *words, **environment: on(host, *PACELINE, *train(*words), **environment)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return the final score of the same training in one process."""
    return paceline.train(make_small_config(tmp_path_factory.mktemp("alone") / "runs")).test
