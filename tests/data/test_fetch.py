"""Downloading: from a server of our own that cuts connections, ignores ranges and sends wrong bytes."""

import hashlib
import http.server
import io
import os
import signal
import subprocess
import sys
import tarfile
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from paceline.core.errors import DataError
from paceline.data.fetch import download, fetch_files, unpack
from paceline.data.sources.published import PublishedSet, Remote

CONTENT = bytes(range(256)) * 4000
MD5 = hashlib.md5(CONTENT).hexdigest()


@dataclass
class Behaviour:
    """What the server does; tests change it while it runs."""

    files: dict[str, bytes] = field(default_factory=lambda: {"/file.bin": CONTENT})
    cut_after: list[int] = field(default_factory=list)
    """Bytes after which each of the next answers breaks off."""
    ranges: bool = True
    requests: list[tuple[str, str | None]] = field(default_factory=list)


class Handler(http.server.BaseHTTPRequestHandler):
    behaviour: Behaviour

    def do_GET(self):
        wanted = self.headers.get("Range")
        self.behaviour.requests.append((self.path, wanted))
        if self.path not in self.behaviour.files:
            self.send_error(404)
            return
        content = self.behaviour.files[self.path]
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.behaviour.ranges else 0
        if start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        cut = self.behaviour.cut_after.pop(0) if self.behaviour.cut_after else len(content)
        self.wfile.write(content[start : start + cut])

    def log_message(self, format, *args):  # noqa: A002 - the name that http.server gives it
        pass


@pytest.fixture
def server():
    """Return the behaviour and the address of a running server."""
    behaviour = Behaviour()
    handler = type("TestHandler", (Handler,), {"behaviour": behaviour})
    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield behaviour, f"http://127.0.0.1:{running.server_port}"
    running.shutdown()
    running.server_close()
    thread.join()


def silent(*_):
    pass


def remote(address, **changes):
    return Remote(**{"file": "file.bin", "md5": MD5, "url": f"{address}/file.bin"} | changes)


def known(*remotes, name="things"):
    return PublishedSet(
        name=name, title="", num_train=1, num_test=1, num_classes=1, image="", download_bytes=0, remotes=remotes
    )


def tarball(entries):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in entries.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def test_a_download_is_checked_reported_and_not_repeated(server, tmp_path):
    behaviour, address = server
    reported = []
    path = download(remote(address), tmp_path, lambda *values: reported.append(values))
    assert path.read_bytes() == CONTENT
    assert reported[-1] == ("file.bin", len(CONTENT), len(CONTENT))
    assert [have for _, have, _ in reported] == sorted(have for _, have, _ in reported)
    download(remote(address), tmp_path, silent)
    assert len(behaviour.requests) == 1


def test_a_cut_connection_is_resumed_where_it_stopped(server, tmp_path):
    behaviour, address = server
    behaviour.cut_after = [100_000, 50_000]
    assert download(remote(address), tmp_path, silent).read_bytes() == CONTENT
    assert [wanted for _, wanted in behaviour.requests] == [None, "bytes=100000-", "bytes=150000-"]


def test_a_later_call_continues_what_an_earlier_one_left(server, tmp_path):
    behaviour, address = server
    (tmp_path / "file.bin.partial").write_bytes(CONTENT[:777])
    assert download(remote(address), tmp_path, silent).read_bytes() == CONTENT
    assert behaviour.requests == [("/file.bin", "bytes=777-")]


def test_a_server_without_ranges_sends_everything_again(server, tmp_path):
    behaviour, address = server
    behaviour.ranges = False
    behaviour.cut_after = [100_000]
    assert download(remote(address), tmp_path, silent).read_bytes() == CONTENT


@pytest.mark.parametrize("left", [CONTENT + b"more", b"x" * 500])
def test_a_damaged_or_too_long_remainder_is_thrown_away(server, tmp_path, left):
    _, address = server
    (tmp_path / "file.bin.partial").write_bytes(left)
    assert download(remote(address), tmp_path, silent).read_bytes() == CONTENT


def test_wrong_bytes_are_refused_and_removed(server, tmp_path):
    behaviour, address = server
    behaviour.files["/file.bin"] = CONTENT[:-1] + b"?"
    with pytest.raises(DataError, match=f"expected {MD5}; it was removed"):
        download(remote(address), tmp_path, silent)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_file_in_the_folder_is_fetched_again(server, tmp_path):
    _, address = server
    (tmp_path / "file.bin").write_bytes(b"half of it")
    assert download(remote(address), tmp_path, silent).read_bytes() == CONTENT


def test_offline_the_message_names_file_md5_and_folder(tmp_path):
    with pytest.raises(DataError, match=r"cannot be downloaded: .*refused") as caught:
        download(remote("http://127.0.0.1:9"), tmp_path, silent)
    assert f"put file.bin (md5 {MD5}) into {tmp_path}" in (caught.value.hint or "")


def test_a_connection_that_keeps_breaking_keeps_what_came(server, tmp_path):
    behaviour, address = server
    behaviour.cut_after = [1000] * 10
    with pytest.raises(DataError, match="5 kB are kept; the next call resumes"):
        download(remote(address), tmp_path, silent)
    assert (tmp_path / "file.bin.partial").read_bytes() == CONTENT[:5000]


def test_a_missing_page_is_not_tried_again(server, tmp_path):
    behaviour, address = server
    with pytest.raises(DataError, match="Not Found"):
        download(remote(address, url=f"{address}/gone"), tmp_path, silent)
    assert len(behaviour.requests) == 1


def archive_remote(behaviour, address, content):
    behaviour.files["/set.tar.gz"] = content
    md5 = hashlib.md5(content).hexdigest()
    return Remote(file="set.tar.gz", md5=md5, url=f"{address}/set.tar.gz", unpacks_to="set")


def test_an_archive_is_unpacked_beside_and_renamed(server, tmp_path):
    behaviour, address = server
    source = known(archive_remote(behaviour, address, tarball({"set/a": b"1", "set/deep/b": b"2"})))
    home = fetch_files(source, tmp_path, silent)
    assert home == tmp_path / "things"
    assert (home / "set" / "deep" / "b").read_bytes() == b"2"
    assert not [path for path in home.iterdir() if path.name.startswith(".unpacking")]
    fetch_files(source, tmp_path, silent)
    assert len(behaviour.requests) == 1


def test_an_unpacking_that_was_interrupted_is_done_again(server, tmp_path):
    behaviour, address = server
    source = known(archive_remote(behaviour, address, tarball({"set/a": b"1", "set/b": b"2"})))
    (tmp_path / "things" / ".unpacking-set.tar.gz" / "set").mkdir(parents=True)
    (tmp_path / "things" / "set").mkdir()
    (tmp_path / "things" / "set" / "a").write_bytes(b"half")
    home = fetch_files(source, tmp_path, silent)
    assert {path.name: path.read_bytes() for path in (home / "set").iterdir()} == {"a": b"1", "b": b"2"}


@pytest.mark.parametrize("name", ["../outside", "set/../../outside", "/tmp/paceline-outside"])
def test_an_archive_cannot_write_outside_its_folder(tmp_path, name):
    home = tmp_path / "home"
    home.mkdir()
    archive = home / "set.tar.gz"
    archive.write_bytes(tarball({name: b"gotcha"}))
    target = Remote(file="set.tar.gz", md5=None, url=None, unpacks_to="set")
    with suppress(DataError):  # a name that begins with a slash is taken as one inside the folder
        unpack(target, archive, home)
    assert not (tmp_path / "outside").exists()
    assert not Path("/tmp/paceline-outside").exists()


def test_a_damaged_archive_leaves_nothing_half_unpacked(tmp_path):
    archive = tmp_path / "set.tar.gz"
    archive.write_bytes(tarball({"set/a": os.urandom(5000), "set/b": os.urandom(5000)})[:-3000])
    with pytest.raises(DataError, match="cannot be unpacked"):
        unpack(Remote(file="set.tar.gz", md5=None, url=None, unpacks_to="set"), archive, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["set.tar.gz"]


FETCHER = """
import sys
from pathlib import Path
from paceline.data.fetch import fetch_files
from paceline.data.sources.published import PublishedSet, Remote
url, md5, folder = sys.argv[1:]
remote = Remote(file="set.tar.gz", md5=md5, url=url, unpacks_to="set")
source = PublishedSet(name="things", title="", num_train=1, num_test=1, num_classes=1, image="", download_bytes=0,
               remotes=(remote,))
print((fetch_files(source, Path(folder), lambda *_: None) / "set" / "a").read_text())
"""


def test_of_many_processes_exactly_one_fetches_and_the_others_wait(server, tmp_path):
    behaviour, address = server
    one = archive_remote(behaviour, address, tarball({"set/a": b"here", "set/b": os.urandom(3_000_000)}))
    command = [sys.executable, "-c", FETCHER, str(one.url), str(one.md5), str(tmp_path)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate(timeout=120)[0].strip() for process in running] == ["here"] * 3
    assert len(behaviour.requests) == 1


HOLDER = """
import sys, time
from pathlib import Path
from paceline.records.writer import locked
with locked(Path(sys.argv[1])):
    print("holding", flush=True)
    time.sleep(600)
"""


def test_a_fetcher_that_was_killed_does_not_block_the_next(server, tmp_path):
    behaviour, address = server
    home = tmp_path / "things"
    home.mkdir()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(home / ".fetch.lock")], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "holding\n"
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    source = known(archive_remote(behaviour, address, tarball({"set/a": b"1"})))
    assert (fetch_files(source, tmp_path, silent) / "set" / "a").read_bytes() == b"1"


def test_a_set_that_needs_a_registration_names_its_page(tmp_path):
    source = known(Remote(file="x.tar", md5="0" * 32, url=None))
    with pytest.raises(DataError, match="things is not in"):
        fetch_files(source, tmp_path, silent)
