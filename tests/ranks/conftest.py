import pytest

from tests.ranks.pool import RankPool


@pytest.fixture(scope="session")
def pool():
    """Keep living ranks for the whole session, started when a test first needs them."""
    with RankPool() as ranks:
        yield ranks


@pytest.fixture
def ranks(pool):
    """Return what gives a world of living ranks: `ranks(3).run(function, *args)`."""
    return pool.of
