"""A server on loopback with chosen faults, and file systems that read from it.

Tests do not depend on time: a stalled response stalls until the server is stopped.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from threading import Condition, Event
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit

import fsspec
from fsspec import AbstractFileSystem
from fsspec.asyn import AsyncFileSystem

from tests.servers import Handler, HttpStore, parse_range


class FaultServer(HttpStore):
    """Files by name, which are also the objects of an S3 store.

    `faults` are what the next requests meet, `always` what all others meet; `methods` are the
    methods that meet them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.server.RequestHandlerClass = type("BoundHandler", (FaultHandler,), {"store": self})
        self.faults: deque[Fault] = deque()
        self.always: Fault | None = None
        self.methods = {"GET", "HEAD"}
        self.requests: list[tuple[str, str | None]] = []
        self.met = Condition()
        self.stopped = Event()

    def next_fault(self, method: str, span: str | None) -> Fault | None:
        with self.met:
            self.requests.append((method, span))
            self.met.notify_all()
            if method not in self.methods:
                return None
            return self.faults.popleft() if self.faults else self.always

    def wait_for(self, count: int) -> None:
        """Wait for a number of requests since the last `forget`."""
        with self.met:
            assert self.met.wait_for(lambda: len(self.requests) >= count, timeout=60)

    def forget(self) -> None:
        self.requests.clear()

    @property
    def gets(self) -> list[str | None]:
        return [span for method, span in self.requests if method == "GET"]

    @contextlib.contextmanager
    def running(self) -> Iterator[FaultServer]:
        with super().running():
            try:
                yield self
            finally:
                self.stopped.set()


class FaultHandler(Handler):
    store: FaultServer

    def refused(self) -> bool:
        fault = self.store.next_fault(self.command, self.headers.get("Range"))
        with contextlib.suppress(ConnectionError):
            return fault is not None and not fault(self)
        return True

    @property
    def span(self) -> tuple[bytes, int, int]:
        """Return the content and the requested range."""
        content = self.store.files[self.name]
        start, length = (
            parse_range(self.headers["Range"]) if "Range" in self.headers else (0, 1 << 60)
        )
        return content, start, min(start + length, len(content))

    def begin(self, content: bytes, start: int, stop: int) -> None:
        """Send the headers of a range."""
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(content)}")
        self.send_header("Content-Length", str(stop - start))
        for name, value in self.version(content).items():
            self.send_header(name, value)
        self.end_headers()


Fault = Callable[[FaultHandler], Any]
"""Answers a request; returns True if the server is to answer as usual."""


def latency(handler: FaultHandler) -> bool:
    handler.store.stopped.wait(0.1)
    return True


def status(number: int, **headers: str) -> Fault:
    named = {name.replace("_", "-"): value for name, value in headers.items()}

    def answer(handler: FaultHandler) -> None:
        handler.answer(number, b"", headers=named)

    answer.__name__ = str(number)
    return answer


def reset(handler: FaultHandler) -> None:
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.rfile.close()
    handler.wfile.close()
    handler.connection.close()
    handler.close_connection = True


def short_body(handler: FaultHandler) -> None:
    content, start, stop = handler.span
    handler.begin(content, start, stop)
    handler.wfile.write(content[start : (start + stop) // 2])
    handler.close_connection = True


def silent(handler: FaultHandler) -> None:
    handler.store.stopped.wait()
    handler.close_connection = True


def stalled(handler: FaultHandler) -> None:
    content, start, stop = handler.span
    handler.begin(content, start, stop)
    handler.wfile.write(content[start : (start + stop) // 2])
    handler.wfile.flush()
    silent(handler)


def dripping(handler: FaultHandler) -> None:
    """Send single bytes, too slowly to count as progress."""
    content, start, stop = handler.span
    handler.begin(content, start, stop)
    for position in range(start, stop):
        handler.wfile.write(content[position : position + 1])
        handler.wfile.flush()
        if handler.store.stopped.wait(0.02):
            break
    handler.close_connection = True


def endless(handler: FaultHandler) -> None:
    """Send more bytes than requested, without Content-Length."""
    content, start, stop = handler.span
    handler.send_response(206)
    handler.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(content)}")
    handler.send_header("Transfer-Encoding", "chunked")
    for name, value in handler.version(content).items():
        handler.send_header(name, value)
    handler.end_headers()
    while not handler.store.stopped.is_set():
        handler.wfile.write(b"10000\r\n" + bytes(0x10000) + b"\r\n")


def other_range(handler: FaultHandler) -> None:
    content, start, stop = handler.span
    handler.partial(content, start - 8, stop - 8)


def no_ranges(handler: FaultHandler) -> None:
    content, _, _ = handler.span
    handler.answer(200, content, headers=handler.version(content))


def replaced(handler: FaultHandler) -> None:
    content, start, stop = handler.span
    handler.partial(bytes(len(content)), start, stop)


def truncated(handler: FaultHandler) -> None:
    content, start, stop = handler.span
    expected = content[: stop - 8]
    span = {"Content-Range": f"bytes {start}-{stop - 9}/{len(expected)}"}
    handler.answer(206, expected[start:], headers=span | handler.version(content))


def short_range(handler: FaultHandler) -> None:
    """Send one byte less, with a correct Content-Length."""
    content, start, stop = handler.span
    handler.partial(content, start, stop - 1)


def no_content_range(handler: FaultHandler) -> None:
    content, start, stop = handler.span
    handler.answer(206, content[start:stop], headers=handler.version(content))


def too_long(handler: FaultHandler) -> None:
    """Send the right Content-Range and more bytes."""
    content, start, stop = handler.span
    span = {"Content-Range": f"bytes {start}-{stop - 1}/{len(content)}"}
    handler.answer(206, content[start:] + content, headers=span | handler.version(content))


class Plain(AbstractFileSystem):
    """A file system without coroutines, such as SFTP."""

    protocol = "plain"
    cachable = False

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self.url = url

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        headers, _ = self._request("HEAD", path, {})
        return {"name": path, "size": int(headers["Content-Length"]), "type": "file"}

    def cat_file(self, path: str, start: int = 0, end: int = 0, **_: Any) -> bytes:
        return self._request("GET", path, {"Range": f"bytes={start}-{end - 1}"})[1]

    def _request(self, method: str, path: str, headers: dict[str, str]) -> tuple[Any, bytes]:
        with contextlib.closing(HTTPConnection(urlsplit(self.url).netloc)) as connection:
            connection.request(method, f"/{path}", headers=headers)
            answer = connection.getresponse()
            if answer.status >= 400:
                error = HTTPError(path, answer.status, answer.reason, answer.headers, None)
                error.close()  # Python 3.14 warns about errors that are not closed
                raise error
            return answer.headers, answer.read()


class Asynchronous(AsyncFileSystem):
    """An asynchronous file system, such as gcsfs, without a store of its own."""

    protocol = "asynchronous"
    cachable = False

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self.url = url
        self.http = fsspec.filesystem("http")

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        return await self.http._info(f"{self.url}/{path}")

    async def _cat_file(self, path: str, start: int = 0, end: int = 0, **_: Any) -> bytes:
        return await self.http._cat_file(f"{self.url}/{path}", start=start, end=end)


def use_http(server: FaultServer, name: str) -> tuple[str, dict[str, Any]]:
    return f"{server.url}/{name}", {}


def use_s3(server: FaultServer, name: str) -> tuple[str, dict[str, Any]]:
    options = {"endpoint_url": server.url, "anon": True}
    return f"s3://{name}", {"storage_options": options}


def use_coroutines(server: FaultServer, name: str) -> tuple[str, dict[str, Any]]:
    return name, {"fs": Asynchronous(server.url)}


def use_calls(server: FaultServer, name: str) -> tuple[str, dict[str, Any]]:
    return name, {"fs": Plain(server.url)}


Way = Callable[[FaultServer, str], tuple[str, dict[str, Any]]]
DIRECT: list[Way] = [use_http, use_s3]
HIDDEN: list[Way] = [use_coroutines, use_calls]
WAYS = [*DIRECT, *HIDDEN]
