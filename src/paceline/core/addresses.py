"""Passwords in addresses such as s3://key:PASSWORD@bucket: found, and hidden before they are written anywhere."""

import re

PASSWORD = re.compile(r"(?<![\w+.-])([A-Za-z][\w+.-]*:/{1,2}[^/@\s:]*):([^/@\s]+)@")
"""With one slash too: a Path joins two of them."""


def has_password(text: str) -> bool:
    """Tell whether a text contains an address with a password."""
    return PASSWORD.search(text) is not None


def hide_passwords(text: str) -> str:
    """Return a text in which the passwords of addresses are replaced by stars."""
    return PASSWORD.sub(r"\1:***@", text)
