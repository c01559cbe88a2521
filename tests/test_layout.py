"""The layout of the checkout: which of its folders may import from which."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from paceline.cli import COMMANDS
from paceline.records.folder import RunFolder

ROOT = Path(__file__).parents[1]


def imported_modules(path: Path) -> Iterator[str]:
    """Yield the absolute name of everything that a file imports, `from a import b` as a.b."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else ()
            source = [*above, *filter(None, [node.module])]
            yield from (".".join([*source, alias.name]) for alias in node.names)


def imports_below(folder: str) -> set[tuple[str, str]]:
    """Return every file below a folder of the checkout with each name that it imports."""
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files, folder
    return {(str(path.relative_to(ROOT)), name) for path in files for name in imported_modules(path)}


def test_benchmarks_and_the_lab_import_nothing_from_the_tests():
    imports = imports_below("benchmarks") | imports_below("lab")
    assert [(path, name) for path, name in sorted(imports) if name.split(".")[0] == "tests"] == []


def test_the_lab_imports_no_benchmark():
    assert [(path, name) for path, name in sorted(imports_below("lab")) if name.split(".")[0] == "benchmarks"] == []


def test_no_file_imports_from_a_test_module():
    """What several tests share belongs in a helper module or in a conftest.py."""
    ours = [(path, name) for path, name in sorted(imports_below("tests")) if name.startswith("tests.")]
    assert [(path, name) for path, name in ours if any(part.startswith("test_") for part in name.split("."))] == []


LAUNCHER_VARIABLE = re.compile(
    r"(LOCAL_|GROUP_)?RANK|(LOCAL_)?WORLD_SIZE|MASTER_(ADDR|PORT)|(TORCHELASTIC|SLURM|OMPI|PMI|PMIX|MV2|PALS|FLUX)_\w+"
)
LAUNCHERS = {"parallel/detect.py", "parallel/launchers.py", "parallel/nodes.py"}
COPIES = {"records/environment.py", "observe/attached/paceline_attach/journal.py", "trackers/wandb.py"}
"""Files that copy them into the record of a run, or keep a secret among them out of it."""
ATTACHED = {f"audit/attached/paceline_audit/{name}.py" for name in ("cuda_stubs", "gloo", "rank_end")}
"""Files that stand in for torch.cuda and NCCL in foreign scripts, or note what those scripts set."""


def literals_of_source() -> Iterator[tuple[str, str]]:
    """Yield every string literal of the package that is no docstring, with its file."""
    source = ROOT / "src" / "paceline"
    for path in sorted(source.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
                yield str(path.relative_to(source)), node.value


def test_only_the_detection_of_ranks_reads_the_variables_of_launchers():
    readers = {path for path, text in literals_of_source() if LAUNCHER_VARIABLE.fullmatch(text)}
    assert readers - COPIES - ATTACHED == LAUNCHERS


def test_only_the_run_folder_knows_the_names_of_its_files():
    folder = RunFolder(Path())
    places = [getattr(folder, name) for name, kind in vars(RunFolder).items() if isinstance(kind, property)]
    names = {place.name for place in places if isinstance(place, Path) and place.suffix}
    assert {"config.toml", "metrics.jsonl", "report.html"} <= names
    found = {(path, text) for path, text in literals_of_source() if text in names or text.startswith("step-")}
    others = {(path, text) for path, text in found if path != "records/folder.py"}
    assert {
        path for path, text in others if text != "log.txt"
    } == set()  # benchmarks and verify have a log of their own


def test_every_command_is_a_verb_in_a_file_of_its_own():
    helpers = {"__init__", "defaults", "settings_files", "short_help", "status_line", "welcome"}
    files = {path.stem for path in (ROOT / "src" / "paceline" / "commands").glob("*.py")} - helpers
    assert files == set(COMMANDS)
    lines = {name: len((ROOT / f"src/paceline/commands/{name}.py").read_text().splitlines()) for name in files}
    assert {name for name, number in lines.items() if number > 122} <= {
        "data",
        "runs",
        "submit",
    }  # four verbs or engines
    assert max(lines.values()) <= 160


def modules() -> list[Path]:
    """Return the modules of the package, without those whose name is given by Python."""
    found = sorted((ROOT / "src" / "paceline").rglob("*.py"))
    return [path for path in found if not path.stem.startswith("__") and path.stem != "sitecustomize"]


def test_a_file_name_stands_for_one_module():
    """A command may have the name of the module that it calls."""
    stems = Counter(path.stem for path in modules())
    assert {stem for stem, number in stems.items() if number > 1} <= set(COMMANDS)


ENTRY_POINTS = {"main", "install"}
"""Functions that each program, and each part that is attached to a foreign process, has."""


def test_a_public_name_stands_for_one_thing():
    defined = Counter(
        node.name
        for path in modules()
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
    )
    attached = {"follow"}  # samples, collectives and calls of a foreign script: the same verb in each
    assert {name for name, number in defined.items() if number > 1} <= ENTRY_POINTS | attached


def test_functions_and_files_stay_short():
    for path in modules():
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 300, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
                assert node.end_lineno - node.lineno < 60, (path, node.name)
