import pytest

from tests.ranks.pool import RankPool


@pytest.fixture(scope="session")
def pool():
    """Keep rank processes for the whole session, started when a test first needs them."""
    with RankPool() as ranks:
        yield ranks


@pytest.fixture
def ranks(pool):
    """Return a function that gives a team of rank processes: `ranks(3).run(function, *args)`."""
    return pool.of
