"""Uploads to S3: parts of one size, several on their way at the same time."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, wait
from contextlib import suppress
from io import BytesIO
from typing import Any

from fsspec import AbstractFileSystem

from xr_tensorfmt.extents import Bytes
from xr_tensorfmt.sources.threads import MOST_AT_ONCE, REQUESTS
from xr_tensorfmt.write.absent import exists_already
from xr_tensorfmt.write.stores.upload import Upload

MOST_IN_FLIGHT = 64 << 20
"""Bytes of the parts that are on their way, or two parts where these are larger."""


class Multipart(Upload):
    """An object of S3; one that is no larger than a part is put by a single request.

    Parameters
    ----------
    url : str
        What the user calls it.
    fs : AbstractFileSystem
        s3fs.
    path : str
        What `fs` calls it.
    size, part : int
        Bytes of the object, and of each of its parts but the last.
    replace : bool
        Whether it may take the place of another.
    """

    def __init__(
        self, url: str, fs: AbstractFileSystem, path: str, size: int, part: int, *, replace: bool
    ) -> None:
        super().__init__(url, fs, path)
        bucket, key, _ = fs.split_path(path)
        if not key:
            raise IsADirectoryError(f"{url} is a bucket; give the name of an object in it")
        self._object = {"Bucket": bucket, "Key": key}
        # What the store checks in the moment in which the object appears.
        self._condition = {} if replace else {"IfNoneMatch": "*"}
        self._part = part
        self._most = max(2, min(fs.max_concurrency, MOST_AT_ONCE, MOST_IN_FLIGHT // part))
        self._buffer = BytesIO()
        self._sent: list[dict[str, Any]] = []
        self._pending: deque[Future[dict[str, Any]]] = deque()
        self._in_parts = size > part
        self._upload: dict[str, Any] = {}

    def discard(self) -> None:
        """Abort, after the last part has arrived: one that arrives later would stay for ever."""
        wait([each for each in self._pending if not each.cancel()])
        if self._upload:
            with suppress(Exception):
                self._fs.call_s3("abort_multipart_upload", **self._upload)

    def _write(self, data: Bytes) -> None:
        rest = data.data
        while rest:
            count = self._buffer.write(rest[: self._part - self._buffer.tell()])
            rest = rest[count:]
            if self._buffer.tell() == self._part and self._in_parts:
                self._send()

    def _finish(self) -> None:
        try:
            if self._in_parts:
                self._send()
                self._await(0)
                parts = {"Parts": self._sent}
                options = {"MultipartUpload": parts, **self._upload, **self._condition}
                self._fs.call_s3("complete_multipart_upload", **options)
            else:
                body = self._buffer.getvalue()
                self._fs.call_s3("put_object", Body=body, **self._object, **self._condition)
        except OSError as error:
            if self._condition and "PreconditionFailed" in repr(error.__cause__):
                raise exists_already(self.url) from error
            raise
        self._fs.invalidate_cache(self._target)

    def _send(self) -> None:
        """Send the part that is full, or the last one."""
        if not self._buffer.tell():
            return
        if not self._upload:
            begun = self._fs.call_s3("create_multipart_upload", **self._object)
            self._upload = {**self._object, "UploadId": begun["UploadId"]}
        self._await(self._most - 1)
        number = len(self._sent) + len(self._pending) + 1
        body, self._buffer = self._buffer.getvalue(), BytesIO()
        self._pending.append(REQUESTS.submit(self._send_part, number, body))

    def _send_part(self, number: int, body: bytes) -> dict[str, Any]:
        answer = self._fs.call_s3("upload_part", Body=body, PartNumber=number, **self._upload)
        checksum = {key: answer[key] for key in ("ChecksumSHA256",) if key in answer}
        return {"PartNumber": number, "ETag": answer["ETag"], **checksum}

    def _await(self, most: int) -> None:
        """Wait until no more than so many parts are on their way."""
        while len(self._pending) > most:
            self._sent.append(self._pending.popleft().result())
