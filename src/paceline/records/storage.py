"""Files in object stores such as s3:// and gs://, through fsspec: whole files up and down, and errors as sentences."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from paceline.core.errors import StorageError

LOCAL = ("file", "local")


class Storage:
    """A folder in an object store."""

    def __init__(self, address: str) -> None:
        self.address = address

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        from fsspec.core import url_to_fs  # noqa: PLC0415 - takes long, and few runs use it

        scheme = self.address.partition("://")[0]
        options: dict[str, Any] = {"auto_mkdir": True} if scheme in LOCAL else {"use_listings_cache": False}
        with self._explained("open"):
            return url_to_fs(self.address, **options)

    def put(self, file: Path, name: str) -> None:
        """Copy a file of this machine to a name in the folder."""
        fs, root = self._opened
        with file.open("rb"), self._explained(f"write {name} to"):  # a missing file is no error of the store
            fs.put_file(str(file), f"{root}/{name}")

    def get(self, name: str, file: Path) -> None:
        """Copy a file of the folder to this machine."""
        fs, root = self._opened
        with self._explained(f"read {name} from"):
            fs.get_file(f"{root}/{name}", str(file))

    def read(self, name: str, start: int, end: int) -> bytes:
        """Return some bytes of a file in the folder."""
        fs, root = self._opened
        with self._explained(f"read {name} from"):
            return fs.cat_file(f"{root}/{name}", start=start, end=end)

    def size(self, name: str) -> int:
        """Return the number of bytes of a file in the folder."""
        fs, root = self._opened
        with self._explained(f"read {name} from"):
            return int(fs.info(f"{root}/{name}")["size"])

    def sizes(self, below: str = "") -> dict[str, int]:
        """Return the number of bytes of every file below the folder, or a folder in it, by name."""
        fs, root = self._opened
        with self._explained("list"):
            found = fs.find(f"{root}/{below}".rstrip("/"), detail=True)
        skipped = len(root.strip("/")) + 1
        return {path.strip("/")[skipped:]: int(facts["size"]) for path, facts in found.items()}

    def remove(self, names: list[str]) -> None:
        """Remove files of the folder."""
        if not names:  # an error for fsspec
            return
        fs, root = self._opened
        with self._explained("remove files from"):
            fs.rm([f"{root}/{name}" for name in names])

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except ImportError as cause:
            raise StorageError(
                f"cannot open {self.address}: {str(cause).rstrip('.')}",
                hint="for s3://, install it: pip install 'paceline[s3]'",
            ) from cause
        except Exception as cause:  # every store has errors of its own
            reason = str(cause).strip().splitlines()
            text = f"{type(cause).__name__}{': ' + reason[0] if reason else ''}"
            raise StorageError(
                f"cannot {what} {self.address}: {text}",
                hint="check the address, the credentials (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, …) and the network",
            ) from cause
