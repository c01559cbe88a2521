"""The `paceline` logger: the console by default, quiet or elsewhere when the user says so."""

import logging

import pytest

from paceline.core import messages
from paceline.core.messages import LOGGER, Console, say


@pytest.fixture(autouse=True)
def untouched():
    """Give each test the logger as it is after the import, and put it back."""
    before = (list(LOGGER.handlers), LOGGER.level, LOGGER.propagate)
    LOGGER.handlers, LOGGER.propagate = [], True
    LOGGER.setLevel(logging.NOTSET)
    yield
    LOGGER.handlers, LOGGER.propagate = before[0], before[2]
    LOGGER.setLevel(before[1])


class Kept(logging.Handler):
    """A handler of the user."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append((record.levelname, record.getMessage()))


def test_without_a_handler_messages_are_on_the_console(capsys):
    say("hello")
    assert capsys.readouterr() == ("", "paceline: hello\n")
    assert [type(handler) for handler in LOGGER.handlers] == [Console]


def test_a_run_is_quiet_at_level_warning_and_warnings_are_shown(capsys, small_run):
    LOGGER.setLevel("WARNING")
    result = small_run()
    assert capsys.readouterr() == ("", "")
    assert "finished in" in (result.folder / "log.txt").read_text(), "the run folder has everything"
    messages.log(logging.WARNING, "careful", lambda: messages._print_message("warning: careful"))
    assert capsys.readouterr().err == "warning: careful\n"


def test_a_handler_of_the_user_gets_all_lines_in_place_of_the_console(capsys, small_run):
    kept = Kept()
    LOGGER.addHandler(kept)
    LOGGER.setLevel("INFO")
    result = small_run(log_every=8)
    assert capsys.readouterr() == ("", "")
    lines = (result.folder / "log.txt").read_text().splitlines()
    assert [line for _, line in kept.lines] == [line.removeprefix("warning: ") for line in lines]


def test_a_null_handler_sends_messages_to_the_root_logger(capsys):
    kept = Kept()
    logging.getLogger().addHandler(kept)
    try:
        LOGGER.addHandler(logging.NullHandler())
        LOGGER.setLevel("INFO")
        say("to the root")
    finally:
        logging.getLogger().removeHandler(kept)
    assert kept.lines == [("INFO", "to the root")]
    assert capsys.readouterr().err == ""
    assert LOGGER.propagate


def test_the_console_does_not_show_a_message_twice(capsys):
    kept = Kept()
    logging.getLogger().addHandler(kept)
    try:
        say("once")
    finally:
        logging.getLogger().removeHandler(kept)
    assert (kept.lines, capsys.readouterr().err) == ([], "paceline: once\n")
