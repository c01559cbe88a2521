"""Importing torch's compiler only when something is compiled: importing it takes as long as the rest of torch.

Every optimizer and DDP imports torch._dynamo, only to tell a compiler which of their functions it must not compile.
"""

import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

DYNAMO = "torch._dynamo"
CACHE = "__dynamo_disable"
"""torch stores what `disable` returns for a function under this attribute of the function."""


def defer_dynamo() -> None:
    """Let `import torch._dynamo` run its code only when more of it is used than optimizers and DDP use."""
    if DYNAMO not in sys.modules:
        sys.meta_path.insert(0, DeferringFinder(DYNAMO))


class DeferredPackage(ModuleType):
    """A package whose code has not run yet; the first use of anything that the finder does not offer runs it."""

    def __getattr__(self, name: str) -> Any:
        loader = self.__dict__.get("__loader__")
        if isinstance(loader, DeferringFinder) and not name.startswith("__"):
            loader.run_code()
        if name in vars(self):
            return vars(self)[name]
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}", name=name, obj=self)


class DeferringFinder(MetaPathFinder, Loader):
    """Finds one package and defers its code until it is needed; leaves all other modules to Python."""

    def __init__(self, package: str) -> None:
        self._package = package
        self._lock = threading.RLock()
        self._is_running = False
        self._disabled: list[Callable[..., Any]] = []

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the package. Its code runs before any of its modules is imported."""
        if fullname == self._package:
            spec = PathFinder.find_spec(fullname, path, target)
            if spec is None or spec.loader is None:
                return None
            self._code, spec.loader = spec.loader, self
            return spec
        if fullname.startswith(f"{self._package}."):
            self.run_code()
            if fullname in sys.modules:  # removed, because Python would import a module that it finds there again
                return ModuleSpec(fullname, ImportedLoader(sys.modules.pop(fullname)))
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the package without its content."""
        return DeferredPackage(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Offer what optimizers and DDP use, which does nothing as long as nothing is compiled."""
        self._module = module
        self._offered = {"disable": self.disable, "graph_break": lambda msg="": None, "utils": DeferredUtils(self)}
        vars(module).update(self._offered)

    def disable(self, fn: Any = None, recursive: bool = True, **options: Any) -> Any:  # noqa: FBT001, FBT002 - torch's
        """Return the function itself if torch asks, which stores the answer; `run_code` removes it there."""
        if not callable(fn) or options != {"wrapping": False}:
            self.run_code()
            return self._module.disable(fn, recursive, **options)
        self._disabled.append(fn)
        return fn

    def run_code(self) -> None:
        """Run the code of the package, once."""
        with self._lock:
            if self._is_running:  # it has run, or it runs, and this is an import or a name in its own code
                return
            self._is_running = True
            for name in self._offered:
                del vars(self._module)[name]
            self._code.exec_module(self._module)
            for function in self._disabled:
                vars(function).pop(CACHE, None)
            assert self._module.__spec__ is not None
            self._module.__spec__.loader = self._module.__loader__ = self._code
            self._module.__class__ = ModuleType


class DeferredUtils:
    """What stands for torch._dynamo.utils until it is imported."""

    def __init__(self, finder: DeferringFinder) -> None:
        self._finder = finder

    def get_optimize_ddp_mode(self) -> str:
        """Return torch's default: to change it, one uses torch._dynamo.config, which imports everything."""
        return "ddp_optimizer"

    def __getattr__(self, name: str) -> Any:
        self._finder.run_code()
        return getattr(sys.modules[f"{DYNAMO}.utils"], name)


class ImportedLoader(Loader):
    """Loads a module that was imported while Python looked for it."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module as it was."""
        vars(module)["__spec__"] = self._spec  # modules of settings refuse new attributes
