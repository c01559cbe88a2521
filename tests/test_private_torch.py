"""The private names of torch that Paceline uses: each is listed here, and exists in the torch that is installed."""

import ast
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from paceline import cli
from paceline.core.torch_names import PACKAGE, TESTED, explain_missing_name

SOURCE = Path(__file__).parents[1] / "src" / "paceline"
PRIVATE = {
    "torch._C",
    "torch._foreach_copy_",
    "torch._foreach_lerp_",
    "torch._ops.OpOverload",
    "torch.autograd.Variable._execution_engine",
    "torch.nn.modules.batchnorm._BatchNorm",
    "torch.nn.modules.batchnorm._NormBase",
    "torch.nn.modules.dropout._DropoutNd",
    "torch.nn.parallel.DistributedDataParallel._sync_buffers",
    "torch.utils._python_dispatch.TorchDispatchMode",
    "torch.utils.data._utils",
    "torch.utils.data.dataloader._BaseDataLoaderIter",
    "torch.utils.data.dataloader._DatasetKind",
}
"""Torch may change them in any version: whoever adds one looks for a public name first."""


def dotted(node: ast.AST) -> str:
    """Return the dotted name of an expression; empty if it is none."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return ""


def names_used(tree: ast.AST) -> Iterator[str]:
    """Yield the full names from torch that a module uses, as it imports or accesses them."""
    known = {"torch": "torch"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            for alias in node.names:
                known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                yield f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            first, _, rest = dotted(node).partition(".")
            if first in known and rest:
                yield f"{known[first]}.{rest}"


def is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def shortest(names: set[str]) -> set[str]:
    """Return the names without those that extend another: a method of a private object is not another name."""
    return {name for name in names if not any(name.startswith(f"{other}.") for other in names)}


def private_names() -> set[str]:
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.rglob("*.py"))]
    return shortest({name for tree in trees for name in names_used(tree) if is_private(name)})


def exists(name: str) -> bool:
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for part in parts[length:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def test_every_private_name_of_torch_is_listed():
    assert private_names() == PRIVATE


def test_every_listed_name_exists_in_this_torch():
    assert [name for name in sorted(PRIVATE) if not exists(name)] == []
    assert not exists("torch._no_such_name"), "the control"


def raised_by(code: str, filename: str) -> Exception:
    """Return the exception of a line of code in a file."""
    try:
        exec(compile(code, filename, "exec"), {"torch": torch})
    except (ImportError, AttributeError) as problem:
        return problem
    raise AssertionError(f"{code} raised nothing")


def lines_that_use(name: str) -> list[str]:
    """Return the ways to use a name: as an attribute, and by an import."""
    place, _, last = name.rpartition(".")
    is_class = place.rpartition(".")[2].lstrip("_")[:1].isupper()
    return [name] if is_class or place == "torch" else [name, f"from {place} import {last}"]


@pytest.mark.parametrize("name", sorted(PRIVATE))
def test_a_torch_without_a_private_name_is_explained_in_a_sentence(name, monkeypatch):
    place, _, last = name.rpartition(".")
    owner = importlib.import_module(place) if place in sys.modules else eval(place, {"torch": torch})
    monkeypatch.delattr(owner, last)
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(torch.utils.data, "__path__", [])  # a module that is removed is not imported again
    for line in lines_that_use(name):
        error = explain_missing_name(raised_by(line, str(PACKAGE / "engine" / "loop.py")))
        assert error is not None, line
        assert error.message.startswith(f"torch {torch.__version__} has no torch.")
        assert error.message.endswith(f".{last}, which Paceline uses")
        assert f"pip install torch=={TESTED}" in (error.hint or "")
        assert explain_missing_name(raised_by(line, "/home/user/my.py")) is None, "the control: not our code"


def test_the_command_line_explains_a_missing_name(monkeypatch, capsys, tmp_path):
    ours: dict[str, object] = {"torch": torch}
    exec(compile("def train(*_, **__): torch._no_such_name", str(PACKAGE / "engine" / "entry.py"), "exec"), ours)
    monkeypatch.setattr("paceline.commands.train.train", ours["train"])
    monkeypatch.chdir(tmp_path)
    assert cli.run(["train", "--model=mlp", "--device=cpu"], {}) == 1
    message = f"paceline: torch {torch.__version__} has no torch._no_such_name, which Paceline uses\n  hint: install"
    assert capsys.readouterr().err.startswith(message)


def test_the_recommended_version_is_the_one_of_the_constraints():
    assert f"torch=={TESTED}" in (SOURCE.parents[1] / "constraints.txt").read_text().splitlines()
