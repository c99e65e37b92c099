"""Stores on loopback that record requests: HTTP with byte ranges, and S3 by moto."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from socket import SHUT_RDWR
from socketserver import BaseServer
from threading import Lock, Thread
from typing import Any

import s3fs
from fsspec.implementations.memory import MemoryFileSystem
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

Range = tuple[int, int]


@dataclass
class Log:
    """`gets` lists the ranges that were asked for, as (start, length); `heads` counts HEAD."""

    gets: list[Range] = field(default_factory=list)
    heads: int = 0
    in_flight: int = 0
    most_in_flight: int = 0
    _lock: Any = field(default_factory=Lock)

    def clear(self) -> None:
        self.gets.clear()
        self.heads = self.most_in_flight = 0

    @property
    def fetched(self) -> int:
        return sum(length for _, length in self.gets)

    @contextlib.contextmanager
    def request(self, method: str, range_header: str | None) -> Iterator[None]:
        with self._lock:
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            if method == "HEAD":
                self.heads += 1
            elif method == "GET":
                self.gets.append(parse_range(range_header) if range_header else (0, -1))
        try:
            yield
        finally:
            with self._lock:
                self.in_flight -= 1


def parse_range(range_header: str) -> Range:
    first, last = map(int, re.fullmatch(r"bytes=(\d+)-(\d+)", range_header).groups())
    return first, last - first + 1


Trouble = Callable[["Handler", bytes, int, int], bool]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *_: object) -> None: ...


@contextlib.contextmanager
def serve(server: BaseServer) -> Iterator[None]:
    """Run a server in a thread."""
    thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class HttpStore:
    """Files by name.

    `trouble` may answer a GET in place of the server, and then returns True. With `status`, which a
    GET of ``/status-500`` sets too, this is all that it answers; with `cut`, nothing.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self._all: list[bytes] = []
        self._etags: dict[int, str] = {}
        self.log = Log()
        self.trouble: Trouble | None = None
        self.options: dict[str, Any] = {}
        self.conditions = True
        self.etags = True
        self.modified = ""
        self.headers: dict[str, str] = {}
        self.status = 0
        self.cut = False
        handler = type("BoundHandler", (Handler,), {"store": self})
        self.server = _Server(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def etag_of(self, content: bytes) -> str:
        if id(content) not in self._etags:
            self._etags[id(content)] = f'"{md5(content, usedforsecurity=False).hexdigest()}"'
        return self._etags[id(content)]

    def put(self, name: str, content: bytes) -> str:
        self._all.append(content)  # keep a reference, so that the id stays unique
        self.files[name] = content
        return f"{self.url}/{name}"

    @contextlib.contextmanager
    def running(self) -> Iterator[HttpStore]:
        with serve(self.server):
            yield self


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: HttpStore

    def log_message(self, *_: object) -> None: ...

    @property
    def name(self) -> str:
        return self.path.lstrip("/").partition("?")[0]

    def refused(self) -> bool:
        name, _, requested = self.path.partition("-")
        # A test may change them after the response.
        cut, status = self.store.cut, self.store.status
        if name == "/status":
            self.store.status = int(requested)
            self.answer(200, b"")
        elif cut:
            self.close_connection = True
        elif status:
            self.answer(status, b"")
        return name == "/status" or cut or bool(status)

    def do_HEAD(self) -> None:
        if self.refused():
            return
        with self.store.log.request("HEAD", None):
            content = self.store.files.get(self.name)
            if content is None:
                self.answer(404, b"", 0)
            else:
                self.answer(200, b"", len(content), self.version(content))

    def do_GET(self) -> None:
        if self.refused():
            return None
        with self.store.log.request("GET", self.headers.get("Range")):
            content = self.store.files.get(self.name)
            if content is None:
                return self.answer(404, b"gone")
            if "Range" not in self.headers:
                return self.answer(200, content, headers=self.version(content))
            start, length = parse_range(self.headers["Range"])
            stop = min(start + length, len(content))
            if self.store.trouble and self.store.trouble(self, content, start, stop):
                return None
            version = self.version(content)
            requested = self.headers.get("If-Match", version.get("ETag"))
            if self.store.conditions and requested != version.get("ETag"):
                return self.answer(412, b"")
            if start >= len(content):
                return self.answer(416, b"")
            return self.partial(content, start, stop)

    def partial(self, content: bytes, start: int, stop: int) -> None:
        span = {"Content-Range": f"bytes {start}-{stop - 1}/{len(content)}"}
        self.answer(206, content[start:stop], headers={**span, **self.version(content)})

    def version(self, content: bytes) -> dict[str, str]:
        etag = {"ETag": self.store.etag_of(content)} if self.store.etags else {}
        modified = {"Last-Modified": self.store.modified} if self.store.modified else {}
        return etag | modified | self.store.headers

    def answer(
        self,
        status: int,
        body: bytes,
        length: int | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(body)


Fault = Callable[[dict, Callable[[], list[bytes]]], "list[bytes] | str | None"]


class _Silent(WSGIRequestHandler):
    timeout = 5  # seconds: aiohttp before 3.14.5 may retry a PUT without its body

    def log(self, *_: object) -> None: ...

    def connection_dropped(self, *_: object) -> None:
        self.close_connection = True

    def handle_expect_100(self) -> bool:
        return True  # werkzeug answers; after a second answer, aiohttp waits without a limit


class S3Store:
    """moto's S3, with one bucket, and options for s3fs to reach it.

    `fault` may answer a request in place of the server, whose answer it can call for: with a status
    and the code of an error, or with None, which closes the connection.
    """

    def __init__(self) -> None:
        inner = DomainDispatcherApplication(create_backend_app)
        inner_lock = Lock()  # moto cannot receive a part of an upload while it aborts the upload
        self.log = Log()
        self.refused: Callable[[dict], bool] = lambda environ: False
        self.fault: Fault = lambda environ, answer: answer()
        self.ranges = True

        def application(environ: dict, start_response: Any) -> Any:
            # A connection that closes before its body was read is reset, and the answer is lost.
            if environ.get("CONTENT_LENGTH"):
                content = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
                environ["wsgi.input"] = BytesIO(content)
            started: list[Any] = []  # a fault may replace the answer
            answer = self.fault(
                environ, lambda: list(plain(environ, lambda *start: started.extend(start)))
            )
            if answer is None:
                environ["werkzeug.socket"].shutdown(SHUT_RDWR)
                raise ConnectionAbortedError
            if isinstance(answer, str):
                code = answer.partition(" ")[2]
                start_response(answer, [("Content-Type", "application/xml")])
                if environ["REQUEST_METHOD"] == "HEAD":
                    return []
                return [f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()]
            start_response(*started)
            return answer

        def plain(environ: dict, start_response: Any) -> Any:
            with self.log.request(environ["REQUEST_METHOD"], environ.get("HTTP_RANGE")):
                if self.refused(environ):
                    start_response("403 Forbidden", [("Content-Type", "application/xml")])
                    if environ["REQUEST_METHOD"] == "HEAD":
                        return []
                    return [b"<Error><Code>AccessDenied</Code><Message>not you</Message></Error>"]
                if not self.ranges:
                    environ.pop("HTTP_RANGE", None)
                with inner_lock:
                    return inner(environ, start_response)

        self.server = make_server("127.0.0.1", 0, application, True, request_handler=_Silent)
        self.options: dict[str, Any] = {
            "key": "key",
            "secret": "secret",
            "endpoint_url": f"http://127.0.0.1:{self.server.server_port}",
        }

    def put(self, name: str, content: bytes) -> str:
        fs = s3fs.S3FileSystem(**self.options)
        if not fs.exists("bucket"):
            fs.mkdir("bucket")
        fs.pipe_file(f"bucket/{name}", content)
        return f"s3://bucket/{name}"

    @contextlib.contextmanager
    def running(self) -> Iterator[S3Store]:
        with serve(self.server):
            yield self


class MemoryStore:
    """The synchronous memory file system of fsspec."""

    def __init__(self) -> None:
        self.fs = MemoryFileSystem()
        self.log = Log()
        self.options: dict[str, Any] = {}

    def put(self, name: str, content: bytes) -> str:
        self.fs.pipe_file(f"/bucket/{name}", content)
        return f"memory://bucket/{name}"

    @contextlib.contextmanager
    def running(self) -> Iterator[MemoryStore]:
        info, cat_file = MemoryFileSystem.info, MemoryFileSystem.cat_file

        def logged_info(fs: Any, path: str, **options: Any) -> Any:
            with self.log.request("HEAD", None):
                return info(fs, path, **options)

        def logged_cat_file(
            fs: Any, path: str, *, start: int | None = None, end: int | None = None
        ) -> bytes:
            with self.log.request("GET", f"bytes={start}-{end - 1}" if end else None):
                return cat_file(fs, path, start=start, end=end)

        MemoryFileSystem.info, MemoryFileSystem.cat_file = logged_info, logged_cat_file
        try:
            yield self
        finally:
            MemoryFileSystem.info, MemoryFileSystem.cat_file = info, cat_file
            self.fs.store.clear()


Store = HttpStore | S3Store | MemoryStore
