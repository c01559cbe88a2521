"""Addresses such as s3://bucket/name: recognised; and passwords in them, hidden before they are written anywhere."""

import re
from pathlib import Path

ADDRESS = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+):/+(?=[^/])")
"""Of something in an object store. With one slash too: a Path joins two of them."""

PASSWORD = re.compile(r"(?<![\w+.-])([A-Za-z][\w+.-]*:/{1,2}[^/@\s:]*):([^/@\s]+)@")
"""With one slash too: a Path joins two of them."""


def storage_address(text: Path | str) -> str | None:
    """Return the address of something in an object store, s3://bucket/name; None for a path of this machine."""
    found = ADDRESS.match(str(text))
    return None if found is None else f"{found[1].lower()}://{str(text)[found.end() :].rstrip('/')}"


def has_password(text: str) -> bool:
    """Tell whether a text contains an address with a password."""
    return PASSWORD.search(text) is not None


def hide_passwords(text: str) -> str:
    """Return a text in which the passwords of addresses are replaced by stars."""
    return PASSWORD.sub(r"\1:***@", text)
