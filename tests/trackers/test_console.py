"""The terminal: plain lines for a pipe, a bar and its lines for people."""

import io

from paceline.records.entries import Note, Pulse
from paceline.trackers.console import Live, Plain, console_for
from paceline.trackers.lines import as_line
from tests.trackers.sample_records import EPOCH, RUN, SCORE, STEP


def test_a_pipe_gets_plain_lines_at_once():
    stream = io.StringIO()
    console = console_for(stream)
    assert isinstance(console, Plain)
    console.open(RUN)
    console.record(EPOCH)
    assert stream.getvalue() == f"{as_line(EPOCH, RUN)}\n"


def test_a_terminal_gets_a_live_console():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    assert isinstance(console_for(Terminal()), Live)


def test_a_bar_moves_over_the_epoch_and_lines_stand_above_it(capsys):
    console = Live()
    console.open(RUN)
    console.record(Pulse(step=13, epoch=2, score=SCORE, samples_per_s=1280.0))
    console.record(Note(text="[bold] is no markup", level="warning"))
    console.record(STEP)
    console.record(EPOCH)
    console.close(None)
    text = capsys.readouterr().out
    assert "warning: [bold] is no markup\n" in text
    assert f"{as_line(EPOCH, RUN)}\n" in text
    assert f"{as_line(STEP, RUN)}" not in text, "that is what the bar shows"


def test_a_console_without_a_bar_can_be_closed():
    console = Live()
    console.open(RUN)
    console.close(None)


def test_a_notebook_gets_one_line_that_moves_and_the_lines_above_it():
    cell = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})
    stream = cell()
    console = console_for(stream)
    console.open(RUN)
    console.record(Pulse(step=13, epoch=2, score=SCORE, samples_per_s=1280.0))
    console.record(STEP)
    console.record(EPOCH)
    console.close(None)
    shown = [line.rpartition("\r")[2] for line in stream.getvalue().split("\n")]
    assert shown == [as_line(EPOCH, RUN), ""]
    moving = [text.strip() for text in stream.getvalue().split("\r") if "step 1" in text]
    assert moving[0] == "epoch 2/10  step 13/100  loss 0.5000  acc 75.00%  1,280 samples/s  run: 8.70s left"
    assert moving[1].startswith("epoch 2/10  step 15/100  ")


def test_the_bar_of_a_narrow_terminal_stays_on_one_line(capsys, monkeypatch):
    for columns in ("60", "100"):
        monkeypatch.setenv("COLUMNS", columns)
        console = Live()
        console.open(RUN)
        console.record(Pulse(step=13, epoch=2, score=SCORE, samples_per_s=1280.0))
        (bar,) = (task.fields["text"] for task in console._bar.tasks)
        console.close(None)
        assert ("loss" in bar) == (columns == "100")
        assert bar.endswith("1,280 samples/s  run: 8.70s left")
    assert capsys.readouterr().err == ""
