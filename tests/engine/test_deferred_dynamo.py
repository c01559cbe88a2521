"""torch's compiler is imported when something is compiled, and not before."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lab.environment import child_environment
from paceline.engine.deferred_dynamo import CACHE, DeferredPackage, DeferringFinder

PARTS = ["torch._dynamo.utils", "torch._dynamo.symbolic_convert", "torch.distributed.tensor", "sympy"]

TRAINING = """
import atexit, sys
atexit.register(lambda: print("imported", [name for name in {parts!r} if name in sys.modules]))
from paceline.cli import main
main()
"""
USED = """
import sys
from paceline.engine.deferred_dynamo import defer_dynamo
defer_dynamo()
import torch
from torch.nn.parallel import DistributedDataParallel

torch.distributed.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
model = torch.nn.Linear(2, 2)
wrapped = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(wrapped.parameters())
wrapped(torch.ones(1, 2)).sum().backward()
optimizer.step()
optimizer.zero_grad()
optimizer.load_state_dict(optimizer.state_dict())
print([name for name in {parts!r} if name in sys.modules])

import torch._dynamo.utils as utils
assert utils is torch._dynamo.utils and utils is sys.modules["torch._dynamo.utils"]
assert type(torch._dynamo.utils.__spec__.loader) is type(torch._dynamo.__spec__.loader) is type(torch.__spec__.loader)
assert type(torch._dynamo) is type(torch)
assert torch.compile(lambda number: number + 1, backend="eager")(torch.ones(1)) == 2
assert utils.counters["frames"]["ok"] == 1, "it was compiled, and utils is not imported twice"
optimizer.zero_grad()
optimizer.step()
assert torch.optim.Optimizer.zero_grad.__wrapped__.__dict__[{cache!r}].__module__ == "torch._dynamo.eval_frame"
torch.distributed.destroy_process_group()
"""


def python(folder: Path, code: str, *args: object) -> subprocess.CompletedProcess:
    script = folder / "script.py"  # a file: torch compiles no code without one
    script.write_text(code)
    line = [sys.executable, str(script), *map(str, args)]
    return subprocess.run(line, capture_output=True, text=True, check=False, env=child_environment())


def test_optimizers_and_ddp_import_no_compiler_until_something_is_compiled(tmp_path):
    done = python(tmp_path, USED.format(parts=PARTS, cache=CACHE), tmp_path / "store")
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_training_imports_neither_the_compiler_nor_fsdp(elsewhere):
    words = ["train", "--model=mlp", "--steps=2", "--threads=1", "--device=cpu", "--track=none"]
    done = python(elsewhere, TRAINING.format(parts=PARTS), *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "imported []"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Return a package whose code has not run, and the file that its code writes."""
    folder = tmp_path / "slowly_imported"
    folder.mkdir()
    ran = tmp_path / "ran"
    lines = [
        f"__import__('pathlib').Path({str(ran)!r}).touch(exist_ok=False)",
        "from . import inner",
        "value = inner.value",
        "def disable(fn, recursive=True, **options): return 'really disabled'",
    ]
    (folder / "__init__.py").write_text("\n".join(lines))
    (folder / "inner.py").write_text(
        "import slowly_imported\nvalue = number = object()\nearly = hasattr(slowly_imported, 'value')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [DeferringFinder("slowly_imported"), *sys.meta_path])
    yield __import__("slowly_imported"), ran
    for name in [name for name in sys.modules if name.startswith("slowly_imported")]:
        del sys.modules[name]


def test_importing_a_deferred_package_does_not_run_it(package):
    module, ran = package
    assert isinstance(module, DeferredPackage)
    assert not hasattr(module, "__wrapped__"), "as inspect asks of every module"
    assert module.graph_break() is None
    assert not ran.exists()


def test_any_other_use_runs_it_once(package):
    module, ran = package
    assert module.value is module.inner.number
    assert ran.exists()
    assert module.inner.early is False
    assert not isinstance(module, DeferredPackage)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = module.no_such_name


def test_a_module_of_the_package_is_imported_once(package):
    module, _ = package
    from slowly_imported import inner  # pyright: ignore[reportMissingImports]

    assert inner is module.inner
    assert inner.number is module.value, "its code ran once"
    assert inner is sys.modules["slowly_imported.inner"]
    assert inner.__spec__.origin == str(Path(inner.__file__))


def test_what_torch_stored_is_removed_when_the_code_runs(package):
    module, _ = package

    def function() -> None: ...

    function.__dict__[CACHE] = module.disable(function, True, wrapping=False)
    assert function.__dict__[CACHE] is function
    assert module.value is module.inner.number
    assert CACHE not in function.__dict__


def test_a_user_who_disables_compilation_gets_the_real_function(package):
    module, ran = package
    assert module.disable(print, reason="mine") == "really disabled"
    assert ran.exists()


def test_what_is_offered_is_what_this_torch_uses():
    """The names of torch that the deferral relies on: with others the compiler would be imported as usual."""
    torch_folder = Path(torch.__file__).parent
    compile_source = (torch_folder / "_compile.py").read_text()
    assert "disable_fn = torch._dynamo.disable(fn, recursive, wrapping=False)" in compile_source
    assert f"fn.{CACHE} = disable_fn" in compile_source
    assert "torch._dynamo.graph_break()" in (torch_folder / "optim/optimizer.py").read_text()
    ddp = (torch_folder / "nn/parallel/distributed.py").read_text()
    assert 'torch._dynamo.utils.get_optimize_ddp_mode() == "python_reducer"' in ddp
