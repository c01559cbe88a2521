"""Passwords in addresses are found and hidden, and nothing else is taken for one."""

from pathlib import Path

import pytest

from paceline.core.addresses import has_password, hide_passwords
from paceline.core.config import Config
from paceline.core.errors import SettingError


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("s3://key:secret@bucket/a", "s3://key:***@bucket/a"),
        ("--init=postgres://:secret@host", "--init=postgres://:***@host"),
        (str(Path("s3://key:secret@bucket")), "s3:/key:***@bucket"),
    ],
)
def test_a_password_in_an_address_is_hidden(text, hidden):
    assert has_password(text)
    assert hide_passwords(text) == hidden


@pytest.mark.parametrize(
    "text",
    ["folder:/a/b@c", "my.py:build", "tcp://host:29500", "https://user@host/x:y@z", "a b: c@d", "file:///a:b/c@d"],
)
def test_other_texts_stay_as_they_are(text):
    assert not has_password(text)
    assert hide_passwords(text) == text


def test_a_setting_with_a_password_is_refused_without_showing_it():
    with pytest.raises(SettingError, match="--data-dir has a password") as refused:
        Config(data_dir=Path("s3://key:secret@bucket"))
    assert "secret" not in f"{refused.value.message} {refused.value.hint}"


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[31mred", "x" * 300, "\udcff"])
def test_a_name_that_a_terminal_or_disk_would_not_take_is_refused(name):
    with pytest.raises(SettingError, match="--name") as refused:
        Config(name=name)
    assert refused.value.message.isprintable()
