"""The md5 of files."""

import pytest

from paceline.core.errors import DataError
from paceline.data.source_files import md5_of, require_md5

MD5_OF_ABC = "900150983cd24fb0d6963f7d28e17f72"


def test_the_md5_is_that_of_the_content(tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    assert md5_of(tmp_path / "file") == MD5_OF_ABC
    require_md5(tmp_path / "file", MD5_OF_ABC)


def test_another_content_is_refused_with_both_md5s(tmp_path):
    (tmp_path / "file").write_bytes(b"abd")
    with pytest.raises(DataError, match=rf"file is damaged or another file: its md5 is \w+, expected {MD5_OF_ABC}"):
        require_md5(tmp_path / "file", MD5_OF_ABC)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(DataError, match="nothing cannot be read: No such file") as caught:
        md5_of(tmp_path / "nothing")
    assert caught.value.hint == f"check the file: ls -l {tmp_path / 'nothing'}"
