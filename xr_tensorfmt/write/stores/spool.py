"""A file of this machine that several processes fill, before one of them sends it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from xr_tensorfmt.layouts.base import Encoded
from xr_tensorfmt.write.draft import Draft, Piece
from xr_tensorfmt.write.placing import opened, write_at
from xr_tensorfmt.write.stores.upload import Upload
from xr_tensorfmt.write.stores.waiting import read_blocks


@dataclass(frozen=True)
class Spool:
    """A file that becomes an object once it is complete.

    Parameters
    ----------
    draft : Draft
        The file.
    """

    draft: Draft

    @property
    def target(self) -> str:
        """What it is to become."""
        return self.draft.target

    @property
    def identity(self) -> str:
        """As that of its draft."""
        return self.draft.identity

    def begin(self) -> Spool:
        """Make the file; as `Draft.begin`."""
        self._check(os.path.dirname(self.draft.path))
        self.draft.begin()
        return self

    def write(self, batches: Iterator[Encoded]) -> None:
        """Put bytes into their places; as `Draft.write`."""
        self._check(self.draft.path)
        self.draft.write(batches)

    def send(self, pieces: Sequence[Piece], upload: Upload) -> None:
        """Send all of it, and make the object appear.

        Parameters
        ----------
        pieces : sequence of Piece
            What no chunk has written.
        upload : Upload
            Where it goes.
        """
        try:
            with opened(self.draft.path) as descriptor:
                for piece in pieces:
                    write_at(descriptor, memoryview(piece.data), piece.offset)
                for block in read_blocks(descriptor, 0, self.draft.size):
                    upload.write(block)
            upload.finish()
        except BaseException:
            upload.discard()
            raise
        finally:
            self.draft.discard()

    def _check(self, path: str) -> None:
        if not os.path.exists(path):
            reason = (
                f"this worker sees no {path}, where the workers put the object together before it "
                "is sent; set dask's 'temporary-directory' to a folder that they share"
            )
            raise FileNotFoundError(errno.ENOENT, reason, self.draft.target)
