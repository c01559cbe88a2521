"""Progress of long work: a bar on a terminal, otherwise a line per 10%."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

TENTHS = 10

Tell = Callable[[str, int, int | None], None]
"""Called with the name of the work, the amount done and the total (None if unknown)."""
Words = Callable[[int], str]
"""Formats an amount."""


@contextmanager
def progress_on(stream: TextIO, words: Words) -> Iterator[Tell]:
    """Yield a function that reports progress on the stream."""
    if not stream.isatty():
        yield _lines(stream, words)
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[text]}"))
    with Progress(*columns, TimeRemainingColumn(compact=True)) as bar:
        yield _bar(bar, words)


def _lines(stream: TextIO, words: Words) -> Tell:
    """Return a function that prints a line per 10%."""
    reached: dict[str, int] = {}

    def tell(name: str, done: int, total: int | None) -> None:
        tenth = 0 if not total else TENTHS * done // total
        if tenth > reached.get(name, 0):
            reached[name] = tenth
            print(f"{name}: {_amount(done, total, words)}", file=stream, flush=True)

    return tell


def _bar(bar: Any, words: Words) -> Tell:
    tasks: dict[str, Any] = {}

    def tell(name: str, done: int, total: int | None) -> None:
        if name not in tasks:
            tasks[name] = bar.add_task(name, total=total, text="")
        bar.update(tasks[name], completed=done, total=total, text=_amount(done, total, words))

    return tell


def _amount(done: int, total: int | None, words: Words) -> str:
    return words(done) if total is None else f"{words(done)} of {words(total)}"
