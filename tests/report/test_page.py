"""A page as HTML: safe names, and tables that a spreadsheet reads."""

import csv
import io
from urllib.parse import unquote

from paceline.report.figures import PageTable
from paceline.report.page import Page, Section, as_csv, csv_link, render

TABLE = PageTable(name="ranks", title="Ranks", head=["name", "note"], rows=[['a, "b"', "two\nlines"], ["größer", ""]])


def test_a_table_is_read_back_as_it_was():
    assert list(csv.reader(io.StringIO(as_csv(TABLE)))) == [TABLE.head, *TABLE.rows]


def test_a_link_holds_the_whole_table_without_quotes_or_spaces():
    link = csv_link(TABLE)
    assert not set(link) & set("\"' <>&\n")
    assert unquote(link.partition(",")[2]) == as_csv(TABLE)


def test_markup_in_texts_is_shown_and_not_obeyed():
    evil = "<script>alert(1)</script>"
    section = Section(name="one", title=evil, intro=[evil], advice=[(evil, evil)])
    text = render(Page(title=evil, verdict=evil, sections=[section], tables=[TABLE], version="0.1"))
    assert "<script" not in text
    assert text.count("&lt;script&gt;") >= 6
