"""Writing typed binary tensors: bytes of Vespa's encoder and round trips."""

from __future__ import annotations

import json
import pickle
import re
from itertools import accumulate
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from tests import vespafiles as vf
from xr_tensorfmt import to_file, vespa
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.formats.vespa import write as vespa_write
from xr_tensorfmt.formats.vespa.spec import VespaHeader
from xr_tensorfmt.formats.vespa.write import LabelledBlocks

DTYPES = {"double": "f8", "float": "f4", "bfloat16": "f4", "int8": "i1"}
NAMES = {"double": "float64", "float": "float32", "bfloat16": "bfloat16", "int8": "int8"}


def make_objects(strings: list[str]) -> np.ndarray:
    labels = np.empty(len(strings), dtype=object)
    labels[:] = strings
    return labels


def make_dataset(cells, mapped, indexed, addresses, values) -> xr.Dataset:
    """Return a Dataset with dimensions and coordinates as users create them."""
    values = np.asarray(values, DTYPES[cells])
    columns = [
        make_objects([address[axis] for address in addresses]) for axis in range(len(mapped))
    ]
    if not mapped:
        ds = xr.Dataset({"tensor": (tuple(indexed), values[0])})
    elif len(mapped) == 1:
        ds = xr.Dataset({"tensor": ((*mapped, *indexed), values)}, {mapped[0]: columns[0]})
    else:
        coords = {name: ("block", item) for name, item in zip(mapped, columns, strict=True)}
        ds = xr.Dataset({"tensor": (("block", *indexed), values)}, coords)
    ds.tensor.attrs["vespa_type"] = get_type(cells, mapped, indexed)
    return ds


def get_type(cells, mapped, indexed) -> str:
    sizes = dict.fromkeys(mapped, "{}") | {name: f"[{size}]" for name, size in indexed.items()}
    dims = [name + sizes[name] for name in sorted(sizes)]
    word = "" if cells == "double" else f"<{cells}>"
    return f"tensor{word}({','.join(dims)})" if dims else "double"


def encode_canonically(cells, mapped, indexed, addresses, values) -> bytes:
    """Encode a tensor as `encode_value` of Vespa does, by the specification."""
    has_dense = bool(indexed) or not mapped
    content = vf.pack_header(
        None if cells == "double" else cells,
        mapped or None,
        indexed if has_dense else None,
        len(addresses) if mapped else None,
    )
    for address, block in zip(addresses if mapped else [()], values, strict=True):
        content += b"".join(map(vf.pack_string, address)) + vf.pack_cells(block, cells)
    return content


def make_encoding(cells: str) -> dict:
    return {"encoding": {"tensor": {"dtype": NAMES[cells]}}}


def write_file(ds, directory: Path, **options) -> bytes:
    path = directory / "written.tbf"
    to_file(ds, path, "vespa", **options)
    return path.read_bytes()


def open_file(path: Path, **options) -> xr.Dataset:
    path = path / "written.tbf" if path.is_dir() else path
    return xr.open_dataset(path, engine="tensorfmt", format="vespa", **options)


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("vespa")


def make_users(count: int = 5, cells: str = "float", length: int = 3) -> xr.Dataset:
    labels = [(f"u{number}",) for number in range(count)]
    return make_dataset(
        cells, ["user"], {"x": length}, labels, vf.make_values(cells, (count, length))
    )


def make_items(count: int = 6) -> xr.Dataset:
    labels = [(f"i{number // 2}", f"u{number % 2}") for number in range(count)]
    return make_dataset(
        "double", ["item", "user"], {"x": 2}, labels, vf.make_values("double", (count, 2))
    )


# --- the bytes ---------------------------------------------------------------


def read_published(directory: Path) -> list[dict]:
    lines = (directory / "vespa" / "binary_format" / "test_spec.json").read_text().splitlines()
    return [test["tensor"] | test for test in map(json.loads, lines) if "tensor" in test]


def build_published(tensor: dict) -> tuple[xr.Dataset, str]:
    """Return the Dataset of a published test, from its type and its cells."""
    word, dims = re.fullmatch(
        r"(?:tensor|double)(?:<(\w+)>)?(?:\((.*)\))?", tensor["type"]
    ).groups()
    cells = word or "double"
    matches = re.findall(r"(\w+)(?:\{\}|\[(\d+)\])", dims or "")
    mapped = [name for name, length in matches if not length]
    indexed = {name: int(length) for name, length in matches if length}
    addresses = list(dict.fromkeys(tuple(c["address"][n] for n in mapped) for c in tensor["cells"]))
    values = np.zeros((len(addresses) if mapped else 1, *indexed.values()))
    for cell in tensor["cells"]:
        block = addresses.index(tuple(cell["address"][name] for name in mapped))
        values[(block, *(cell["address"][name] for name in indexed))] = cell["value"]
    return make_dataset(cells, mapped, indexed, addresses, values), cells


def test_each_published_tensor_has_bytes_that_vespa_accepts(conformance, directory) -> None:
    tests = read_published(conformance)
    assert len(tests) == 42
    for test in tests:
        ds, cells = build_published(test)
        accepted = [bytes.fromhex(binary[2:]) for binary in test["binary"]]
        assert write_file(ds, directory, **make_encoding(cells)) in accepted


@given(vf.tensors())
def test_any_tensor_has_bytes_of_specification_and_opens_as_it_was(directory, created) -> None:
    _, cells, mapped, indexed, addresses, values = created
    if not mapped and not indexed:  # C++ has no scalars of other types
        cells, values = "double", values.astype("f8")
    ds = make_dataset(cells, mapped, indexed, addresses, values)
    content = write_file(ds, directory, **make_encoding(cells))
    assert content == encode_canonically(cells, mapped, indexed, addresses, values)
    again = open_file(directory).load()
    xr.testing.assert_identical(again, ds)
    assert write_file(again, directory) == content


def test_short_and_long_integers_and_labels_of_any_length_and_script(directory) -> None:
    labels = ["", "a", "naïve/日本語 λ", "k" * 127, "k" * 128, "nul\0in", "\0", "🙂", "x" * 70000]
    labels += [str(number) for number in range(121)]
    addresses = [(label,) for label in labels]
    for length in (1, 127, 128):
        values = vf.make_values("int8", (len(labels), length))
        ds = make_dataset("int8", ["k"], {"x": length}, addresses, values)
        content = write_file(ds, directory)
        assert content == encode_canonically("int8", ["k"], {"x": length}, addresses, values)
        xr.testing.assert_identical(open_file(directory), ds)


def test_dims_are_written_sorted_by_name(directory) -> None:
    values = vf.make_values("float", (2, 3, 4, 5))
    ds = make_dataset("float", ["u"], {"Z": 3, "a": 4, "b": 5}, [("p",), ("q",)], values)
    del ds.tensor.attrs["vespa_type"]
    expected = write_file(ds, directory)
    assert expected == encode_canonically(
        "float", ["u"], {"Z": 3, "a": 4, "b": 5}, [("p",), ("q",)], values
    )
    assert write_file(ds.transpose("b", "Z", "u", "a"), directory) == expected
    assert write_file(ds.transpose("a", "u", "b", "Z").chunk(b=2, u=1), directory) == expected
    two = make_items()
    swapped = xr.Dataset({"tensor": two.tensor.T}, {n: two[n] for n in ("user", "item")})
    assert write_file(swapped, directory) == write_file(two, directory)


@pytest.mark.parametrize("dtype", ["U", "O", "T", "pandas"])
def test_labels_may_be_strings_of_any_dtype(directory, dtype) -> None:
    ds = make_users()
    strings = ds.user.values.tolist()
    labels = {"U": np.array(strings), "O": make_objects(strings)}.get(dtype)
    if dtype == "T":
        labels = np.array(strings, dtype=np.dtypes.StringDType())
    if dtype == "pandas":
        labels = ds.indexes["user"].astype("string")
    assert write_file(ds.assign_coords(user=labels), directory) == write_file(ds, directory)


def test_labels_that_were_not_utf_8_are_written_as_bytes_that_they_were(directory) -> None:
    raw = [(b"ok",), (b"\xff\xfe",), (b"\xc3\xa4",), (b"\x80" * 200,)]
    content = encode_canonically("int8", ["k"], {"x": 1}, raw, np.zeros((4, 1)))
    (directory / "odd.tbf").write_bytes(content)
    ds = open_file(directory / "odd.tbf")
    assert write_file(ds, directory) == content
    again = open_file(directory)
    xr.testing.assert_identical(again, ds)


def test_scalars_and_empty_tensors(directory) -> None:
    assert write_file(xr.DataArray(42.0), directory).hex() == "02004045000000000000"
    assert (
        write_file(xr.DataArray(da.asarray(42.0), name="tensor"), directory).hex()
        == "02004045000000000000"
    )
    empty = make_dataset("double", ["x"], {"y": 10}, [], np.zeros((0, 10)))
    assert write_file(empty, directory) == bytes.fromhex("0301017801017" + "90A00")
    xr.testing.assert_identical(open_file(directory), empty)
    two = make_dataset("float", ["w", "x"], {"y": 10}, [], np.zeros((0, 10)))
    write_file(two.chunk(y=3), directory)
    xr.testing.assert_identical(open_file(directory), two)


# --- bfloat16 and int8 -------------------------------------------------------


def test_bfloat16_is_truncated_as_in_vespa(directory) -> None:
    bits = np.array(
        [0x3FFFFFFF, 0xBFFFFFFF, 0x7F7FFFFF, 0x00007FFF, 0x7F800001, 0xFFC12345, 0x80000000], "u4"
    )
    ds = xr.Dataset({"tensor": ("x", bits.view("f4"))})
    content = write_file(ds, directory, encoding={"tensor": {"dtype": "bfloat16"}})
    cut = [0x3FFF, 0xBFFF, 0x7F7F, 0x0000, 0x7FC0, 0xFFC1, 0x8000]
    assert content == vf.pack_header("bfloat16", None, {"x": 7}) + np.array(cut, ">u2").tobytes()


def test_bfloat16_is_inherited_bit_by_bit_and_not_rounded_unasked(directory) -> None:
    bits = np.arange(1 << 16).astype(">u2")
    content = vf.pack_header("bfloat16", None, {"x": 256, "y": 256}) + bits.tobytes()
    (directory / "all.tbf").write_bytes(content)
    ds = xr.open_dataset(directory / "all.tbf")
    assert write_file(ds, directory) == content
    assert write_file(ds.chunk(x=100, y=30), directory) == content
    with np.errstate(all="ignore"):
        other = ds.assign(tensor=(ds.tensor / 3).assign_attrs(ds.tensor.attrs))
    other.tensor.encoding = ds.tensor.encoding
    with pytest.raises(ValueError, match="which bfloat16 cannot represent"):
        write_file(other, directory)


def test_int8_stores_integers_within_its_limits(directory) -> None:
    options = {"encoding": {"tensor": {"dtype": "int8"}}}
    ds = xr.Dataset({"tensor": ("x", np.array([-128, 0, 127]))})
    assert (
        write_file(ds, directory, **options)
        == vf.pack_header("int8", None, {"x": 3}) + b"\x80\0\x7f"
    )
    with pytest.raises(ValueError, match=r"contains np.float64.*int8 cannot represent"):
        write_file(ds + 0.5, directory, **options)
    with pytest.raises(ValueError, match=r"contains np.int64.128., which int8 cannot represent"):
        write_file(ds + 1, directory, **options)


# --- files of Vespa ----------------------------------------------------------


def test_real_files_are_written_byte_for_byte_as_vespa_wrote_them(conformance, directory) -> None:
    paths = sorted((conformance / "vespa" / "tbf").glob("*.tbf"))
    assert len(paths) > 10
    for path in paths:
        ds = xr.open_dataset(path)
        assert write_file(ds, directory) == path.read_bytes()
        xr.testing.assert_identical(open_file(directory), ds)


def test_published_binaries_are_written_in_one_form_and_open_as_same(
    conformance, directory
) -> None:
    tests = read_published(conformance)
    for name in ("documented_vectors.json", "derived_edge_cases.json"):
        tests += json.loads((conformance / "vespa" / name).read_text())["tests"]
    for test in tests:
        binaries = test["binary"] if isinstance(test["binary"], list) else [test["binary"]]
        forms = set()
        for binary in binaries:
            ds = vespa.from_hex(binary)
            content = write_file(ds, directory)
            xr.testing.assert_identical(open_file(directory), ds)
            if content not in forms:
                assert write_file(open_file(directory), directory) == content
            forms.add(content)
        # There is one form per order of the blocks.
        assert len({content[0] for content in forms}) == 1
        if len(binaries) > 1:
            assert forms <= {bytes.fromhex(binary[2:]) for binary in binaries}


def test_files_with_name_of_vespas_other_parser_raise(directory) -> None:
    (directory / "java.tbf").write_bytes(vf.pack_header("int8", None, {"a@b": 1}) + b"\1")
    with pytest.raises(ValueError, match="Vespa refuses the name 'a@b' of a dimension; rename it"):
        write_file(xr.open_dataset(directory / "java.tbf"), directory)


@pytest.mark.parametrize(
    ("mapped", "indexed"),
    [
        (["block"], {"x": 1}),
        (["block", "user"], {"x": 1}),
        (["item", "user"], {"block": 1}),
        (["tensor"], {"x": 1}),
        (["user"], {"tensor": 1, "tensor_": 1}),
        (["user"], {"tensor": 1, "tensor__": 1}),
        ([], {"block": 2, "tensor": 3}),
        (["block", "block_"], {"tensor": 2}),
    ],
)
def test_renamed_dims_are_written_with_original_names(directory, mapped, indexed) -> None:
    addresses = [("l",) * len(mapped)]
    values = vf.make_values("float", (1, *indexed.values()))
    content = encode_canonically("float", mapped, indexed, addresses, values)
    (directory / "clash.tbf").write_bytes(content)
    ds = xr.open_dataset(directory / "clash.tbf")
    assert write_file(ds, directory) == content
    del ds.tensor.attrs["vespa_type"], ds.tensor.encoding["tensorfmt"]
    write_file(ds, directory)
    expected = {*ds.tensor.dims, *map(str, ds.coords)} - ({"block"} if len(mapped) > 1 else set())
    actual = open_file(directory).tensor.attrs["vespa_type"]
    assert set(re.findall(r"\w+(?=[\[{])", actual)) == expected


# --- chunks ------------------------------------------------------------------


def split_length(length: int):
    """Return the lengths of chunks that divide a dimension."""
    return st.lists(st.integers(1, length), min_size=1, max_size=length).map(
        lambda parts: tuple(
            min(stop, length) - min(start, length)
            for start, stop in zip(
                [0, *accumulate(parts)], [*accumulate(parts), length], strict=True
            )
            if min(start, length) < min(stop, length)
        )
    )


@given(st.data(), st.sampled_from(list(vf.CELL_TYPES)), st.integers(1, 3))
def test_any_chunks_make_same_bytes(directory, data, cells, labels) -> None:
    count, indexed = data.draw(st.integers(1, 9)), {"x": 5, "y": 3, "z": 2}
    label = st.one_of(st.text(max_size=3), st.text("ab", min_size=127, max_size=129))
    address = st.tuples(*(label,) * labels)
    addresses = data.draw(st.lists(address, min_size=count, max_size=count, unique=True))
    values = vf.make_values(cells, (count, 5, 3, 2))
    mapped = ["a", "b", "c"][:labels]
    ds = make_dataset(cells, mapped, indexed, addresses, values)
    chunks = {dim: data.draw(split_length(length)) for dim, length in ds.tensor.sizes.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vespa_write, "BATCH_BYTES", data.draw(st.sampled_from([1, 40, 1 << 20])))
        content = write_file(ds.chunk(chunks), directory, **make_encoding(cells))
    assert content == encode_canonically(cells, mapped, indexed, addresses, values)


def test_chunks_without_elements_are_no_harm(directory) -> None:
    values = da.from_array(np.ones((2, 3), "f4"), chunks=((0, 2, 0), (0, 3)))
    ds = make_users(2).drop_attrs().copy(data={"tensor": values})
    assert 0 in ds.tensor.chunks[0]
    assert write_file(ds, directory) == write_file(ds.compute(), directory)


def test_planned_extents_of_blocks_equal_written_bytes() -> None:
    labels = [b"\1a", b"\3bcd", b"\0", b"\2ef"]
    header = VespaHeader.create("float", ("k",), ("x", "y"), (2, 3), 4)
    sizes = [size + header.block_bytes for size in (2, 4, 1, 3)]
    layout = LabelledBlocks(header, header.stop + np.cumsum([0, *sizes]), labels)
    values = np.arange(24, dtype="f4").reshape(4, 2, 3)
    everything, written = Selection.everything(layout.shape), []
    for first, stop in ((0, 4), (0, 2), (1, 4), (2, 3)):
        selection = Selection(layout.shape, (range(first, stop), *everything.indices[1:]))
        ((extents, content),) = layout.encode(selection, values[first:stop])
        assert extents.bounds == layout.locate(selection).bounds
        assert extents.nbytes == content.size
        written.append((extents.bounds, content.tobytes()))
    (start, _), full = written[0]
    for (first, stop), part in written[1:]:
        assert part == full[first - start : stop - start]


def test_chunks_that_divide_small_blocks_are_rechunked(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("xr_tensorfmt.formats.vespa.write.DEFAULT_CHUNK_BYTES", 10_000)
    ds = make_users(400, length=64).chunk(user=400, x=4)
    expected = write_file(ds.compute(), tmp_path)
    shapes = []
    encode = LabelledBlocks.encode

    def recorded(layout, selection, values):
        shapes.append(values.shape)
        return encode(layout, selection, values)

    monkeypatch.setattr(LabelledBlocks, "encode", recorded)
    assert write_file(ds, tmp_path) == expected
    assert {shape[1] for shape in shapes} == {64}
    assert max(shape[0] for shape in shapes) * 64 * 4 < 10_000
    shapes.clear()
    assert write_file(ds.chunk(user=25, x=32), tmp_path) == expected
    assert [shape[0] for shape in shapes] == [25] * 16


def test_chunks_that_cut_large_blocks_become_whole_blocks(tmp_path) -> None:
    count = (256 << 10) // 4
    ds = make_users(3, length=count)
    labels, values = [("u0",), ("u1",), ("u2",)], ds.tensor.values
    expected = encode_canonically("float", ["user"], {"x": count}, labels, values)
    assert write_file(ds, tmp_path) == expected
    assert write_file(ds.chunk(user=2, x=10_000), tmp_path) == expected


@pytest.mark.slow
def test_lazy_data_can_replace_their_own_file(tmp_path) -> None:
    path = tmp_path / "users.tbf"
    ds = make_items(600)
    to_file(ds, path, "vespa")
    content = path.read_bytes()
    lazy = xr.open_dataset(path)
    assert not lazy.item._in_memory
    to_file(lazy, path, "vespa")
    assert path.read_bytes() == content
    stored = xr.open_dataset(path, chunks={}).chunk(block=50)
    to_file(stored.isel(block=slice(None, None, -1)), path, "vespa")
    back = xr.open_dataset(path)
    xr.testing.assert_identical(back, ds.isel(block=slice(None, None, -1)))


def test_plan_may_be_computed_later_and_no_task_holds_labels(tmp_path) -> None:
    count = 5000
    labels = make_objects([f"user number {number}" for number in range(count)])
    ds = xr.Dataset({"tensor": ("user", da.zeros(count, chunks=500))}, {"user": labels})
    tasks = to_file(ds, tmp_path / "later.tbf", compute=False)
    sizes = sorted(len(pickle.dumps(node)) for node in dict(tasks.dask).values())
    # One node has the labels. The node before it is small.
    assert sizes[-1] > 18 * count
    assert sizes[-2] < 5000
    assert not (tmp_path / "later.tbf").exists()
    dask.compute(tasks)
    xr.testing.assert_identical(
        xr.open_dataset(tmp_path / "later.tbf").drop_attrs(), ds.compute().drop_attrs()
    )


# --- regions -----------------------------------------------------------------


@pytest.mark.parametrize("length", [3, 20_000])
def test_region_of_blocks_is_changed_in_place_and_no_label_is(tmp_path, length) -> None:
    path = tmp_path / "users.tbf"
    ds = make_users(12, length=length)
    ds = ds.assign_coords(user=make_objects(["k" * number for number in range(12)]))
    to_file(ds, path, "vespa")
    part = ds.tensor.isel(user=slice(3, 9), x=slice(1, 3)).drop_attrs() * 0 + 7
    to_file(part.chunk(user=4), path, "vespa", region={"user": slice(3, 9), "x": slice(1, 3)})
    ds.tensor[3:9, 1:3] = 7
    xr.testing.assert_identical(xr.open_dataset(path), ds)


def test_region_of_bfloat16_is_truncated_too(tmp_path) -> None:
    path = tmp_path / "users.tbf"
    to_file(make_users(4, cells="bfloat16"), path, "vespa", **make_encoding("bfloat16"))
    part = xr.DataArray(np.full((1, 3), 1.998, "f4"), dims=("user", "x"), name="tensor")
    options = {"encoding": {"tensor": {"dtype": "bfloat16"}}}
    to_file(part, path, "vespa", region={"user": slice(2, 3)}, **options)
    assert path.read_bytes()[-2 * 6 - 3 :][:6] == b"\x3f\xff" * 3


def test_region_of_blocks_is_found_by_positions(tmp_path) -> None:
    path = tmp_path / "a.tbf"
    coords = {"user": ("block", list("abcab")), "chunk": ("block", list("00011"))}
    values = np.arange(10.0).reshape(5, 2)
    ds = xr.Dataset({"tensor": (("block", "x"), values)}, coords)
    to_file(ds, path)
    part = ds.isel(block=[3, 1]) * -1
    pairs = ds.set_index(block=["chunk", "user"]).indexes["block"]
    positions = pairs.get_indexer([("1", "a"), ("0", "b")])
    to_file(part, path, region={"block": positions})
    values[[3, 1]] *= -1
    np.testing.assert_array_equal(xr.open_dataset(path).tensor, values)
    with pytest.raises(ValueError, match=r"a list of positions such as ds.indexes\['block'\]"):
        to_file(part, path, region={"block": [("1", "a"), ("0", "b")]})
    with pytest.raises(ValueError, match=r"the coordinate 'user' is b, a, but the region .* c, a"):
        to_file(part, path, region={"block": [3, 2]})


@pytest.mark.parametrize("region", ["auto", {"block": "auto"}])
def test_region_of_blocks_is_found_by_all_labels(region, tmp_path) -> None:
    path = tmp_path / "a.tbf"
    coords = {"user": ("block", list("abcab")), "chunk": ("block", list("00011"))}
    values = np.arange(10.0).reshape(5, 2)
    ds = xr.Dataset({"tensor": (("block", "x"), values)}, coords)
    to_file(ds, path)
    part = ds.isel(block=[4, 0, 3]) * -1
    to_file(part.chunk(block=1), path, region=region)
    values[[4, 0, 3]] *= -1
    np.testing.assert_array_equal(xr.open_dataset(path).tensor, values)
    missing = part.assign_coords(user=("block", list("cab")))
    with pytest.raises(ValueError, match=r"labels \('c', '1'\) of 'block' do not occur once in"):
        to_file(missing, path, region=region)
    with pytest.raises(ValueError, match="labels a, a of 'block' do not occur once"):
        to_file(part.isel(block=[1, 2]).drop_vars("chunk"), path, region=region)
    with pytest.raises(ValueError, match="written data has no coordinate 'block'; pass"):
        to_file(part.drop_vars(["user", "chunk"]), path, region={"block": "auto"})


def test_messages_of_regions_name_repeated_and_reordered_labels(tmp_path) -> None:
    path = tmp_path / "a.tbf"
    users = xr.DataArray(np.eye(3), {"user": list("abc")}, ("user", "x"), name="tensor")
    to_file(users, path)
    part = users.isel(user=[1, 0])
    with pytest.raises(ValueError, match=r"positions \[1, 1\] for 'user', expected different ones"):
        to_file(part.assign_coords(user=["b", "b"]), path, region="auto")
    with pytest.raises(ValueError, match=r"is b, a, but .* has a, b; correct region="):
        to_file(part, path, region={"user": [0, 1]})


def test_region_is_written_with_labels_of_different_lengths(tmp_path) -> None:
    labels = [f"{number:04}" for number in range(1000)]
    labels[700], labels[701] = "700", "00701"
    ds = make_dataset("int8", ["k"], {"x": 4}, [(label,) for label in labels], np.zeros((1000, 4)))
    path = tmp_path / "odd.tbf"
    to_file(ds, path, "vespa")
    part = xr.DataArray(np.full((1, 4), 9, "i1"), dims=("k", "x"), name="tensor")
    to_file(part, path, "vespa", region={"k": slice(700, 701)})
    ds.tensor[700] = 9
    assert path.read_bytes() == encode_canonically(
        "int8", ["k"], {"x": 4}, list(zip(labels)), ds.tensor.values
    )


# --- refused input -----------------------------------------------------------


def check_refused(data, directory: Path, match: str, **options) -> None:
    path = directory / "refused.tbf"
    with pytest.raises(ValueError, match=match) as error:
        to_file(data, path, "vespa", **options)
    assert str(error.value).startswith(f"{path}: ")
    assert not path.exists()


def test_unsupported_parts_raise_unless_dropped(directory) -> None:
    plain = make_users().drop_attrs()
    expected = write_file(plain, directory)
    cases = {
        "attrs": (plain.assign_attrs(made="today"), "the attribute 'made' of ds; delete it from"),
        "coords": (
            plain.assign_coords(x=[1, 2, 3]),
            r"'x', because .* .int64. are not .*x=ds\['x'\].ast.*, or pass drop=\['coords'\]",
        ),
    }
    for part, (ds, message) in cases.items():
        check_refused(ds, directory, message)
        assert write_file(ds, directory, drop=[part]) == expected
    noted = plain.copy()
    noted["tensor"] = noted.tensor.assign_attrs(units="m")
    check_refused(noted, directory, r"the attribute 'units' of ds\['tensor'\]")
    noted = plain.assign_coords(user=plain.user.assign_attrs(source="web"))
    check_refused(noted, directory, r"the attribute 'source' of ds\['user'\]")
    assert write_file(noted, directory, drop=["attrs"]) == expected


@pytest.mark.parametrize("place", ["attrs", "encoding"])
def test_reference_to_another_variable_is_named(tmp_path, place) -> None:
    ds = xr.Dataset({"tensor": ("x", np.ones(2))})
    getattr(ds.tensor, place)["grid_mapping"] = "crs"
    expected = r"'grid_mapping' of ds\['tensor'\]; delete it from .*attrs or .*encoding"
    with pytest.raises(ValueError, match=expected):
        to_file(ds, tmp_path / "a.tbf")


def test_error_of_numeric_labels_shows_conversion(directory) -> None:
    ds = make_users().drop_attrs().assign_coords(user=[3, 1, 4, 1, 5])
    line = "ds.assign_coords(user=ds['user'].astype(str))"
    check_refused(
        ds,
        directory,
        f"its labels .int64. are not str; call drop_vars..user.. if .*{re.escape(line)}",
    )
    ds = ds.assign_coords(user=[3, 1, 4, 2, 5])
    created = eval(line, {"ds": ds})
    write_file(created, directory)
    assert open_file(directory).user.values.tolist() == list("31425")
    assert write_file(ds, directory, drop=["coords"]) == write_file(ds.drop_vars("user"), directory)
    mixed = ds.assign_coords(user=make_objects(["a", 1, "b", None, 2.5]))
    check_refused(mixed, directory, "its labels .object. are not str; select labels that are not")
    on_block = (
        make_items().drop_vars("user").assign_coords(number=("block", np.arange(6))).drop_attrs()
    )
    check_refused(on_block, directory, "'number', because some of its labels .int64. are")


def test_error_of_two_labelled_dims_shows_conversion(
    directory,
) -> None:
    ds = xr.Dataset(
        {"tensor": (("item", "x", "user"), np.arange(12.0).reshape(2, 2, 3))},
        {"item": ["i0", "i1"], "user": ["u0", "u1", "u2"]},
    )
    ds.tensor[1, :, 0] = np.nan
    line = "ds.stack(block=['item', 'user']).reset_index('block')"
    check_refused(
        ds, directory, f"'item' and 'user' are dimensions with labels, .*{re.escape(line)}"
    )
    stacked = eval(line, {"ds": ds})
    write_file(stacked, directory)
    dense = open_file(directory, sparse="dense").drop_attrs()
    xr.testing.assert_identical(dense, ds.transpose("item", "user", "x"))
    write_file(stacked.dropna("block"), directory)
    assert open_file(directory).sizes["block"] == 5
    dense = open_file(directory, sparse="dense").drop_attrs()
    xr.testing.assert_identical(dense, ds.transpose("item", "user", "x"))


def test_labels_of_another_dimension_raise(directory) -> None:
    ds = make_users().drop_attrs().reset_index("user").rename_dims(user="n")
    check_refused(ds, directory, r"the coordinate 'user'; call drop_vars\('user'\)")
    renamed = ds.rename_dims(n="block")
    assert write_file(renamed, directory) == write_file(make_users(), directory)
    other = make_users().drop_attrs().assign_coords(city=("user", list("abcde")))
    check_refused(other, directory, r"the coordinate 'city'; call drop_vars\('city'\)")


@pytest.mark.parametrize("type_", ["tensor<float>(user{},x[3])", "double"])
def test_type_attribute_is_updated(directory, type_) -> None:
    ds = make_users().isel(x=slice(2))
    ds.tensor.attrs["vespa_type"] = type_
    assert write_file(ds, directory) == write_file(ds.drop_attrs(), directory)
    assert open_file(directory).tensor.attrs == {"vespa_type": "tensor<float>(user{},x[2])"}


def test_type_that_xarray_copies_to_the_dataset_is_ignored(directory) -> None:
    write_file(make_users(), directory)
    ds = open_file(directory)
    norm = np.sqrt((ds.tensor**2).sum("x"))
    normalized = ds / norm
    assert normalized.attrs == norm.attrs == ds.tensor.attrs
    expected = normalized.drop_attrs()
    assert write_file(normalized, directory) == write_file(expected, directory)
    assert vespa.to_json(normalized) == vespa.to_json(expected)
    path = directory / "feed.jsonl"
    vespa.to_jsonl(normalized, path, field="v", dim="user", prefix="id:shop:user::")
    back = vespa.from_jsonl(path, field="v", dim="user", prefix="id:shop:user::")
    np.testing.assert_array_equal(back.tensor, expected.tensor)


def test_name_of_variable_must_be_dropped(directory) -> None:
    named = make_users().rename(tensor="embedding")
    check_refused(
        named, directory, "Vespa cannot store the name 'embedding'; rename it to 'tensor'"
    )
    assert write_file(named, directory, drop=["name"]) == write_file(make_users(), directory)
    options = {"encoding": {"embedding": {"dtype": "bfloat16"}}, "drop": ["name"]}
    assert write_file(make_users().tensor.rename("embedding"), directory, **options)[:2] == b"\7\2"


def test_other_dtypes_raise_unless_requested(directory) -> None:
    ds = xr.Dataset({"tensor": ("x", np.arange(3))})
    check_refused(
        ds,
        directory,
        "'tensor' is int64, but Vespa supports only float64, float32, bfloat16, int8;",
    )
    assert write_file(ds, directory, encoding={"tensor": {"dtype": "float32"}})[:2] == b"\6\1"
    check_refused(ds.astype(complex), directory, "'tensor' is complex128")
    scalar = xr.DataArray(np.float32(1))
    check_refused(
        scalar, directory, "'tensor' is float32, but a scalar of Vespa supports only float64;"
    )
    options = {"encoding": {"tensor": {"dtype": "float64"}}}
    assert write_file(scalar, directory, **options) == write_file(scalar.astype("f8"), directory)


@pytest.mark.parametrize("name", ["9a", "a-b", "a b", "ä", "", "a\n"])
def test_names_that_vespa_refuses_raise(directory, name) -> None:
    ds = xr.Dataset({"tensor": (name, np.zeros(2))})
    check_refused(
        ds,
        directory,
        "Vespa refuses the name .* of a dimension; rename it to a unique one",
    )


def test_dims_that_vespa_or_we_could_not_read_raise(directory) -> None:
    check_refused(
        xr.DataArray(np.zeros(2), dims="a" * 5000), directory, "Vespa refuses the name 'aaa"
    )
    names = [f"d{number}" for number in range(32)]
    many = xr.DataArray(np.zeros((1,) * 32), dims=names)
    check_refused(many, directory, "32 dimensions, but at most 31 can be read from files; stack")
    labels = {name: ("block", ["a"]) for name in names}
    check_refused(
        xr.DataArray(np.zeros(1), labels, dims="block"),
        directory,
        "32 dimensions are more than the 31 that can be opened again; stack",
    )
    check_refused(
        xr.DataArray(np.zeros((2, 0)), dims=("a", "b")),
        directory,
        "'b' has length 0, expected 1 to",
    )
    huge = xr.DataArray(np.broadcast_to(np.int8(0), 1 << 31), dims="x")
    check_refused(huge, directory, "'x' has length 2147483648, expected 1 to 2147483647")
    most = (1 << 31) - 1
    huge = xr.Dataset({"tensor": (("x", "y"), da.zeros((most, most), dtype="i1", chunks=most))})
    wider = {"tensor": {"dtype": "float64"}}
    check_refused(huge, directory, r"is too large to address; write a part", encoding=wider)


@pytest.mark.parametrize("type_", ["mine", 3, "tensor(x[])"])
def test_attribute_of_user_with_name_of_type_is_refused(directory, type_) -> None:
    ds = make_users().drop_attrs()
    ds.tensor.attrs["vespa_type"] = type_
    check_refused(ds, directory, "the attribute 'vespa_type' of ds.'tensor'.; delete it")
    ds = make_users().assign_attrs(vespa_type=type_)
    check_refused(ds, directory, "the attribute 'vespa_type' of ds; delete it")


@pytest.mark.parametrize("file_info", [None, 3, "tensor(x[3])", ["vespa"]])
def test_file_info_that_is_not_a_mapping_is_ignored(directory, file_info) -> None:
    users = make_users()
    expected = write_file(users, directory)
    users.tensor.encoding["tensorfmt"] = file_info
    assert write_file(users, directory) == expected


def test_underscores_of_a_user_are_kept(directory) -> None:
    """Only names that the reader had to change lose their underscores."""
    ds = vespa.from_json([[1, 2]], "tensor(x[1],y[2])")
    for names in ({"x": "x_"}, {"x": "y_"}, {"x": "y__", "y": "x_"}):
        write_file(ds.rename(names), directory)
        assert {*open_file(directory).tensor.dims} == {*ds.rename(names).tensor.dims}


def test_repeated_labels_raise(directory) -> None:
    ds = make_users().drop_attrs().assign_coords(user=list("abcab"))
    check_refused(
        ds, directory, "block 3 has the same labels as block 0, 'a', which Vespa may refuse"
    )
    two = make_items().assign_coords(user=("block", ["u0", "u0", "u0", "u0", "u0", "u1"]))
    check_refused(two, directory, "block 1 has the same labels as block 0, 'i0', 'u0'")


@pytest.mark.parametrize("label", ["\ud800", "ok\udfff"])
def test_labels_without_utf_8_bytes_raise(directory, label) -> None:
    ds = make_users().assign_coords(user=make_objects(["a", label, "b", "c", "d"]))
    check_refused(ds, directory, "cannot be encoded as UTF-8; change it")


def test_encoding_of_labels_raises(directory) -> None:
    options = {"encoding": {"user": {"dtype": "int8"}}}
    check_refused(
        make_users(),
        directory,
        "encoding= names 'user', but labels are always written as strings",
        **options,
    )


def test_more_than_one_variable_raises(directory) -> None:
    ds = make_users().assign(other=("x", np.zeros(3)))
    check_refused(
        ds,
        directory,
        r"a Vespa file holds one variable, but the Dataset has 2 \('tensor', 'other'\)",
    )


def test_suffix_chooses_this_format(directory) -> None:
    to_file(make_users(), directory / "by_name.tbf")
    xr.testing.assert_identical(xr.open_dataset(directory / "by_name.tbf"), make_users())


def test_blocks_along_another_dimension_are_named(directory) -> None:
    ds = xr.Dataset(
        {"tensor": ("pair", [1.0, 2.0])},
        {"film": ("pair", ["a", "b"]), "user": ("pair", ["c", "d"])},
    )
    check_refused(ds, directory, r"'film'; call drop_vars.*, or rename\({'pair': 'block'}\) if")
    write_file(ds.rename(pair="block"), directory)
