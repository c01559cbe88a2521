"""What the tests of settings share."""

import pytest

from paceline import cli


@pytest.fixture
def file(tmp_path):
    """Return a function that writes settings.toml and returns its path."""

    def write(text):
        path = tmp_path / "settings.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def refusal(capsys, words, environ=None):
    """Run a command that must be refused, and return its message and hint."""
    assert cli.run(["train", *words], environ or {}) == 2
    message, _, hint = capsys.readouterr().err.strip().partition("\n  hint: ")
    return message.removeprefix("paceline: "), hint
