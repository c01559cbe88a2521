"""The user's own code: found, called with what it takes, and blamed with file and line."""

import os
import sys
from pathlib import Path

import pytest

from paceline.core.errors import ModelError
from paceline.core.plugin import call_plugin, code_files, is_plugin, load_plugin

OFFERED = {"num_classes": 10, "in_channels": 3}


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Return a function that writes my.py into the working directory."""
    monkeypatch.chdir(tmp_path)

    def write_file(text):
        path = tmp_path / "my.py"
        path.write_text(text, encoding="utf-8")
        return path

    return write_file


def call(name="my.py:build"):
    return call_plugin(name, load_plugin(name, ModelError), OFFERED, ModelError)


@pytest.mark.parametrize("name", ["my.py:build", "my.py", "a/b.py:Net", "./my:build", "torch.optim:SGD", "a.b.c:d"])
def test_a_path_is_a_plugin(name):
    assert is_plugin(name)


@pytest.mark.parametrize("name", ["resnet20", "timm:resnet18", "torchvision:vit_b_16", "text:a.b", "10.0.0.1:80"])
def test_a_name_is_no_plugin(name):
    assert not is_plugin(name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def build(): return 'bare'", "bare"),
        ("def build(num_classes): return num_classes", 10),
        ("def build(**everything): return everything", OFFERED),
        ("def build(in_channels=1, width=7): return in_channels, width", (3, 7)),
        ("build = lambda num_classes: -num_classes", -10),
    ],
)
def test_a_function_gets_the_arguments_that_it_takes(write, text, expected):
    write(text)
    assert call() == expected


def test_a_class_is_called_like_a_function(write):
    write("class Net:\n    def __init__(self, num_classes):\n        self.n = num_classes")
    assert call("my.py:Net").n == 10


def test_a_file_may_hold_dataclasses_and_be_found_by_pickle(write):
    write("import dataclasses\n@dataclasses.dataclass\nclass Net:\n    num_classes: int")
    net = call("my.py:Net")
    assert sys.modules[type(net).__module__].Net is type(net)


def test_two_files_of_one_name_do_not_mix(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "my.py").write_text(f"class Net:\n    place = '{folder}'")
    nets = [load_plugin(f"{tmp_path / folder}/my.py:Net", ModelError) for folder in ("a", "b")]
    assert [sys.modules[net.__module__].Net for net in nets] == nets


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("my.py", "my.py does not name a function", "write my.py:build"),
        ("no.py:build", "no.py does not exist", "looked for /"),
        ("my.py:biuld", "my.py has no function or class biuld", "did you mean build?"),
        ("my.py:number", "my.py has no function or class number", "known: build"),
    ],
)
def test_a_plugin_that_cannot_be_found_is_explained(write, name, message, hint):
    write("number = 3\ndef build(): pass")
    with pytest.raises(ModelError) as caught:
        load_plugin(name, ModelError)
    assert caught.value.message == message
    assert hint in str(caught.value.hint)


def test_a_file_that_does_not_import_is_blamed_with_its_line(write):
    write("\n\nimport nosuchmodule\ndef build(): pass").rename("broken.py")
    with pytest.raises(ModelError, match=r"^broken.py cannot be imported: ModuleNotFoundError: .*nosuch") as caught:
        load_plugin("broken.py:build", ModelError)
    assert "broken.py, line 3" in str(caught.value.hint)
    assert not [name for name in sys.modules if name.startswith("paceline_plugin_broken")]


def test_a_file_with_a_syntax_error_is_blamed_with_its_line(write):
    write("def build(:\n")
    with pytest.raises(ModelError, match=r"^my.py cannot be imported: SyntaxError") as caught:
        load_plugin("my.py:build", ModelError)
    assert str(caught.value.hint).endswith("my.py, line 1")


def test_a_function_that_raises_is_blamed_with_its_line_and_arguments(write):
    write("def build(num_classes):\n    return 1 / 0")
    with pytest.raises(ModelError, match=r"^my.py:build raised ZeroDivisionError: division by zero(?m:$)") as caught:
        call()
    assert "my.py, line 2; it was called with {'num_classes': 10}" in str(caught.value.hint)


def test_a_function_that_needs_more_is_blamed(write):
    write("def build(depth): pass")
    with pytest.raises(ModelError, match=r"^my.py:build raised TypeError: .*'depth'"):
        call()


def test_the_code_of_a_plugin_is_its_file_and_the_modules_beside_it(write, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "layers_of_mine").mkdir()
    (tmp_path / "layers_of_mine" / "block.py").write_text("size = 3")
    (tmp_path / "never_imported.py").write_text("")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "pytest.py").write_text("")  # of the same name as an installed module
    write("import json, numpy, paceline, pytest\nfrom layers_of_mine.block import size\ndef build(): pass")
    call()
    assert code_files(["my.py:build", "resnet20", "my.py:build"]) == {
        "layers_of_mine/block.py": tmp_path / "layers_of_mine" / "block.py",
        "my.py": tmp_path / "my.py",
    }
    absolute = code_files([f"{tmp_path}/my.py:build"])
    assert list(absolute) == [f"{tmp_path}/layers_of_mine/block.py", f"{tmp_path}/my.py"]


def test_installed_modules_are_not_the_users_code(write):
    write("def build(): pass")
    call()
    root = Path(sys.prefix).resolve()
    installed = code_files([f"{root}/my.py:build"])
    assert list(installed) == [f"{root}/my.py"]


def test_packages_of_the_user_site_are_not_the_users_code(write, tmp_path, monkeypatch):
    site = tmp_path / ".local" / "lib" / "python3" / "site-packages"
    site.mkdir(parents=True)
    (site / "installed_by_the_user.py").write_text("")
    monkeypatch.syspath_prepend(site)
    write("import installed_by_the_user\ndef build(): pass")
    call()
    assert list(code_files(["my.py:build"])) == ["my.py"]


def test_an_edit_within_a_second_that_keeps_the_size_counts(write, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = write("def build():\n    return 1\n")
    before = path.stat()
    assert call() == 1
    write("def build():\n    return 2\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert call() == 2


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Return a function that writes a package of this name with net.py, which imports a sibling."""
    monkeypatch.setattr(sys, "modules", sys.modules.copy())

    def write_package(name, *, init=""):
        folder = tmp_path / name
        (folder / "sub").mkdir(parents=True)
        (folder / "__init__.py").write_text(init)
        (folder / "sub" / "__init__.py").touch()
        (folder / "layers.py").write_text("WIDTH = 3\n")
        (folder / "net.py").write_text("from .layers import WIDTH\ndef build():\n    return WIDTH\n")
        (folder / "sub" / "net.py").write_text(
            f"from ..layers import WIDTH\ndef build():\n    import {name}.net\n    return WIDTH, {name}.net.build()\n"
        )
        return folder

    return write_package


def test_a_file_in_a_package_may_use_relative_imports(package):
    folder = package("own_package")
    before = list(sys.path)
    assert load_plugin(f"{folder / 'net.py'}:build", ModelError)() == 3
    assert load_plugin(f"{folder / 'sub' / 'net.py'}:build", ModelError)() == (3, 3)
    assert sys.path == before


def test_a_package_whose_init_fails_is_blamed_with_its_line(package):
    folder = package("own_broken_package", init="\n1 / 0\n")
    with pytest.raises(ModelError, match="ZeroDivisionError") as caught:
        load_plugin(f"{folder / 'net.py'}:build", ModelError)
    assert str(caught.value.hint) == f"{folder / '__init__.py'}, line 2"
    assert "own_broken_package" not in sys.modules


def test_a_package_never_shadows_an_installed_one(package):
    folder = package("numpy")
    (folder / "alone.py").write_text("import numpy\ndef build():\n    return numpy.__name__, numpy.__file__\n")
    name, file = load_plugin(f"{folder / 'alone.py'}:build", ModelError)()
    assert name == "numpy"
    assert not file.startswith(str(folder))


def test_a_call_with_missing_arguments_lists_what_is_offered(tmp_path: Path) -> None:
    file = tmp_path / "needs.py"
    file.write_text("def build(cfg):\n    return cfg\n")
    with pytest.raises(ModelError) as raised:
        call_plugin("needs.py:build", load_plugin(f"{file}:build", ModelError), {"num_classes": 4}, ModelError)
    assert raised.value.hint == f"{file}, line 1; it was called with {{}}; it may also take num_classes"
