"""The docs site: links and anchors of the pages, its navigation, and the sources that it is built from."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

import paceline
from tests.docs.pages import PAGES, ROOT

LINK = re.compile(r"(?<!`)\]\(([^)\s]+)\)")
IMAGE = re.compile(r'<img [^>]*src="([^"]+)"')
HOME = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Homepage"]


def load_builder():
    spec = importlib.util.spec_from_file_location("build_site", ROOT / "docs" / "build_site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    load_builder().main(folder)
    return folder


def anchors(text: str) -> set[str]:
    """Return the anchors of the headings of a page."""
    heads = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", head.lower()).strip()) for head in heads}


def dead_links(page: Path, text: str) -> list[str]:
    """Return the links of a page whose file or anchor is missing; those into the repository are looked up here."""
    dead = []
    for link in [*LINK.findall(text), *IMAGE.findall(text)]:
        path, _, anchor = link.partition("#")
        if path.startswith((f"{HOME}/blob/main/", f"{HOME}/raw/main/")):
            path = str(ROOT / path.removeprefix(f"{HOME}/").split("/", 2)[2])
        elif "://" in path:
            continue
        target = page.parent / path if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target.read_text())):
            dead.append(link)
    return dead


@pytest.mark.parametrize("page", PAGES)
def test_every_link_of_a_page_leads_somewhere(page):
    assert dead_links(ROOT / page, (ROOT / page).read_text()) == []


def test_a_dead_link_is_found():
    text = f"[a](gone.md) [b](training.md#gone) [c]({HOME}/blob/main/gone.py) [d](training.md#export) [e](../README.md)"
    assert dead_links(ROOT / "docs" / "x.md", text) == ["gone.md", "training.md#gone", f"{HOME}/blob/main/gone.py"]


def test_the_links_of_the_site_lead_to_its_pages_or_to_the_repository(site):
    pages = sorted((site / "pages").rglob("*.md"))
    assert len(pages) > 40
    assert [(page.name, link) for page in pages for link in dead_links(page, page.read_text())] == []


def test_the_navigation_has_every_page_but_results(site):
    def files(entry) -> list[str]:
        match entry:
            case str():
                return [entry]
            case dict():
                return [file for value in entry.values() for file in files(value)]
            case _:
                return [file for value in entry for file in files(value)]

    listed = files(tomllib.loads((site / "zensical.toml").read_text())["project"]["nav"])
    assert len(listed) == len(set(listed))
    pages = {path.relative_to(site / "pages").as_posix() for path in (site / "pages").rglob("*.md")}
    assert set(listed) <= pages
    assert {page for page in pages - set(listed) if not page.startswith("results/")} == set()


def test_the_api_page_has_every_public_name_and_every_setting(site):
    text = (site / "pages" / "api.md").read_text()
    assert not [name for name in paceline.__all__ if name != "__version__" and f"\n## {name}\n" not in text]
    rows = re.findall(r"^\| `(\w+)` \| .* \|(.*)\|$", text.split("\n## launch\n")[0], re.MULTILINE)
    assert len(rows) > 40
    assert not [name for name, described in rows if not described.strip()]
