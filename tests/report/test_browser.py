"""The page in a real browser: drawn, readable on a phone and in the dark, printable, and silent on the network."""

import re

import pytest

from paceline.report.page import render
from paceline.report.pages import page_of_run, page_of_runs
from tests.report.sample_runs import make_profile, make_run, make_split

PHONE = 360


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    """Return the pages of one run with everything, of many ranks, and of runs side by side."""
    full = make_run(profile=make_profile())
    many = make_run(split=make_split(ranks=1000, hosts=125))
    two = [
        make_run("one rank", split=make_split(ranks=1, communication=0)),
        make_run("two hosts", profile=make_profile()),
    ]
    return {"one": render(page_of_run(full)), "many": render(page_of_run(many)), "two": render(page_of_runs(two))}


@pytest.mark.parametrize("name", ["one", "many", "two"])
def test_a_page_is_drawn_whole_on_a_desk_and_on_a_phone_in_both_themes(browser, pages, name):
    seen = {}
    for width, scheme in ((1100, "light"), (PHONE, "dark")):
        measures = browser.inspect(pages[name], width=width, scheme=scheme)
        assert measures["width"] == width
        assert measures["outside"] == []
        assert measures["needed"] <= width, "no sideways scrolling"
        assert measures["drawn"] == measures["boxes"] > 10
        assert measures["figures"] >= 4
        assert measures["unnamed"] == measures["scripts"] == 0
        seen[scheme] = measures["paper"], measures["ink"]
    (paper, ink), (dark_paper, dark_ink) = ([brightness(colour) for colour in seen[one]] for one in ("light", "dark"))
    assert paper - ink > 150
    assert dark_ink - dark_paper > 150


def brightness(colour: str) -> float:
    return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3


def test_a_page_that_is_too_wide_would_be_noticed(browser, pages):
    wide = pages["one"].replace("</main>", '<dl><dd style="width:900px">far too wide for a phone</dd></dl></main>')
    measures = browser.inspect(wide, width=PHONE)
    assert measures["needed"] > PHONE
    assert "far too wide for a phone" in measures["outside"]


def test_a_page_asks_for_nothing_complains_of_nothing_and_prints(browser, pages, tmp_path):
    page = tmp_path / "report.html"
    page.write_text(pages["one"])
    assert "http" not in pages["one"].replace("http-equiv", "")
    assert browser.requests(page) == []
    assert browser.complaints(page) == []
    pdf = browser.pdf(page)
    assert pdf.startswith(b"%PDF")
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 4


def test_a_page_that_asked_or_complained_would_be_noticed(browser, pages, tmp_path):
    page = tmp_path / "planted.html"
    planted = '<img src="http://127.0.0.1:9/x.png"><script>console.error("planted")</script></main>'
    page.write_text(pages["one"].replace("</main>", planted))
    assert browser.requests(page) == ["http://127.0.0.1:9/x.png"]
    assert any("planted" in line for line in browser.complaints(page))
