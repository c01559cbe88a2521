"""CINIC-10 from its folders."""

import pytest

from paceline.core.errors import DataError
from paceline.data.sources import cinic
from paceline.data.sources.cinic import open_cinic10
from tests.data.pictures import write_classes


def test_cinic_has_its_own_size_and_is_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(
        cinic,
        "CINIC10",
        cinic.CINIC10.__class__(
            name="cinic10", title="", num_train=4, num_test=2, num_classes=2, image="", download_bytes=0
        ),
    )
    for split, num in (("train", 2), ("valid", 2), ("test", 1)):
        write_classes(tmp_path / "cinic10" / split, ["airplane", "bird"], num=num, size=(32, 32), form="PNG")
    data = open_cinic10(tmp_path)
    assert data.image_shape == (3, 32, 32)
    assert (len(data.train), len(data.test)) == (4, 2)
    (tmp_path / "cinic10" / "train" / "bird" / "0.png").unlink()
    with pytest.raises(DataError, match="has 3 images, cinic10 has 4 there"):
        open_cinic10(tmp_path)
