"""The sources of the docs site: the pages as they are in the checkout, and an API reference from the docstrings.

`make docs` runs it. A link to a file outside of docs/ leads to the repository.
"""

import ast
import dataclasses
import inspect
import re
import shutil
import sys
import tomllib
from itertools import pairwise
from pathlib import Path

import paceline

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
BESIDE = ("CHANGELOG.md", "CONTRIBUTING.md")
"""Pages of the site that lie at the top of the checkout."""
LINK = re.compile(r"(\]\()(?!\w+:|#)([^)#\s]+)((?:#[^)\s]*)?\))")


def main(site: Path) -> None:
    """Write the pages of the site and its settings into a folder."""
    target = site / "pages"
    shutil.rmtree(target, ignore_errors=True)
    for page in sorted(DOCS.rglob("*")):
        if page.is_file() and page.suffix not in {".py", ".pyc", ".toml"}:
            _copy(page, target / page.relative_to(DOCS))
    for name in BESIDE:
        _copy(ROOT / name, target / name.lower())
    (target / "api.md").write_text(api_page(), encoding="utf-8")
    shutil.copy(DOCS / "zensical.toml", site)


def _copy(page: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    if page.suffix != ".md":
        shutil.copy(page, to)
        return
    text = page.read_text(encoding="utf-8")
    to.write_text(LINK.sub(lambda link: link[1] + _target(page, link[2]) + link[3], text), encoding="utf-8")


def _target(page: Path, link: str) -> str:
    """Return a link of a page as it is on the site."""
    file = (page.parent / link).resolve()
    if page.parent == ROOT:  # CHANGELOG.md, CONTRIBUTING.md
        link = file.relative_to(ROOT).as_posix()
        return link.removeprefix("docs/") if link.startswith("docs/") else _in_repository(file)
    if file.is_relative_to(DOCS):
        return link
    return (
        f"{'../' * (len(page.relative_to(DOCS).parts) - 1)}{file.name.lower()}"
        if file.name in BESIDE
        else _in_repository(file)
    )


def _in_repository(file: Path) -> str:
    home = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Homepage"]
    return f"{home}/blob/main/{file.relative_to(ROOT).as_posix()}"


def api_page() -> str:
    """Return the reference of the public names."""
    parts = [
        "# Python API\n",
        "Everything that `import paceline` offers. The settings of `Config` are the flags of `paceline train`.\n",
    ]
    for name in sorted(paceline.__all__, key=str.casefold):
        thing = getattr(paceline, name)
        if callable(thing):
            parts.append(_entry(name, thing))
    return "\n".join(parts)


def _entry(name: str, thing: object) -> str:
    lines = [f"## {name}\n"]
    if inspect.isclass(thing) and dataclasses.is_dataclass(thing):
        lines += [_docstring(thing), *_fields(thing)]
    elif inspect.isclass(thing):
        lines += [_docstring(thing), *_methods(thing)]
    else:
        lines += [_signature(name, thing), _docstring(thing)]
    return "\n".join(lines) + "\n"


def _docstring(thing: object) -> str:
    text = inspect.getdoc(thing) or ""
    return "" if text.startswith(f"{getattr(thing, '__name__', '')}(") else f"{text}\n"


def _signature(name: str, function: object) -> str:
    signature = inspect.signature(function)  # pyright: ignore[reportArgumentType]
    words = [_parameter(str(one)) for one in signature.parameters.values()]
    return f"```python\n{name}({', '.join(words)})\n```\n"


def _parameter(text: str) -> str:
    """Return a parameter without its type, and with a short default."""
    name = text.partition(":")[0].partition("=")[0].strip()
    default = text.rpartition(" = ")[2] if "=" in text else ""
    return name if not default else f"{name}={default if len(default) < 20 else '…'}"


def _fields(kind: type) -> list[str]:
    """Return a table of the fields of a dataclass; the string below a field describes it."""
    described = _attribute_docs(kind)
    rows = [
        f"| `{item.name}` | {_default(item)} | {described.get(item.name, '').replace('|', chr(92) + '|')} |"
        for item in dataclasses.fields(kind)  # pyright: ignore[reportArgumentType]
        if not item.name.startswith("_")
    ]
    return ["| field | default | |", "|---|---|---|", *rows, "", *_methods(kind)]


def _default(item: dataclasses.Field) -> str:
    if item.default is not dataclasses.MISSING:
        return f"`{item.default}`" if isinstance(item.default, str | int | float | Path | tuple | None) else "…"
    return "" if item.default_factory is dataclasses.MISSING else "…"


def _attribute_docs(kind: type) -> dict[str, str]:
    """Return the strings that follow the fields of a class in its source."""
    body = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, below in pairwise(body.body):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            found[ast.unparse(field.target)] = " ".join(str(below.value.value).split())
    return found


def _methods(kind: type) -> list[str]:
    lines = []
    for name, member in vars(kind).items():
        if name.startswith("_") or not inspect.getdoc(member):
            continue
        if inspect.isfunction(member):
            lines += [f"### {kind.__name__}.{name}\n", _signature(name, member), _docstring(member)]
        elif isinstance(member, property):
            lines += [f"### {kind.__name__}.{name}\n", f"{inspect.getdoc(member)}\n"]
    return lines


if __name__ == "__main__":
    main(Path(sys.argv[1]))
