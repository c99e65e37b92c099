"""Tensors in all JSON forms that Vespa documents."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from xr_tensorfmt import vespa
from xr_tensorfmt.formats.vespa import json_forms

MIXED = "tensor<float>(tag{},x[3])"
SPECIAL = "tensor<float>(z[11])"

# Examples of Vespa's document JSON reference, with their types.
DOCUMENTED: dict[str, tuple[Any, str, Any]] = {
    "indexed": ([2.0, 3.0, 5.0, 7.0], "tensor(x[4])", [2, 3, 5, 7]),
    "indexed, in values": ({"values": [2.0, 3.0]}, "tensor(x[2])", [2, 3]),
    "indexed, flat": ([1, 2, 3, 4], "tensor(x[2],y[2])", [[1, 2], [3, 4]]),
    "indexed, nested": ([[1, 2], [3, 4]], "tensor(x[2],y[2])", [[1, 2], [3, 4]]),
    "mapped": ({"a": 2.0, "b": 3.0}, "tensor(x{})", {"a": 2, "b": 3}),
    "mapped, in cells": ({"cells": {"a": 2.0, "b": 3.0}}, "tensor(x{})", {"a": 2, "b": 3}),
    "mixed": ({"x1": [2.0, 3.0], "x2": [4.0, 5.0]}, "tensor(x{},y[2])",
              {"x1": [2, 3], "x2": [4, 5]}),
    "mixed, in blocks": ({"blocks": {"x1": [2.0, 3.0]}}, "tensor(x{},y[2])", {"x1": [2, 3]}),
    "mixed, two mapped": (
        {"blocks": [{"address": {"x": "x1", "y": "y2"}, "values": [2.0, 3.0]},
                    {"address": {"y": "y2", "x": "x2"}, "values": [4.0, 5.0]}]},
        "tensor(x{},y{},z[2])", {"x1,y2": [2, 3], "x2,y2": [4, 5]}),
    "int8 digits": ({"values": "FF00118022FE"}, "tensor<int8>(x[6])", [-1, 0, 17, -128, 34, -2]),
    "float digits": (
        {"foo": "3DE38E393E638E393EAAAAAB", "bar": "3EE38E393F0E38E43F2AAAAB"}, MIXED,
        {"foo": [0.1111111119389534, 0.2222222238779068, 0.3333333432674408],
         "bar": [0.4444444477558136, 0.5555555820465088, 0.6666666865348816]}),
    "verbose": (
        [{"address": {"x": "a", "y": "0"}, "value": 2.0},
         {"address": {"x": "a", "y": "1"}, "value": 3.0},
         {"address": {"y": "1", "x": "b"}, "value": 5.0}], "tensor(x{},y[2])",
        {"a": [2, 3], "b": [0, 5]}),
    "verbose, in cells": (
        {"cells": [{"address": {"x": "a", "y": "b"}, "value": 2.0}]}, "tensor(x{},y{})",
        {"a,b": 2}),
    "scalar": ({"values": [5.0]}, "tensor()", 5),
    "scalar in cells": ({"cells": [{"address": {}, "value": 5.0}]}, "double", 5),
    "digits of bfloat16 for float": ({"values": "3F804000"}, "tensor<float>(x[2])", [1, 2]),
    "digits of double for bfloat16": ("3FF0000000000000", "tensor<bfloat16>(x[1])", [1]),
    "a map that has the names of forms": (
        {"foo": 1, "cells": 2.0, "values": 0.5, "blocks": 1.5}, "tensor(mydim{})",
        {"foo": 1, "cells": 2, "values": 0.5, "blocks": 1.5}),
    "a map with the label values": ({"values": [1, 2]}, "tensor(x{},y[2])", {"values": [1, 2]}),
    "a map with the label blocks": ({"blocks": [1, 2]}, "tensor(x{},y[2])", {"blocks": [1, 2]}),
    "a map with the label cells": ({"cells": [1], "type": [2]}, "tensor(x{},y[1])",
                                   {"cells": [1], "type": [2]}),
    "a scalar of digits": ({"values": "4014000000000000"}, "tensor()", 5),
    "no cells of a dense type": ({"cells": []}, "tensor(x[2])", [0, 0]),
    "numbers as strings": ({"a": "1.5", "b": "-Inf", "c": "2e3"}, "tensor(x{})",
                           {"a": 1.5, "b": -np.inf, "c": 2000}),
    "nothing mapped": ({"cells": []}, "tensor(x{})", {}),
    "a bare scalar of digits": ({"fields": {"f": "4014000000000000"}}, "tensor()", 5),
    "a bare scalar with a letter": ({"fields": {"f": "C014000000000000"}}, "tensor()", -5),
    "a scalar of digits of bfloat16": ("4097", "tensor<bfloat16>()", 4.71875),
    "a scalar of digits of float": ("40A00000", "tensor<float>()", 5),
    "a scalar of digits of int8": ("51", "tensor<int8>()", 81),
    "a scalar of digits of another length": ("123", "tensor()", 123),
    "a scalar in a string": ({"fields": {"f": "1.5"}}, "tensor()", 1.5),
    "an infinite scalar": ({"fields": {"f": "Infinity"}}, "tensor<float>()", np.inf),
    "a string in a list": ({"values": ["51"]}, "tensor<int8>()", 51),
    "a label type in digits": ({"type": "01FF", "a": "0203"}, "tensor<int8>(x{},y[2])",
                               {"type": [1, -1], "a": [2, 3]}),
    "only a label type in digits": ({"type": "01FF"}, "tensor<int8>(x{},y[2])",
                                    {"type": [1, -1]}),
    "labels type and values": ({"type": "01", "values": "02"}, "tensor<int8>(x{},y[1])",
                               {"type": [1], "values": [2]}),
    "labels type and cells": ({"type": "1.5", "cells": "inf"}, "tensor(x{})",
                              {"type": 1.5, "cells": np.inf}),
    "bare blocks": ([{"address": {"x": "a"}, "values": [1, 2]},
                     {"address": {"x": "b"}, "values": [3, 4]}], "tensor<float>(x{},z[2])",
                    {"a": [1, 2], "b": [3, 4]}),
    "bare blocks, two mapped": ([{"address": {"x": "a", "y": "b"}, "values": [1, 2]}],
                                "tensor<float>(x{},y{},z[2])", {"a,b": [1, 2]}),
    "bare blocks of digits": ([{"address": {"x": "a", "y": "b"}, "values": "01FF"}],
                              "tensor<int8>(x{},y{},z[2])", {"a,b": [1, -1]}),
    "no bare blocks": ([], "tensor<float>(x{},y{},z[2])", {}),
    "empty, mapped": ({}, "tensor(x{})", {}),
    "empty, mixed": ({}, "tensor(x{},y[2])", {}),
    "empty, two mapped": ({}, "tensor(x{},y{})", {}),
    "empty, mixed, two mapped": ({"blocks": {}}, "tensor(x{},y{},z[2])", {}),
    "empty, indexed": ({}, "tensor<float>(x[2],y[2])", [[0, 0], [0, 0]]),
    "empty cells, indexed": ({"cells": {}}, "tensor<int8>(x[2])", [0, 0]),
    "empty scalar": ({}, "tensor()", 0),
    "only a type": ({"type": "tensor<int8>(x[2])"}, "tensor<int8>(x[2])", [0, 0]),
    "digits of int8 for float": ("FF007F", "tensor<float>(x[3])", [-1, 0, 127]),
    "digits of int8 for bfloat16": ({"values": "FF007F"}, "tensor<bfloat16>(x[3])", [-1, 0, 127]),
    "digits of int8 for double": ({"blocks": {"a": "FF007F"}}, "tensor(p{},x[3])",
                                  {"a": [-1, 0, 127]}),
}  # fmt: skip


def to_lists(ds: xr.Dataset) -> Any:
    """Return values as lists, by label if there are labels."""
    mapped = ds.tensor.encoding["tensorfmt"]["mapped"]
    values = ds.tensor.values.tolist()
    if not mapped:
        return values
    rows = zip(*(ds[name].values.tolist() for name in mapped), strict=True)
    return dict(zip(map(",".join, rows), values, strict=True))


@pytest.mark.filterwarnings("ignore:hexadecimal digits of")
@pytest.mark.parametrize("case", DOCUMENTED)
@pytest.mark.parametrize("text", [False, True])
def test_each_documented_form_is_read(case: str, text: bool) -> None:
    data, type_, expected = DOCUMENTED[case]
    field = "f" if isinstance(data, dict) and "fields" in data else None
    data = json.dumps(data) if text and not isinstance(data, str) else data
    ds = vespa.from_json(data, type_, field=field)
    assert to_lists(ds) == expected
    assert ds.tensor.attrs["vespa_type"] == type_.replace("tensor()", "double")


def to_arrays(data: Any) -> Any:
    """Return JSON with arrays in place of lists of numbers."""
    if isinstance(data, dict):
        return {key: to_arrays(value) for key, value in data.items()}
    if not isinstance(data, list):
        return data
    array = np.array(data)
    return array if array.dtype.kind in "fi" else [to_arrays(value) for value in data]


@pytest.mark.filterwarnings("ignore:hexadecimal digits of")
@pytest.mark.parametrize("case", DOCUMENTED)
def test_arrays_are_read_as_lists(case: str) -> None:
    data, type_, _ = DOCUMENTED[case]
    field = "f" if isinstance(data, dict) and "fields" in data else None
    expected = vespa.from_json(data, type_, field=field)
    ds = vespa.from_json(to_arrays(data), type_, field=field)
    xr.testing.assert_identical(ds.load(), expected.load())
    for document in ({"fields": {"v": to_arrays(data)}}, {"v": to_arrays(data)}):
        if field is None and not isinstance(data, int | float | str):
            ds = vespa.from_json(document, type_, field="v")
            xr.testing.assert_identical(ds.load(), expected.load())


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8", "uint64"])
def test_numbers_of_numpy_are_read(dtype: str) -> None:
    array = np.array([1, 2], dtype)
    for values in (array, {"values": array}, [*array], {"values": [*array]}):
        for type_ in ("tensor(x[2])", "tensor<int8>(x[2])", "tensor<bfloat16>(x[2])"):
            assert vespa.from_json(values, type_).tensor.values.tolist() == [1, 2]
    with pytest.raises(ValueError, match="True is not the value of a cell"):
        vespa.from_json(np.array([True]), "tensor(x[1])")


# The C++ code of Vespa refuses other scalars, so they are not written.
WRITABLE = [case for case in DOCUMENTED if not re.fullmatch(r"tensor<.*>\(\)", DOCUMENTED[case][1])]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:hexadecimal digits of")
@pytest.mark.parametrize("case", WRITABLE)
@pytest.mark.parametrize("form", ["short", "long", "hex"])
def test_every_form_round_trips_with_type(case: str, form: Any) -> None:
    data, type_, _ = DOCUMENTED[case]
    field = "f" if isinstance(data, dict) and "fields" in data else None
    ds = vespa.from_json(data, type_, field=field).load()
    created = json.loads(json.dumps(vespa.to_json(ds, form), allow_nan=False))
    xr.testing.assert_identical(vespa.from_json(created).load(), ds)
    xr.testing.assert_identical(vespa.from_json(created, type_).load(), ds)


def test_constant_of_vespa_in_each_form_is_read(conformance: Path) -> None:
    square = [[1, 2], [3, 4]]
    sparse = {"foo,bar": 1, "17,42": 1742, "bar,foo": 2}
    short = {"foo": 1, "cells": 2, "values": 0.5, "blocks": 1.5}
    cases: dict[str, tuple[str, Any]] = {
        "dense": ("tensor(x[2],y[2])", square),
        "sparse": ("tensor(x{},y{})", sparse),
        "mixed": ("tensor(x{},y[2])", {"foo": [1, 2]}),
        "mixed-blocks-11": ("tensor(x{},y[2])", {"foo": [1, 2]}),
        "sparse-short1": ("tensor(mydim{})", short),
        "sparse-short2": ("tensor(mydim{})", short),
        "dense-short1": ("tensor(z[3])", [1, 2, 3.5]),
        "dense-short2": ("tensor(z[3])", [1, 2, 3.5]),
        "constant_tensor_2": ("tensor(x[6])", [0, 0, 0, 0, 0, 42]),
        "constant_tensor_4": ("tensor(x{},y{})", {"3,-99": 23}),
    }
    root = conformance / "vespa" / "constants_json"
    for name, (type_, expected) in cases.items():
        assert to_lists(vespa.from_json((root / f"{name}.json").read_text(), type_)) == expected
    blocks = (root / "mixed-blocks-21.json").read_bytes()
    ds = vespa.from_json(blocks, "tensor<float>(brand{},category{},v[3])", sparse="dense")
    np.testing.assert_array_equal(
        ds.tensor.sel(brand="stylish", category="foo"), [1.75, 2.75, 3.75]
    )
    special = vespa.from_json((root / "dense-special.json").read_bytes(), SPECIAL).tensor.values
    np.testing.assert_array_equal(special, [np.inf] * 4 + [-np.inf] * 2 + [np.nan] * 5)
    with pytest.raises(ValueError, match="is not JSON"):
        vespa.from_json((root / "invalid.json").read_text(), "tensor(x[1])")


def test_json_equals_response_of_vespa() -> None:
    digits = {"foo": "3DE38E393E638E393EAAAAAB"}
    ds = vespa.from_json(digits, MIXED)
    values = [0.1111111119389534, 0.2222222238779068, 0.3333333432674408]
    assert vespa.to_json(ds) == {"type": MIXED, "blocks": {"foo": values}}
    assert vespa.to_json(ds, "hex") == {"type": MIXED, "blocks": digits}
    cells = [{"address": {"tag": "foo", "x": str(i)}, "value": values[i]} for i in range(3)]
    assert vespa.to_json(ds, "long") == {"type": MIXED, "cells": cells}
    assert vespa.to_json(xr.DataArray(2.0)) == {"type": "tensor()", "values": [2.0]}
    limits = xr.DataArray([np.nan, np.inf, -np.inf], dims="x")
    assert vespa.to_json(limits)["values"] == [None, "Infinity", "-Infinity"]
    named = xr.DataArray(np.float32([1.999]), dims="x", name="embedding")
    options = {"embedding": {"dtype": "bfloat16"}}
    rounded = {"type": "tensor<bfloat16>(x[1])", "values": [1.9921875]}
    assert vespa.to_json(named, encoding=options) == rounded


@given(
    st.lists(st.floats(width=32) | st.integers(-(2**20), 2**20), min_size=6, max_size=6),
    st.sampled_from(["double", "float", "bfloat16"]),
    st.lists(st.text(st.characters(exclude_categories=["Cs"])), unique=True, max_size=3),
    st.sampled_from(["short", "long", "hex"]),
)
def test_any_values_and_labels_round_trip(
    values: list[float], cells: str, labels: list[str], form: Any
) -> None:
    type_ = f"tensor<{cells}>(b{{}},x[3],y[2])"
    ds = vespa.from_json({"blocks": dict.fromkeys(labels, values)}, type_).load()
    created = json.dumps(vespa.to_json(ds, form), allow_nan=False)
    xr.testing.assert_identical(vespa.from_json(created).load(), ds)
    expected = np.float32(values)
    if cells == "float" and labels:
        np.testing.assert_array_equal(ds.tensor.values[0].ravel(), expected)


WRONG: dict[str, tuple[Any, str | None, str]] = {
    "no type": ([1.0], None, "states no type of the tensor; pass the type of its field"),
    "another type": ({"type": "tensor(x[1])", "values": [1]}, "tensor(y[1])",
                     r"expected 'tensor\(y"),
    "no size": ([1.0], "tensor(x[])", r"is not the type of a tensor because of 'x\[\]'"),
    "not closed": ([1.0], "tensor<float>(x[1)", r"tensor because of 'x\[1', expected a type"),
    "a name alone": ([1.0], "tensor(x{}, y)", "tensor because of 'y', expected a type such as"),
    "other brackets": ([1.0], "tensor<float>[x[1]]", "is not the type of a tensor, expected"),
    "no such cells": ([1.0], "tensor<float16>(x[1])",
                      "of 'float16', expected .*cells are double, float, bfloat16 or int8, and"),
    "twice the name": ([1.0], "tensor(x[1],x{})", "is not the type of a tensor"),
    "of no size": ([], "tensor(x[0])", r"of 'x\[0\]', .*sizes of indexed dimensions, from 1 on"),
    "huge": ([], "tensor(x[99999999999],y[99999999999])", "can be addressed"),
    "too few": ([1, 2], "tensor(x[3])", r"has the shape \(2,\), expected \(3,\)"),
    "other rows": ([[1, 2], [3, 4], [5, 6]], "tensor(x[2],y[3])",
                   r"has the shape \(3, 2\), expected \(2, 3\) or 6 flat"),
    "an empty row": ([[], [1, 2, 3, 4]], "tensor(x[2],y[2])", r"has the shape \(2,\)"),
    "too deep": ([[[1]], [[2]]], "tensor(x[2],y[1])", r"has the shape \(2, 1, 1\), expected"),
    "null": ("null", "tensor(x{})", "states no type|None is not a form"),
    "a label of bool": ([{"address": {"x": True}, "value": 1}], "tensor(x{})",
                        "does not fit tensor.* with a label or"),
    "an index of a block": ({"blocks": [{"address": {"x": "a", "y": 0}, "values": [1]}]},
                            "tensor(x{},y[1])", "does not fit"),
    "lone surrogate": ({"\ud800": 1}, "tensor(x{})", "surrogates not allowed"),
    "zeros beyond the limit": ({"cells": []}, "tensor(x[4194305])", "more than 4194304 cells"),
    "uneven": ([[1, 2], 3], "tensor(x[3])", r"has the shape \(2,\)"),
    "a str": (["1x"], "tensor(x[1])", "'1x' is not the value of a cell"),
    "a bool": ([True], "tensor(x[1])", "True is not the value of a cell"),
    "too large": ([10**400], "tensor(x[1])", "10+[.]+0+ is not a number, expected one for"),
    "no int8": ([1, 300], "tensor<int8>(x[2])", "300 is not an integer from -128 to 127"),
    "NaN of int8": ([None], "tensor<int8>(x[1])", "nan is not an integer from -128"),
    "no float": ([1, 1e300], "tensor<float>(x[2])", "1e.300 is not a number up to 3.4e38"),
    "no float in a string": (["-1e39"], "tensor<float>(x[1])", "-1e.39 is not a number up to"),
    "no float in a map": ({"a": 10**39}, "tensor<float>(x{})", "10{39} is not a number up to"),
    "no float in cells": ({"cells": [{"address": {"x": 0}, "value": 1e300}]},
                          "tensor<float>(x[2])", "1e.300 is not a number up to"),
    "no float in digits": ("7E37E43C8800759C", "tensor<float>(x[1])", "1e.300 is not a number up"),
    "no bfloat16": ([1e300], "tensor<bfloat16>(x[1])", r"expected one for tensor<bfloat16>\(x"),
    "no double": (["1e400"], "tensor(x[1])", "'1e400' is not the value of a cell"),
    "half": ([0.5], "tensor<int8>(x[1])", "0.5 is not an integer from -128"),
    "odd digits": ({"values": "3F8"}, "tensor<float>(x[1])", "are not 8 hexadecimal digits"),
    "int8 of floats": ({"values": "3F80"}, "tensor<int8>(x[1])", "are not 2 hexadecimal digits"),
    "a scalar of int8 of digits of float": ("40A00000", "tensor<int8>()",
                                            "are not 2 hexadecimal digits .*numbers"),
    "a scalar of digits of float": ({"values": "40400000"}, "tensor()",
                                    r"are not 16 hexadecimal digits .*of tensor\(\);"),
    "a scalar of digits of bfloat16": ("4097", "double", "are not 16 hexadecimal digits"),
    "a scalar of digits of int8": ("12", "tensor<float>()", "are not 8 hexadecimal digits"),
    "a scalar of digits of double": ("4014000000000000", "tensor<bfloat16>()", "not 4 hexadecimal"),
    "digits with an exponent": ({"values": "1e10"}, "tensor()", "are not 16 hexadecimal digits"),
    "infinite digits": ('{"values": [1e400]}', "tensor<float>(x[1])", "is not JSON: .*infinity"),
    "infinite digits in a map": ('{"a": -1e400}', "tensor(k{})", "is not JSON: "),
    "deep, but valid": ("[" * 1000 + "]" * 1000, "tensor(x[2])", "has the shape"),
    "deep in a map": ('{"cells": ' * 500 + "}" * 500, "tensor(x{})", "is not JSON"),
    "no digits": ({"values": "wxyz"}, "tensor<bfloat16>(x[1])", "are not 4 hexadecimal digits"),
    "no index": ([{"address": {"x": "a"}, "value": 1}], "tensor(x[2])",
                 "does not fit .* an index for each"),
    "index 2": ([{"address": {"x": 2}, "value": 1}], "tensor(x[2])",
                 "does not fit .* an index for each"),
    "a long index": ([{"address": {"x": "9" * 5000}, "value": 1}], "tensor(x[2])",
                     "does not fit .* an index for each"),
    "no label": ([{"address": {}, "value": 1}], "tensor(x{})", r"\{\}.* does not fit tensor\(x\{"),
    "more": ([{"address": {"x": "a", "y": "b"}, "value": 1}], "tensor(x{})", "does not fit"),
    "values and a cell": ([{"address": {"x": "a"}, "values": [1, 2]},
                           {"address": {"x": "a", "y": 0}, "value": 5}],
                          "tensor(x{},y[2])", "'value': 5} does not fit .* expected 'values' and"),
    "a cell twice": ([{"address": {"x": "a"}, "value": 1}, {"address": {"x": "b"}, "value": 2},
                      {"address": {"x": "a"}, "value": 3}],
                     "tensor(x{})", r"the address \{'x': 'a'\} is repeated"),
    "a dense cell twice": ([{"address": {"x": 0}, "value": 1}, {"address": {"x": "0"}, "value": 2}],
                           "tensor(x[2])", "is repeated; remove one of its entries"),
    "a block twice": ([{"address": {"x": "a"}, "values": [1]}] * 2,
                      "tensor(x{},y[1])", r"the address \{'x': 'a'\} is repeated"),
    "no address": ([{"value": 1}], "tensor(x{})", "expected 'value' and an 'address' with"),
    "two mapped": ({"a": 1}, "tensor(x{},y{})", "is not a form of the type tensor"),
    "a map for dense": ({"cells": {"a": 1}}, "tensor(x[1])", "is not a form of the type"),
    "blocks for dense": ({"blocks": {"a": [1]}}, "tensor(x[1])", "is not a form of the type"),
    "values for blocks": ({"type": "tensor(x{},y[1])", "values": [1]}, None,
                          r"\[1\] is not a form of"),
    "a number": (7, "tensor(x[1])", "7 is not a form of"),
    "not JSON": ("{", "tensor(x[1])", "is not JSON"),
    "deep": ("[" * 100_000, "tensor(x[1])", "is not JSON"),
    "two": ("[1]\n[2]", "tensor(x[1])", "is not JSON: .*the text of one document.*from_jsonl"),
    "path": ("feed.jsonl", "tensor(x[1])", "is not JSON: .*or the pathlib.Path of"),
    "documents": ([{"fields": {"a": [1]}}], "tensor(x[1])", "expected 'value' and an 'address'"),
    "response": ({"root": {"children": []}}, None, "states no type"),
    "other type": ({"type": "tensor(x[1])", "values": [1]}, "tensor(x[2])", "tensors of one type"),
}  # fmt: skip


def test_byte_order_mark_of_a_file_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"type": "tensor(x[2])", "values": [1, 2]}', encoding="utf-8-sig")
    assert vespa.from_json(path).tensor.values.tolist() == [1, 2]


@pytest.mark.filterwarnings("ignore:hexadecimal digits of")
@pytest.mark.parametrize("case", WRONG)
def test_json_of_other_type_raises(case: str) -> None:
    data, type_, message = WRONG[case]
    with pytest.raises(ValueError, match=message):
        vespa.from_json(data, type_)


@pytest.mark.filterwarnings("ignore:hexadecimal digits of")
@pytest.mark.parametrize("case", WRONG)
def test_errors_name_json(case: str) -> None:
    data, type_, _ = WRONG[case]
    with pytest.raises(ValueError, match=r"^<Vespa JSON>: "):
        vespa.from_json(data, type_)


def test_errors_of_options_name_json() -> None:
    data = {"type": "tensor<int8>(x{},y{})", "cells": []}
    data["cells"] = [{"address": {"x": i, "y": i}, "value": 1} for i in range(2)]
    with pytest.raises(ValueError, match="<Vespa JSON>: cells of type int8 cannot hold"):
        vespa.from_json(data, sparse="dense")
    with pytest.raises(ValueError, match=r"<Vespa JSON>: fill_value=0 requires sparse='dense'"):
        vespa.from_json(data, fill_value=0)
    with pytest.raises(ValueError, match=r"^<Vespa JSON>: sparse='stored' does not apply"):
        vespa.from_json([1], "tensor(x[1])", sparse="stored")


DOCUMENT = {"put": "id:a:b::1", "fields": {"title": "x", "vector": [1, 2]}}


@pytest.mark.parametrize(
    "document", [DOCUMENT, json.dumps(DOCUMENT), json.dumps(DOCUMENT).encode("ascii")]
)
def test_field_of_document_is_opened(document: Any) -> None:
    ds = vespa.from_json(document, "tensor(x[2])", field="vector")
    np.testing.assert_array_equal(ds.tensor, [1, 2])


@pytest.mark.parametrize("field", [None, "vectr"])
def test_document_without_field_raises(field: str | None) -> None:
    expected = (
        r"the fields 'title', 'vector'; pass one of them as field=(, not 'vectr' \(did.*)?, and"
    )
    with pytest.raises(ValueError, match=expected):
        vespa.from_json(DOCUMENT, "tensor(x[2])", field=field)


def test_update_of_a_document_has_a_new_value() -> None:
    document = {"update": "id:a:b::1", "fields": {"vector": {"assign": {"values": [1, 2]}}}}
    ds = vespa.from_json(document, "tensor(x[2])", field="vector")
    np.testing.assert_array_equal(ds.tensor, [1, 2])
    document["fields"] = {"vector": {"modify": {"operation": "add", "cells": {"0": 1}}}}
    with pytest.raises(ValueError, match="without 'assign', so it has no complete tensor"):
        vespa.from_json(document, "tensor(x[2])", field="vector")


def test_field_may_be_a_key_of_any_mapping() -> None:
    hit = {"fields": {"matchfeatures": {"score": {"type": "tensor(x[2])", "values": [1, 2]}}}}
    features = vespa.from_json(hit["fields"]["matchfeatures"], field="score")
    np.testing.assert_array_equal(features.tensor, [1, 2])


def test_field_of_tensor_raises() -> None:
    with pytest.raises(
        ValueError, match="has the fields no name; pass one of them as field=, not 'vector'"
    ):
        vespa.from_json([1, 2], "tensor(x[2])", field="vector")
    assert vespa.from_json({"fields": [1, 2]}, "tensor(a{},x[2])").sizes == {"a": 1, "x": 2}


def test_lazy_tensor_from_json_is_pickled() -> None:
    ds = vespa.from_json({"a": [1, 2], "b": [3, 4]}, "tensor(x{},y[2])", chunks={})
    again = pickle.loads(pickle.dumps(ds))
    assert again.tensor.sel(x="b").sum().values == 7


def test_sparsely_listed_blocks_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_forms, "MAX_JSON_CELLS", 4)
    cells = [{"address": {"x": label, "y": 0}, "value": 1} for label in "abc"]
    assert vespa.from_json(cells[:2], "tensor(x{},y[2])").tensor.sum() == 2
    with pytest.raises(ValueError, match="more than 4 cells, but lists only some"):
        vespa.from_json(cells, "tensor(x{},y[2])")


def test_unknown_form_raises() -> None:
    with pytest.raises(ValueError, match="form='verbose' is not one of 'short', 'long', 'hex'"):
        vespa.to_json(xr.DataArray([1.0], dims="x"), "verbose")  # type: ignore[arg-type]


def test_file_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "constant.json"
    path.write_text('{"cells": {"a": 1, "b": 2}}')
    assert to_lists(vespa.from_json(path, "tensor(x{})")) == {"a": 1, "b": 2}
    with pytest.raises(ValueError, match=r"constant.json: the JSON states no type"):
        vespa.from_json(path)


def test_dataset_equals_file(tmp_path: Path) -> None:
    ds = vespa.from_json({"a": [1, 2], "b": [3, 4]}, "tensor<bfloat16>(x{},y[2])")
    ds.tensorfmt.to_file(tmp_path / "a.tbf")
    file = xr.open_dataset(tmp_path / "a.tbf", engine="tensorfmt")
    xr.testing.assert_identical(ds, file)
    assert ds.tensor.encoding["tensorfmt"] == file.tensor.encoding["tensorfmt"]
