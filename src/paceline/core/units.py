"""Numbers and tables in human-readable form, and parsing numbers."""

import re
import shutil
from collections.abc import Iterable, Sequence
from typing import Any


def count(number: int) -> str:
    """Return 12345 as "12,345"."""
    return f"{number:,}"


def plural(number: int, noun: str, many: str | None = None) -> str:
    """Return "1 epoch" or "5 epochs"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {many or noun + 's'}"


def percent(fraction: float) -> str:
    """Return 0.9417 as "94.17%"."""
    return f"{100 * fraction:.2f}%"


def number(value: float) -> str:
    """Return a setting without needless digits: 0.1, 0.0005, 3e-05."""
    return f"{value:.6g}"


def rate(per_second: float) -> str:
    """Return samples per second with three significant digits, or as a whole number above 100."""
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"


def duration(seconds: float) -> str:
    """Return "0.42s", "12.3s", "4m 05s", "3h 07m", "12d 04h" or "1,200 years"."""
    if seconds < 9.995:
        return f"{seconds:.2f}s"
    if seconds < 59.95:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest:02d}s"
    hours, days = minutes // 60, minutes // (60 * 24)
    if days < 2:
        return f"{hours}h {minutes % 60:02d}m"
    return f"{days}d {hours % 24:02d}h" if days < 2 * 365 else f"{count(days // 365)} years"


def step_time(seconds: float) -> str:
    """Return the duration of a step or a phase: "0.25 ms", "48.1 ms" or "1.2 s"."""
    return f"{1e3 * seconds:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"


def large(number: float) -> str:
    """Return a large number with three significant digits: "81.2 M", "8.18 G"."""
    for unit in ("", " k", " M", " G"):
        if number < 999.5:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g} T"


def size(num_bytes: float) -> str:
    """Return bytes in decimal units, as is usual for disks and links."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 999.5:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.3g} TB"


ANY_WIDTH = 10**6
FRACTIONS = (" acc", " top-5", " accuracy", " mIoU", " f1")
"""How names of results between 0 and 1 end."""
SUFFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30}
TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0}
RATES = {"bit": 1 / 8, "bps": 1 / 8, "bit/s": 1 / 8, "b/s": 1 / 8, "B/s": 1.0, "B": 1.0}
AMOUNT = re.compile(r"([0-9]*\.?[0-9]+(?:e-?[0-9]+)?)\s*([^\d\s].*)?", re.IGNORECASE)


def parse_number(text: str) -> float:
    """Read "25.6M" as 25,600,000 and "25MiB" as 26,214,400; raise ValueError with an example."""
    value, unit = _split(text, "a number such as 25600000 or 25.6M")
    unit = unit.lower().removesuffix("b")
    if unit not in SUFFIXES:
        raise ValueError("expected a number such as 25600000 or 25.6M")
    return value * SUFFIXES[unit]


def parse_seconds(text: str) -> float:
    """Read "50us", "0.345" or "1.2 ms" as seconds."""
    value, unit = _split(text, "a time such as 0.345, 50us or 1.2ms")
    if unit.lower() not in TIMES and unit:
        raise ValueError("expected a time such as 0.345, 50us or 1.2ms")
    return value * TIMES.get(unit.lower(), 1.0)


def parse_rate(text: str) -> float:
    """Read "10gbit", "25 Gb/s" or "12GB/s" as bytes per second; a small b is a bit, a large B a byte."""
    value, unit = _split(text, "a rate such as 10gbit, 25Gb/s or 12GB/s")
    scale, rest = (unit[:1].lower(), unit[1:]) if unit[:1].lower() in {"k", "m", "g", "t"} else ("", unit)
    known = rest if rest in RATES else rest.lower()
    if known not in RATES:
        raise ValueError("expected a rate such as 10gbit, 25Gb/s or 12GB/s")
    return value * SUFFIXES[scale] * RATES[known]


def bit_rate(bytes_per_second: float) -> str:
    """Return a link's bandwidth in bits: "9.57 Gbit/s"."""
    value, _, unit = large(8 * bytes_per_second).partition(" ")
    return f"{value} {unit}bit/s"


def _split(text: str, expected: str) -> tuple[float, str]:
    match = AMOUNT.fullmatch(text.strip().replace(",", "").replace("_", ""))
    if match is None:
        raise ValueError(f"expected {expected}")
    return float(match[1]), (match[2] or "").strip()


def ranks_text(ranks: Iterable[int], *, most: int | None = None) -> str:
    """Return "rank 3" or "ranks 0,2"; of more than `most` ranks only the first, as in "ranks 0,1,…"."""
    ordered = sorted(ranks)
    shown = [*map(str, ordered[:most]), *(["…"] if most is not None and len(ordered) > most else [])]
    return f"rank{'s' if len(ordered) > 1 else ''} {','.join(shown)}"


def value_text(name: str, value: Any) -> str:
    """Return a setting or a result of a run as a table shows it."""
    if value is None:
        return "–"
    if name.endswith(FRACTIONS):
        return percent(value)
    if name.endswith(" time"):
        return duration(value) if value >= 1 else step_time(value)
    if name.endswith("/s"):
        return rate(value)
    return _setting_text(value)


def _setting_text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return number(value) if isinstance(value, float) else str(value)


def escape_controls(text: str) -> str:
    """Return a text whose control characters a terminal shows instead of obeying; line breaks stay."""
    if all(character.isprintable() or character == "\n" for character in text):
        return text
    return "".join(each if each.isprintable() or each == "\n" else ascii(each)[1:-1] for each in text)


def terminal_columns() -> int:
    """Return the columns of the terminal, or of COLUMNS; a pipe or a file without it takes lines of any length."""
    return shutil.get_terminal_size(fallback=(ANY_WIDTH, 24)).columns


def fitted_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, columns: int | None = None) -> str:
    """Return a table; where its lines are wider than the terminal, a block of lines for each row."""
    wide = table(head, rows)
    if max(map(len, wide.splitlines())) <= (terminal_columns() if columns is None else columns):
        return wide
    width = max(map(len, head))
    blocks = [
        "\n".join(f"{name:<{width}}  {_cell(cell)}" for name, cell in zip(head, row, strict=True)) for row in rows
    ]
    return "\n\n".join(blocks)


def _cell(text: str) -> str:
    return escape_controls(text).replace("\n", "\\n")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table with one line per row; columns are as wide as their widest cell."""
    lines = [[_cell(cell) for cell in line] for line in (head, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    texts = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    rule = "  ".join("─" * width for width in widths)
    return "\n".join([texts[0], rule, *texts[1:]])
