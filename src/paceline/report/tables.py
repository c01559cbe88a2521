"""Tables as text: aligned columns that read the same in a terminal, a pipe and a log file."""

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table with one line per row; columns are as wide as their widest cell."""
    lines = [list(head), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    texts = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    rule = "  ".join("─" * width for width in widths)
    return "\n".join([texts[0], rule, *texts[1:]])
