"""A terminal that is not UTF-8 loses no line."""

import io

from paceline.cli import show_any_text


def test_a_stream_that_is_not_utf8_shows_a_question_mark() -> None:
    buffer = io.BytesIO()
    stream = io.TextIOWrapper(buffer, encoding="ascii")
    show_any_text(stream)
    print("8×8 – end", file=stream, flush=True)
    assert buffer.getvalue() == b"8?8 ? end\n"
