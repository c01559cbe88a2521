"""Reading the source of a script: branches that only some ranks ran, and lines with a silencing comment."""

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SILENCED = re.compile(r"#\s*paceline:\s*ignore\b(?:\[([\w\-, ]*)\])?")
Loop = ast.For | ast.While


@dataclass(frozen=True)
class Branch:
    """A branch of an `if` that only some ranks ran."""

    body: list[ast.stmt]
    ranks: list[int]


@cache
def parse(file: str) -> ast.Module | None:
    """Return the syntax tree of a file; None if it cannot be read."""
    try:
        return ast.parse(Path(file).read_text(encoding="utf-8", errors="replace"))
    except (OSError, SyntaxError, ValueError):
        return None


def is_silenced(file: Path, line: int, rule: str) -> bool:
    """Tell whether a comment on a line silences a rule: `# paceline: ignore` or `# paceline: ignore[rule, rule]`."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace").splitlines()[line - 1]
    except (OSError, IndexError):
        return False
    found = SILENCED.search(text)
    return found is not None and (found[1] is None or rule in {name.strip() for name in found[1].split(",")})


def loops_around(tree: ast.Module, lines: set[int]) -> Iterator[Loop]:
    """Yield the loops that contain one of the lines."""
    for node in ast.walk(tree):
        if isinstance(node, Loop) and any(node.lineno < line <= (node.end_lineno or 0) for line in lines):
            yield node


def uneven_branches(loop: Loop, lines: Mapping[int, set[int]]) -> Iterator[Branch]:
    """Yield the branches inside a loop that only some ranks ran, given the lines that each rank ran."""
    for node in ast.walk(loop):
        if not isinstance(node, ast.If) or not all(node.lineno in ran for ran in lines.values()):
            continue
        if node.orelse and all(any(True for _ in exits(Branch(body, []), loop)) for body in (node.body, node.orelse)):
            continue  # every rank leaves, each in its own branch
        for body in (node.body, node.orelse):
            if body:
                span = range(body[0].lineno, (body[0].end_lineno or body[0].lineno) + 1)
                ranks = [rank for rank, ran in lines.items() if any(line in ran for line in span)]
                if 0 < len(ranks) < len(lines):
                    yield Branch(body, ranks)


def exits(branch: Branch, loop: Loop) -> Iterator[ast.Break | ast.Return]:
    """Yield the statements of a branch that leave this loop."""
    first = branch.body[0].lineno
    between = [
        node
        for node in ast.walk(loop)
        if isinstance(node, Loop) and node is not loop and node.lineno <= first <= (node.end_lineno or 0)
    ]
    for statement in branch.body:
        yield from _exits(statement, len(between))


def _exits(node: ast.AST, depth: int) -> Iterator[ast.Break | ast.Return]:
    if isinstance(node, ast.Return) or (isinstance(node, ast.Break) and depth == 0):
        yield node
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
        return
    for child in ast.iter_child_nodes(node):
        yield from _exits(child, depth + isinstance(node, Loop))


def _at(site: str) -> tuple[ast.Module | None, int]:
    file, _, line = site.rpartition(":")
    return parse(file), int(line) if line.isdigit() else 0


def counts_epochs(stack: Sequence[str]) -> bool:
    """Tell whether a loop over a loader, given with its callers, lies in a `for` or in no loop at all."""
    kinds: set[type[ast.AST]] = set()
    for number, site in enumerate(stack):
        tree, line = _at(site)
        for loop in loops_around(tree, {line}) if tree is not None else ():
            kinds.add(type(loop))
        if number == 0 and tree is not None and not any(_is_loop_at(node, line) for node in ast.walk(tree)):
            kinds.add(ast.While)  # no `for` goes over the loader: the script asks for batches itself
    return ast.For in kinds or ast.While not in kinds


def _is_loop_at(node: ast.AST, line: int) -> bool:
    return isinstance(node, ast.For | ast.comprehension) and node.iter.lineno <= line <= (node.iter.end_lineno or 0)


def leaves_early(site: str) -> bool:
    """Tell whether the loop at a line can end before its iterator does."""
    tree, line = _at(site)
    loops = [n for n in ast.walk(tree or ast.Module([], [])) if isinstance(n, ast.For) and _is_loop_at(n, line)]
    return not loops or any(True for _ in exits(Branch(loops[0].body, []), loops[0]))


def raises(site: str) -> bool:
    """Tell whether a line raises an exception by itself, instead of calling what fails."""
    tree, line = _at(site)
    return any(
        isinstance(node, ast.Raise | ast.Assert) and node.lineno <= line <= (node.end_lineno or 0)
        for node in ast.walk(tree or ast.Module([], []))
    )


def collectives_below(file: str, names: Collection[str], ran: Collection[int]) -> Iterator[tuple[str, bool]]:
    """Yield the source of each call of a collective in a file, and whether a rank ran it."""
    for node in ast.walk(parse(file) or ast.Module(body=[], type_ignores=[])):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", None)) in names:
            yield ast.unparse(node), node.lineno in ran


def holds_lock(tree: ast.Module, call: ast.Call) -> bool:
    """Tell whether a call lies in a `with` statement of a lock."""
    return any(
        isinstance(node, ast.With)
        and node.lineno <= call.lineno <= (node.end_lineno or 0)
        and any("lock" in ast.unparse(item.context_expr).lower() for item in node.items)
        for node in ast.walk(tree)
    )


def depends_on_rank(call: ast.Call) -> bool:
    """Tell whether the arguments of a call mention the rank."""
    return any("rank" in ast.unparse(value).lower() for value in (*call.args, *(k.value for k in call.keywords)))


def calls_with(tree: ast.Module, keyword: str) -> Iterator[ast.Call]:
    """Yield the calls that pass `keyword=True`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and any(
            k.arg == keyword and isinstance(k.value, ast.Constant) and k.value.value is True for k in node.keywords
        ):
            yield node


def calls_of(file: str, name: str) -> Iterator[ast.Call]:
    """Yield the calls of a function or class in a file, under its own name."""
    for node in ast.walk(parse(file) or ast.Module(body=[], type_ignores=[])):
        if isinstance(node, ast.Call) and name == getattr(node.func, "attr", getattr(node.func, "id", None)):
            yield node


@cache
def clock_starts(file: str) -> dict[int, str]:
    """Return the variables that are assigned the result of a call, by line."""
    found: dict[int, str] = {}
    for node in ast.walk(parse(file) or ast.Module(body=[], type_ignores=[])):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            found |= {line: ast.unparse(node.targets[0]) for line in _lines(node)}
    return found


@cache
def clock_differences(file: str) -> dict[int, set[str]]:
    """Return the variables that are subtracted from the result of a call, by line."""
    found: dict[int, set[str]] = {}
    for node in ast.walk(parse(file) or ast.Module(body=[], type_ignores=[])):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and isinstance(node.left, ast.Call):
            for line in _lines(node):
                found.setdefault(line, set()).add(ast.unparse(node.right))
    return found


def _lines(node: ast.stmt | ast.expr) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)
