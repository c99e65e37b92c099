"""Virtual Zarr: values read by Zarr alone, and unsupported files."""

from __future__ import annotations

import doctest
import os
import pickle
import time
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import assume, given
from hypothesis import strategies as st

from tests import cc4sfiles, magfiles, pycausetfiles, tensfiles, vespafiles
from tests.opening import open_lazily
from tests.processes import run_python
from xr_tensorfmt import TensorFormatError, TensorFormatWarning, to_file

virtualizarr = pytest.importorskip("virtualizarr", reason="VirtualiZarr is not installed")
icechunk = pytest.importorskip("icechunk", reason="Icechunk is not installed")
stores = pytest.importorskip("obstore.store", reason="obstore is not installed")
made = pytest.importorskip("xr_tensorfmt.virtual")

ManifestArray = pytest.importorskip("virtualizarr.manifests").ManifestArray
ObjectStoreRegistry = pytest.importorskip("obspec_utils.registry").ObjectStoreRegistry
TensorFormatParser, parser = made.TensorFormatParser, made.parser

LOCAL = ObjectStoreRegistry({"file://": stores.LocalStore()})

# 7 and 5 have no divisors, 30 has many; a chunk has at most 100 bytes.
SHAPES = ((7, 5, 3), (30, 4), (13,), ())


def make_numbers(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return values with zeros; floating-point numbers include -0.0, NaN and infinity."""
    values = (np.arange(np.prod(shape, dtype=int)) % 5 + 3 * (not shape)).reshape(shape)
    values = values.astype(dtype)
    if values.dtype.kind in "fc" and values.size > 9:
        values.flat[4:8] = [-0.0, np.nan, np.inf, -np.inf]
    return values


def open_virtual(path: object, registry: Any = LOCAL, **options: Any) -> xr.Dataset:
    options = {"chunk_bytes": 100, **options}
    return virtualizarr.open_virtual_dataset(
        str(path), registry, parser=TensorFormatParser(**options)
    )


def open_manifest(path: Path, **options: Any) -> xr.Dataset:
    """Open the store of the parser."""
    store = TensorFormatParser(**{"chunk_bytes": 100, **options})(f"file://{path}", LOCAL)
    return xr.open_zarr(store, consolidated=False, zarr_format=3, chunks=None)


def make_repository(directory: Path, storage: Any = None) -> Any:
    """Return an Icechunk repository with virtual chunks in files of the directory."""
    prefix = f"file://{directory}/"
    config = icechunk.RepositoryConfig.default()
    files = icechunk.local_filesystem_store(str(directory))
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(prefix, files))
    access = getattr(icechunk.credentials, "LocalFileSystemAccess", None)  # Icechunk 2
    return icechunk.Repository.create(
        storage or icechunk.in_memory_storage(),
        config,
        icechunk.containers_credentials({prefix: None}) if access is None else {prefix: access},
    )


def write_icechunk(directory: Path, virtuals: Mapping[str, xr.Dataset]) -> dict[str, xr.Dataset]:
    """Write groups to Icechunk, and open them again."""
    repo = make_repository(directory)
    session = repo.writable_session("main")
    for group, dataset in virtuals.items():
        dataset.vz.to_icechunk(session.store, group=group)
    session.commit("references")
    store = repo.readonly_session("main").store
    keywords: dict[str, Any] = {"consolidated": False, "zarr_format": 3, "chunks": None}
    return {group: xr.open_zarr(store, group=group, **keywords) for group in virtuals}


def assert_same_bits(actual: np.ndarray, expected: np.ndarray) -> None:
    native = expected.astype(expected.dtype.newbyteorder("="))
    assert actual.dtype.newbyteorder("=") == native.dtype
    assert actual.shape == native.shape
    assert actual.astype(native.dtype).tobytes() == native.tobytes()


Maker = Callable[[Path, str, dict[str, np.ndarray]], Path]


def _put(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def _write_npy(order: Any) -> Maker:
    def make(directory: Path, name: str, arrays: dict[str, np.ndarray]) -> Path:
        np.save(directory / f"{name}.npy", np.asarray(arrays["tensor"], order=order))
        return directory / f"{name}.npy"

    return make


def _write_npz(directory: Path, name: str, arrays: dict[str, np.ndarray]) -> Path:
    np.savez(directory / f"{name}.npz", **arrays)
    return directory / f"{name}.npz"


def _write_safetensors(directory: Path, name: str, arrays: dict[str, np.ndarray]) -> Path:
    save_file = pytest.importorskip("safetensors.numpy").save_file
    save_file(arrays, directory / f"{name}.safetensors")
    return directory / f"{name}.safetensors"


def _write_mag(container: Callable[[dict[str, magfiles.Put]], bytes]) -> Maker:
    def make(directory: Path, name: str, arrays: dict[str, np.ndarray]) -> Path:
        puts = {key: magfiles.put(values) for key, values in arrays.items()}
        return _put(directory / f"{name}.mag", container(puts))

    return make


def _write_tens(version: Callable[..., bytes]) -> Maker:
    def make(directory: Path, name: str, arrays: dict[str, np.ndarray]) -> Path:
        return _put(directory / f"{name}.tens", version(arrays["tensor"]))

    return make


def _write_cc4s(directory: Path, name: str, arrays: dict[str, np.ndarray]) -> Path:
    return cc4sfiles.save(directory, name, arrays[name])


def _write_pycauset(directory: Path, name: str, arrays: dict[str, np.ndarray]) -> Path:
    values = arrays["tensor"]
    kinds = {np.dtype(code): kind for kind, code in pycausetfiles.NUMPY_DTYPES.items()}
    info = pycausetfiles.make_metadata("DENSE_FLOAT", kinds[values.dtype], *values.shape)
    return _put(directory / f"{name}.pycauset", pycausetfiles.r1(info, values.tobytes()))


def _write_vespa(cells: str) -> Maker:
    def make(directory: Path, name: str, arrays: dict[str, np.ndarray]) -> Path:
        values = arrays["tensor"]
        dims = {f"d{axis}": length for axis, length in enumerate(values.shape)}
        content = vespafiles.make_tensor(cells, [], dims, [], values.reshape(1, *values.shape))
        return _put(directory / f"{name}.tbf", content)

    return make


def _make_one(shape: tuple[int, ...], dtype: str, name: str = "tensor") -> dict[str, np.ndarray]:
    return {name: make_numbers(shape, dtype)}


DTYPES = ("<f8", ">f8", "<f4", ">f4", "<f2", "<c16", ">c8", "<i8", ">i4", "<i2", "u1", "bool")
TIMES = ("<M8[ns]", ">M8[s]", "<m8[ms]")
MANY = {
    "a.weight": make_numbers((7, 5, 3), "float32"),
    "a.mask": make_numbers((30, 4), "bool"),
    "b": make_numbers((), "int32"),
    "c": make_numbers((13,), "float16"),
}
KINDS: dict[str, tuple[Maker, dict[str, np.ndarray]]] = {
    **{
        f"npy_{order}_{dtype}_{len(shape)}": (_write_npy(order), _make_one(shape, dtype))
        for order in "CF"
        for shape in SHAPES
        for dtype in (DTYPES if len(shape) == 3 else ("<f8", ">i4", "bool", *TIMES))
    },
    "npz": (_write_npz, {"x": make_numbers((7, 5, 3), ">c16"), "y": make_numbers((13,), "<u8")}),
    "safetensors": (_write_safetensors, MANY),
    "archive": (
        _write_mag(magfiles.make_archive),
        {key: MANY[key] for key in ("a.weight", "a.mask", "c")},
    ),
    "snapshot": (_write_mag(magfiles.make_snapshot), MANY),
    "document": (_write_mag(magfiles.make_document), MANY),
    **{
        f"tens_{version.__name__}_{dtype}": (_write_tens(version), _make_one((7, 5, 3), dtype))
        for version in (tensfiles.make_0_9, tensfiles.make_1_0)
        for dtype in ("<f8", "<c16", ">i4", "<u2")
    },
    "cc4s": (_write_cc4s, _make_one((7, 5, 3), "<f8", "cc4s")),
    "cc4s_complex": (_write_cc4s, _make_one((30, 4), "<c16", "cc4s_complex")),
    "pycauset": (_write_pycauset, _make_one((7, 5), "<f8")),
    "pycauset_integers": (_write_pycauset, _make_one((30, 4), "<i4")),
    **{
        f"vespa_{cells}": (_write_vespa(cells), _make_one((7, 5, 3), dtype))
        for cells, dtype in (("double", ">f8"), ("float", ">f4"), ("int8", "i1"))
    },
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write a file of each format in a directory with a space in its name."""
    directory = tmp_path_factory.mktemp("a directory")
    return {name: make(directory, name, arrays) for name, (make, arrays) in KINDS.items()}


@pytest.fixture(scope="module")
def virtuals(files: dict[str, Path]) -> dict[str, xr.Dataset]:
    return {name: open_virtual(path) for name, path in files.items()}


def test_virtual_dataset_matches_engine_without_reading(
    files: dict[str, Path], virtuals: dict[str, xr.Dataset]
) -> None:
    for name, actual in virtuals.items():
        expected = open_lazily(files[name])
        assert all(
            isinstance(variable.data, ManifestArray) for variable in actual.data_vars.values()
        ), name
        assert actual.sizes == expected.sizes, name
        assert {key: item.dims for key, item in actual.items()} == {
            key: item.dims for key, item in expected.items()
        }
        assert actual.attrs == expected.attrs
        for key, variable in expected.items():
            attrs = dict(actual[key].attrs)
            if variable.dtype == bool:
                assert attrs.pop("dtype") == "bool"
            assert attrs == variable.attrs, (name, key)


def test_chunks_are_equal_and_near_target(
    virtuals: dict[str, xr.Dataset],
) -> None:
    several = 0
    for dataset in virtuals.values():
        for variable in dataset.data_vars.values():
            array = variable.data
            chunk = array.metadata.chunks
            assert not any(n % k for n, k in zip(array.shape, chunk, strict=True))
            assert np.prod(chunk, dtype=int) * array.dtype.itemsize <= 1600
            several += len(array.manifest) > 1
    assert several > 40


def test_parser_store_has_values_of_file(
    files: dict[str, Path],
) -> None:
    for name, (_, arrays) in KINDS.items():
        actual = open_manifest(files[name])
        for key, values in arrays.items():
            assert_same_bits(actual[key].values, values)


WITHOUT_THIS_PACKAGE = """
import sys, warnings

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("xr_tensorfmt", "virtualizarr"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Refuse())
import icechunk, numpy as np, xarray as xr

warnings.simplefilter("ignore")
directory, *names = sys.argv[1:]
prefix = f"file://{directory}/"
access = getattr(icechunk.credentials, "LocalFileSystemAccess", None)
granted = icechunk.containers_credentials({prefix: None}) if access is None else {prefix: access}
storage = icechunk.local_filesystem_storage("repository")
repo = icechunk.Repository.open(storage, authorize_virtual_chunk_access=granted)
store = repo.readonly_session("main").store
found = {}
for name in names:
    dataset = xr.open_zarr(store, group=name, consolidated=False, chunks=None)
    for key, variable in dataset.variables.items():
        found[f"{name} {key}"] = variable.values
assert not {"xr_tensorfmt", "virtualizarr"} & set(sys.modules)
np.savez("values.npz", **found)
"""


def test_references_read_without_this_package(
    files: dict[str, Path], virtuals: dict[str, xr.Dataset], tmp_path: Path
) -> None:
    directory = files["npz"].parent
    repo = make_repository(
        directory, icechunk.local_filesystem_storage(str(tmp_path / "repository"))
    )
    session = repo.writable_session("main")
    for name, dataset in virtuals.items():
        dataset.vz.to_icechunk(session.store, group=name)
    session.commit("references")
    run_python("-c", WITHOUT_THIS_PACKAGE, directory, *virtuals, cwd=tmp_path)
    with np.load(tmp_path / "values.npz") as found:
        for name, (_, arrays) in KINDS.items():
            for key, values in arrays.items():
                assert_same_bits(found[f"{name} {key}"], values)


def make_labelled(path: Path) -> xr.Dataset:
    """Return a file with coordinates in its header, with and without an index."""
    dataset = xr.Dataset(
        {"tensor": (("x", "y"), np.arange(12.0).reshape(4, 3), {"units": "hartree"})},
        {
            "x": ["1s", "2s", "2p", "\N{GREEK SMALL LETTER ALPHA}"],
            "y": [0.5, 1.5, 0.0],
            "spin": ("x", np.array([0, 1, 0, 1], "int16")),
            "run": 0,
        },
        {"unit": "bohr", "levels": np.array([1, 2])},
    )
    dataset.tensorfmt.to_file(path, version="1.0")
    return dataset


def test_coordinates_of_header_are_loaded_and_kept(tmp_path: Path) -> None:
    dataset = make_labelled(tmp_path / "a.tens")
    actual = open_virtual(tmp_path / "a.tens")
    assert isinstance(actual.tensor.data, ManifestArray)
    assert not any(
        isinstance(coordinate.data, ManifestArray) for coordinate in actual.coords.values()
    )
    assert actual.indexes["x"].tolist() == dataset.x.values.tolist()
    for back in (
        open_manifest(tmp_path / "a.tens"),
        write_icechunk(tmp_path, {"g": actual})["g"],
    ):
        xr.testing.assert_equal(back.load(), dataset)
        assert set(back.coords) == {"x", "y", "spin", "run"}
        assert back.attrs == {"unit": "bohr", "levels": [1, 2]}
        assert back.tensor.attrs == {"units": "hartree"}


def test_coordinates_among_tensors_are_virtual(tmp_path: Path) -> None:
    dataset = xr.Dataset(
        {"a": (("x", "y"), np.arange(12, dtype="i4").reshape(4, 3))},
        {"x": [3.0, 2.0, 0.0, 1.0], "weight": ("y", np.array([0, 1, 2], "i8"))},
    )
    dataset.tensorfmt.to_file(tmp_path / "a.mag")
    actual = open_virtual(tmp_path / "a.mag")
    assert isinstance(actual.weight.data, ManifestArray)
    assert actual.indexes["x"].tolist() == [3, 2, 0, 1]
    back = write_icechunk(tmp_path, {"g": actual})["g"]
    xr.testing.assert_identical(back.load().drop_attrs(), dataset)


@pytest.mark.parametrize("label", ["x", "label"])
def test_coordinates_in_header_and_among_tensors_can_share_dims(tmp_path: Path, label: str) -> None:
    dataset = xr.Dataset(
        {"a": ("x", np.ones(3)), "empty": (("x", "y"), np.ones((3, 0)))},
        {label: ("x", ["s", "p", "d"]), "number": ("x", [0, 1, 2])},
    )
    dataset.tensorfmt.to_file(tmp_path / "a.safetensors")
    actual = open_virtual(tmp_path / "a.safetensors")
    assert isinstance(actual.number.variable.data, ManifestArray)
    assert actual[label].variable.data.tolist() == ["s", "p", "d"]
    back = write_icechunk(tmp_path, {"g": actual})["g"]
    xr.testing.assert_identical(back.load().drop_attrs(), dataset)


def test_kerchunk_writer_of_virtualizarr_refuses_integers(tmp_path: Path) -> None:
    for dtype in ("<i4", "?", "<M8[s]", "u1"):
        np.save(tmp_path / "a.npy", np.zeros(5, dtype))
        with pytest.raises(Exception, match="transpose"):
            open_virtual(tmp_path / "a.npy").vz.to_kerchunk(format="dict")


def test_nonzero_bytes_are_true(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(4, bool))
    content = bytearray((tmp_path / "a.npy").read_bytes())
    content[-3:] = b"\x02\x01\xff"
    actual = open_virtual(_put(tmp_path / "a.npy", bytes(content)))
    back = write_icechunk(tmp_path, {"g": actual})["g"]
    assert back.tensor.values.view("u1").tolist() == [0, 1, 1, 1]


def test_length_without_divisors_is_a_single_chunk_or_raises(tmp_path: Path) -> None:
    prime = 1_000_003
    np.save(tmp_path / "a.npy", np.arange(prime, dtype="<f8"))
    actual = open_virtual(tmp_path / "a.npy", chunk_bytes="1MiB")
    assert actual.tensor.data.metadata.chunks == (prime,)
    assert open_manifest(tmp_path / "a.npy", chunk_bytes="1MiB").tensor[-1] == prime - 1
    with pytest.raises(ValueError, match=r"no divisors of .* chunk_bytes=8000024 makes"):
        open_virtual(tmp_path / "a.npy", chunk_bytes="100kB")


def test_chunks_follow_order_of_file(tmp_path: Path) -> None:
    np.save(tmp_path / "c.npy", np.zeros((30, 4)))
    np.save(tmp_path / "f.npy", np.zeros((4, 30), order="F"))
    assert open_virtual(tmp_path / "c.npy").tensor.data.metadata.chunks == (3, 4)
    assert open_virtual(tmp_path / "f.npy").tensor.data.metadata.chunks == (4, 3)


def test_empty_tensor_is_loaded(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", empty=np.zeros((0, 3), ">f4"), full=np.arange(3))
    actual = open_virtual(tmp_path / "a.npz")
    assert actual.empty.shape == (0, 3)
    back = write_icechunk(tmp_path, {"g": actual})["g"]
    assert back.empty.shape == (0, 3)
    assert back.full.values.tolist() == [0, 1, 2]


def _write_bits(directory: Path) -> Path:
    info = pycausetfiles.make_metadata("DENSE_FLOAT", "BIT", 3, 70)
    payload = pycausetfiles.pack_bits(np.ones((3, 70), bool), 64)
    return _put(directory / "a.pycauset", pycausetfiles.r1(info, payload))


def _write_triangle(directory: Path) -> Path:
    info = pycausetfiles.make_metadata("TRIANGULAR_FLOAT", "FLOAT64", 20, 20)
    payload = pycausetfiles.pack_triangle(np.ones((20, 20)))
    return _put(directory / "a.pycauset", pycausetfiles.r1(info, payload))


def _write_identity(directory: Path) -> Path:
    info = pycausetfiles.make_metadata("IDENTITY", "FLOAT64", 3, 3)
    return _put(directory / "a.pycauset", pycausetfiles.r1(info))


def _write_scaled(directory: Path) -> Path:
    info = pycausetfiles.make_metadata(
        "DENSE_FLOAT", "FLOAT64", 3, 3, scalar={"real": 2.0, "imag": 0.0}
    )
    return _put(directory / "a.pycauset", pycausetfiles.r1(info, bytes(72)))


def _write_blocks(directory: Path) -> Path:
    content = vespafiles.make_tensor("float", ["u"], {"x": 2}, [["a"], ["b"]], np.ones((2, 2)))
    return _put(directory / "a.tbf", content)


def _write_pairs(directory: Path) -> Path:
    return _put(directory / "a.tens", tensfiles.make_index_value((4, 3), [1, 5], np.ones(2)))


def _write_text(directory: Path) -> Path:
    return cc4sfiles.save(directory, "a", np.ones((2, 3)), elements=cc4sfiles.TEXT)


def _write_bfloat16(directory: Path) -> Path:
    put = magfiles.Put("bfloat16", (3,), bytes(6))
    return _put(directory / "a.mag", magfiles.make_snapshot({"tensor": put}))


def _write_str(directory: Path) -> Path:
    np.save(directory / "a.npy", np.array(["a", "b"]))
    return directory / "a.npy"


def _write_slash(directory: Path) -> Path:
    np.savez(directory / "a.npz", **{"a/b": np.ones(3)})
    return directory / "a.npz"


def _write_missing_labels(directory: Path) -> Path:
    labels = {"label": ("x", ["a", "b"], {"_FillValue": "b"})}
    to_file(xr.Dataset({"w": ("x", np.ones(2, "f4"))}, labels), directory / "a.mag")
    return directory / "a.mag"


REFUSED = {
    _write_missing_labels: "'label', because it has str values and an attribute '_FillValue'",
    _write_bits: "its values are not one stored array .Packed",
    _write_triangle: "stored array .Packed",
    _write_identity: "stored array .Gathered",
    _write_scaled: "stored array .Gathered",
    _write_blocks: "stored array",
    _write_pairs: "stored array .Pairs",
    _write_text: "stored array .Text",
    _write_bfloat16: "no specified data type for bfloat16",
    _write_str: "no specified data type for str",
    _write_slash: "is invalid in Zarr",
}


@pytest.mark.parametrize("make", REFUSED, ids=lambda make: make.__name__)
def test_unsupported_variables_raise_or_are_skipped(
    make: Callable[[Path], Path], tmp_path: Path
) -> None:
    path = make(tmp_path)
    names = list(open_lazily(path).variables)
    with pytest.raises(ValueError, match=REFUSED[make]) as caught:
        open_virtual(path)
    assert str(caught.value).startswith(f"file://{path}: these cannot be virtual: ")
    assert not open_virtual(path, skip_variables=names).variables


def test_message_names_all_variables_that_can_be_left_out(tmp_path: Path) -> None:
    puts = {f"n{i}": magfiles.Put("bfloat16", (1,), bytes(2)) for i in range(7)}
    puts["kept"] = magfiles.put(np.arange(3, dtype="i4"))
    path = _put(tmp_path / "a.mag", magfiles.make_snapshot(puts))
    with pytest.raises(ValueError, match=r" \.\.\. .*; drop them with skip_variables=") as found:
        open_virtual(path)
    names = [f"n{i}" for i in range(7)]
    assert f"skip_variables={names}" in str(found.value)
    assert list(open_virtual(path, skip_variables=names)) == ["kept"]


def test_attributes_decode_values_as_in_the_engine(tmp_path: Path) -> None:
    dataset = xr.Dataset({"tensor": ("x", np.arange(3.0))})
    path = tmp_path / "a.tens"
    for attrs in ({"scale_factor": 2.0}, {"units": "days since 2000-01-01"}):
        dataset.tensor.assign_attrs(attrs).tensorfmt.to_file(path, version="1.0")
        expected = open_lazily(path)
        assert not expected.tensor.attrs.keys() & attrs.keys()
        back = write_icechunk(tmp_path, {"g": open_virtual(path)})["g"]
        xr.testing.assert_equal(back, expected)
    dataset.tensor.assign_attrs(_FillValue=0.0).tensorfmt.to_file(path, version="1.0")
    with pytest.raises(ValueError, match="attribute '_FillValue', whose form depends"):
        open_virtual(path)


def test_attributes_unsupported_by_zarr_raise(tmp_path: Path) -> None:
    path = tmp_path / "a.mag"
    mask = xr.Dataset({"mask": ("x", np.ones(3, bool), {"dtype": "an attribute"})})
    mask.tensorfmt.to_file(path)
    with pytest.raises(ValueError, match="attribute 'dtype', which xarray reserves for bools"):
        open_virtual(path)
    numbers = xr.Dataset({"a": ("x", np.arange(3, dtype="i4"))})
    numbers.assign_attrs(z=1 - 2j).tensorfmt.to_file(path)
    with pytest.raises(ValueError, match=r"cannot be virtual: Zarr does not support .*1-2j"):
        open_virtual(path)
    numbers.a.assign_attrs(z=1 - 2j).to_dataset().tensorfmt.to_file(path)
    with pytest.raises(ValueError, match="virtual: 'a', because Zarr does not support"):
        open_virtual(path)
    named = numbers.assign_attrs(coordinates="mine").assign_coords(w=("x", np.arange(3.0)))
    named.tensorfmt.to_file(path)
    with pytest.raises(ValueError, match=r"coordinates .'w'. cannot be listed in the attribute"):
        open_virtual(path)
    assert open_virtual(path, skip_variables=["w"]).attrs == {}


def test_attributes_are_decoded_like_engine(tmp_path: Path) -> None:
    metadata = {"title": "a model", "nested": {"a": [1, 2.5, None]}}
    puts = {"a": magfiles.put(np.arange(3, dtype="i4"))}
    path = _put(tmp_path / "a.mag", magfiles.make_document(puts, metadata))
    assert open_manifest(path).attrs == open_lazily(path).attrs == metadata


def write_many(path: Path) -> Path:
    puts = {name: magfiles.put(values) for name, values in MANY.items()}
    return _put(path, magfiles.make_document(puts, {"title": "a model"}))


def test_virtual_group_equals_engine(tmp_path: Path) -> None:
    path = write_many(tmp_path / "a.mag")
    for group in ("a", "/a"):
        actual, expected = open_virtual(path, group=group), open_lazily(path, group=group)
        assert actual.sizes == expected.sizes
        assert set(actual) == {"weight", "mask"}
        xr.testing.assert_equal(open_manifest(path, group=group).load(), expected.load())
    with pytest.raises(ValueError, match="did you mean 'a'"):
        open_virtual(path, group="A")


def test_virtual_tree_is_refused(tmp_path: Path) -> None:
    path = write_many(tmp_path / "a.mag")
    with pytest.raises(NotImplementedError, match="use open_virtual_dataset"):
        virtualizarr.open_virtual_datatree(str(path), LOCAL, TensorFormatParser())


def test_many_files_are_concatenated(tmp_path: Path) -> None:
    parts = [make_numbers((7, 5, 3), "<f8") + number for number in range(4)]
    for number, values in enumerate(parts):
        np.save(tmp_path / f"{number}.npy", values)
        _put(tmp_path / f"{number}.tens", tensfiles.make_0_9(values))
    for suffix in ("npy", "tens"):
        virtuals = [open_virtual(tmp_path / f"{n}.{suffix}") for n in range(4)]
        along_new = xr.concat(virtuals, "run")
        virtuals = [
            open_virtual(tmp_path / f"{n}.{suffix}", dims=["i", "j", "k"]) for n in range(4)
        ]
        along_old = xr.concat(virtuals, "k")
        for combined, expected in (
            (along_new, np.stack(parts)),
            (along_old, np.concatenate(parts, axis=2)),
        ):
            back = write_icechunk(tmp_path, {"g": combined})["g"]
            assert_same_bits(back.tensor.values, expected)


def test_axes_in_neither_order_equal_engine(tmp_path: Path) -> None:
    # Four numbers per element are the fastest axis, which is not reversed.
    header = tensfiles.pack_header((2, 3), numbers=4)
    path = _put(tmp_path / "a.tens", header + np.arange(24.0).tobytes())
    virtual = open_virtual(path, chunk_bytes="1MiB")
    expected = open_lazily(path).load()
    xr.testing.assert_equal(write_icechunk(tmp_path, {"g": virtual})["g"].load(), expected)
    virtual, expected = (xr.concat([item] * 2, "run") for item in (virtual, expected))
    xr.testing.assert_equal(write_icechunk(tmp_path, {"g": virtual})["g"].load(), expected)


@pytest.mark.parametrize("suffix", ["tens", "safetensors", "npy"])
def test_new_dims_are_added_as_by_engine(suffix: str, tmp_path: Path) -> None:
    paths = [str(tmp_path / f"{number}.{suffix}") for number in range(3)]
    for number, path in enumerate(paths):
        # VirtualiZarr copies the transpose codec, which integers and column-major arrays have.
        values = np.arange(24, dtype="<i4").reshape(4, 3, 2) + number
        dims = [f"dim_{axis}" for axis in range(3)]
        if suffix == "npy":
            np.save(path, np.asarray(values, order="F"))
        else:
            data = values.astype("<f8") if suffix == "tens" else values
            to_file(xr.Dataset({"tensor": (dims, data)}), path)
    actual = virtualizarr.open_virtual_mfdataset(
        paths, LOCAL, TensorFormatParser(chunk_bytes=32), concat_dim="run", combine="nested"
    )
    virtuals = [open_virtual(path, chunk_bytes=32) for path in paths]
    datasets = [open_lazily(path) for path in paths]
    expected = xr.concat(datasets, "run", data_vars="all")
    first, wanted = virtuals[0], datasets[0]
    for virtual, result in (
        (actual, expected),
        (xr.concat([actual, actual], "k", data_vars="all"), xr.concat([expected] * 2, "k")),
        (first.expand_dims("run"), wanted.expand_dims("run")),
        (first.expand_dims({"run": 2, "k": 2}), wanted.expand_dims({"run": 2, "k": 2})),
        (first.expand_dims("run").expand_dims("k"), wanted.expand_dims("run").expand_dims("k")),
    ):
        back = write_icechunk(tmp_path, {"g": virtual})["g"]
        xr.testing.assert_equal(back.load(), result.load())
    moved = virtuals[0].vz.rename_paths(f"file://{paths[1]}").expand_dims("run")
    back = write_icechunk(tmp_path, {"g": moved})["g"]
    assert_same_bits(back.tensor.values, datasets[1].tensor.values[np.newaxis])


def test_icechunk_notices_file_with_later_modification_time(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(5.0))
    virtuals = {"g": open_virtual(tmp_path / "a.npy")}
    for seconds, is_noticed in ((-10, False), (10, True)):
        back = write_icechunk(tmp_path, virtuals)["g"]
        np.save(tmp_path / "a.npy", np.arange(5.0) + 1)
        changed = time.time() + seconds
        os.utime(tmp_path / "a.npy", (changed, changed))
        if is_noticed:
            with pytest.raises(icechunk.IcechunkError, match=r"changed|modified|updated"):
                back.load()
        else:
            assert back.tensor[0] == 1


def test_sibling_files_are_found_in_store() -> None:
    store = stores.MemoryStore()
    registry = ObjectStoreRegistry({"memory://bucket": store})
    values = cc4sfiles.make_values((5, 4))
    store.put("a/x.yaml", cc4sfiles.format_yaml(values.shape, ["State", None]).encode())
    store.put("a/x.elements", cc4sfiles.pack_binary(values))
    store.put(
        "a/State.yaml", cc4sfiles.format_properties("State", {"Spin": [0, 1, 0, 1, 1]}).encode()
    )
    actual = open_virtual("memory://bucket/a/x.yaml", registry)
    assert set(actual.x.data.manifest.iter_nonempty_paths()) == {"memory://bucket/a/x.elements"}
    assert actual.State_Spin.values.tolist() == [0, 1, 0, 1, 1]
    store.delete("a/x.elements")
    with pytest.raises(FileNotFoundError, match=r"no such file; .*, so fetch it too"):
        open_virtual("memory://bucket/a/x.yaml", registry)


def test_objects_of_s3_are_read_by_icechunk(s3: Any) -> None:
    values = make_numbers((30, 4), ">f8")
    url = s3.put("virtual/a.tens", tensfiles.make_1_0(values.astype("<f8")))
    options = {
        "endpoint": s3.options["endpoint_url"],
        "access_key_id": "key",
        "secret_access_key": "secret",
        "region": "us-east-1",
        "virtual_hosted_style_request": False,
        "client_options": {"allow_http": True},
    }
    registry = ObjectStoreRegistry({"s3://bucket": stores.S3Store("bucket", **options)})
    s3.log.clear()
    actual = open_virtual(url, registry)
    assert s3.log.fetched < 2 * 1048576
    config = icechunk.RepositoryConfig.default()
    bucket = icechunk.s3_store(
        region="us-east-1",
        endpoint_url=options["endpoint"],
        allow_http=True,
        force_path_style=True,
        s3_compatible=True,
    )
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer("s3://bucket/", bucket))
    keys = icechunk.s3_credentials(access_key_id="key", secret_access_key="secret")
    repo = icechunk.Repository.create(
        icechunk.in_memory_storage(),
        config,
        icechunk.containers_credentials({"s3://bucket/": keys}),
    )
    session = repo.writable_session("main")
    actual.vz.to_icechunk(session.store)
    back = xr.open_zarr(session.store, consolidated=False, zarr_format=3, chunks=None)
    assert_same_bits(back.tensor.values, values)


def test_missing_or_corrupt_file_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.tens"):
        open_virtual(tmp_path / "nowhere.tens")
    path = _put(tmp_path / "a.tens", tensfiles.make_1_0(np.ones(3))[:-1])
    with pytest.raises(TensorFormatError, match="the file is truncated"):
        open_virtual(path)
    content = magfiles.make_archive({"name": magfiles.put(np.arange(3, dtype="i4"))})
    with pytest.raises(TensorFormatError, match="checksum"):
        open_virtual(_put(tmp_path / "a.mag", content.replace(b"name", b"NAME")))


def test_findings_are_warnings(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3.0))
    with open(tmp_path / "a.npy", "ab") as file:
        file.write(b"more")
    with pytest.warns(TensorFormatWarning, match="4 more bytes"):
        open_virtual(tmp_path / "a.npy", verify=False)


def test_invalid_keywords_raise(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3.0))
    for options in ({"chunk_bytes": 0}, {"chunk_bytes": True}, {"dims": "x"}, {"format": "nope"}):
        with pytest.raises((ValueError, TypeError), match=next(iter(options))):
            open_virtual(tmp_path / "a.npy", **options)


def test_parser_without_options_pickles(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3.0))
    copy = pickle.loads(pickle.dumps(parser))
    assert copy == parser
    assert virtualizarr.open_virtual_dataset(str(tmp_path / "a.npy"), LOCAL, copy).sizes == {
        "dim_0": 3
    }


def test_docstring_examples_run(working_directory: Path) -> None:
    (test,) = doctest.DocTestFinder(recurse=False).find(TensorFormatParser, globs={})
    assert test.examples
    assert doctest.DocTestRunner().run(test).failed == 0


def test_missing_virtualizarr_raises_install_hint() -> None:
    code = (
        "import sys, xr_tensorfmt\n"
        "assert 'virtualizarr' not in sys.modules\n"
        "sys.modules['virtualizarr'] = None\n"
        "try:\n    import xr_tensorfmt.virtual\n"
        "except ImportError as error:\n    print(error)\n"
    )
    assert "pip install 'xr-tensorfmt[virtual]'" in run_python("-c", code).stdout


@given(
    st.lists(st.integers(1, 40) | st.sampled_from([97, 4096, 10_007]), max_size=4).map(tuple),
    st.sampled_from([1, 8, 12]),
    st.integers(1, 1 << 20),
)
def test_dividing_chunks_are_whole_ranges_of_bounded_size(
    shape: tuple[int, ...], item: int, target: int
) -> None:
    chunk = made.find_dividing_chunk(shape, item, target)
    assume(chunk is not None)
    assert not any(n % k for n, k in zip(shape, chunk, strict=True))
    first = next((axis for axis, k in enumerate(chunk) if k > 1), len(chunk))
    assert chunk[first + 1 :] == shape[first + 1 :]
    assert prod(chunk) * item <= max(16 * target, item)


def test_dividing_chunk_is_near_target_if_there_is_divisor() -> None:
    assert made.find_dividing_chunk((1000, 1024), 1024, 100 << 20) == (100, 1024)
    assert made.find_dividing_chunk((2 * 997, 1024), 1024, 100 << 20) == (2, 1024)
    assert made.find_dividing_chunk((997, 4), 8, 16 << 10) == (997, 4)
    assert made.find_dividing_chunk((3, 10**12), 1, 31 << 20) == (1, 32_000_000)


def test_length_without_fitting_divisor_has_no_dividing_chunk() -> None:
    assert made.find_dividing_chunk((10_007, 4), 8, 8 << 10) is None
    assert made.find_dividing_chunk((10_007, 4), 8, 10_007 * 4 * 8) == (10_007, 4)
    assert made.find_dividing_chunk((10_007, 4), 8, 4 * 8) == (1, 4)
    assert made.find_dividing_chunk((2**61 - 1,), 1, 31 << 20) is None
    assert made.find_dividing_chunk((), 8, 1) == ()
