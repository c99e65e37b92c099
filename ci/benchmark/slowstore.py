"""A store on loopback that answers as S3 does: late, and no faster than a connection allows.

``python -m benchmark.slowstore FOLDER`` serves the files of a folder as the bucket ``bench``, and
prints its port. It has a process of its own, so that it does not share an interpreter with those
who are measured.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

LATENCY = 0.02
"""Seconds from a request to the first byte of its answer."""

RATE = 100e6
"""Bytes a second of one connection."""

BUCKET = "bench"
_SLICE = 256 << 10
_DATE = "Thu, 01 Jan 2026 00:00:00 GMT"


class _Store:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.requests = self.moved = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while request := await reader.readuntil(b"\r\n\r\n"):
                await self.answer(request.decode(), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def answer(self, request: str, writer: asyncio.StreamWriter) -> None:
        first, *lines = request.split("\r\n")
        method, target, _ = first.split(" ")
        headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines if line)}
        url = urlsplit(target)
        if url.path == "/_log":
            text = json.dumps([self.requests, self.moved]).encode()
            self.requests = self.moved = 0
            await _send(writer, 200, {}, text)
            return
        self.requests += 1
        await asyncio.sleep(LATENCY)
        key = unquote(url.path).removeprefix(f"/{BUCKET}").lstrip("/")
        path = self.folder / key
        if not key or not path.is_file():
            listing = self.listing(parse_qs(url.query)) if "list-type" in url.query else None
            missing = b"" if method == "HEAD" else b"<Error><Code>NoSuchKey</Code></Error>"
            await _send(writer, 404 if listing is None else 200, {}, listing or missing)
            return
        size = path.stat().st_size
        start, stop, status = 0, size, 200
        described = {"ETag": f'"{size}"', "Last-Modified": _DATE}
        if asked := headers.get("range"):
            lower, upper = asked.removeprefix("bytes=").split("-")
            start, stop, status = int(lower), min(int(upper) + 1, size), 206
            described["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        _head(writer, status, stop - start, described)
        if method == "GET":
            self.moved += stop - start
            await _throttled(writer, path, start, stop)

    def listing(self, query: dict[str, list[str]]) -> bytes:
        prefix = query.get("prefix", [""])[0]
        names = sorted(
            path.relative_to(self.folder).as_posix()
            for path in (self.folder / prefix).glob("*")
            if path.is_file()
        )
        folders = sorted(
            path.relative_to(self.folder).as_posix() + "/"
            for path in (self.folder / prefix).glob("*")
            if path.is_dir()
        )
        contents = "".join(
            f"<Contents><Key>{escape(name)}</Key><Size>{(self.folder / name).stat().st_size}</Size>"
            '<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>"0"</ETag></Contents>'
            for name in names
        )
        common = "".join(
            f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in folders
        )
        count = len(names) + len(folders)
        return (
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult>'
            f"<Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{count}</KeyCount>"
            f"<MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated>{contents}{common}"
            "</ListBucketResult>"
        ).encode()


def _head(writer: asyncio.StreamWriter, status: int, length: int, headers: dict[str, str]) -> None:
    lines = [f"HTTP/1.1 {status} OK", f"Content-Length: {length}", f"Date: {_DATE}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    writer.write("\r\n".join([*lines, "", ""]).encode())


async def _send(
    writer: asyncio.StreamWriter, status: int, headers: dict[str, str], body: bytes
) -> None:
    _head(writer, status, len(body), {"Content-Type": "application/xml", **headers})
    writer.write(body)
    await writer.drain()


async def _throttled(writer: asyncio.StreamWriter, path: Path, start: int, stop: int) -> None:
    loop = asyncio.get_running_loop()
    due = loop.time()
    with path.open("rb") as file:
        file.seek(start)
        while start < stop:
            piece = file.read(min(_SLICE, stop - start))
            start += len(piece)
            due += len(piece) / RATE
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(due - loop.time())


async def _main(folder: Path) -> None:
    server = await asyncio.start_server(_Store(folder).serve, "127.0.0.1", 0, backlog=256)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


@dataclass(frozen=True)
class SlowStore:
    """A running store.

    Parameters
    ----------
    port : int
        Where it listens.
    """

    port: int

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self.port}"

    def log(self) -> tuple[int, int]:
        """Requests answered and bytes sent since the last time this was asked."""
        with urllib.request.urlopen(f"{self.endpoint}/_log") as answer:
            requests, moved = json.load(answer)
        return requests, moved


@contextmanager
def running(folder: Path) -> Iterator[SlowStore]:
    """Serve a folder as long as the context lasts."""
    command = [sys.executable, "-m", "benchmark.slowstore", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield SlowStore(int(process.stdout.readline()))
        finally:
            process.terminate()


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1])))
