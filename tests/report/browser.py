"""A headless Chromium: what a page looks like inside, what it asks for, and what it complains of."""

import html
import json
import re
import shutil
import subprocess
from itertools import count
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")
QUIET = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-background-networking",
         "--disable-component-update", "--no-first-run", "--host-resolver-rules=MAP * ~NOTFOUND")  # fmt: skip
OWN = re.compile(r"://[\w.]+\.(google|googleapis|gvt1)\.com/")
"""What the browser asks for by itself, whatever the page."""
LONGEST = 90
PROBE = """
onload = () => {
  const page = document.getElementById("page").contentDocument, root = page.documentElement;
  const boxes = [...page.querySelectorAll("svg, .track i")].map(one => one.getBoundingClientRect());
  const texts = [...page.querySelectorAll("h1, h2, h3, p, li, span, dt, dd, td, figcaption")];
  document.getElementById("answer").textContent = JSON.stringify({
    width: root.clientWidth, needed: root.scrollWidth, figures: page.querySelectorAll("figure").length,
    drawn: boxes.filter(box => box.width > 0 && box.height > 0).length, boxes: boxes.length,
    texts: texts.length, paper: getComputedStyle(page.body).backgroundColor, ink: getComputedStyle(page.body).color,
    outside: texts.filter(one => { const box = one.getBoundingClientRect(); return !one.closest(".scroll, details")
      && (box.right > root.clientWidth + 1 || box.left < -1); }).map(one => one.textContent),
    unnamed: [...page.querySelectorAll("svg, [role=img]")].filter(one => !one.getAttribute("aria-label")).length,
    scripts: page.querySelectorAll("script").length,
  });
};
"""


def why_not() -> str | None:
    """Return the reason why there is no browser here."""
    return None if _binary() else "Chromium is not installed (apt-get install chromium)"


def _binary() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """Opens pages, each in a fresh profile."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = count()

    def run(self, page: Path, *words: str) -> subprocess.CompletedProcess:
        """Open a page with flags of Chromium."""
        binary = _binary()
        assert binary is not None
        profile = self._folder / f"profile-{next(self._numbers)}"
        command = [binary, *QUIET, f"--user-data-dir={profile}", *words, page.as_uri()]
        return subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, check=True)

    def inspect(self, text: str, *, width: int = 1100, scheme: str = "light") -> dict:
        """Return the measures of a page, shown so wide and in a colour scheme."""
        wrapper = self._folder / f"wrapper-{next(self._numbers)}.html"
        frame = f'<iframe id="page" style="border:0;width:{width}px;height:3000px;color-scheme:{scheme}"'
        frame += f' srcdoc="{html.escape(text)}"></iframe>'
        wrapper.write_text(f'<!doctype html>{frame}<pre id="answer"></pre><script>{PROBE}</script>')
        found = re.search(r'<pre id="answer">(.*?)</pre>', self.run(wrapper, "--dump-dom").stdout, re.DOTALL)
        assert found is not None
        return json.loads(html.unescape(found[1]))

    def requests(self, page: Path) -> list[str]:
        """Return every address that a page asks the network for."""
        log = self._folder / f"net-{next(self._numbers)}.json"
        self.run(page, f"--log-net-log={log}", "--dump-dom")
        text = log.read_text(errors="replace")
        urls = re.findall(r'"url":"(\w+://[^"]*)"', text)
        return sorted({url for url in urls if not url.startswith("file://") and not OWN.search(url)})

    def complaints(self, page: Path) -> list[str]:
        """Return what a page writes to the console."""
        answer = self.run(page, "--enable-logging=stderr", "--v=0", "--dump-dom")
        return [line for line in answer.stderr.splitlines() if "CONSOLE" in line]

    def pdf(self, page: Path) -> bytes:
        """Return the page as it is printed."""
        out = self._folder / f"page-{next(self._numbers)}.pdf"
        self.run(page, f"--print-to-pdf={out}", "--no-pdf-header-footer")
        return out.read_bytes()
