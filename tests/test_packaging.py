"""Wheel and sdist: what they contain and declare, and that the wheel works without the checkout."""

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

import paceline
from tests.conftest import LONGEST

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def run(*words, cwd: Path) -> str:
    """Run a command without the variables that would lead Python to the checkout, and return its output."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environ |= {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        list(map(str, words)), cwd=cwd, env=environ, capture_output=True, text=True, timeout=LONGEST, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """Build an sdist of the checkout, and a wheel from the unpacked sdist; return their folder."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, cwd=ROOT)
    (sdist,) = folder.glob("*.tar.gz")
    run("tar", "--extract", "--file", sdist, "--strip-components=1", "--one-top-level=unpacked", cwd=folder)
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=folder / "unpacked")
    return folder


@pytest.fixture(scope="module")
def wheel(built) -> Path:
    return next(built.glob("*.whl"))


@pytest.fixture(scope="module")
def metadata(wheel) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


@pytest.fixture(scope="module")
def clean(wheel, tmp_path_factory) -> Path:
    """Install the wheel into an environment that has our dependencies, but neither Paceline nor its checkout."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    install = ["install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check"]
    run(sys.executable, "-m", "pip", "--python", python, *install, wheel, cwd=folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")  # its .pth files are not read
    return python.parent


def test_a_wheel_from_the_sdist_has_every_file_of_the_package(wheel):
    source = ROOT / "src"
    ours = {str(path.relative_to(source)) for path in (source / "paceline").rglob("*") if path.is_file()}
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert packed == {name for name in ours if "__pycache__" not in name}
    assert "paceline/project/train.toml.txt" in packed


def test_the_licences_of_the_embedded_data_are_declared_and_shipped(wheel, metadata):
    assert metadata["License-Expression"] == "Apache-2.0 AND CC-BY-4.0"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (notice,) = [name for name in names if name.endswith("licenses/NOTICE")]
        text = archive.read(notice).decode()
    assert [name for name in names if name.endswith("licenses/LICENSE")]
    embedded = [name for name in names if re.fullmatch(r"paceline/data/sources/[^/]+\.(npz|gz|txt)", name)]
    assert len(embedded) >= 3
    assert not [name for name in embedded if Path(name).name not in text]


def test_the_package_page_has_absolute_links_only(metadata):
    text = metadata.get_payload()
    assert isinstance(text, str)
    assert "pip install paceline" in text
    links = [*re.findall(r"\]\(([^)]+)\)", text), *re.findall(r'(?:src|href)="([^"]+)"', text)]
    assert len(links) > 10
    assert not [link for link in links if not link.startswith("https://")]


def test_the_links_of_the_project_lead_to_one_repository(metadata):
    urls = dict(line.split(", ", 1) for line in metadata.get_all("Project-URL", []))
    assert {"Homepage", "Documentation", "Changelog", "Issues"} <= urls.keys()
    assert not [url for url in urls.values() if not url.startswith(urls["Homepage"])]


def test_every_python_that_is_declared_was_tested(metadata):
    declared = {line.split(" :: ")[-1] for line in metadata.get_all("Classifier", []) if "Python :: 3." in line}
    table = (ROOT / "docs" / "versions.md").read_text()
    tested = {row.split("|")[1].strip() for row in table.splitlines() if row.startswith("|") and "all tests" in row}
    assert declared
    assert declared <= tested
    assert metadata["Requires-Python"] == ">=" + min(declared)


def test_the_version_is_in_one_place():
    assert paceline.__version__ == PROJECT["version"]
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "src").rglob("*.txt")]
    assert not [path for path in files if f'"{PROJECT["version"]}"' in path.read_text(encoding="utf-8")]


def test_the_changelog_begins_with_what_comes_next():
    heads = re.findall(r"^## (.+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heads[0] == "Unreleased"


@pytest.mark.slow
def test_an_installed_wheel_works_without_the_checkout(clean, tmp_path):
    where = run(clean / "python", "-c", "import paceline; print(paceline.__file__)", cwd=tmp_path)
    assert where.startswith(str(clean.parent))
    assert run(clean / "paceline", "--version", cwd=tmp_path).strip() == PROJECT["version"]
    assert "cifar10-fast" in run(clean / "paceline", "recipes", cwd=tmp_path)
    run(clean / "paceline", "new", "flowers", cwd=tmp_path)
    project = tmp_path / "flowers"
    text = run(clean / "paceline", "train", "--config", "train.toml", "--steps", "2", "--nproc", "2", cwd=project)
    assert "2 ranks, started by" in text
    run(clean / "paceline", "report", "flowers", cwd=project)
    assert list(project.glob("runs/flowers/001/report.html"))
