"""Object stores of the benchmark: ``python stores.py FOLDER`` serves a folder with latency."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fsspec.implementations.memory import MemoryFileSystem

LATENCY_SECONDS = 0.02
BYTES_PER_SECOND = 100e6  # of a connection
BUCKET = "bench"
MOTO = """
import logging, os, signal
os.environ["MOTO_S3_DEFAULT_KEY_BUFFER_SIZE"] = "1000000000"  # in memory, as local files
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
signal.pause()
"""


class SlowStore(BaseHTTPRequestHandler):
    """Answers HEAD and GET as clients of S3 need them, no faster than one connection allows."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """Send a range of a file."""
        time.sleep(LATENCY_SECONDS)
        path = Path(sys.argv[1], self.path.partition("?")[0].removeprefix(f"/{BUCKET}/"))
        is_found = path.is_file()
        size = path.stat().st_size if is_found else 0
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        start = int(match[1]) if match else 0
        stop = min(int(match[2]) + 1, size) if match and match[2] else size
        self.send_response((206 if match else 200) if is_found else 404)
        self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
        self.send_header("ETag", f'"{size}"')
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.send_header("Content-Length", str(stop - start if is_found else 0))
        self.end_headers()
        if is_found and self.command == "GET":
            with path.open("rb") as file:
                file.seek(start)
                time.sleep((stop - start) / BYTES_PER_SECOND)
                self.wfile.write(file.read(stop - start))

    do_HEAD = do_GET  # noqa: N815


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


def connect(url: str, prefix: str | None = None) -> Any:
    """Return a store of obstore."""
    from obstore.store import S3Store  # noqa: PLC0415

    keys = {"access_key_id": "key", "secret_access_key": "secret", "region": "us-east-1"}
    http = {"allow_http": True}
    return S3Store(BUCKET, prefix=prefix, endpoint=url, client_options=http, **keys)


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), SlowStore)
    print(server.server_port, flush=True)
    server.serve_forever()
