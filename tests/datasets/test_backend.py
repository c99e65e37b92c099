"""The engine as users of xarray see it."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import io
import pickle
import pydoc
import re
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import xr_tensorfmt
from tests import tensfiles as tf
from tests.processes import run_python
from tests.recording import HollowSource, RecordingSource
from xr_tensorfmt import TensorFormatBackend, TensorFormatError, TensorFormatWarning
from xr_tensorfmt.sources import find_source

VALUES = np.arange(24.0).reshape(2, 3, 4)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "CoulombVertex.bin"
    file.write_bytes(tf.make_0_9(VALUES))
    return file


def test_xarray_knows_engine() -> None:
    engine = xr.backends.list_engines()["tensorfmt"]
    assert isinstance(engine, TensorFormatBackend)
    assert "binary tensor files" in repr(engine)
    assert "https://" in repr(engine)


def test_declared_parameters_match_signature() -> None:
    signature = inspect.signature(TensorFormatBackend.open_dataset)
    _, *stated, others = signature.parameters
    assert others == "format_options"
    assert sorted(TensorFormatBackend.open_dataset_parameters) == sorted(stated)
    assert not hasattr(TensorFormatBackend.open_dataset, "__signature__")
    assert signature.parameters["chunk_bytes"].default == 31 << 20


@pytest.mark.parametrize("method", ["open_dataset", "open_datatree", "open_groups_as_dict"])
def test_unknown_keywords_raise(path: Path, method: str) -> None:
    with pytest.raises(TypeError, match=r"'spars'.*did you mean 'sparse'"):
        getattr(TensorFormatBackend(), method)(path, spars="dense")


def test_dataset_shows_names_and_sizes(path: Path) -> None:
    dataset = xr.open_dataset(path, engine="tensorfmt")
    assert repr(dataset) == (
        "<xarray.Dataset> Size: 192B\n"
        "Dimensions:  (a: 2, b: 3, c: 4)\n"
        "Dimensions without coordinates: a, b, c\n"
        "Data variables:\n"
        "    tensor   (a, b, c) float64 192B ..."
    )
    assert dataset.encoding["source"] == str(path)


def test_engine_is_found_by_content_and_as_class(path: Path) -> None:
    expected = xr.open_dataset(path, engine="tensorfmt")
    xr.testing.assert_identical(xr.open_dataset(path), expected)
    xr.testing.assert_identical(xr.open_dataset(path, engine=TensorFormatBackend), expected)


def test_data_array_opens_at_once(path: Path) -> None:
    array = xr.open_dataarray(path, engine="tensorfmt", name="vertex")
    assert array.name == "vertex"
    np.testing.assert_array_equal(array, VALUES)


def test_many_files_are_one_dataset(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.bin").write_bytes(tf.make_0_9(VALUES + number))
    dataset = xr.open_mfdataset(
        str(tmp_path / "*.bin"), engine="tensorfmt", combine="nested", concat_dim="geometry"
    )
    assert dataset.tensor.dims == ("geometry", "a", "b", "c")
    assert dataset.tensor.chunks is not None
    with xr.open_mfdataset(
        sorted(tmp_path.glob("*.bin")), engine="tensorfmt", combine="nested", concat_dim="geometry"
    ) as again:
        xr.testing.assert_identical(again.load(), dataset.load())
    np.testing.assert_array_equal(dataset.tensor, [VALUES, VALUES + 1, VALUES + 2])


@pytest.mark.parametrize(
    "form",
    [
        str,
        Path,
        lambda path: path.read_bytes(),
        lambda path: memoryview(path.read_bytes()),
        lambda path: io.BytesIO(path.read_bytes()),
        lambda path: path.open("rb"),
    ],
    ids=["str", "Path", "bytes", "memoryview", "BytesIO", "file"],
)
def test_every_form_of_file_opens(path: Path, form) -> None:
    file = form(path)
    np.testing.assert_array_equal(xr.open_dataset(file, engine="tensorfmt").tensor, VALUES)
    assert TensorFormatBackend().guess_can_open(file)
    if hasattr(file, "close"):
        file.close()


def test_home_directory_is_expanded(path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(path.parent))
    np.testing.assert_array_equal(
        xr.open_dataset("~/CoulombVertex.bin", engine="tensorfmt").tensor, VALUES
    )


def test_guessing_restores_position_of_file_object(path: Path) -> None:
    with path.open("rb") as file:
        file.seek(5)
        assert TensorFormatBackend().guess_can_open(file)
        assert file.tell() == 5


FOREIGN = {
    "another format with the magic": b"TENS" + (1).to_bytes(4, "little") + bytes(100),
    "a directory tag": b"TENSORS/" + bytes(100),
    "a short file": b"TENS",
    "an empty file": b"",
    "netCDF": b"CDF\x01" + bytes(100),
    "version 2": tf.make_1_0(VALUES, version=0x20000),
    "another number type": tf.make_0_9(VALUES, number_type=b"ieee"),
    "three numbers": tf.make_0_9(VALUES, numbers=3),
    "dimensions past the end": tf.pack_header((2, 3, 4))[:50],
}


@pytest.mark.parametrize("case", FOREIGN)
def test_files_of_other_formats_are_not_claimed(case: str, tmp_path: Path) -> None:
    file = tmp_path / "foreign.bin"
    file.write_bytes(FOREIGN[case])
    assert not TensorFormatBackend().guess_can_open(file)
    assert not TensorFormatBackend().guess_can_open(FOREIGN[case])


@pytest.mark.parametrize(
    "thing",
    ["/no/such/file", "/", 42, None, object(), io.StringIO("TENS"), xr.Dataset()],
    ids=lambda thing: type(thing).__name__,
)
def test_guessing_never_raises(thing) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert TensorFormatBackend().guess_can_open(thing) is False


def test_guessing_never_touches_network(monkeypatch) -> None:
    monkeypatch.setattr("xr_tensorfmt.formats.recognition.find_source", pytest.fail)
    assert not TensorFormatBackend().guess_can_open("s3://bucket/vertex.bin")


def test_unknown_file_raises(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(b"GIF89a" + bytes(100))
    with pytest.raises(
        TensorFormatError, match=r"magic number at byte 0: b'GIF89a.*leave out engine="
    ):
        xr.open_dataset(file, engine="tensorfmt")


def test_dims_and_name_are_chosen_by_user(path: Path) -> None:
    dataset = xr.open_dataset(path, engine="tensorfmt", name="vertex", dims=("F", "q", "r"))
    assert dataset.vertex.dims == ("F", "q", "r")
    dataset = xr.open_dataset(path, engine="tensorfmt", dims={"tensor": ["F", "q", "r"]})
    assert dataset.tensor.dims == ("F", "q", "r")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dims": ("F", "q")}, r"cannot name the dimensions \('a', 'b', 'c'\) of 'tensor'"),
        (
            {"dims": {"a": ["F"]}},
            r"names \d dimensions of 'a', but the variables .* are 'tensor' \(3\).*ds.rename",
        ),
        ({"dims": {"t*": ("F", "q")}}, "names 2 dimensions of 't\\*', but .* 'tensor' \\(3\\)"),
        ({"dims": ("b", "a", "c")}, "transpose to reorder"),
        ({"dims": ("q", "q", "r")}, "of 'tensor': pass 3 different names"),
        ({"name": "a"}, "has the name of one of its dimensions .* or another name= or --name"),
        ({"sparse": "coo"}, "sparse='coo' is not one of 'auto', 'dense', 'stored'"),
        ({"io": "fast"}, "io='fast' is not one of"),
        ({"format": "hdf"}, "format='hdf' is not one of 'tens'"),
        ({"chunk_bytes": 0}, "chunk_bytes=0 must be a positive number"),
        ({"chunk_bytes": "many"}, "chunk_bytes='many' must be a positive number of bytes such as"),
        ({"sparse": "stored"}, "sparse='stored' does not apply to this file"),
    ],
)
def test_unsuitable_keywords_raise(path: Path, options: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        xr.open_dataset(path, engine="tensorfmt", **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dims": "abc"}, "dims='abc' must be a sequence of non-empty str for 'tensor'"),
        ({"dims": {"F", "q", "r"}}, "must be a sequence of non-empty str"),
        ({"dims": 3}, "dims=3 must be a sequence of non-empty str"),
        ({"dims": b"abc"}, "must be a sequence of non-empty str"),
        ({"dims": ("F", None, "r")}, "must be a sequence of non-empty str"),
        ({"dims": ("F", "", "r")}, "must be a sequence of non-empty str"),
        ({"name": None}, "name=None must be a non-empty str"),
        ({"name": ""}, "name='' must be a non-empty str"),
        ({"chunk_bytes": None}, "chunk_bytes=None must be an int or a str"),
        ({"chunk_bytes": True}, "chunk_bytes=True must be an int"),
        ({"chunk_bytes": 1.5}, "chunk_bytes=1.5 must be an int"),
    ],
)
def test_keywords_of_other_types_raise(path: Path, options: dict, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        xr.open_dataset(path, engine="tensorfmt", **options)


@pytest.mark.parametrize("value", [np.int64(1 << 20), np.uint32(1 << 20)])
def test_chunk_bytes_accepts_integer_of_numpy(value: np.integer) -> None:
    content = memoryview(tf.make_0_9(np.zeros((512, 1024))))
    opened = xr.open_dataset(content, engine="tensorfmt", chunks={}, chunk_bytes=value)
    expected = xr.open_dataset(content, engine="tensorfmt", chunks={}, chunk_bytes=1 << 20)
    assert opened.chunks == expected.chunks


def test_chunk_bytes_accepts_str() -> None:
    content = memoryview(tf.make_0_9(np.zeros((512, 512))))
    tensor = xr.open_dataset(content, engine="tensorfmt", chunks={}, chunk_bytes="1MiB").tensor
    assert tensor.chunks == ((512,), (256, 256))


def test_chunk_bytes_without_chunks_has_no_effect() -> None:
    content = memoryview(tf.make_0_9(np.ones((64, 64))))
    array = xr.open_dataset(content, engine="tensorfmt", chunk_bytes=4096).tensor
    assert array.chunks is None
    assert (array.T[::-1].load() == 1).all()


@pytest.mark.parametrize("chunks", [None, {}])
def test_variables_have_type_of_xarray(path: Path, chunks: Any) -> None:
    variable = xr.open_dataset(path, engine="tensorfmt", chunks=chunks).tensor.variable
    assert type(variable) is xr.Variable
    xr.testing.assert_identical(variable, xr.Variable(("a", "b", "c"), VALUES))
    tree = xr.open_datatree(path, engine="tensorfmt", chunks=chunks)
    assert type(tree.tensor.variable) is xr.Variable


@pytest.mark.slow
def test_script_may_have_name_of_command(path: Path, tmp_path: Path) -> None:
    script = tmp_path / "xr-tensorfmt-demo.py"
    script.write_text(
        "import sys, xarray, xr_tensorfmt\n"
        "xarray.open_dataset(sys.argv[1], engine='tensorfmt').tensorfmt.explain()\n"
    )
    run_python(script, path)


def test_dimension_of_components_is_reserved() -> None:
    content = tf.make_index_value((3, 4), [5], np.ones(1))
    message = "'component' is reserved for a dimension of TENS files"
    with pytest.raises(ValueError, match=message):
        xr.open_dataset(content, engine="tensorfmt", dims=("component", "j"))


def test_empty_file_raises() -> None:
    with pytest.raises(
        TensorFormatError, match="magic number at byte 0: no bytes, the file is empty"
    ):
        xr.open_dataset(b"", engine="tensorfmt")


def test_closed_file_object_raises(path: Path) -> None:
    with path.open("rb") as file:
        dataset = xr.open_dataset(file, engine="tensorfmt")
    with pytest.raises(ValueError, match="closed file"):
        dataset.load()


def test_unpicklable_file_object_raises(path: Path) -> None:
    with path.open("rb") as file:
        dataset = xr.open_dataset(file, engine="tensorfmt")
        with pytest.raises(TypeError, match="cannot pickle"):
            pickle.dumps(dataset)


def test_decoders_of_xarray_are_accepted(path: Path) -> None:
    dataset = xr.open_dataset(
        path,
        engine="tensorfmt",
        mask_and_scale=False,
        decode_times=False,
        concat_characters=False,
        decode_coords=False,
        decode_timedelta=False,
    )
    np.testing.assert_array_equal(dataset.tensor, VALUES)
    np.testing.assert_array_equal(
        xr.open_dataset(path, engine="tensorfmt", decode_cf=False).tensor, VALUES
    )


def test_variables_can_be_dropped(path: Path) -> None:
    assert not xr.open_dataset(path, engine="tensorfmt", drop_variables="tensor").data_vars


def test_closed_and_pickled_datasets_can_be_read(path: Path) -> None:
    dataset = xr.open_dataset(path, engine="tensorfmt")
    dataset.close()
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(dataset)).tensor, VALUES)
    np.testing.assert_array_equal(dataset.tensor, VALUES)
    with xr.open_dataset(path, engine="tensorfmt") as opened:
        np.testing.assert_array_equal(opened.tensor, VALUES)


def test_lazy_dataset_pickles_small(tmp_path: Path) -> None:
    file = tmp_path / "large"
    file.write_bytes(tf.make_0_9(np.zeros((512, 512))))
    assert len(pickle.dumps(xr.open_dataset(file, engine="tensorfmt"))) < 4000


def test_variables_load_asynchronously(path: Path) -> None:
    loaded = asyncio.run(xr.open_dataset(path, engine="tensorfmt").load_async())
    np.testing.assert_array_equal(loaded.tensor, VALUES)


def test_opening_and_printing_read_only_the_header(monkeypatch) -> None:
    lengths = (1000, 1000, 100)
    source = HollowSource(tf.pack_header(lengths), 56 + 8 * 10**8)
    monkeypatch.setattr(
        "xr_tensorfmt.formats.recognition.find_source", lambda *_, **__: (source, b"")
    )
    dataset = xr.open_dataset("anything", engine="tensorfmt")
    repr(dataset.tensor.isel(a=5).T)
    repr(dataset)
    dataset._repr_html_()
    pickle.dumps(dataset)
    assert source.requests == [(0, 4096)]


def test_header_behind_large_chunks_needs_few_small_requests(monkeypatch) -> None:
    content = tf.make_1_0(VALUES, *[tf.pack_chunk(b"COMMENT ", bytes(1 << 20))] * 3)
    source = RecordingSource(content)
    monkeypatch.setattr(
        "xr_tensorfmt.formats.recognition.find_source", lambda *_, **__: (source, b"")
    )
    xr.open_dataset("anything", engine="tensorfmt")
    assert source.fetched <= 4096 + 3 * 4096


def test_one_dimension_does_not_become_coordinate() -> None:
    dataset = xr.open_dataset(tf.make_0_9(np.arange(3.0)), engine="tensorfmt")
    assert list(dataset.data_vars) == ["tensor"]
    assert not dataset.coords


@pytest.mark.parametrize("chunks", [None, {}])
def test_dataset_can_be_saved_elsewhere(path: Path, tmp_path: Path, chunks) -> None:
    dataset = xr.open_dataset(path, engine="tensorfmt", chunks=chunks)
    dataset.to_netcdf(tmp_path / "copy.nc", engine="netcdf4")
    with xr.open_dataset(tmp_path / "copy.nc", engine="netcdf4") as copy:
        np.testing.assert_array_equal(copy.tensor, VALUES)
    dataset.to_zarr(tmp_path / "copy.zarr", zarr_format=2, consolidated=False)
    with xr.open_zarr(tmp_path / "copy.zarr", consolidated=False) as copy:
        np.testing.assert_array_equal(copy.tensor, VALUES)


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [None, {}])
@pytest.mark.parametrize("engine", ["netcdf4", "h5netcdf", "zarr"])
@pytest.mark.parametrize(
    "labels",
    [
        np.array(["2020-01-01", "2021-01-01", "2022-06-01"], "M8[s]"),
        np.array(["2020-01-01", "2021-01-01", "2022-06-01"], "M8[ns]"),
        np.array([1, 2, 3], "m8[ns]"),
        np.array([True, False, True]),
        np.array(["a", "bb", "ç"]),
        np.array([b"a", b"bb", b"c"]),
    ],
    ids=lambda labels: labels.dtype.name,
)
def test_labels_of_every_dtype_can_be_saved_elsewhere(
    tmp_path: Path, labels: np.ndarray, engine: str, chunks: Any
) -> None:
    before = xr.Dataset({"w": ("x", np.arange(3, dtype="f4"))}, {"label": ("x", labels)})
    xr_tensorfmt.to_file(before, tmp_path / "a.mag")
    dataset = xr.open_dataset(tmp_path / "a.mag", engine="tensorfmt", chunks=chunks)
    if engine == "zarr":
        dataset.to_zarr(tmp_path / "copy", zarr_format=2, consolidated=False)
    else:
        dataset.to_netcdf(tmp_path / "copy", engine=engine)
    options = {"consolidated": False} if engine == "zarr" else {}
    with xr.open_dataset(tmp_path / "copy", engine=engine, **options) as copy:
        xr.testing.assert_equal(copy.load(), before)


@pytest.mark.parametrize(
    "attrs",
    [
        {"coordinates": ["lat", "lon"]},
        {"coordinates": {"x": 1}, "note": "text"},
        {"bounds": None},
        {"scale_factor": "two"},
        {"add_offset": [1, 2]},
        {"_FillValue": {"float": -1}},
        {"missing_value": [[1], [1, 2]]},
        {"units": "days since 2000-01-01", "calendar": 5},
        {"dtype": ["float32"]},
    ],
    ids=str,
)
@pytest.mark.parametrize("decode_coords", [True, "all"])
def test_attributes_of_other_types_than_in_netcdf_are_kept(
    tmp_path: Path, attrs: dict[str, Any], decode_coords: Any
) -> None:
    before = xr.Dataset({"w": ("x", np.arange(3, dtype="f4"), attrs)})
    xr_tensorfmt.to_file(before, tmp_path / "a.mag")
    has_effect = not {"dtype", "bounds"} & attrs.keys() or (
        "bounds" in attrs and decode_coords == "all"
    )
    with pytest.warns(TensorFormatWarning, match="'w'") if has_effect else nullcontext():
        after = xr.open_dataset(
            tmp_path / "a.mag",
            engine="tensorfmt",
            decode_coords=decode_coords,
            decode_timedelta=False,
        )
    xr.testing.assert_identical(after, before)


def test_io_option_selects_source(path: Path) -> None:
    for io_word in ("auto", "mmap", "read"):
        dataset = xr.open_dataset(path, engine="tensorfmt", io=io_word)
        assert find_source(path, io_word)[0].io == io_word
        np.testing.assert_array_equal(dataset.tensor, VALUES)


@pytest.mark.parametrize("kind", [np.array, pd.Index, set, dict.fromkeys])
def test_dropped_names_are_any_collection(path: Path, kind: Any) -> None:
    names = kind(["tensor", "unknown"])
    assert not xr.open_dataset(path, engine="tensorfmt", drop_variables=names).data_vars


def test_ambiguous_option_values_raise(path: Path) -> None:
    dropped = [{"drop_variables": names} for names in (5, b"tensor", [["tensor"]], iter("t"))]
    for options in ({"verify": "False"}, *dropped):
        with pytest.raises(TypeError, match=f"{next(iter(options))}="):
            xr.open_dataset(path, engine="tensorfmt", **options)


def test_dir_shows_public_names_and_modules() -> None:
    modules = {"cc4s", "contract", "pycauset", "testing", "tutorial", "vespa", "virtual"}
    if importlib.util.find_spec("virtualizarr") is None:
        modules.discard("virtual")
    assert dir(xr_tensorfmt) == sorted({*xr_tensorfmt.__all__, *modules})
    assert len(set(xr_tensorfmt.__all__)) == len(xr_tensorfmt.__all__)
    for name in modules:
        assert inspect.ismodule(getattr(xr_tensorfmt, name))


@pytest.mark.slow
def test_tab_completion_knows_names_that_are_imported_at_first_use() -> None:
    code = (
        "import rlcompleter, xr_tensorfmt\n"
        "complete = rlcompleter.Completer({'x': xr_tensorfmt}).complete\n"
        "print([complete(f'x.{start}', 0).rstrip('(') for start in ('vali', 'pyc')])"
    )
    done = run_python("-c", code)
    assert done.stdout.strip() == "['x.validate', 'x.pycauset']"


def test_every_public_name_can_be_imported_and_is_documented() -> None:
    for name in xr_tensorfmt.__all__:
        value = getattr(xr_tensorfmt, name)
        assert name == "__version__" or inspect.getdoc(value), name


def test_unknown_name_is_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'xr_tensorfmt' has no attribute 'to_nothing'"):
        xr_tensorfmt.to_nothing  # noqa: B018


@pytest.mark.parametrize("data", [xr.Dataset(), xr.DataArray(), xr.DataTree()], ids=type)
def test_methods_have_parameters_of_functions_except_the_first(data: Any) -> None:
    for function in (xr_tensorfmt.to_file, xr_tensorfmt.explain):
        first, *others = inspect.signature(function).parameters.values()
        assert first.name == "data"
        method = getattr(data.tensorfmt, function.__name__)
        assert [*inspect.signature(method).parameters.values()] == others


def test_help_shows_keywords_of_to_file() -> None:
    text = pydoc.plain(pydoc.render_doc(xr.Dataset().tensorfmt.to_file))
    signature, description = text.split("Write a tensor file", 1)
    for name in ("mode", "compute", "region", "encoding", "drop", "storage_options", "fs"):
        assert f"{name}: " in signature
        assert f"    {name} : " in description
    assert "**format_options" in signature


@pytest.mark.parametrize(
    "documented",
    [
        TensorFormatBackend.open_dataset,
        TensorFormatBackend.open_datatree,
        TensorFormatBackend.open_groups_as_dict,
        xr.Dataset().tensorfmt.to_file,
        xr_tensorfmt.explain,
    ],
)
def test_docstrings_describe_every_keyword_and_have_example(documented) -> None:
    text = inspect.getdoc(documented) or ""
    described = {
        name.strip(" *")
        for line in text.splitlines()
        if re.match(r"[\w*]", line)
        for name in line.split(" : ")[0].split(",")
    }
    names = {name for name in inspect.signature(documented).parameters if name != "self"}
    assert names <= described
    assert ">>> " in text


@pytest.mark.parametrize(
    "options",
    [
        {"name": "x"},
        {"sparse": "stored"},
        {"sparse": "dense"},
        {"fill_value": 1.0},
        {"apply_unit": True},
    ],
)
def test_options_that_format_does_not_declare_raise(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    xr_tensorfmt.to_file(xr.Dataset({"a": ("x", np.ones(3, "f4"))}), tmp_path / "a.mag")
    (keyword,) = options
    with pytest.raises(ValueError, match=f"{keyword}=.* does not apply to format 'mag'; omit it"):
        xr.open_dataset(tmp_path / "a.mag", engine="tensorfmt", **options)


def test_missing_packages_hide_only_their_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    missing = {"pytest", "virtualizarr"}
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name in missing else find_spec(name)
    )
    for name in ("testing", "virtual"):
        monkeypatch.delattr(xr_tensorfmt, name, raising=False)
        assert not hasattr(xr_tensorfmt, name)
    with pytest.raises(AttributeError, match="testing needs pytest"):
        _ = xr_tensorfmt.testing
    assert {"testing", "virtual"}.isdisjoint(dir(xr_tensorfmt))
    assert dict(inspect.getmembers(xr_tensorfmt)).keys() >= {"to_file", "cc4s"}
    assert "open" in pydoc.render_doc(xr_tensorfmt)
