"""A browser to look at pages with, where there is one."""

import pytest

from tests.report.browser import Browser, why_not


@pytest.fixture(scope="session")
def browser(tmp_path_factory) -> Browser:
    """Return a headless Chromium."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    return Browser(tmp_path_factory.mktemp("browser"))
