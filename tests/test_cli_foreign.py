"""What ``xr-tensorfmt convert`` writes to zarr and netCDF, and what it refuses to."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import xarray as xr

from tests import tensfiles as tf
from tests.servers import S3Store
from tests.test_cli import dataset, done, failed, opened, run, save
from tests.test_cli import folder as folder  # noqa: PLC0414  # a fixture
from xr_tensorfmt.cli import rounding
from xr_tensorfmt.cli.apart import check_overlap
from xr_tensorfmt.cli.attributes import fits
from xr_tensorfmt.cli.naming import can_be_named

VALUES = np.arange(6, dtype="f4").reshape(2, 3)
BOTH = pytest.mark.parametrize("to", ["b.zarr", "b.nc"])


def small(attrs: dict[str, Any] | None = None, name: str = "v") -> xr.Dataset:
    return xr.Dataset({name: (("x", "y"), VALUES, attrs or {})})


def stored(ds: xr.Dataset, store: str, **keywords: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what zarr has no specification for
        ds.to_zarr(store, **keywords)


def debris() -> list[str]:
    return [name for name in os.listdir() if "part" in name]


# Input and output that lie in each other


@pytest.fixture
def memory() -> Iterator[Any]:
    fs = pytest.importorskip("fsspec.implementations.memory").MemoryFileSystem()
    fs.store.clear()
    yield fs
    fs.store.clear()


def options(s3: S3Store) -> list[str]:
    return [
        each for key, value in s3.options.items() for each in ("--storage-option", f"{key}={value}")
    ]


@pytest.mark.parametrize("again", ["memory://x.zarr", "memory://x.zarr/", "memory:///x.zarr"])
@pytest.mark.usefixtures("memory")
def test_a_store_behind_a_url_is_not_written_over_itself(again: str) -> None:
    stored(small(), "memory://x.zarr")
    message = failed("convert", "memory://x.zarr", again, "--overwrite")
    assert "is the input itself, and would be deleted before it is read; write to" in message
    xr.testing.assert_identical(xr.load_dataset("memory://x.zarr", engine="zarr"), small())


def test_a_store_in_s3_is_not_written_over_itself(s3: S3Store) -> None:
    s3.put("first", b"")
    stored(small(), "s3://bucket/self.zarr", mode="w", storage_options=s3.options)
    same = "s3a://bucket/self.zarr"
    assert "is the input itself" in failed(
        "convert", "s3://bucket/self.zarr", same, "--overwrite", *options(s3)
    )
    ds = xr.load_dataset("s3://bucket/self.zarr", engine="zarr", storage_options=s3.options)
    xr.testing.assert_identical(ds, small())
    done("convert", "s3://bucket/self.zarr", "s3://bucket/b.zarr", "--overwrite", *options(s3))
    assert "exists already; pass --overwrite" in failed(
        "convert", "s3://bucket/self.zarr", "s3://bucket/b.zarr", *options(s3)
    )


def test_a_store_in_a_folder_may_be_converted_onto_itself_by_any_name() -> None:
    stored(small(), "s.zarr")
    for target, dtype in (("s.zarr", "float64"), (f"file://{Path.cwd()}/s.zarr", "float16")):
        done("convert", "s.zarr", target, "--overwrite", "--dtype", dtype)
        assert opened("s.zarr").v.dtype == dtype
    np.testing.assert_array_equal(opened("s.zarr").v, VALUES)
    assert not debris()


def test_a_store_is_not_written_over_one_that_holds_the_input() -> None:
    done("convert", save("a.mag"), "s.zarr")
    Path("a.mag").rename("s.zarr/in.mag")
    for target in ("s.zarr", f"file://{Path.cwd()}/s.zarr"):
        message = failed("convert", "s.zarr/in.mag", target, "--overwrite")
        assert "holds the input s.zarr/in.mag; write to a place outside of it" in message
    assert Path("s.zarr", "in.mag").exists()


@pytest.mark.parametrize("target", ["s.zarr/v", "s.zarr/v/c/0/0", "s.zarr/new"])
@pytest.mark.parametrize("kind", ["zarr", "netcdf", "mag"])
def test_nothing_is_written_into_the_store_that_is_read(target: str, kind: str) -> None:
    stored(small(), "s.zarr")
    message = failed("convert", "s.zarr", target, "--to", kind, "--overwrite")
    assert "lies in the input s.zarr; write to a place outside of it" in message
    xr.testing.assert_identical(opened("s.zarr"), small())


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("simplecache::s3://b/x.zarr", "s3://b/x.zarr"),
        ("x.zarr", "simplecache::x.zarr"),
        ("https://host/x.zarr", "https://host/x.zarr/"),
        ("s3://b/x.zarr/in", "s3://b/x.zarr"),
        ("s3://b/x.zarr", "s3a://b/x.zarr/out"),
    ],
)
def test_urls_of_one_place_are_known_by_any_name(source: str, target: str) -> None:
    with pytest.raises(ValueError, match="input"):
        check_overlap(source, target, from_store=True, to_store=True)


def test_neighbours_are_apart() -> None:
    for source, target in (
        ("a.zarr", "a.zarr2"),
        ("s3://b/x", "memory://b/x"),
        ("x", "memory://x"),
    ):
        check_overlap(source, target, from_store=True, to_store=True)
    with pytest.raises(ValueError, match=r"nope://x: .*give a path or a URL"):
        check_overlap("nope://x", "y", from_store=True, to_store=True)


# What is there


def test_a_folder_behind_a_url_that_is_no_store_is_never_replaced(memory: Any) -> None:
    save()
    Path("docs.d").mkdir()
    Path("docs.d", "diary").write_text("dear")
    memory.pipe_file("/docs.d/diary", b"dear")
    memory.pipe_file("/file", b"dear")
    for url in (f"file://{Path.cwd()}/docs.d", "memory://docs.d", "memory://file"):
        message = failed("convert", "a.mag", url, "--to", "zarr", "--overwrite")
        assert "is there and no zarr store, so that it is not replaced" in message
    assert Path("docs.d", "diary").read_text() == "dear"
    assert memory.cat_file("/docs.d/diary") == memory.cat_file("/file") == b"dear"


def between(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Do something when all is written and has not its name yet."""
    for name in ("to_zarr", "to_netcdf"):
        write = getattr(xr.Dataset, name)

        def writing(*arguments: Any, write: Any = write, **keywords: Any) -> Any:
            result = write(*arguments, **keywords)
            act()
            return result

        monkeypatch.setattr(xr.Dataset, name, writing)


@pytest.mark.parametrize("filled", [False, True])
def test_what_appears_during_a_conversion_is_not_replaced(
    filled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def appear() -> None:
        Path("b.zarr").mkdir()
        if filled:
            Path("b.zarr", "diary").write_text("dear")

    save()
    between(monkeypatch, appear)
    assert "b.zarr exists already; pass --overwrite" in failed("convert", "a.mag", "b.zarr")
    assert os.listdir("b.zarr") == ["diary"] * filled
    assert not debris()


def test_what_is_no_store_any_more_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    save()
    done("convert", "a.mag", "b.zarr")
    between(monkeypatch, Path("b.zarr", "zarr.json").unlink)
    assert "no zarr store" in failed("convert", "a.mag", "b.zarr", "--overwrite")
    assert Path("b.zarr", "w").is_dir()
    assert not debris()


def test_a_store_that_cannot_be_replaced_gets_its_name_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    save()
    done("convert", "a.mag", "b.zarr")
    save("new.mag", dataset() + 1)
    rename, count = os.rename, iter(range(9))

    def failing(old: str, new: str) -> None:
        if next(count) == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), old, None, new)
        rename(old, new)

    monkeypatch.setattr(os, "rename", failing)
    message = failed("convert", "new.mag", "b.zarr", "--overwrite")
    assert message.startswith("Error: b.zarr (from new.mag): No space left on device")
    assert "what was there before is unchanged" in message
    xr.testing.assert_equal(opened("b.zarr"), dataset())
    assert not debris()


def test_where_a_store_is_that_gets_no_name_back_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    save()
    done("convert", "a.mag", "b.zarr")
    rename, count = os.rename, iter(range(9))

    def failing(old: str, new: str) -> None:
        if next(count) > 0:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), old, None, new)
        rename(old, new)

    monkeypatch.setattr(os, "rename", failing)
    message = failed("convert", "a.mag", "b.zarr", "--overwrite")
    (old,) = debris()
    assert message.startswith("Error: b.zarr: neither the new store nor the old one could get")
    assert message.endswith(f"{old}, rename it\n")
    xr.testing.assert_identical(xr.load_dataset(old, engine="zarr"), dataset())


def test_an_old_store_that_cannot_be_removed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    save()
    done("convert", "a.mag", "b.zarr")
    save("new.mag", dataset() + 1)
    rmtree = shutil.rmtree

    def failing(folder: str, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), folder)
        rmtree(folder, ignore_errors=True)

    monkeypatch.setattr(shutil, "rmtree", failing)
    message = failed("convert", "new.mag", "b.zarr", "--overwrite")
    (old,) = debris()
    assert message.startswith("Error: b.zarr is complete, but what it replaced could not be")
    assert message.endswith(f"{old}\n")
    xr.testing.assert_equal(opened("b.zarr"), dataset() + 1)


def test_no_empty_folder_stays_where_a_new_store_gets_no_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(old: str, new: str) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), old, None, new)

    save()
    monkeypatch.setattr(os, "rename", failing)
    assert failed("convert", "a.mag", "b.zarr").startswith("Error: b.zarr (from a.mag): ")
    assert os.listdir() == ["a.mag"]


def test_a_store_of_the_longest_name_is_replaced() -> None:
    name = f"{'a' * 250}.zarr"
    save()
    done("convert", "a.mag", name)
    done("convert", "a.mag", name, "--overwrite")
    assert sorted(os.listdir()) == ["a.mag", name]


@pytest.mark.skipif(os.name == "nt", reason="modes are those of POSIX")
@pytest.mark.parametrize("mode", [0o700, 0o750, 0o500])
@BOTH
def test_the_mode_of_what_is_replaced_stays_and_is_no_more_open_until_then(
    to: str, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    save()
    done("convert", "a.mag", to)
    os.chmod(to, mode)
    seen = []

    def look() -> None:
        seen.extend(stat.S_IMODE(os.stat(name).st_mode) for name in debris())

    between(monkeypatch, look)
    done("convert", "a.mag", to, "--overwrite")
    assert stat.S_IMODE(os.stat(to).st_mode) == mode
    assert seen == [mode | (0o700 if to == "b.zarr" else 0o600)]
    os.chmod(to, 0o700)


@BOTH
def test_the_home_folder_may_be_a_tilde(to: str, monkeypatch: pytest.MonkeyPatch) -> None:
    save()
    monkeypatch.setenv("HOME", str(Path.cwd()))
    monkeypatch.setenv("USERPROFILE", str(Path.cwd()))
    done("convert", "a.mag", f"~/{to}")
    xr.testing.assert_identical(opened(to), dataset())


def test_a_url_of_a_local_file_is_its_path() -> None:
    save()
    done("convert", "a.mag", f"file://{Path.cwd()}/b.nc")
    xr.testing.assert_identical(opened("b.nc"), dataset())


# Failures


@BOTH
def test_no_thread_writes_on_after_a_failure(to: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first chunk fails while others are on their way, which take longer."""
    values = np.zeros((8, 4), "f4")
    values[0] = 2
    ds = xr.Dataset({"v": (("x", "y"), values)})
    stored(ds, "a.zarr", encoding={"v": {"chunks": (1, 4)}})
    late = []
    apply = rounding.Conversion.apply

    def slow(self: Any, values: Any) -> Any:
        if values.size and not values.any():
            time.sleep(0.2)
            late.append(debris())
        return apply(self, values)

    monkeypatch.setattr(rounding.Conversion, "apply", slow)
    with dask.config.set(num_workers=4):
        message = failed("convert", "a.zarr", to, "--dtype", "v=bool")
    assert "which bool has no value for" in message
    count = len(late)
    assert count > 0
    time.sleep(0.5)
    assert len(late) == count
    assert all(late)  # what is unfinished was still there
    assert os.listdir() == ["a.zarr"]


@BOTH
def test_a_scheduler_that_the_user_has_chosen_is_kept(
    to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    between(monkeypatch, lambda: seen.append(dask.config.get("scheduler")))
    with dask.config.set(scheduler="synchronous"):
        done("convert", save(), to)
    assert seen == ["synchronous"]


@BOTH
def test_errors_of_the_system_begin_with_the_file(to: str, monkeypatch: pytest.MonkeyPatch) -> None:
    save()
    done("convert", "a.mag", to)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(xr.Dataset, "to_zarr", full)
    monkeypatch.setattr(xr.Dataset, "to_netcdf", full)
    assert failed("convert", "a.mag", to, "--overwrite") == (
        f"Error: {to} (from a.mag): No space left on device (the disk may be full); what was there "
        "before is unchanged\n"
    )
    xr.testing.assert_identical(opened(to), dataset())
    assert not debris()


def test_of_what_hdf5_says_the_cause_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise RuntimeError(
            "Can't decrement id ref count (file write failed: time = Sat, filename = 'x', file "
            "descriptor = 3, errno = 28, error message = 'No space left on device', buf = 0x7f)"
        )

    monkeypatch.setattr(xr.Dataset, "to_netcdf", full)
    assert failed("convert", save(), "b.nc") == (
        "Error: b.nc (from a.mag): No space left on device; what was there before is unchanged\n"
    )


@pytest.mark.parametrize("to", ["b.zarr", "b.nc", "b.mag"])
def test_damaged_chunks_of_a_store_are_said_of_both_files(to: str) -> None:
    stored(small(), "s.zarr")
    Path("s.zarr/v/c/0/0").write_bytes(b"junk, and more of it")
    message = failed("convert", "s.zarr", to)
    assert message.startswith(f"Error: {to} (from s.zarr): ")
    assert message.endswith("what was there before is unchanged\n")


@pytest.mark.usefixtures("memory")
def test_a_store_that_fails_behind_a_url_is_said_to_be_in_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> None:
        raise RuntimeError("gone")

    save()
    between(monkeypatch, fail)
    message = failed("convert", "a.mag", "memory://b.zarr")
    assert message == (
        "Error: memory://b.zarr (from a.mag): gone; what is there now may be in part\n"
    )


# Dtypes


@pytest.mark.parametrize("source", ["t.nc", "t.zarr"])
@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("c=float32", "'c' is complex128, and float32 has no place for imaginary parts"),
        ("t=float64", "'t' is datetime64[ns], which holds no numbers that could become float64"),
        ("s=float32", "which holds no numbers that could become float32; leave out --dtype"),
        ("time=int8", "'time' is datetime64[ns], which holds no numbers that could become int8"),
    ],
)
@BOTH
def test_values_that_a_dtype_has_no_place_for_are_refused(
    source: str, to: str, wanted: str, words: str
) -> None:
    when = np.array(["2000-01-01", "NaT"], "M8[ns]")
    ds = xr.Dataset(
        {"c": ("x", [1 + 2j, 3]), "t": ("x", when), "s": ("x", ["a", "b"])},
        {"time": ("time", when[:1])},
    )
    stored(ds, source) if source == "t.zarr" else ds.to_netcdf(source, engine="h5netcdf")
    message = failed("convert", source, to, "--dtype", wanted)
    assert message.startswith(f"Error: {to}: ")
    assert words in message
    done("convert", source, to, "--dtype", "c=complex64")


@BOTH
def test_coordinates_with_an_index_are_rounded_too(to: str) -> None:
    small().assign_coords(y=[1.5, 2.5, 1 / 3]).to_netcdf("i.nc")
    done("convert", "i.nc", to, "--dtype", "y=float32")
    assert opened(to).y.dtype == np.float32
    np.testing.assert_array_equal(opened(to).y, np.array([1.5, 2.5, 1 / 3], "f4"))
    assert "which int8 has no value for" in failed("convert", "i.nc", f"c{to}", "--dtype", "y=int8")


@pytest.mark.parametrize("values", [np.full(4, -0.0), np.full(4, complex(-0.0, -0.0))])
def test_negative_zeros_keep_their_signs_in_zarr(values: np.ndarray) -> None:
    Path("z.bin").write_bytes(tf.version_0_9(values))
    done("convert", "z.bin", "z.zarr")
    found = opened("z.zarr").tensor.values
    assert np.signbit(found.real).all()
    assert np.signbit(found.imag).all() == np.iscomplexobj(values)


# Attributes that xarray takes for something else


@pytest.mark.parametrize(
    "attrs",
    [
        {"scale_factor": 0.5},
        {"add_offset": 1},
        {"scale_factor": "half"},
        {"_FillValue": 3},
        {"missing_value": 2},
        {"units": "days since 2000-01-01"},
        {"units": "days since the flood"},
        {"dtype": "bool"},
        {"_Unsigned": "true"},
        {"_Encoding": "utf-8"},
        {"coordinates": "x y"},
        {"units": "days", "dtype": "timedelta64[ns]"},
    ],
    ids=str,
)
@BOTH
def test_attributes_that_would_change_what_is_read_are_refused(
    attrs: dict[str, Any], to: str
) -> None:
    ds = xr.Dataset({"v": (("p", "q"), VALUES.astype("i4"), {"long_name": "l", **attrs})})
    save("a.mag", ds)
    message = failed("convert", "a.mag", to)
    assert "xarray would take it for a part of how values are encoded; pass --drop attrs" in message
    done("convert", "a.mag", to, "--drop", "attrs")
    back = opened(to)
    np.testing.assert_array_equal(back.v.values, ds.v.values)
    assert back.v.dtype == np.int32
    assert back.v.attrs["long_name"] == "l"


@BOTH
def test_coordinates_of_a_dataset_are_an_attribute_that_is_refused(to: str) -> None:
    save("a.mag", small().assign_attrs(coordinates="v", title="t"))
    assert "'coordinates' of the Dataset" in failed("convert", "a.mag", to)
    done("convert", "a.mag", to, "--drop", "attrs")
    xr.testing.assert_identical(opened(to), small().assign_attrs(title="t"))


@BOTH
def test_attributes_that_mean_nothing_to_xarray_are_kept(to: str) -> None:
    attrs = {"units": "eV", "calendar": "noleap", "valid_range": [0, 5], "grid_mapping": "q"}
    attrs |= {"bounds": "nowhere", "dtype": "int4", "least": 1.5, "long_name": ""}
    ds = small(attrs).assign_attrs(scale_factor=2, units="days since 2000-01-01")
    save("a.mag", ds)
    done("convert", "a.mag", to)
    xr.testing.assert_identical(opened(to), ds)


@pytest.mark.filterwarnings("ignore:The codec `vlen-utf8`:UserWarning")  # of zarr before 3.1
@BOTH
def test_what_xarray_itself_encodes_is_still_kept(to: str) -> None:
    months = np.array(["2000-01-01", "2000-02-01", "2000-03-01"], "M8[ns]")
    bounds = np.stack([months[:2], months[1:]], 1)
    ds = xr.Dataset(
        {
            "tas": (("time", "y"), np.ones((2, 3), "f4"), {"units": "K", "grid_mapping": "crs"}),
            "crs": ((), np.int32(0), {"grid_mapping_name": "latlon"}),
            "time_bnds": (("time", "n"), bounds),
            "flag": ("y", [True, False, True], {"units": "m"}),
            "text": ("y", ["a", "b", ""], {"long_name": "t"}),
        },
        {
            "time": ("time", months[:2], {"bounds": "time_bnds", "standard_name": "time"}),
            "lat": ("y", np.ones(3), {"units": "degrees_north"}),
        },
    )
    ds.time.encoding = {"units": "days since 1900-01-01", "calendar": "standard"}
    packed = {"tas": {"scale_factor": 0.5, "dtype": "i2", "_FillValue": -999}}
    ds.to_netcdf("a.nc", engine="h5netcdf", encoding=packed)
    done("convert", "a.nc", to)
    engine = "zarr" if to == "b.zarr" else "h5netcdf"
    first = xr.load_dataset("a.nc", engine="h5netcdf")
    xr.testing.assert_identical(xr.load_dataset(to, engine=engine), first)


# Texts and names


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("a", "x\0y"),
        ("a", ["x", "y\0"]),
        ("a", [1]),
        ("a", ["x"]),
        ("a", np.array([1.5])),
        ("a", [(1 << 53) + 1, 0.5]),
        ("a", np.ones(2, "f2")),
        ("e\u0301", 1),
        ("a\0b", 1),
        (" a", 1),
        ("a ", 1),
        ("-a", 1),
        ("a" * 257, 1),
        ("NAME", "x"),
        ("CLASS", "x"),
        ("_NCProperties", "x"),
        ("_Netcdf4Dimid", 1),
        ("DIMENSION_LIST", "x"),
        ("_FillValue", "x"),
    ],
)
def test_attributes_that_netcdf_would_change_have_no_place_in_it(name: str, value: object) -> None:
    assert not fits("netcdf", name, value)
    assert fits("zarr", name, value) == (name != "_NCProperties")


@pytest.mark.parametrize("name", ["a b", "é", "_x", "1a", "a+b", "a" * 256])
def test_names_of_attributes_that_netcdf_keeps(name: str) -> None:
    ds = small({name: 1}).assign_attrs({name: "x"})
    save("a.mag", ds)
    done("convert", "a.mag", "b.nc")
    xr.testing.assert_identical(opened("b.nc"), ds)


def test_what_netcdf_would_change_is_left_out_if_that_is_allowed() -> None:
    attrs = {"a": "x\0y", "NAME": "n", "e\u0301": 1, "one": [1], " a ": 1, "kept": [1, 2]}
    save("a.mag", small(attrs).assign_attrs(attrs))
    assert "no place for the attribute 'a' of the Dataset" in failed("convert", "a.mag", "b.nc")
    done("convert", "a.mag", "b.nc", "--drop", "attrs")
    assert list(opened("b.nc").attrs) == list(opened("b.nc").v.attrs) == ["kept"]


@pytest.mark.parametrize(
    "name", ["e\u0301", " v", "v ", "w" * 300, "é" * 200, "\x01", "_nc4_non_coord_x"]
)
def test_variables_that_netcdf_would_call_otherwise_are_refused(name: str) -> None:
    save("a.mag", small(name=name))
    message = failed("convert", "a.mag", "b.nc")
    assert message.startswith("Error: b.nc: ")
    assert "cannot be the name of a variable of netCDF; convert to MAG, or choose it by" in message
    done("convert", "a.mag", "b.nc", "-v", name, "--name", "v")


@pytest.mark.parametrize("name", ["w" * 256, "é" * 200])
def test_variables_with_names_too_long_for_a_folder_are_refused(name: str) -> None:
    assert not can_be_named("zarr", name)
    save("a.mag", small(name=name))
    message = failed("convert", "a.mag", "b.zarr")
    assert "cannot be the name of a variable of zarr" in message
    assert "part" not in message


@pytest.mark.parametrize("dim", ["e\u0301", "a/b", "-x"])
def test_dimensions_that_netcdf_would_call_otherwise_are_refused(dim: str) -> None:
    save("a.mag", small().rename(x=dim))
    assert "cannot be the name of a dimension of netCDF" in failed("convert", "a.mag", "b.nc")
    done("convert", "a.mag", "b.nc", "--dims", "x,y")
    xr.testing.assert_identical(opened("b.nc"), small())


@BOTH
def test_coordinates_with_spaces_in_their_names_would_become_variables(to: str) -> None:
    save("a.mag", small().assign_coords({"two words": ("x", [1, 2])}))
    assert "'two words' has a space in its name" in failed("convert", "a.mag", to)


@pytest.mark.filterwarnings("ignore:The codec `vlen-utf8`:UserWarning")  # of zarr before 3.1
@pytest.mark.parametrize("name", ["x", "s"])
def test_labels_that_netcdf_would_cut_are_refused(name: str) -> None:
    labels = xr.Dataset({name: ("x", np.array(["a\0b", "c"], object))})
    stored(small().merge(labels), "a.zarr")
    message = failed("convert", "a.zarr", "b.nc")
    assert message.startswith(f"Error: b.nc: {name!r} holds 'a\\x00b', and netCDF cannot hold")
    assert not Path("b.nc").exists()
    assert not debris()
    done("convert", "a.zarr", "b.zarr")
    assert opened("b.zarr")[name].values.tolist() == ["a\0b", "c"]


def test_names_that_xarray_hides_in_zarr_have_no_place_there() -> None:
    save("a.mag", small({"_ARRAY_DIMENSIONS": ["a", "b"]}).assign_attrs(_NCProperties="x"))
    assert "'_NCProperties' of the Dataset" in failed("convert", "a.mag", "b.zarr")
    done("convert", "a.mag", "b.zarr", "--drop", "attrs")
    xr.testing.assert_identical(opened("b.zarr"), small())
    assert not run("convert", "a.mag", "c.zarr", "--drop", "attrs").stderr
