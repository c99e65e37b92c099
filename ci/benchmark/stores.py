"""Object stores of the benchmark: ``python stores.py FOLDER`` serves a folder with latency."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
from fsspec.implementations.memory import MemoryFileSystem

LATENCY_SECONDS = 0.02
BYTES_PER_SECOND = 100e6  # of a connection
BUCKET = "bench"


class Store(BaseHTTPRequestHandler):
    """Answers as S3, no faster than one connection allows. Lists are empty: zarr deletes none."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    objects: dict[str, list[Any]] = {}  # noqa: RUF012  # parts, which are joined if they are read
    uploads: dict[str, dict[int, bytes]] = defaultdict(dict)  # noqa: RUF012
    is_slow = len(sys.argv) > 1

    def reply(self, data: Any, status: int = 200, **headers: Any) -> None:
        """Send an answer."""
        time.sleep(self.is_slow and LATENCY_SECONDS)
        self.send_response(status)
        for name, value in {"Content_Length": len(data), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            time.sleep(self.is_slow and len(data) / BYTES_PER_SECOND)
            self.wfile.write(data)

    def do_GET(self) -> None:
        """Send a range of an object."""
        path, _, query = self.path.partition("?")
        parts = [b"<List/>"] if "list-type" in query else self.objects.get(path, [])
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        start = int(match[1]) if match else 0
        stop = min(int(match[2]) + 1, len(data)) if match and match[2] else len(data)
        status = (206 if match else 200) if parts else 404
        found, tag = f"bytes {start}-{stop - 1}/{len(data)}", f'"{id(parts)}"'
        date = "Thu, 01 Jan 2026 00:00:00 GMT"
        self.reply(data[start:stop], status, Content_Range=found, ETag=tag, Last_Modified=date)

    do_HEAD = do_GET  # noqa: N815

    def do_PUT(self) -> None:
        """Receive an object or a part of it, or begin or complete an object in parts."""
        path, _, query = self.path.partition("?")
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        number = re.search(r"partNumber=(\d+)", query)
        if self.command == "PUT":
            self.uploads[path][int(number[1]) if number else 0] = body
        if not number and "uploads" not in query:
            self.objects[path] = [part for _, part in sorted(self.uploads.pop(path).items())]
        self.reply(b"<R><UploadId>0</UploadId><ETag>0</ETag></R>", ETag=0)

    do_POST = do_PUT  # noqa: N815


class SlowMemory(MemoryFileSystem):  # type: ignore[misc]
    """A store of fsspec that answers late and states no version with the bytes."""

    protocol = "slow"
    store: dict[str, Any] = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012

    def info(self, path: str, **kw: Any) -> Any:
        """Return the size of a file."""
        time.sleep(LATENCY_SECONDS)
        return super().info(path, **kw)

    def cat_file(self, path: str, **kw: Any) -> Any:
        """Return a range of a file."""
        time.sleep(LATENCY_SECONDS)
        return super().cat_file(path, **kw)


@contextmanager
def run_server(*arguments: str) -> Iterator[str]:
    """Run Python with arguments, and yield the URL of the server, which prints its port."""
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen([sys.executable, *arguments], **pipes) as child:
        try:
            yield f"http://127.0.0.1:{int(child.stdout.readline())}"
        finally:
            child.terminate()


def get_options(url: str) -> dict[str, Any]:
    """Return options of obstore for the bucket of a server."""
    keys = {"access_key_id": "key", "secret_access_key": "secret", "region": "us-east-1"}
    return {"config": {**keys, "endpoint": url}, "client_options": {"allow_http": True}}


def connect(url: str, prefix: str | None = None) -> Any:
    """Return a store of obstore."""
    from obstore.store import S3Store  # noqa: PLC0415

    return S3Store(BUCKET, prefix=prefix, **get_options(url))


if __name__ == "__main__":
    for folder in map(Path, sys.argv[1:]):
        for path in filter(Path.is_file, folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            Store.objects[f"/{BUCKET}/{name}"] = [np.memmap(path, "u1", "r").data]
    server = ThreadingHTTPServer(("127.0.0.1", 0), Store)
    print(server.server_port, flush=True)
    server.serve_forever()
