"""Whether an epoch may be cut short: a loop ends at StopIteration, an explicit `next` that nobody guards fails."""

import ast
import dis
from functools import cache
from types import FrameType

FOR_ITER = dis.opmap["FOR_ITER"]
MOST_FRAMES = 6
ANY = frozenset({"Exception", "BaseException"})


def may_stop(frame: FrameType | None) -> bool:
    """Tell whether the code that asks for a batch expects StopIteration."""
    if frame is None or _is_loop(frame) or not _calls_next(frame.f_code.co_filename, frame.f_lineno):
        return True
    for depth in range(MOST_FRAMES):
        if frame is None:
            return False
        caught = _caught(frame.f_code.co_filename, frame.f_lineno)
        if "StopIteration" in caught or (depth == 0 and caught & ANY):
            return True
        frame = frame.f_back
    return False


def _is_loop(frame: FrameType) -> bool:
    return 0 <= frame.f_lasti < len(frame.f_code.co_code) and frame.f_code.co_code[frame.f_lasti] == FOR_ITER


@cache
def _tree(file: str) -> ast.AST:
    try:
        with open(file, encoding="utf-8", errors="replace") as source:
            return ast.parse(source.read())
    except (OSError, SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])


def _covers(node: ast.expr | ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


@cache
def _calls_next(file: str, line: int) -> bool:
    """Tell whether a line calls next() without a default; other functions end at StopIteration by themselves."""
    for node in ast.walk(_tree(file)):
        if isinstance(node, ast.Call) and _covers(node, line):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if (name == "next" and len(node.args) == 1) or name == "__next__":
                return True
    return False


@cache
def _caught(file: str, line: int) -> frozenset[str]:
    """Return the names of the exceptions that are caught around a line."""
    found: set[str] = set()
    for node in ast.walk(_tree(file)):
        if isinstance(node, ast.Try) and any(_covers(statement, line) for statement in node.body):
            for handler in node.handlers:
                found.update(("BaseException",) if handler.type is None else _names(handler.type))
    return frozenset(found)


def _names(node: ast.expr) -> list[str]:
    nodes = node.elts if isinstance(node, ast.Tuple) else [node]
    return [ast.unparse(each).rpartition(".")[2] for each in nodes]
