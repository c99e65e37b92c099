"""Emulators of Google Cloud Storage and Azure on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from http.server import HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from tests.servers import serve

# Otherwise gcsfs asks Google itself for the type of each bucket.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")

# Key of all emulators of Azure.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

AZURITE = Path(sys.prefix) / "azurite" / "node_modules" / ".bin" / "azurite-blob"


class Cloud:
    """A store with one bucket, and options for its file system."""

    scheme: str
    options: dict[str, Any]
    wrong: dict[str, Any]
    """Options with credentials that the store refuses."""
    secret: str

    def __init__(self, fs: Any) -> None:
        self.fs = fs

    def url(self, name: str) -> str:
        return f"{self.scheme}://bucket/{name}"

    def put(self, name: str, content: bytes) -> str:
        with self.fs.open(f"bucket/{name}", "wb") as file:
            file.write(content)
        return self.url(name)

    def names(self) -> list[str]:
        self.fs.invalidate_cache()
        return sorted(path.removeprefix("bucket/") for path in self.fs.find("bucket"))


class GoogleStore(Cloud):
    """gcp-storage-emulator, by gcsfs."""

    scheme, secret = "gs", "wrong-token"

    def __init__(self, port: int) -> None:
        import gcsfs  # noqa: PLC0415
        from google.oauth2.credentials import Credentials  # noqa: PLC0415

        common = {"endpoint_url": f"http://127.0.0.1:{port}", "project": "project"}
        self.options = {**common, "token": Credentials("right-token")}
        self.wrong = {**common, "token": Credentials(self.secret)}
        super().__init__(gcsfs.GCSFileSystem(**self.options))


class AzureStore(Cloud):
    """Azurite, by adlfs."""

    scheme, secret = "az", KEY.replace("Eby8", "Aby8")

    def __init__(self, port: int) -> None:
        import adlfs  # noqa: PLC0415

        self.options = {"connection_string": self._connection(port, KEY)}
        self.wrong = {"connection_string": self._connection(port, self.secret)}
        super().__init__(adlfs.AzureBlobFileSystem(**self.options))
        self.fs.mkdir("bucket")
        self.port = port

    def of_obstore(self, key: str = KEY) -> Any:
        """The account, by obstore."""
        from obstore.fsspec import FsspecStore  # noqa: PLC0415

        return FsspecStore(
            "az",
            account_name=ACCOUNT,
            account_key=key,
            endpoint=f"http://127.0.0.1:{self.port}/{ACCOUNT}",
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
        )

    def _connection(self, port: int, key: str) -> str:
        endpoint = f"BlobEndpoint=http://127.0.0.1:{port}/{ACCOUNT}"
        return f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={key};{endpoint};"


@contextlib.contextmanager
def run_google() -> Iterator[GoogleStore]:
    """Run the emulator in a thread."""
    pytest.importorskip("gcsfs", reason="gcsfs is not installed")
    pytest.importorskip("gcp_storage_emulator", reason="gcp-storage-emulator is not installed")
    from gcp_storage_emulator.handlers.buckets import create_bucket  # noqa: PLC0415
    from gcp_storage_emulator.storage import Storage  # noqa: PLC0415

    storage = Storage(use_memory_fs=True)
    create_bucket("bucket", storage)
    server = _GoogleServer(("127.0.0.1", 0), partial(_make_google_handler(), storage))
    with serve(server):
        yield GoogleStore(server.server_port)


class _GoogleServer(HTTPServer):
    request_queue_size = 64

    def handle_error(self, *_: object) -> None: ...


def _make_google_handler() -> Any:
    """Return the emulator, extended by tokens and generations."""
    from gcp_storage_emulator.exceptions import NotFound  # noqa: PLC0415
    from gcp_storage_emulator.server import RequestHandler  # noqa: PLC0415

    class Handler(RequestHandler):
        def parse_request(self) -> bool:
            if not super().parse_request():
                return False
            if self.headers.get("Authorization") != "Bearer right-token":
                return self.answer(403, "the account has no access to the object")
            url = urlsplit(self.path)
            query = parse_qs(url.query)
            if self.command == "DELETE" and "upload_id" in query:
                return self.answer(499, "the upload is cancelled")
            if "generation" in query and query["generation"] != [self.generation(url.path)]:
                return self.answer(404, "No such object")
            return True

        def generation(self, path: str) -> str:
            bucket, _, name = path.partition("/b/")[2].partition("/o/")
            try:
                return self.storage.get_file_obj(bucket, unquote(name))["generation"]
            except NotFound:
                return ""

        def answer(self, code: int, message: str) -> bool:
            body = json.dumps({"error": {"code": code, "message": message}}).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            self.close_connection = True
            return False

        def log_message(self, *_: object) -> None: ...

    return Handler


@contextlib.contextmanager
def run_azure() -> Iterator[AzureStore]:
    """Run the emulator as a process of node."""
    pytest.importorskip("adlfs", reason="adlfs is not installed")
    if shutil.which("node") is None:
        pytest.skip("there is no node, which Azurite needs")
    command = str(AZURITE) if AZURITE.exists() else shutil.which("azurite-blob")
    if command is None:
        pytest.skip(f"there is no Azurite: npm install --prefix {AZURITE.parents[2]} azurite")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = ("--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent")
    process = subprocess.Popen(
        [command, "--blobHost", "127.0.0.1", "--blobPort", str(port), *options],
        stdout=subprocess.DEVNULL,
    )
    try:
        _wait_for(process, port)
        yield AzureStore(port)
    finally:
        process.terminate()
        process.wait()


def _wait_for(process: subprocess.Popen[bytes], port: int) -> None:
    for _ in range(1200):
        assert process.poll() is None, "Azurite ended"
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        time.sleep(0.05)
    raise TimeoutError("Azurite does not answer")
