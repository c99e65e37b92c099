"""PyCauset: causal matrices of bits, and triangles of numbers."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from benchmark.case import Aim, Case, Results, Role, Section, Table
from benchmark.causets import HEADER, payload_bytes, write_container
from xr_tensorfmt import popcount

_LARGE_SIZE = 1 << 30
_BLOCK = 2048

_TINY = 2000

_INTRO = """\
Containers of PyCauset with random values: causal matrices of 20,000 and of 100,000 elements (25 MB
and 625 MB of bits; unpacked 400 MB and 10 GB), and a strict triangle of 20,000 rows of float64
(1.6 GB). `--quick` takes 50,000 and 8,000 for the last two. All is in the page cache.

The limit for unpacking is `numpy.unpackbits` of mapped bytes that give as many elements as are
asked for; the limit for counting is `numpy.bitwise_count` over all mapped words, which does not add
them up yet. The files are opened beforehand."""


def _orders(size: int) -> tuple[int, int, int]:
    return (20_000, 100_000, 20_000) if size >= _LARGE_SIZE else (20_000, 50_000, 8_000)


def _small(folder: Path) -> Path:
    return folder / "small.pycauset"


def _tiny(folder: Path) -> Path:
    return folder / "tiny.pycauset"


def _large(folder: Path) -> Path:
    return folder / "large.pycauset"


def _numbers(folder: Path) -> Path:
    return folder / "numbers.pycauset"


def _disk(size: int) -> int:
    small, large, numbers = _orders(size)
    return payload_bytes(small, 1) + payload_bytes(large, 1) + payload_bytes(numbers, 64)


def _write(folder: Path, size: int) -> None:
    small, large, numbers = _orders(size)
    write_container(_tiny(folder), _TINY, "CAUSAL", "BIT")
    write_container(_small(folder), small, "CAUSAL", "BIT")
    write_container(_large(folder), large, "CAUSAL", "BIT")
    write_container(_numbers(folder), numbers, "TRIANGULAR_FLOAT", "FLOAT64")


def _opened(path: Path, **keywords: Any) -> xr.DataArray:
    return xr.open_dataset(path, engine="tensorfmt", **keywords)["tensor"]


def _mapped(path: Path, dtype: str) -> NDArray[Any]:
    count = (os.path.getsize(path) - HEADER) // np.dtype(dtype).itemsize
    return np.memmap(path, dtype, "r", HEADER, count)


def _unpacked(path: Path, elements: int, _: None) -> None:
    packed = _mapped(path, "u1")[: elements // 8]
    assert np.unpackbits(packed, bitorder="little").size


def _values(key: dict[str, Any], array: xr.DataArray) -> None:
    # What is selected is kept by its own array; the one that was opened keeps nothing.
    assert array.isel(key).values.size


def _cut(part: NDArray[np.int64], array: xr.DataArray) -> None:
    assert array[:].values[np.ix_(part, part)].size


def _row_by_row(path: Path, order: int, rows: range, _: None) -> None:
    """What one would write by hand with numpy."""
    packed = _mapped(path, "u1")
    values = np.zeros((len(rows), order), dtype=np.bool_)
    place = payload_bytes(order, 1) - payload_bytes(order - rows.start, 1)
    for number, row in enumerate(rows):
        stored = order - 1 - row
        size = -(-stored // 64) * 8
        piece = packed[place : place + size]
        values[number, row + 1 :] = np.unpackbits(piece, count=stored, bitorder="little")
        place += size


def _part_by_hand(
    path: Path, order: int, rows: NDArray[np.int64], columns: NDArray[np.int64], _: None
) -> None:
    """Unpack each of the rows that are needed, and take the columns."""
    packed = _mapped(path, "u1")
    values = np.empty((rows.size, columns.size), dtype=np.bool_)
    line = np.zeros(order, dtype=np.bool_)
    for number, row in enumerate(rows.tolist()):
        stored = order - 1 - row
        place = payload_bytes(order, 1) - payload_bytes(order - row, 1)
        piece = packed[place : place + -(-stored // 64) * 8]
        line[: row + 1] = False
        line[row + 1 :] = np.unpackbits(piece, count=stored, bitorder="little")
        np.take(line, columns, out=values[number], mode="clip")


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


def _popcount(dim: str | None, array: xr.DataArray) -> None:
    assert popcount(array, dim).values.size


def _sum(dim: str | None, array: xr.DataArray) -> None:
    assert array.sum(dim).values.size


def _copied(path: Path, elements: int, _: None) -> None:
    assert np.array(_mapped(path, "<f8")[:elements]).size


def _unpacking(folder: Path) -> Sequence[Table]:
    path, order = _small(folder), 20_000
    rows, middle, later = range(4096, 6144), slice(4096, 6144), slice(9000, 11048)
    some = np.random.default_rng(0).permutation(order)[: order - order // 10]
    part = np.sort(some)

    def limit(name: str, elements: int, role: Role = "limit") -> Case:
        run = partial(_unpacked, _large(folder), elements)
        return Case(f"numpy.unpackbits, {name}", run, role)

    def ours(name: str, **key: Any) -> Case:
        return Case(f"tensorfmt, {name}", partial(_values, key), "ours", partial(_opened, path))

    def part_by_hand(name: str, elements: NDArray[np.int64]) -> Case:
        return Case(f"numpy, {name}", partial(_part_by_hand, path, order, elements, elements))

    def by_hand(name: str, rows: range) -> Case:
        return Case(f"numpy, {name} row by row", partial(_row_by_row, path, order, rows))

    return (
        Table(
            "The whole matrix as bool",
            "N = 20,000: 25 MB become 400 MB. The file holds half of the elements; others are 0.",
            (
                limit("400 MB", order**2),
                ours("whole"),
                limit("the 200 MB that are stored", order**2 // 2, "peer"),
                by_hand("whole", range(order - 1)),
            ),
        ),
        Table(
            f"{_BLOCK} whole rows",
            "A block of rows of the same matrix: the futures of its elements.",
            (limit("rows", _BLOCK * order), ours("rows", row=middle), by_hand("rows", rows)),
            memory=False,
        ),
        Table(
            f"A block of {_BLOCK} x {_BLOCK}",
            "Above the diagonal, on it, and below it, where nothing is stored.",
            (
                limit("block", _BLOCK**2),
                ours("block above", row=middle, col=later),
                ours("block on the diagonal", row=middle, col=middle),
                ours("block below", row=later, col=middle),
            ),
            memory=False,
        ),
        Table(
            "Nine of ten elements",
            "A part of the set, by the same list for rows and columns: in order, and in any order.",
            (
                limit("nine of ten rows", part.size * order),
                ours("nine of ten rows", row=part),
                ours("part", row=part, col=part),
                ours("part in any order", row=some, col=some),
                part_by_hand("part row by row", part),
                part_by_hand("part in any order, row by row", some),
                Case("numpy.ix_ of the whole", partial(_cut, part), "peer", partial(_opened, path)),
            ),
            memory=False,
        ),
        Table(
            "One column",
            "The past of one element: a byte of each row above it, most on a page of its own.",
            (limit("column", order), ours("column", col=15_000)),
            memory=False,
        ),
    )


def _beside_pycauset(folder: Path) -> Sequence[Table]:
    if not importlib.util.find_spec("pycauset"):
        return ()
    path = _tiny(folder)
    opened = partial(_opened, path)
    return (
        Table(
            "Beside PyCauset itself",
            f"A causal matrix of {_TINY:,} elements to numpy: PyCauset asks for each on its own.",
            (
                Case("numpy.unpackbits, tiny", partial(_unpacked, path, _TINY**2 // 2), "limit"),
                Case("tensorfmt, tiny", partial(_values, {"row": slice(None)}), "ours", opened),
                Case("pycauset, to_numpy", partial(_by_pycauset, path)),
            ),
            memory=False,
        ),
    )


def _counting(size: str, path: Path) -> Table:
    return Table(
        f"Row sums, column sums, total: {size}",
        "`popcount`, at once and by dask in two threads. Rows are added up as they lie; to add up "
        "columns, each word takes five logical operations; sums alone are shifted.",
        (
            Case(f"numpy.bitwise_count, {size}", partial(_counted, path), "limit"),
            Case(f"numpy.bitwise_count and its sum, {size}", partial(_counted_and_added, path)),
            *(
                Case(
                    f"tensorfmt, {name}{way}, {size}",
                    partial(_popcount, dim),
                    "ours",
                    partial(_opened, path, chunks=chunks),
                )
                for name, dim in (("row sums", "col"), ("column sums", "row"), ("total", None))
                for way, chunks in (("", None), (" by dask", {}))
            ),
        ),
        memory=False,
    )


def _reducing(folder: Path) -> Table:
    path = _large(folder)
    chunked = partial(_opened, path, chunks={})
    return Table(
        "Reduce the whole unpacked matrix",
        "The larger matrix with `chunks={}`: every chunk is unpacked, none for long.",
        (
            Case("numpy.bitwise_count, beside it", partial(_counted, path), "limit"),
            Case("tensorfmt, sum of all", partial(_sum, None), "ours", chunked, rounds=3),
            Case("tensorfmt, sum of rows", partial(_sum, "col"), "ours", chunked, rounds=3),
            Case("tensorfmt, popcount", partial(_popcount, "col"), "ours", chunked),
        ),
    )


def _triangles(folder: Path) -> Sequence[Table]:
    path = _numbers(folder)
    order = int((os.path.getsize(path) // 4) ** 0.5)

    def limit(name: str, elements: int) -> Case:
        return Case(f"numpy copy, {name}", partial(_copied, path, elements), "limit")

    def ours(name: str, **key: Any) -> Case:
        return Case(
            f"tensorfmt, {name} of numbers", partial(_values, key), "ours", partial(_opened, path)
        )

    middle, later = slice(2048, 3072), slice(5000, 6024)
    return (
        Table(
            "1024 whole rows of float64",
            "The limit is a copy of as many mapped bytes; some of ours are zeros.",
            (limit("rows", 1024 * order), ours("rows", row=middle)),
            memory=False,
        ),
        Table(
            "A block of 1024 x 1024 float64",
            "The limit is a copy of as many mapped bytes.",
            (
                limit("block", 1024**2),
                ours("block", row=middle, col=later),
                ours("diagonal block", row=middle, col=middle),
            ),
            memory=False,
        ),
    )


def _tables(folder: Path) -> Sequence[Table]:
    return (
        *_unpacking(folder),
        *_beside_pycauset(folder),
        _counting("the smaller", _small(folder)),
        _counting("the larger", _large(folder)),
        _reducing(folder),
        *_triangles(folder),
    )


def _aims(results: Results) -> Sequence[Aim]:
    def ratio(ours: str, limit: str) -> float:
        return results[ours].seconds / results[limit].seconds

    memory = results["tensorfmt, sum of rows"].pages or 0.0
    large = "numpy.bitwise_count, the larger"
    return (
        Aim("unpack the whole", ratio("tensorfmt, whole", "numpy.unpackbits, 400 MB"), 1.5),
        Aim("a part", ratio("tensorfmt, part", "numpy, part row by row"), 1.5),
        Aim(
            "a part in any order",
            ratio("tensorfmt, part in any order", "numpy, part in any order, row by row"),
            1.5,
        ),
        Aim("unpack rows", ratio("tensorfmt, rows", "numpy.unpackbits, rows"), 1.5),
        Aim("nine of ten", ratio("tensorfmt, part", "tensorfmt, nine of ten rows"), 1.5),
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
