"""A real S3 server on loopback (moto), whose answers can be refused or held up."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.conftest import LONGEST

BUCKET = "bucket"


class ObjectStore:
    """The server as a WSGI application, and its faults."""

    def __init__(self):
        from moto.server import DomainDispatcherApplication, create_backend_app

        self.client: Any = None
        """A client of the server."""
        self._app = DomainDispatcherApplication(create_backend_app)
        self.refused, self.num_refused = 0, 0
        """PUT requests that are still to be refused, and that were."""
        self.open = threading.Event()
        self.open.set()
        self.put: list[str] = []
        """The names of objects in the order in which they were written."""

    def __call__(self, environ, start_response):
        if environ["REQUEST_METHOD"] == "PUT" and environ["PATH_INFO"].count("/") > 1:
            self.open.wait(60)
            if self.refused > 0:
                self.refused -= 1
                self.num_refused += 1
                start_response("403 Forbidden", [("Content-Type", "application/xml")])
                return [b"<Error><Code>AccessDenied</Code><Message>no access</Message></Error>"]
            self.put.append(environ["PATH_INFO"].split("/", 2)[2])
        return self._app(environ, start_response)


@contextmanager
def object_store(patch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """Serve an empty bucket, and let the environment name the server."""
    pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    from werkzeug.serving import make_server

    store = ObjectStore()
    server = make_server("127.0.0.1", 0, store, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    bare = _client(address, patch)
    bare.create_bucket(Bucket=BUCKET)
    store.client = bare
    try:
        yield store
    finally:
        store.open.set()
        found = bare.list_objects_v2(Bucket=BUCKET).get("Contents", [])
        for entry in found:
            bare.delete_object(Bucket=BUCKET, Key=entry["Key"])
        bare.delete_bucket(Bucket=BUCKET)
        server.shutdown()
        thread.join(10)


def _client(address: str, patch: pytest.MonkeyPatch) -> Any:
    """Return a client of the server; a loaded machine may take long to answer."""
    import boto3
    import fsspec.config
    import s3fs
    from botocore.config import Config

    keys = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1"}
    for name, value in ({"AWS_ENDPOINT_URL": address, "NO_PROXY": "127.0.0.1"} | keys).items():
        patch.setenv(name, value)
    patience = {"connect_timeout": LONGEST, "read_timeout": LONGEST}
    patch.setitem(fsspec.config.conf, "s3", {"config_kwargs": patience})
    s3fs.S3FileSystem.clear_instance_cache()  # a new server has another port
    return boto3.client("s3", endpoint_url=address, config=Config(**patience))


def names(store: ObjectStore, prefix: str = "") -> list[str]:
    """Return the objects whose names start with a prefix."""
    found = store.client.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])
    return [entry["Key"] for entry in found]


def content(store: ObjectStore, name: str) -> bytes:
    """Return the content of an object."""
    return store.client.get_object(Bucket=BUCKET, Key=name)["Body"].read()
