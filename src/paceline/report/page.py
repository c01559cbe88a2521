"""One self-contained HTML page: sections of figures, facts and tables, rendered without a script or a request."""

import csv
import io
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from paceline.report.figures import Bars, Key, PageTable, Plot


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """A group of names and values."""

    title: str
    facts: list[tuple[str, str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A part of the page."""

    name: str
    title: str
    intro: list[str] = field(default_factory=list)
    tables: list[PageTable] = field(default_factory=list)
    bars: list[Bars] = field(default_factory=list)
    advice: list[tuple[str, str]] = field(default_factory=list)
    """Suggestions with their expected gain."""
    keys: list[Key] = field(default_factory=list)
    """The legend of the plots, if lines have no names."""
    plots: list[Plot] = field(default_factory=list)
    facts: list[Facts] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """The content of a page."""

    title: str
    subtitle: str = ""
    verdict: str
    lead: list[str] = field(default_factory=list)
    numbers: list[tuple[str, str]] = field(default_factory=list)
    sections: list[Section]
    tables: list[PageTable] = field(default_factory=list)
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


def csv_link(table: PageTable) -> str:
    """Return a table as a data URL, for a browser to save."""
    return "data:text/csv;charset=utf-8," + quote(as_csv(table), safe=",-._~")


def as_csv(table: PageTable) -> str:
    """Return a table as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.head)
    writer.writerows(table.rows)
    return text.getvalue()
