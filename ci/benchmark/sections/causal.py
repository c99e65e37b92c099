"""PyCauset: causal matrices of bits, and triangles of numbers."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from benchmark.case import Aim, Case, Results, Section, Table
from benchmark.causets import HEADER, payload_bytes, write_container
from xr_tensorfmt import popcount

_LARGE_SIZE = 1 << 30
_BLOCK = 2048

_INTRO = """\
Containers of PyCauset with random values: causal matrices of 20,000 and of 100,000 elements (25 MB
and 625 MB of bits; unpacked 400 MB and 10 GB), and a strict triangle of 20,000 rows of float64
(1.6 GB). `--quick` takes 50,000 and 8,000 for the last two. All is in the page cache.

The limit for unpacking is `numpy.unpackbits` of mapped bytes that give as many elements as are asked
for; the limit for counting is `numpy.bitwise_count` over all mapped words, which does not yet add
them up."""


def _orders(size: int) -> tuple[int, int, int]:
    return (20_000, 100_000, 20_000) if size >= _LARGE_SIZE else (20_000, 50_000, 8_000)


def _small(folder: Path) -> Path:
    return folder / "small.pycauset"


def _large(folder: Path) -> Path:
    return folder / "large.pycauset"


def _numbers(folder: Path) -> Path:
    return folder / "numbers.pycauset"


def _disk(size: int) -> int:
    small, large, numbers = _orders(size)
    return payload_bytes(small, 1) + payload_bytes(large, 1) + payload_bytes(numbers, 64)


def _write(folder: Path, size: int) -> None:
    small, large, numbers = _orders(size)
    write_container(_small(folder), small, "CAUSAL", "BIT")
    write_container(_large(folder), large, "CAUSAL", "BIT")
    write_container(_numbers(folder), numbers, "TRIANGULAR_FLOAT", "FLOAT64")


def _opened(path: Path, **keywords: Any) -> xr.DataArray:
    return xr.open_dataset(path, engine="tensorfmt", **keywords)["tensor"]


def _mapped(path: Path, dtype: str) -> NDArray[Any]:
    count = (os.path.getsize(path) - HEADER) // np.dtype(dtype).itemsize
    return np.memmap(path, dtype, "r", HEADER, count)


def _unpacked(path: Path, elements: int | None, _: None) -> None:
    packed = _mapped(path, "u1")
    if elements is None:
        assert np.unpackbits(packed, bitorder="little").size
        return
    wanted = elements // 8
    parts = -(-wanted // packed.size)
    out = np.unpackbits(np.concatenate([packed] * parts)[:wanted] if parts > 1 else packed[:wanted])
    assert out.size


def _values(path: Path, key: dict[str, Any], _: None) -> None:
    assert _opened(path).isel(key).values.size


def _row_by_row(path: Path, rows: range, _: None) -> None:
    """What one would write by hand with numpy."""
    order = _opened(path).sizes["row"]
    packed = _mapped(path, "u1")
    values = np.zeros((len(rows), order), dtype=np.bool_)
    place = payload_bytes(order, 1) - payload_bytes(order - rows.start, 1)
    for number, row in enumerate(rows):
        stored = order - 1 - row
        size = -(-stored // 64) * 8
        piece = packed[place : place + size]
        values[number, row + 1 :] = np.unpackbits(piece, count=stored, bitorder="little")
        place += size


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """PyCauset says something on stderr for each file that it maps."""
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _by_pycauset(path: Path, _: None) -> None:
    import pycauset  # noqa: PLC0415

    with _silence():
        assert pycauset.to_numpy(pycauset.load(str(path))).size


def _counted(path: Path, _: None) -> None:
    assert np.bitwise_count(_mapped(path, "<u8")).size


def _counted_and_added(path: Path, _: None) -> None:
    assert np.bitwise_count(_mapped(path, "<u8")).sum()


def _popcount(path: Path, dim: str | None, chunks: dict[str, int] | None, _: None) -> None:
    assert popcount(_opened(path, chunks=chunks), dim).values.ndim < 2


def _sum(path: Path, dim: str | None, _: None) -> None:
    assert _opened(path, chunks={}).sum(dim).values.ndim < 2


def _copied(path: Path, elements: int, _: None) -> None:
    assert np.array(_mapped(path, "<f8")[:elements]).size


def _of_pycauset(*cases: Case) -> tuple[Case, ...]:
    return cases if importlib.util.find_spec("pycauset") else ()


def _unpacking(folder: Path) -> Sequence[Table]:
    path = _small(folder)
    order = 20_000
    rows, middle = range(4096, 4096 + _BLOCK), slice(4096, 4096 + _BLOCK)
    limit: Callable[[int | None], Any] = partial(partial, _unpacked, path)
    ours: Callable[[dict[str, Any]], Any] = partial(partial, _values, path)
    return (
        Table(
            "The whole matrix as bool",
            "N = 20,000: 25 MB become 400 MB. The file holds half of the elements; the rest is zero.",
            (
                Case("numpy.unpackbits, 400 MB", limit(order**2), "limit"),
                Case("tensorfmt, whole", ours({}), "ours"),
                Case("numpy.unpackbits, the 200 MB that are stored", limit(None)),
                Case("numpy.unpackbits, row by row", partial(_row_by_row, path, range(order - 1))),
                *_of_pycauset(Case("pycauset, to_numpy", partial(_by_pycauset, path), rounds=3)),
            ),
        ),
        Table(
            f"{_BLOCK} whole rows",
            "A block of rows of the same matrix: the futures of its elements.",
            (
                Case("numpy.unpackbits, rows", limit(_BLOCK * order), "limit"),
                Case("tensorfmt, rows", ours({"row": middle}), "ours"),
                Case("numpy.unpackbits, these row by row", partial(_row_by_row, path, rows)),
            ),
            memory=False,
        ),
        Table(
            f"A block of {_BLOCK} x {_BLOCK}",
            "Above the diagonal, on it, and below it, where nothing is stored.",
            (
                Case("numpy.unpackbits, block", limit(_BLOCK**2), "limit"),
                Case("tensorfmt, above", ours({"row": middle, "col": slice(9000, 11048)}), "ours"),
                Case("tensorfmt, on the diagonal", ours({"row": middle, "col": middle}), "ours"),
                Case("tensorfmt, below", ours({"row": slice(9000, 11048), "col": middle}), "ours"),
            ),
            memory=False,
        ),
        Table(
            "One column",
            "The past of one element: a byte of each row above it, each on a page of its own.",
            (
                Case("numpy.unpackbits, column", limit(order), "limit"),
                Case("tensorfmt, column", ours({"col": 15_000}), "ours"),
            ),
            memory=False,
        ),
    )


def _counting(folder: Path, size: str, path: Path) -> Sequence[Table]:
    chunked: dict[str, int] = {}
    return (
        Table(
            f"Row sums, column sums, total: {size}",
            "`popcount`, at once and by dask in two threads. Column sums need five logical "
            "operations a word to be added up, row sums one.",
            (
                Case(f"numpy.bitwise_count, {size}", partial(_counted, path), "limit"),
                Case(f"numpy.bitwise_count and its sum, {size}", partial(_counted_and_added, path)),
                *(
                    Case(
                        f"tensorfmt, {name}{way}, {size}",
                        partial(_popcount, path, dim, chunks),
                        "ours",
                    )
                    for name, dim in (("row sums", "col"), ("column sums", "row"), ("total", None))
                    for way, chunks in (("", None), (" by dask", chunked))
                ),
            ),
            memory=False,
        ),
    )


def _reducing(folder: Path) -> Sequence[Table]:
    path = _large(folder)
    return (
        Table(
            "Reduce the whole unpacked matrix",
            "The larger matrix with `chunks={}`: every chunk is unpacked, none for long.",
            (
                Case("numpy.bitwise_count, beside it", partial(_counted, path), "limit"),
                Case("tensorfmt, sum of all", partial(_sum, path, None), "ours", rounds=3),
                Case("tensorfmt, sum of rows", partial(_sum, path, "col"), "ours", rounds=3),
                Case("tensorfmt, popcount", partial(_popcount, path, "col", {}), "ours"),
            ),
        ),
    )


def _triangles(folder: Path) -> Sequence[Table]:
    path = _numbers(folder)
    order = int(2 * (os.path.getsize(path) // 8)) ** 0.5 if path.exists() else 0
    count = int(order)
    middle, later = slice(2048, 3072), slice(5000, 6024)
    ours: Callable[[dict[str, Any]], Any] = partial(partial, _values, path)
    return (
        Table(
            "1024 whole rows of float64",
            "The limit is a copy of as many mapped bytes; half of ours may be zeros.",
            (
                Case("numpy copy, rows", partial(_copied, path, 1024 * count), "limit"),
                Case("tensorfmt, rows of numbers", ours({"row": middle}), "ours"),
            ),
            memory=False,
        ),
        Table(
            "A block of 1024 x 1024 float64",
            "The limit is a copy of as many mapped bytes.",
            (
                Case("numpy copy, block", partial(_copied, path, 1024**2), "limit"),
                Case("tensorfmt, block of numbers", ours({"row": middle, "col": later}), "ours"),
                Case(
                    "tensorfmt, diagonal block of numbers",
                    ours({"row": middle, "col": middle}),
                    "ours",
                ),
            ),
            memory=False,
        ),
    )


def _tables(folder: Path) -> Sequence[Table]:
    return (
        *_unpacking(folder),
        *_counting(folder, "the smaller", _small(folder)),
        *_counting(folder, "the larger", _large(folder)),
        *_reducing(folder),
        *_triangles(folder),
    )


def _aims(results: Results) -> Sequence[Aim]:
    def ratio(ours: str, limit: str) -> float:
        return results[ours].seconds / results[limit].seconds

    memory = results["tensorfmt, sum of rows"].pages or 0.0
    large = "numpy.bitwise_count, the larger"
    return (
        Aim("unpack the whole", ratio("tensorfmt, whole", "numpy.unpackbits, 400 MB"), 1.5),
        Aim("unpack rows", ratio("tensorfmt, rows", "numpy.unpackbits, rows"), 1.5),
        Aim("row sums", ratio("tensorfmt, row sums by dask, the larger", large), 1.5),
        Aim("column sums", ratio("tensorfmt, column sums by dask, the larger", large), 1.5),
        Aim("peak memory of a reduction", memory, 500 * 1e6 / (1 << 20), "MiB"),
    )


SECTION = Section(
    "causal",
    "Causal matrices and triangles",
    _INTRO,
    _disk,
    _write,
    _tables,
    _aims,
)
