from __future__ import annotations

import gc
import io
import mmap
import os
import pickle
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import dask
import fsspec
import numpy as np
import pytest
import xarray as xr
from dask.base import tokenize

from tests.opening import open_lazily
from tests.recording import RecordingSource
from xr_tensorfmt import to_file
from xr_tensorfmt.core.elements import Plain
from xr_tensorfmt.core.extents import Extents
from xr_tensorfmt.core.layout import Dense, read
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.errors import SourceChangedError, TensorFormatError
from xr_tensorfmt.sources import InputOutput, find_source, local
from xr_tensorfmt.sources.local import FileObject, LocalFile

CONTENT = np.random.default_rng(0).integers(0, 256, 1 << 20, dtype=np.uint8).tobytes()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "content.bin"
    file.write_bytes(CONTENT)
    return file


@pytest.mark.parametrize("io", ["auto", "mmap", "read"])
@pytest.mark.parametrize(("start", "stop"), [(0, 1 << 20), (4097, 900_001), (5, 20)])
def test_local_file_gives_its_bytes(path: Path, io: InputOutput, start: int, stop: int) -> None:
    read = LocalFile.open_head(path, io)[0].read(Extents.single(start, stop))
    assert read.tobytes() == CONTENT[start:stop]


def test_scattered_ranges_are_read_from_one_window(path: Path) -> None:
    starts = np.array([3, 70_000, 500_000, 1_000_000])
    read = LocalFile.open_head(path)[0].read(Extents.uniform(starts, 5))
    assert read.tobytes() == b"".join(CONTENT[s : s + 5] for s in starts)


@pytest.mark.parametrize("io", ["auto", "mmap", "read"])
def test_arrays_are_writable_and_file_never_changes(path: Path, io: InputOutput) -> None:
    layout = Dense((1 << 17,), Plain(np.dtype("<f8")), 0)
    source = LocalFile.open_head(path, io)[0]
    values = read(layout, source, Selection.everything(layout.shape))
    values[:] = 7.0
    assert (values == 7.0).all()
    del values
    assert path.read_bytes() == CONTENT


def test_window_is_handed_out_without_copy(path: Path) -> None:
    layout = Dense((1 << 17,), Plain(np.dtype("<f8")), 0)
    values = read(layout, LocalFile.open_head(path, "mmap")[0], Selection.everything(layout.shape))
    assert isinstance(find_owner(values), mmap.mmap)


def test_reading_gives_memory_of_its_own(path: Path) -> None:
    layout = Dense((1 << 17,), Plain(np.dtype("<f8")), 0)
    values = read(layout, LocalFile.open_head(path, "auto")[0], Selection.everything(layout.shape))
    assert find_owner(values) is None


@pytest.mark.parametrize(
    ("dtype", "offset", "indices"),
    [
        pytest.param(">f8", 0, range(100_000), id="byte-order"),
        pytest.param("<f8", 3, range(100_000), id="alignment"),
        pytest.param("<f8", 0, range(0, 100_001, 1000), id="holes"),
    ],
)
def test_misaligned_window_is_copied(path, dtype, offset, indices) -> None:
    layout = Dense((131_071,), Plain(np.dtype(dtype)), offset)
    source = LocalFile.open_head(path, "mmap")[0]
    values = read(layout, source, Selection((131_071,), (indices,)))
    assert find_owner(values) is None
    expected = np.frombuffer(CONTENT, dtype, offset=offset, count=131_071)[indices]
    assert values.tobytes() == expected.astype("<f8").tobytes()


def find_owner(array: np.ndarray) -> mmap.mmap | None:
    base = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.obj if isinstance(base, memoryview) else base.base
    return base


@pytest.mark.slow
def test_window_is_unmapped_with_its_array(path: Path) -> None:
    def mappings() -> int:
        return Path("/proc/self/maps").read_text().count(str(path))

    values = LocalFile.open_head(path, "mmap")[0].read(Extents.single(0, 1 << 20))
    assert mappings() == 1
    del values
    gc.collect()
    assert mappings() == 0


@pytest.mark.slow
def test_many_arrays_leave_file_descriptors_to_others(path: Path, monkeypatch) -> None:
    monkeypatch.setattr(os, "sysconf", {"SC_OPEN_MAX": 80}.get)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    source = LocalFile.open_head(path, "mmap")[0]
    arrays = [source.read(Extents.single(0, 1 << 20)) for _ in range(60)]
    assert len(os.listdir("/proc/self/fd")) - before <= 20
    assert all(array.tobytes() == CONTENT for array in arrays)


def test_file_of_a_window_is_found(path: Path) -> None:
    window = LocalFile.open_head(path, "mmap")[0].read(Extents.single(5, 1 << 20))
    assert local.find_mapped_file(window[::-1].view("i1")) == str(path)
    assert local.find_mapped_file(window.copy()) is None
    assert local.find_mapped_file(3) is None


def test_end_of_file_is_reported(path: Path) -> None:
    with pytest.raises(TensorFormatError, match="truncated while it was open"):
        LocalFile.open_head(path)[0].read(Extents.single(0, 2 << 20))


def test_unmappable_files_are_read(path: Path, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no mappings here")

    monkeypatch.setattr(local, "_build_window", refuse)
    layout = Dense((1 << 17,), Plain(np.dtype("<f8")), 0)
    values = read(layout, LocalFile.open_head(path, "mmap")[0], Selection.everything(layout.shape))
    assert values.tobytes() == CONTENT
    assert find_owner(values) is None


def test_columns_are_copied_from_a_map(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Dense, "locate")  # no list of 1024 ranges is needed
    layout = Dense((1024, 128), Plain(np.dtype("<f8")), 0)
    selection = Selection(layout.shape, (range(1, 1024, 2), range(3, 35)))
    values = read(layout, LocalFile.open_head(path)[0], selection)
    expected = np.frombuffer(CONTENT, "<f8").reshape(layout.shape)[1::2, 3:35]
    np.testing.assert_array_equal(values, expected)
    assert find_owner(values) is None


@pytest.mark.parametrize("suffix", ["npy", "safetensors", "tens", "mag"])
def test_small_local_file_is_opened_once(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / f"a.{suffix}")
    dims = ("dim_0", "dim_1")
    to_file(xr.DataArray(np.eye(3, dtype="f4"), dims=dims, name="tensor"), path, drop=["name"])
    opened, reads = [], []
    monkeypatch.setattr(LocalFile, "_fill", lambda *args: reads.append(args))
    monkeypatch.setattr(os, "open", lambda *args, call=os.open: opened.append(args) or call(*args))
    xr.open_dataset(path, engine="tensorfmt")
    assert (len(opened), reads) == (1, [])


@pytest.mark.parametrize("io", ["auto", "mmap", "read"])
def test_rewritten_file_is_detected(path: Path, io: InputOutput) -> None:
    source = LocalFile.open_head(path, io)[0]
    os.utime(path, ns=(0, 123_000_000_456))
    with pytest.raises(
        SourceChangedError,
        match=r"modified at 1970-01-01T00:02:03\.000Z .*, expected 1048576 bytes modified at ",
    ):
        source.read(Extents.single(0, 1 << 20))


@pytest.mark.parametrize("io", ["auto", "mmap", "read"])
def test_grown_or_cut_file_is_detected(path: Path, io: InputOutput) -> None:
    source = LocalFile.open_head(path, io)[0]
    os.truncate(path, 1000)
    os.utime(path, ns=(source.mtime_ns, source.mtime_ns))
    with pytest.raises(
        SourceChangedError, match=r"the file: 1000 bytes modified at .* open it again"
    ):
        source.read(Extents.single(0, 1 << 20))


ANOTHER = r"inode \d+\), expected .* open it again"


def set_mtime(path: Path, mtime_ns: int) -> None:
    os.utime(path, ns=(mtime_ns, mtime_ns))


def write_with_mtime(path: Path, content: bytes, mtime_ns: int) -> Path:
    path.write_bytes(content)
    set_mtime(path, mtime_ns)
    return path


@pytest.mark.parametrize("io", ["auto", "mmap", "read"])
def test_replacement_of_same_size_and_mtime_is_detected(path: Path, io: InputOutput) -> None:
    source = LocalFile.open_head(path, io)[0]
    other = write_with_mtime(path.with_name("other"), CONTENT[::-1], source.mtime_ns)  # as rsync -t
    other.replace(path)
    with pytest.raises(SourceChangedError, match=ANOTHER):
        source.read(Extents.single(0, 1 << 20))


def set_attribute(path: Path) -> None:
    os.setxattr(path, "user.note", b"x")


def set_same_time(path: Path) -> None:
    set_mtime(path, path.stat().st_mtime_ns)


def set_same_mode(path: Path) -> None:
    path.chmod(path.stat().st_mode)


def rename_there_and_back(path: Path) -> None:
    path.rename(path.with_name("elsewhere")).rename(path)


def make_hard_link(path: Path) -> None:
    os.link(path, path.with_name("snapshot"))  # as cp -al


def change_mode(path: Path) -> None:
    path.chmod(0o400)


@pytest.mark.parametrize(
    "change",
    [
        set_attribute,
        set_same_time,
        set_same_mode,
        rename_there_and_back,
        make_hard_link,
        change_mode,
    ],
)
def test_change_of_attributes_is_no_change_of_content(
    path: Path, change: Callable[[Path], None]
) -> None:
    source = LocalFile.open_head(path)[0]
    change(path)
    assert source.read(Extents.single(0, 1 << 20)).tobytes() == CONTENT


def test_named_pipe_in_place_of_the_file_is_detected(path: Path) -> None:
    source = LocalFile.open_head(path)[0]
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(SourceChangedError):
        source.read(Extents.single(0, 100))


def test_another_machine_compares_only_size_and_mtime(path: Path) -> None:
    source = replace(LocalFile.open_head(path)[0], host="another")
    write_with_mtime(path.with_name("copy"), CONTENT, source.mtime_ns).replace(path)
    assert source.read(Extents.single(0, 1 << 20)).tobytes() == CONTENT
    os.utime(path, ns=(0, 0))
    with pytest.raises(SourceChangedError, match="modified at 1970"):
        source.read(Extents.single(0, 1 << 20))


def test_source_of_this_machine_notices_in_another_process_too(path: Path) -> None:
    source = pickle.loads(pickle.dumps(LocalFile.open_head(path)[0]))
    write_with_mtime(path.with_name("copy"), CONTENT[::-1], source.mtime_ns).replace(path)
    with pytest.raises(SourceChangedError, match=ANOTHER):
        source.read(Extents.single(0, 1 << 20))


def test_home_directory_is_expanded(path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(path.parent))
    assert LocalFile.open_head("~/content.bin")[0].path == str(path)


def test_missing_object_in_memory_is_named() -> None:
    with pytest.raises(FileNotFoundError, match="no such object"):
        find_source("memory://bucket/missing.mag")


def test_folder_raises(tmp_path: Path) -> None:
    with pytest.raises(
        IsADirectoryError, match=r"is a directory; pass the path of .* or a pattern"
    ):
        LocalFile.open_head(tmp_path)[0]


@pytest.mark.parametrize(
    "make", [bytes, bytearray, memoryview, lambda c: np.frombuffer(c, "<f8").data]
)
def test_bytes_of_any_kind_are_source(make) -> None:
    source, _ = find_source(make(CONTENT))
    assert isinstance(source, FileObject)
    assert source.read(Extents.single(10, 30)).tobytes() == CONTENT[10:30]
    assert source.name == "<1048576 bytes in memory>"


@pytest.mark.parametrize(
    "make",
    [lambda content: find_source(content)[0], lambda content: FileObject(io.BytesIO(content))],
)
def test_dask_names_content_in_memory_without_reading_it(
    make: Callable[[bytes], Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, other = make(CONTENT), make(CONTENT)
    names = {tokenize(pickle.loads(pickle.dumps(source))), tokenize(source)}

    def refuse(_: object) -> None:
        raise AssertionError("the content was pickled in order to be hashed")

    monkeypatch.setattr(type(source), "__reduce__", refuse)
    assert names == {tokenize(source)}
    assert tokenize(other) not in names


def test_bytes_are_never_written_to() -> None:
    content = bytearray(CONTENT)
    find_source(content)[0].read(Extents.single(0, 1 << 20))[:] = 0
    assert content == CONTENT


def test_file_object_is_source(path: Path) -> None:
    with path.open("rb") as file:
        source, _ = find_source(file)
        assert isinstance(source, FileObject)
        assert source.read(Extents.single(10, 30)).tobytes() == CONTENT[10:30]
        assert source.name == str(path)
    assert find_source(io.BytesIO(CONTENT))[0].name == "<BytesIO>"


def test_file_object_of_fsspec_has_the_name_of_its_file() -> None:
    fs = fsspec.filesystem("memory")
    fs.pipe_file("/names/a.safetensors", CONTENT)
    with fs.open("/names/a.safetensors") as file:
        assert find_source(file)[0].file_name == "a.safetensors"
    fs.rm("/names", recursive=True)


def test_memory_map_is_source(path: Path) -> None:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        source, _ = find_source(content)
        assert source.size == len(CONTENT)
        assert source.read(Extents.single(10, 30)).tobytes() == CONTENT[10:30]


def test_file_object_that_gives_less_at_once_is_read_to_end() -> None:
    class Dribble(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(min(size or 0, 1000))

    source = FileObject(Dribble(CONTENT))
    assert source.read(Extents.single(10, 500_000)).tobytes() == CONTENT[10:500_000]


@pytest.mark.parametrize(
    "source",
    [
        find_source(memoryview(CONTENT))[0],
        FileObject(io.BytesIO(CONTENT)),
        LocalFile("/x", 5, 6, 7, "host"),
    ],
    ids=lambda source: type(source).__name__,
)
def test_sources_pickle(source) -> None:
    copy = pickle.loads(pickle.dumps(source))
    assert (copy.size, copy.name) == (source.size, source.name)
    if not isinstance(source, LocalFile):
        assert copy.read(Extents.single(3, 9)).tobytes() == CONTENT[3:9]


def test_local_file_pickles_small(path: Path) -> None:
    assert len(pickle.dumps(LocalFile.open_head(path)[0])) < 300


def test_text_and_pipes_raise(path: Path) -> None:
    with path.open(encoding="latin-1") as file, pytest.raises(TypeError, match="bytes"):
        find_source(file)[0].read_bytes(0, 4)
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as pipe, pytest.raises(OSError, match=r"[Ss]eek"):
        find_source(pipe)
    os.close(writing)


def test_pipes_and_devices_raise_and_do_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(OSError, match="is not a regular file"):
            LocalFile.open_head(name)[0]


@pytest.mark.parametrize(
    ("file", "error", "words"),
    [
        (42, TypeError, "cannot open an object of type int"),
        ("/no/such/file", FileNotFoundError, "/no/such/file"),
    ],
)
def test_other_objects_raise(file, error, words) -> None:
    with pytest.raises(error, match=words):
        find_source(file)


def test_words_for_io_are_checked() -> None:
    with pytest.raises(ValueError, match="io='fast' is not one of 'auto', 'mmap', 'read'"):
        find_source(b"", "fast")


def test_file_cut_while_it_is_read_raises() -> None:
    source = RecordingSource(CONTENT)
    source.content = CONTENT[:100]
    with pytest.raises(TensorFormatError, match="truncated while it was open"):
        source.read(Extents.single(0, 200))


@pytest.mark.skipif(sys.platform != "linux", reason="counts page faults as Linux does")
def test_three_far_points_touch_few_pages_of_large_file(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    path = tmp_path / "hole"
    with path.open("wb") as file:
        file.truncate(256 << 20)
    source = LocalFile.open_head(path)[0]
    starts = np.array([8, 100 << 20, 255 << 20])

    def faults() -> int:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_minflt + usage.ru_majflt

    source.read(Extents.uniform(starts, 8))
    before = faults()
    source.read(Extents.uniform(starts, 8))
    assert faults() - before < 100


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
@pytest.mark.parametrize("io", ["mmap", "read"])
def test_named_pipe_that_replaced_file_does_not_hang(tmp_path: Path, io: InputOutput) -> None:
    path = tmp_path / "t.bin"
    path.write_bytes(bytes(100_000))
    source, _ = find_source(path, io)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(SourceChangedError, match="changed or replaced"):
        source.read(Extents.single(0, 100_000))


@pytest.mark.parametrize("name", ["a b.npy", "a%20b.npy", "é.npy"])
def test_uri_of_path_opens(tmp_path: Path, name: str) -> None:
    np.save(tmp_path / name, np.arange(3))
    source, _ = find_source((tmp_path / name).as_uri())
    assert source.name == str(tmp_path / name)
    source, _ = find_source(f"file://{tmp_path / name}")
    assert source.name == str(tmp_path / name)


class SlowFile(io.FileIO):
    """A file whose position takes a moment to set."""

    def seek(self, *arguments: int) -> int:
        position = super().seek(*arguments)
        time.sleep(0.0002)
        return position


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["threads", "dask", "opening"])
def test_datasets_of_one_file_object_are_read_in_threads(kind: str, tmp_path: Path) -> None:
    arrays = {f"{group}.w": (group, np.full(20_000, ord(group) * 1.0)) for group in "ab"}
    to_file(xr.Dataset(arrays), tmp_path / "m.safetensors")
    file = SlowFile(str(tmp_path / "m.safetensors"))
    file.seek(3)

    def open_group(group: str) -> xr.DataArray:
        chunks = {group: 500} if kind == "dask" else None
        return open_lazily(file, group=group, chunks=chunks).w

    def load(tensor: xr.DataArray) -> np.ndarray:
        return np.concatenate([tensor[i : i + 500].values for i in range(0, 20_000, 500)])

    with ThreadPoolExecutor(4) as threads:
        if kind == "dask":
            results = dask.compute(*(open_group(group).data for group in "ab"), num_workers=4)
        elif kind == "threads":
            results = list(threads.map(load, map(open_group, "ab")))
        else:
            results = list(threads.map(lambda group: load(open_group(group)), "abababab"))[:2]
    for group, values in zip("ab", results, strict=True):
        np.testing.assert_array_equal(values, ord(group))
    assert file.tell() == 3
    file.close()
