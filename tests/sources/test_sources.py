from __future__ import annotations

import gc
import io
import mmap
import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from dask.base import tokenize

from tests.clock import wait_for_a_tick
from tests.recording import RecordingSource
from xr_tensorfmt.core.dense import Dense
from xr_tensorfmt.core.elements import Plain
from xr_tensorfmt.core.extents import Extents
from xr_tensorfmt.core.reading import read
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.errors import SourceChangedError, TensorFormatError
from xr_tensorfmt.sources import find_source, open_source
from xr_tensorfmt.sources import local as windows
from xr_tensorfmt.sources.local import LocalFile
from xr_tensorfmt.sources.memory import FileObject, Memory

CONTENT = np.random.default_rng(0).integers(0, 256, 1 << 20, dtype=np.uint8).tobytes()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "content.bin"
    file.write_bytes(CONTENT)
    return file


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize(("start", "stop"), [(0, 1 << 20), (4097, 900_001), (5, 20)])
def test_local_file_gives_its_bytes(path: Path, mapped: bool, start: int, stop: int) -> None:
    read = LocalFile.from_path(path, mapped=mapped).read(Extents.single(start, stop))
    assert read.tobytes() == CONTENT[start:stop]


def test_scattered_ranges_are_read_from_one_window(path: Path) -> None:
    starts = np.array([3, 70_000, 500_000, 1_000_000])
    read = LocalFile.from_path(path).read(Extents.uniform(starts, 5))
    assert read.tobytes() == b"".join(CONTENT[s : s + 5] for s in starts)


@pytest.mark.parametrize("mapped", [True, False])
def test_arrays_are_writable_and_file_never_changes(path: Path, mapped: bool) -> None:
    layout = Dense((1 << 17,), Plain(np.dtype("<f8")), 0)
    source = LocalFile.from_path(path, mapped=mapped)
    values = read(layout, source, Selection.everything(layout.shape))
    values[:] = 7.0
    assert (values == 7.0).all()
    del values
    assert path.read_bytes() == CONTENT


def test_window_is_handed_out_without_copy(path: Path) -> None:
    layout = Dense((1 << 17,), Plain(np.dtype("<f8")), 0)
    values = read(layout, LocalFile.from_path(path), Selection.everything(layout.shape))
    assert isinstance(find_owner(values), mmap.mmap)


def test_reading_gives_memory_of_its_own(path: Path) -> None:
    layout = Dense((1 << 17,), Plain(np.dtype("<f8")), 0)
    values = read(
        layout, LocalFile.from_path(path, mapped=False), Selection.everything(layout.shape)
    )
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
    values = read(layout, LocalFile.from_path(path), Selection((131_071,), (indices,)))
    assert find_owner(values) is None
    expected = np.frombuffer(CONTENT, dtype, offset=offset, count=131_071)[indices]
    assert values.tobytes() == expected.astype("<f8").tobytes()


def find_owner(array: np.ndarray) -> mmap.mmap | None:
    base = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.obj if isinstance(base, memoryview) else base.base
    return base


def test_window_is_unmapped_with_its_array(path: Path) -> None:
    def mappings() -> int:
        return Path("/proc/self/maps").read_text().count(str(path))

    values = LocalFile.from_path(path).read(Extents.single(0, 1 << 20))
    assert mappings() == 1
    del values
    gc.collect()
    assert mappings() == 0


def test_many_arrays_leave_file_descriptors_to_others(path: Path, monkeypatch) -> None:
    monkeypatch.setattr(os, "sysconf", {"SC_OPEN_MAX": 80}.get)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    source = LocalFile.from_path(path)
    arrays = [source.read(Extents.single(0, 1 << 20)) for _ in range(60)]
    assert len(os.listdir("/proc/self/fd")) - before <= 20
    assert all(array.tobytes() == CONTENT for array in arrays)


def overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(bytes(len(CONTENT)))


def test_window_that_is_detached_keeps_its_bytes(path: Path) -> None:
    source = LocalFile.from_path(path)
    full = source.read(Extents.single(0, 1 << 20))
    part = source.read(Extents.single(10_000, 900_000))
    part[0] = 7
    windows.detach(path.stat())
    overwrite(path)
    assert full.tobytes() == CONTENT
    assert part.tobytes() == b"\7" + CONTENT[10_001:900_000]
    assert not LocalFile.from_path(path).mapped


def test_file_that_was_detached_is_not_mapped(path: Path) -> None:
    before = LocalFile.from_path(path)
    windows.detach(path.stat())
    after = LocalFile.from_path(path)
    assert before.mapped
    assert not after.mapped
    for source in (before, after):
        read = source.read(Extents.single(0, 1 << 20))
        assert find_owner(read) is None
        assert read.tobytes() == CONTENT
        assert source.window(0, 1 << 20) is None


def test_windows_of_another_file_stay_attached(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(CONTENT)
    windows.detach(other.stat())
    assert isinstance(
        find_owner(LocalFile.from_path(path).read(Extents.single(0, 1 << 20))), mmap.mmap
    )


def test_unmappable_files_are_read(path: Path, monkeypatch) -> None:
    def refuse(*_: object, **__: object) -> mmap.mmap:
        raise OSError("no mappings here")

    monkeypatch.setattr(mmap, "mmap", refuse)
    layout = Dense((1 << 17,), Plain(np.dtype("<f8")), 0)
    values = read(layout, LocalFile.from_path(path), Selection.everything(layout.shape))
    assert values.tobytes() == CONTENT
    assert find_owner(values) is None


@pytest.mark.parametrize("mapped", [True, False])
def test_rewritten_file_is_detected(path: Path, mapped: bool) -> None:
    source = LocalFile.from_path(path, mapped=mapped)
    os.utime(path, ns=(0, 123_000_000_456))
    with pytest.raises(
        SourceChangedError,
        match=r"modified at 1970-01-01T00:02:03\.000Z, expected 1048576 bytes modified at ",
    ):
        source.read(Extents.single(0, 1 << 20))


@pytest.mark.parametrize("mapped", [True, False])
def test_grown_or_cut_file_is_detected(path: Path, mapped: bool) -> None:
    source = LocalFile.from_path(path, mapped=mapped)
    os.truncate(path, 1000)
    os.utime(path, ns=(source.mtime_ns, source.mtime_ns))
    with pytest.raises(
        SourceChangedError, match=r"the file: 1000 bytes modified at .* open it again"
    ):
        source.read(Extents.single(0, 1 << 20))


ANOTHER = "another one with this size and time, expected .* open it again"


def set_mtime(path: Path, mtime_ns: int) -> None:
    os.utime(path, ns=(mtime_ns, mtime_ns))


def write_with_mtime(path: Path, content: bytes, mtime_ns: int) -> Path:
    path.write_bytes(content)
    set_mtime(path, mtime_ns)
    return path


@pytest.mark.parametrize("mapped", [True, False])
def test_replacement_of_same_size_and_mtime_is_detected(path: Path, mapped: bool) -> None:
    source = LocalFile.from_path(path, mapped=mapped)
    other = write_with_mtime(path.with_name("other"), CONTENT[::-1], source.mtime_ns)  # as rsync -t
    other.replace(path)
    with pytest.raises(SourceChangedError, match=ANOTHER):
        source.read(Extents.single(0, 1 << 20))


@pytest.mark.parametrize("mapped", [True, False])
def test_other_content_of_same_size_and_mtime_is_detected(path: Path, mapped: bool) -> None:
    wait_for_a_tick(path)
    source = LocalFile.from_path(path, mapped=mapped)
    with path.open("r+b") as file:  # as cp -p, into the same inode
        file.write(CONTENT[::-1])
    set_mtime(path, source.mtime_ns)
    with pytest.raises(SourceChangedError, match=ANOTHER):
        source.read(Extents.single(0, 1 << 20))


def make_hard_link(path: Path) -> None:
    os.link(path, path.with_name("snapshot"))  # as cp -al


def change_mode(path: Path) -> None:
    path.chmod(0o400)


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("change", [make_hard_link, change_mode])
def test_hard_link_and_another_mode_are_no_change_of_content(
    path: Path, mapped: bool, change: Callable[[Path], None]
) -> None:
    wait_for_a_tick(path)
    source = LocalFile.from_path(path, mapped=mapped)
    change(path)
    assert path.stat().st_ctime_ns > source.ctime_ns
    assert source.read(Extents.single(0, 1 << 20)).tobytes() == CONTENT


def test_replacement_with_another_mode_is_detected(path: Path) -> None:
    wait_for_a_tick(path)
    source = LocalFile.from_path(path)
    other = write_with_mtime(path.with_name("other"), CONTENT[::-1], source.mtime_ns)
    other.chmod(0o400)
    other.replace(path)
    with pytest.raises(SourceChangedError, match=ANOTHER):
        source.read(Extents.single(0, 1 << 20))


def test_inode_distinguishes_recent_files_of_the_same_times(path: Path) -> None:
    source = LocalFile.from_path(path)
    assert source.inode == path.stat().st_ino
    with pytest.raises(SourceChangedError, match=ANOTHER):
        replace(source, inode=0).read(Extents.single(0, 100))


def test_inode_number_is_ignored_if_change_time_is_old(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = path.stat().st_ctime_ns + 10 * 10**9
    monkeypatch.setattr("xr_tensorfmt.sources.local.time.time_ns", lambda: later)
    source = replace(LocalFile.from_path(path), inode=0)
    assert source.read(Extents.single(0, 100)).tobytes() == CONTENT[:100]


def test_another_machine_compares_only_size_and_mtime(path: Path) -> None:
    source = replace(LocalFile.from_path(path), host="another")
    write_with_mtime(path.with_name("copy"), CONTENT, source.mtime_ns).replace(path)
    assert source.read(Extents.single(0, 1 << 20)).tobytes() == CONTENT
    os.utime(path, ns=(0, 0))
    with pytest.raises(SourceChangedError, match="modified at 1970"):
        source.read(Extents.single(0, 1 << 20))


def test_source_of_this_machine_notices_in_another_process_too(path: Path) -> None:
    source = pickle.loads(pickle.dumps(LocalFile.from_path(path)))
    write_with_mtime(path.with_name("copy"), CONTENT[::-1], source.mtime_ns).replace(path)
    with pytest.raises(SourceChangedError, match=ANOTHER):
        source.read(Extents.single(0, 1 << 20))


def test_home_directory_is_expanded(path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(path.parent))
    assert LocalFile.from_path("~/content.bin").path == str(path)


def test_missing_object_in_memory_is_missing_in_this_process() -> None:
    with pytest.raises(FileNotFoundError, match="no such object in the memory of this process"):
        find_source("memory://bucket/missing.mag")


def test_folder_raises(tmp_path: Path) -> None:
    with pytest.raises(
        IsADirectoryError, match=r"is a directory; pass the path of .* or a pattern"
    ):
        LocalFile.from_path(tmp_path)


@pytest.mark.parametrize(
    "make", [bytes, bytearray, memoryview, lambda c: np.frombuffer(c, "<f8").data]
)
def test_bytes_of_any_kind_are_source(make) -> None:
    source = open_source(make(CONTENT))
    assert isinstance(source, Memory)
    assert source.read(Extents.single(10, 30)).tobytes() == CONTENT[10:30]
    assert source.name == "<1048576 bytes in memory>"


@pytest.mark.parametrize("make", [Memory, lambda content: FileObject(io.BytesIO(content))])
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
    Memory(content).read(Extents.single(0, 1 << 20))[:] = 0
    assert content == CONTENT


def test_file_object_is_source(path: Path) -> None:
    with path.open("rb") as file:
        source = open_source(file)
        assert isinstance(source, FileObject)
        assert source.read(Extents.single(10, 30)).tobytes() == CONTENT[10:30]
        assert source.name == str(path)
    assert open_source(io.BytesIO(CONTENT)).name == "<BytesIO>"


def test_file_object_that_gives_less_at_once_is_read_to_end() -> None:
    class Dribble(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(min(size or 0, 1000))

    source = FileObject(Dribble(CONTENT))
    assert source.read(Extents.single(10, 500_000)).tobytes() == CONTENT[10:500_000]


@pytest.mark.parametrize(
    "source",
    [
        Memory(memoryview(CONTENT)),
        FileObject(io.BytesIO(CONTENT)),
        LocalFile("/x", 5, 6, 7, 8, "host"),
    ],
    ids=lambda source: type(source).__name__,
)
def test_sources_pickle(source) -> None:
    copy = pickle.loads(pickle.dumps(source))
    assert (copy.size, copy.name) == (source.size, source.name)
    if not isinstance(source, LocalFile):
        assert copy.read(Extents.single(3, 9)).tobytes() == CONTENT[3:9]


def test_local_file_pickles_small(path: Path) -> None:
    assert len(pickle.dumps(LocalFile.from_path(path))) < 300


def test_text_and_pipes_raise(path: Path) -> None:
    with path.open(encoding="latin-1") as file, pytest.raises(TypeError, match="mode 'rb'"):
        open_source(file)
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as pipe, pytest.raises(TypeError, match="is not seekable"):
        open_source(pipe)
    os.close(writing)


def test_pipes_and_devices_raise_and_do_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(OSError, match="is not a regular file"):
            LocalFile.from_path(name)


@pytest.mark.parametrize(
    ("file", "error", "words"),
    [
        (42, TypeError, "cannot open an object of type int"),
        ("/no/such/file", FileNotFoundError, "/no/such/file"),
    ],
)
def test_other_objects_raise(file, error, words) -> None:
    with pytest.raises(error, match=words):
        open_source(file)


def test_words_for_io_are_checked() -> None:
    with pytest.raises(ValueError, match="io='fast' is not one of 'mmap', 'read'"):
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
    source = LocalFile.from_path(path)
    starts = np.array([8, 100 << 20, 255 << 20])

    def faults() -> int:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_minflt + usage.ru_majflt

    source.read(Extents.uniform(starts, 8))
    before = faults()
    source.read(Extents.uniform(starts, 8))
    assert faults() - before < 100
