"""The published sets: their files, and whether they are on this machine."""

import re

import pytest

from paceline.core.errors import DataError
from paceline.data.inventory import list_published, published_set
from tests.data.pictures import write_classes


def test_every_set_says_where_it_is_expected_and_that_it_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr("paceline.data.sources.fashion._DEBIAN", tmp_path / "nothing")
    listed = list_published(tmp_path)
    assert [one.published.name for one in listed] == ["cifar10", "cifar100", "cinic10", "fashion-mnist", "imagenet"]
    assert all(one.found is None and one.expected == tmp_path / one.published.name for one in listed)


def test_sets_that_are_there_are_found(tmp_path):
    (tmp_path / "cifar-10-batches-bin").mkdir()
    write_classes(tmp_path / "cinic10" / "train", ["airplane"])
    write_classes(tmp_path / "imagenet" / "train", ["n01440764"])
    write_classes(tmp_path / "imagenet" / "val", ["n01440764"])
    found = {one.published.name: one.found for one in list_published(tmp_path)}
    assert found["cifar10"] == tmp_path / "cifar-10-batches-bin"
    assert found["cinic10"] == tmp_path / "cinic10"
    assert found["imagenet"] == tmp_path / "imagenet"
    assert found["cifar100"] is None


def test_every_md5_and_address_looks_like_one(tmp_path):
    for published, _, _ in list_published(tmp_path):
        assert published.remotes
        for remote in (*published.remotes, *published.alternatives):
            assert re.fullmatch(r"[0-9a-f]{32}", remote.md5 or "")
            assert remote.url is None or remote.url.endswith(remote.file)
        assert all(re.fullmatch(r"[0-9a-f]{32}", md5) for md5 in published.contents.values())


def test_an_unknown_set_gets_the_nearest_name():
    assert published_set("cinic10").num_train == 90_000
    with pytest.raises(DataError, match="no published set cifar") as caught:
        published_set("cifar")
    assert "did you mean cifar10" in (caught.value.hint or "")
