"""What the tests of packs share."""

import pytest

from tests.data.pictures import write_classes


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "pictures"
    write_classes(folder / "train", ["cat", "dog"], num=5, size=(60, 90))
    write_classes(folder / "val", ["cat", "dog"], num=2, size=(40, 40), form="PNG")
    return folder


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out" / "set.pack"
