"""Imports Paceline with "cuda" read as the name of the simulated device, and installs that device before torch is used.

`torch.device("cuda")` cannot be taken over, so the loader renames string literals and `torch.cuda` in Paceline's syntax
trees. All other code, torch included, is imported unchanged.
"""

import ast
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any

from tests.sim.entries import PACKAGE
from tests.sim.names import NAME


class Renamer(ast.NodeTransformer):
    """Renames the literal "cuda" and the attribute torch.cuda."""

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return ast.copy_location(ast.Constant(NAME), node) if node.value == "cuda" else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.Attribute:
        self.generic_visit(node)
        if node.attr == "cuda" and isinstance(node.value, ast.Name) and node.value.id == "torch":
            node.attr = NAME
        return node


class Loader(SourceFileLoader):
    """Compiles a renamed module, never from cached bytecode, and installs the device before the first use of torch."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return compile(Renamer().visit(ast.parse(self.get_data(path), path)), path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        source = self.get_data(self.get_filename(module.__name__))
        if b"import torch" in source or b"from torch" in source:
            from tests.sim.install import install_device

            install_device()
        super().exec_module(module)
        from tests.sim.phases import AFTER_IMPORT

        change: Callable[[Any], None] | None = AFTER_IMPORT.get(module.__name__)
        if change is not None:
            change(module)


class Finder:
    """Finds the modules of Paceline, and leaves all others to Python."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name.partition(".")[0] != PACKAGE:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = Loader(spec.loader.name, spec.loader.path)
        return spec


def simulated_argv(argv: Sequence[str]) -> list[str]:
    """Return the arguments of a command with the simulated device in place of cuda."""
    return [NAME + arg.removeprefix("cuda") if arg == "cuda" or arg.startswith("cuda:") else arg for arg in argv]


def rename_cuda() -> None:
    """Rename in every module of Paceline that is imported from now on, and in the arguments of this process."""
    sys.argv[1:] = simulated_argv(sys.argv[1:])
    sys.meta_path.insert(0, Finder())
