"""A test suite of public functions that every format should pass, also of another package."""

from __future__ import annotations

import os
import pickle
from math import prod
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import numpy as np
import pytest
import xarray as xr

from xr_tensorfmt.datasets.explanation import explain
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.opening import validate
from xr_tensorfmt.saving import to_file

__all__ = ["FormatTests", "WritableFormatTests"]

CHUNK_BYTES = 16 << 10  # small examples have several chunks


def _get_largest(dataset: xr.Dataset) -> xr.DataArray:
    return max(dataset.data_vars.values(), key=lambda array: array.nbytes)


class FormatTests:
    """Tests of opening, selecting, chunking, validating and transferring files of a format.

    A subclass sets `format` and `file_name`, and overrides `create_dataset`, or also `write`.
    """

    #: Name of the format, as for ``format=``.
    format: ClassVar[str]
    #: Name of the example file, with a suffix that the format recognises.
    file_name: ClassVar[str]
    #: Whether the format has no magic number, so that xarray needs ``engine=``.
    needs_suffix: ClassVar[bool] = False
    #: Whether one file holds everything, so that it opens from memory.
    is_single_file: ClassVar[bool] = True

    def create_dataset(self) -> xr.Dataset:
        """Create the Dataset in memory of the example file, with at least 32 KiB of values."""
        raise NotImplementedError

    def write(self, dataset: xr.Dataset, path: str) -> None:
        """Write the example, perhaps in dask chunks; override it if `to_file` cannot."""
        to_file(dataset, path, self.format)

    def open(self, file: Any, **options: Any) -> xr.Dataset:
        """Open a file with keywords of `xarray.open_dataset`; override it to add others."""
        return xr.open_dataset(file, engine="tensorfmt", **options)

    def create_file(self, directory: Path) -> str:
        """Write the example into a directory, and return its path."""
        path = os.path.join(directory, self.file_name)
        self.write(self.create_dataset(), path)
        return path

    def _check(self, actual: xr.Dataset) -> None:
        xr.testing.assert_identical(actual.load(), self.create_dataset())

    def test_opens_as_written_dataset(self, tmp_path: Path) -> None:
        """Names, dimensions, dtypes, values, coordinates and attributes agree."""
        path, expected = self.create_file(tmp_path), self.create_dataset()
        self._check(self.open(path, format=self.format))
        dtypes = {name: array.dtype for name, array in expected.variables.items()}
        assert {name: array.dtype for name, array in self.open(path).variables.items()} == dtypes

    def test_is_recognised(self, tmp_path: Path) -> None:
        """The file opens without ``format=`` and, if it has a magic number, without ``engine=``."""
        path = self.create_file(tmp_path)
        self._check(self.open(path))
        if not self.needs_suffix:
            self._check(xr.open_dataset(path))

    def test_opening_reads_no_values(self, tmp_path: Path) -> None:
        """Variables are lazy, and so are selections."""
        dataset = self.open(self.create_file(tmp_path))
        array = _get_largest(dataset)
        selected = array.isel(dict.fromkeys(array.dims, slice(0, 1)))
        assert 0 < explain(selected).needed_bytes < explain(array).needed_bytes

    def test_selections_equal_numpy(self, tmp_path: Path) -> None:
        """Integers, slices, arrays and points select the same values as in memory."""
        lazy = _get_largest(self.open(self.create_file(tmp_path)))
        eager = _get_largest(self.create_dataset())
        rng = np.random.default_rng(0)
        for dim, size in eager.sizes.items():
            keys: list[Any] = [0, -1, size // 2, slice(None, None, -1), slice(1, None, 2)]
            keys += [slice(0, 0), slice(size // 3, None), rng.integers(0, size, 5), [-1, 0, 0]]
            for key in keys:
                xr.testing.assert_equal(lazy.isel({dim: key}).load(), eager.isel({dim: key}))
        outer = {dim: rng.integers(0, size, 4) for dim, size in eager.sizes.items()}
        xr.testing.assert_equal(lazy.isel(outer).load(), eager.isel(outer))
        points = {dim: xr.DataArray(index, dims="point") for dim, index in outer.items()}
        xr.testing.assert_equal(lazy.isel(points).load(), eager.isel(points))
        rest = {lazy.dims[0]: slice(1, None)}
        xr.testing.assert_equal(lazy.transpose().isel(rest).load(), eager.transpose().isel(rest))

    def test_chunks_have_values_of_file(self, tmp_path: Path) -> None:
        """``chunks={}`` gives chunks within ``chunk_bytes``, and other chunks work too."""
        path, expected = self.create_file(tmp_path), self.create_dataset()
        chunked = self.open(path, chunks={}, chunk_bytes=CHUNK_BYTES)
        xr.testing.assert_equal(chunked.compute(), expected)
        array = _get_largest(chunked)
        elements = prod(max(lengths) for lengths in array.chunks or [(array.size,)])
        assert elements * array.dtype.itemsize <= CHUNK_BYTES
        other = self.open(path).chunk(dict.fromkeys(array.dims, 7))
        xr.testing.assert_equal(other.compute(), expected)

    def test_validate_reports_no_findings(self, tmp_path: Path) -> None:
        """A written file is valid."""
        assert validate(self.create_file(tmp_path)) == []

    def test_truncated_files_raise(self, tmp_path: Path) -> None:
        """A truncated file raises TensorFormatError, and `validate` reports it."""
        path = self.create_file(tmp_path)
        paths = [os.path.join(tmp_path, name) for name in os.listdir(tmp_path)]
        largest = max(paths, key=os.path.getsize)
        size = os.path.getsize(largest)
        for length in sorted({0, 1, 3, 7, 16, 40, size // 3, size // 2, size - 9, size - 1}):
            os.truncate(largest, length)
            with pytest.raises(TensorFormatError) as caught:
                self.open(path, format=self.format).load()
            assert caught.value.path == largest
            assert validate(path, format=self.format), f"valid with {length} of {size} bytes"
            self.create_file(tmp_path)

    @pytest.mark.filterwarnings("ignore::xr_tensorfmt.TensorFormatWarning")
    def test_mutated_files_raise_only_documented_errors(self, tmp_path: Path) -> None:
        """A file with changed bytes opens, or raises TensorFormatError; `validate` never raises."""
        path = self.create_file(tmp_path)
        content, rng = Path(path).read_bytes(), np.random.default_rng(0)
        for number in range(200):
            start = int(rng.integers(min(len(content), 512)))
            start = start if number % 7 else len(content) - start  # near the begin or the end
            length = int(rng.choice([1, 2, 4, 8]))
            new = [rng.bytes(length), b"\0" * length, b"\xff" * length, b"", content[:length]]
            mutated = content[:start] + new[number % len(new)] + content[start + length :]
            Path(path).write_bytes(mutated)
            try:
                validate(path, format=self.format)
                self.open(path, format=self.format).load()
            except (TensorFormatError, FileNotFoundError):  # a sibling file has another name
                continue
            except Exception as error:
                if "sparse=" not in str(error):  # the tensor became too large to fill
                    error.add_note(f"mutation {number} of {path}")
                    raise

    def test_lazy_datasets_can_be_pickled(self, tmp_path: Path) -> None:
        """A pickled Dataset reads the file again; loaded values are not needed."""
        dataset = self.open(self.create_file(tmp_path))
        self._check(pickle.loads(pickle.dumps(dataset)))  # noqa: S301  # it was pickled here

    def test_opens_from_memory(self, tmp_path: Path) -> None:
        """Bytes and file objects open as the same Dataset."""
        if not self.is_single_file:
            return
        with open(self.create_file(tmp_path), "rb") as file:
            self._check(self.open(file, format=self.format))
            file.seek(0)
            self._check(self.open(file.read(), format=self.format))

    def test_opens_from_store(self, tmp_path: Path) -> None:
        """URLs open as the same Dataset, with and without chunks."""
        self.create_file(tmp_path)
        fs, folder = fsspec.filesystem("memory"), "/xr_tensorfmt_tests"
        fs.put(f"{tmp_path}/", folder, recursive=True)
        try:
            url = f"memory:/{folder}/{self.file_name}"
            self._check(self.open(url))
            self._check(self.open(url, chunks={}))
        finally:
            fs.rm(folder, recursive=True)


class WritableFormatTests(FormatTests):
    """The tests of `FormatTests`, and tests of writing from chunks, of failures and of regions."""

    def test_chunks_are_written_as_same_file(self, tmp_path: Path) -> None:
        """Values in memory, lazy values and dask chunks are written as equal files."""
        path = self.create_file(tmp_path)
        dataset = self.create_dataset()
        array = _get_largest(dataset)
        copy = os.path.join(tmp_path, f"copy-{self.file_name}")
        for data in (dataset.chunk(dict.fromkeys(array.dims, 17)), self.open(path)):
            self.write(data, copy)
            xr.testing.assert_identical(self.open(copy).load(), self.open(path).load())
            assert validate(copy, format=self.format) == []

    def test_failed_write_keeps_old_file(self, tmp_path: Path) -> None:
        """An error in a chunk leaves the file unchanged."""
        path = self.create_file(tmp_path)
        before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}
        dataset = self.create_dataset()
        name = _get_largest(dataset).name

        def fail(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            raise ZeroDivisionError(f"a chunk of shape {values.shape} cannot be computed")

        chunked = dataset.chunk()
        chunked[name].data = chunked[name].data.map_blocks(fail, dtype=dataset[name].dtype)
        with pytest.raises(ZeroDivisionError):
            self.write(chunked, path)
        after = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}
        assert after == before

    def test_regions_are_written_in_place(self, tmp_path: Path) -> None:
        """``region=`` changes a part of a variable, or raises ValueError."""
        path = self.create_file(tmp_path)
        dataset = self.create_dataset()
        array = _get_largest(dataset)
        dim = str(array.dims[0])
        part = slice(8, 16)
        changed = array.isel({dim: slice(None, None, -1)}).isel({dim: part})
        data = changed.drop_vars(list(changed.coords)).to_dataset(name=array.name)
        expected = array.copy(deep=True)
        try:
            to_file(data, path, self.format, region={dim: part})
            expected[{dim: part}] = changed.values
        except ValueError as error:
            if "region" not in str(error):
                raise
        actual = self.open(path, format=self.format)[array.name]
        np.testing.assert_array_equal(actual.values, expected.values)
