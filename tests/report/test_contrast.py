"""Contrast of the report's style sheet by WCAG 2.1 AA: text at least 4.5:1, shapes and lines at least 3:1."""

import re
from importlib import resources

import pytest

STYLE = resources.files("paceline.report").joinpath("templates/style.css").read_text()
SCHEMES = {"light": "", "dark": "@media (prefers-color-scheme: dark)", "print": "@media print"}
TEXT, SHAPE = 4.5, 3.0
BACKGROUNDS_AND_RULES = {"paper", "rule"}


def colours(style: str, scheme: str) -> dict[str, str]:
    """Return the custom properties of a colour scheme; dark and print override the light ones."""
    found: dict[str, str] = {}
    for start in ("", SCHEMES[scheme]):
        block = re.search(r":root\s*\{(.*?)\}", style[style.index(start) :], re.DOTALL)
        assert block is not None
        found |= dict(re.findall(r"--([\w-]+):\s*(#[0-9a-f]{3,6})\b", block.group(1)))
    return found


def channels(colour: str) -> list[float]:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    return [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]


def luminance(rgb: list[float]) -> float:
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in rgb]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(colour: str, paper: str, opacity: float = 1.0) -> float:
    behind = channels(paper)
    blended = [opacity * front + (1 - opacity) * back for front, back in zip(channels(colour), behind, strict=True)]
    bright, dark = sorted((luminance(blended), luminance(behind)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def text_colours(style: str) -> set[str]:
    """Return every property that some rule uses as a colour of text (the names of runs among them)."""
    return set(re.findall(r"(?<![-\w])color:\s*var\(--([\w-]+)\)", style))


def too_weak(style: str, scheme: str) -> dict[str, float]:
    """Return the colours of a scheme whose contrast with the paper is below AA, with their ratio."""
    known = colours(style, scheme)
    least = dict.fromkeys(known.keys() - BACKGROUNDS_AND_RULES, SHAPE) | dict.fromkeys(text_colours(style), TEXT)
    ratios = {name: contrast(known[name], known["paper"]) for name in least}
    return {name: round(ratio, 2) for name, ratio in ratios.items() if ratio < least[name]}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_colour_of_text_and_shapes_meets_aa(scheme: str):
    assert {"ink", "soft", "faint", "run-0", "run-5"} <= text_colours(STYLE)
    assert {"forward", "hidden", "record"} <= colours(STYLE, scheme).keys()
    assert too_weak(STYLE, scheme) == {}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_thin_training_curves_are_visible(scheme: str):
    opacity = re.search(r"\.area \.faint > path \{[^}]*opacity: ([.\d]+)", STYLE)
    assert opacity is not None
    known = colours(STYLE, scheme)
    runs = [colour for name, colour in known.items() if name.startswith("run-")]
    assert len(runs) == 6
    assert min(contrast(colour, known["paper"], float(opacity.group(1))) for colour in runs) >= SHAPE


def test_text_is_never_made_paler_by_opacity():
    pale = re.findall(r"([^{}]+)\{[^}]*opacity: ([.\d]+)", STYLE)
    assert {selector.strip() for selector, _ in pale} == {".area .faint > path", ".area path.band"}


@pytest.mark.parametrize(
    ("scheme", "name", "weak", "ratio"),
    [("light", "faint", "#8b939b", 3.01), ("light", "hidden", "#b9c4cf", 1.71), ("dark", "faint", "#767f88", 4.38)],
)
def test_a_planted_pale_colour_is_found(scheme: str, name: str, weak: str, ratio: float):
    planted = STYLE.replace(f"--{name}: {colours(STYLE, scheme)[name]}", f"--{name}: {weak}")
    assert too_weak(planted, scheme) == {name: ratio}


def test_black_on_white_is_21_to_1():
    assert contrast("#000", "#ffffff") == pytest.approx(21)
