"""Servers of the benchmark; ``python slowstore.py FOLDER`` is a store with latency.

The store answers HEAD and GET for the files of a folder, as clients of S3 and HTTP need them, and
prints its port.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aiohttp import web

LATENCY_SECONDS = 0.02
BYTES_PER_SECOND = 100e6
SLICE_BYTES = 256 << 10
BUCKET = "bench"


async def answer(request: web.Request) -> web.StreamResponse:
    """Send a range of a file, no faster than one connection allows."""
    await asyncio.sleep(LATENCY_SECONDS)
    path = request.app["folder"] / request.match_info["key"]
    if not path.is_file():
        body = "<Error><Code>NoSuchKey</Code></Error>"
        return web.Response(status=404, text=body, content_type="application/xml")
    size = path.stat().st_size
    start, stop, _ = request.http_range.indices(size)
    headers = {"ETag": f'"{size}"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
    headers |= {"Content-Length": str(stop - start), "Accept-Ranges": "bytes"}
    if "Range" in request.headers:
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
    response = web.StreamResponse(
        status=206 if "Range" in request.headers else 200, headers=headers
    )
    await response.prepare(request)
    if request.method == "GET":
        await _send(response, path, start, stop)
    return response


async def _send(response: web.StreamResponse, path: Path, start: int, stop: int) -> None:
    loop = asyncio.get_running_loop()
    due = loop.time()
    with path.open("rb") as file:
        file.seek(start)
        while start < stop:
            piece = file.read(min(SLICE_BYTES, stop - start))
            start += len(piece)
            due += len(piece) / BYTES_PER_SECOND
            await response.write(piece)
            await asyncio.sleep(due - loop.time())


async def main(folder: Path) -> None:
    """Serve a folder on a free port."""
    application = web.Application()
    application["folder"] = folder
    application.router.add_get(f"/{BUCKET}/{{key:.+}}", answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


@contextmanager
def run_server(*arguments: str) -> Iterator[str]:
    """Run Python with arguments, and yield the URL of the server, which prints its port."""
    with subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(child.stdout.readline())}"
        finally:
            child.terminate()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
