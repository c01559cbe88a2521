"""One self-contained HTML page: sections of figures, facts and tables, rendered without a script or a request."""

import csv
import io
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from paceline.report.figures import Bars, Key, Plot, Table


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """Names and values that belong together."""

    title: str
    facts: list[tuple[str, str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A part of the page."""

    name: str
    title: str
    intro: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    bars: list[Bars] = field(default_factory=list)
    advice: list[tuple[str, str]] = field(default_factory=list)
    """What to try, and what it is expected to bring."""
    keys: list[Key] = field(default_factory=list)
    """What the colours of the plots mean, where lines have no names."""
    plots: list[Plot] = field(default_factory=list)
    facts: list[Facts] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """Everything there is to say."""

    title: str
    subtitle: str = ""
    verdict: str
    lead: list[str] = field(default_factory=list)
    numbers: list[tuple[str, str]] = field(default_factory=list)
    sections: list[Section]
    tables: list[Table] = field(default_factory=list)
    version: str


def render(page: Page) -> str:
    """Return the page as HTML; the same page gives the same bytes."""
    from jinja2 import Environment, FunctionLoader  # noqa: PLC0415 - only a report needs it

    folder = files("paceline.report") / "templates"
    environment: Any = Environment(
        loader=FunctionLoader(lambda name: (folder / name).read_text(encoding="utf-8")),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["csv_link"] = csv_link
    style = (folder / "style.css").read_text(encoding="utf-8").strip()
    return environment.get_template("page.html").render(page=page, style=style)


def csv_link(table: Table) -> str:
    """Return a table as an address that holds it whole, for a browser to save."""
    return "data:text/csv;charset=utf-8," + quote(as_csv(table), safe=",-._~")


def as_csv(table: Table) -> str:
    """Return a table as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.head)
    writer.writerows(table.rows)
    return text.getvalue()
