"""NumPy files: one array, or several arrays in a zip. The parser of numpy reads their headers."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from io import BytesIO
from tokenize import TokenError
from typing import TYPE_CHECKING, Any
from zipfile import ZIP_STORED, ZipInfo

import numpy as np
from numpy.lib import format as npy

from xr_tensorfmt.core.elements import Boolean, Plain, build_elements
from xr_tensorfmt.core.file_format import (
    Container,
    End,
    Format,
    Match,
    OpenOptions,
    name_dims,
    share_options,
)
from xr_tensorfmt.core.header import MAX_DIMENSIONS, HeaderReader, check_size
from xr_tensorfmt.core.layout import Dense, Layout, Transposed, column_major
from xr_tensorfmt.errors import Finding, TensorFormatError
from xr_tensorfmt.formats import keyed, zip_members

if TYPE_CHECKING:
    from xr_tensorfmt.writing.checked_input import CheckedInput
    from xr_tensorfmt.writing.file_plan import FilePlan

MAGIC = b"\x93NUMPY"
SUFFIX = ".npy"
# Limit on the size of a header. Parsing a malicious one takes a second and 130 MB.
MAX_HEADER_BYTES = 1 << 18
# Bytes of a member of a zip that contain the usual header of an array.
HEAD_BYTES = 1 << 13
# Limit on the bytes by which deflating makes a header longer.
_DEFLATE_OVERHEAD = 256
# Limit on the size of an element, such as a string. dask creates one to infer its type.
MAX_ELEMENT_BYTES = 1 << 24
# Limit on the size of the directory of a zip, enough for a hundred thousand arrays.
MAX_NPZ_DIRECTORY_BYTES = 8 << 20

# Version 3 differs from version 2 only in the names of fields.
_PARSERS = {
    MAGIC + b"\1\0": npy.read_array_header_1_0,
    MAGIC + b"\2\0": npy.read_array_header_2_0,
    MAGIC + b"\3\0": npy.read_array_header_2_0,
}

# Exceptions of the parsers for corrupt headers. The last two are for nested parentheses.
_UNREADABLE = (ValueError, TypeError, SyntaxError, IndexError, OverflowError, TokenError)
_TOO_DEEP = (RecursionError, MemoryError)

# Units of times that xarray supports.
_TIMES = [(unit, 1) for unit in ("s", "ms", "us", "ns")]

_DEFAULT_DIMS = tuple(f"dim_{axis}" for axis in range(MAX_DIMENSIONS))
_WRITTEN = [np.dtype(code).name for code in np.typecodes["AllInteger"] + "?efdFD"]


class NpyFormat(Format):
    """Files written by `numpy.save`."""

    name = "npy"
    title = "NumPy .npy"
    suffixes = (SUFFIX,)
    magics = (MAGIC,)
    open_options = share_options("name", "verify")

    def read(self, reader: HeaderReader, options: OpenOptions) -> Container:
        """Read the header of a file of one array."""
        path = reader.source.name
        head = reader.read_head(_compute_header_stop(reader.head))
        layout, stop = _parse_array(path, head, 0, options.name, "the array")
        if isinstance(layout, TensorFormatError):
            raise layout
        reader.check_complete(stop)
        dims = name_dims(options.dims, options.name, _DEFAULT_DIMS[: len(layout.shape)])
        # numpy.save can append arrays to an open file.
        end = End(reader.source, stop, "the first array")
        tensor = keyed.build_tensor(options.name, dims, layout, {"format": "npy"})
        return Container((tensor,), ends=(end,))

    def plan(self, checked: CheckedInput, **options: Any) -> FilePlan:
        """Plan a file of one array, as `numpy.save` writes it."""
        from xr_tensorfmt.writing import file_plan  # noqa: PLC0415  # imports xarray

        rank = checked.single_variable[1].ndim
        name, variable = checked.require_values_only(_DEFAULT_DIMS[:rank])
        dtype = variable.dtype
        if isinstance(dtype, np.dtype) and dtype.kind in "mMSU" and name not in checked.encoding:
            conversion = file_plan.Conversion(name, Plain(dtype.newbyteorder("<")), exact=True)
        else:
            conversion = checked.choose_conversion(name, variable, build_elements(_WRITTEN))
        element, shape = conversion.element, tuple(map(int, variable.shape))
        stored = np.dtype(np.bool_) if isinstance(element, Boolean) else element.stored
        fields = {"descr": npy.dtype_to_descr(stored), "fortran_order": False, "shape": shape}
        header = BytesIO()
        npy.write_array_header_1_0(header, fields)
        layout = Dense(shape, element, header.tell())
        planned = file_plan.PlannedVariable(variable, layout, conversion)
        return file_plan.FilePlan(layout.stop, (file_plan.Piece(0, header.getvalue()),), (planned,))


class NpzFormat(Format):
    """Files written by `numpy.savez` or `numpy.savez_compressed`."""

    name = "npz"
    title = "NumPy .npz"
    suffixes = (".npz",)
    magics = (zip_members.ZIP_MAGIC,)
    open_options = share_options("verify")

    def match(self, reader: HeaderReader) -> Match:
        """Check the first member, if compressed only its name. Many formats are zips."""
        name, content = zip_members.read_first_member(reader)
        if content.startswith(MAGIC) or (name.endswith(SUFFIX.encode()) and not content):
            return Match.CERTAIN
        is_possible = super().match(reader) and self.find_suffix(reader.source.file_name)
        return Match.POSSIBLE if is_possible else Match.NONE

    def read(self, reader: HeaderReader, options: OpenOptions) -> Container:
        """Read the directory of a zip and the headers of its arrays, concurrently if remote."""
        members, end = zip_members.read_directory(reader, MAX_NPZ_DIRECTORY_BYTES)
        files = {member.filename for member in members}

        def read_one(member: ZipInfo) -> tuple[str, keyed.Parsed] | TensorFormatError:
            try:
                return _read_member(reader, member, files)
            except TensorFormatError as error:
                return error

        parsed, corrupt = dict[str, keyed.Parsed](), list[TensorFormatError]()
        for result in reader.source.run(read_one, members):
            if isinstance(result, TensorFormatError):
                corrupt.append(result)
            else:
                key, parsed[key] = result
        if corrupt and all(isinstance(layout, TensorFormatError) for layout in parsed.values()):
            raise corrupt[0]
        findings = (replace(x.to_finding(), hint=f"{x.hint}; it is omitted") for x in corrupt)
        return keyed.build_container(
            *(options, reader.source.name, parsed, {"format": "npz"}),
            findings=tuple(findings),
            ends=(end,),
            parsed=members,
        )

    def check(self, reader: HeaderReader, container: Container, limit: int) -> Iterator[Finding]:
        """Check the CRC-32 of all members."""
        return zip_members.check_checksums(reader.source, container.parsed)


def _read_member(
    reader: HeaderReader, member: ZipInfo, files: Collection[str]
) -> tuple[str, keyed.Parsed]:
    """Return the key and the layout of a member. `numpy.load` also reads names without suffix."""
    path, offset, file = reader.source.name, member.header_offset, member.filename
    stem = file.removesuffix(SUFFIX)
    key = file if stem in files else stem
    field, is_deflated = f"the member {key!r}", member.compress_type != ZIP_STORED
    start, head = zip_members.open_member(reader, member, field, HEAD_BYTES)
    if stem == file and not head.startswith(MAGIC):
        actual, expected = "no NumPy array", f"an array, or a name with {SUFFIX}"
        return key, reader.error(field, actual, expected, "unzip it", offset)
    stop = min(_compute_header_stop(head), member.file_size)
    if stop > len(head):
        _, head = zip_members.open_member(reader, member, field, stop + _DEFLATE_OVERHEAD)
    layout, stop = _parse_array(path, head, start, key, f"the array {key!r}")
    if isinstance(layout, TensorFormatError):
        return key, layout
    expected = f"{stop - start} bytes for shape {layout.shape}"
    is_complete = stop - start <= member.file_size
    reader.check(is_complete, field, f"{member.file_size} bytes", expected, offset=offset)
    if is_deflated:
        array: Any = layout.inner if isinstance(layout, Transposed) else layout
        in_content = array.shape, array.element, array.offset - start
        deflated = zip_members.Deflated(member, start, *in_content)
        layout = column_major(deflated) if isinstance(layout, Transposed) else deflated
    return key, layout


def _compute_header_stop(head: bytes) -> int:
    """Return where the header of an array ends, at most after the limit on its size."""
    length_bytes = 2 if head[6:7] == b"\1" else 4
    start = len(MAGIC) + 2 + length_bytes
    length = int.from_bytes(head[start - length_bytes : start], "little")
    return start + min(length, MAX_HEADER_BYTES + 1)


def _parse_array(
    path: str, head: bytes, offset: int, key: str, title: str
) -> tuple[Layout | TensorFormatError, int]:
    """Return the layout of an array, or an error about its dtype, and the end of its data."""

    def error(field: str, actual: object, expected: str, hint: str) -> TensorFormatError:
        return TensorFormatError(path, f"{field} of {title}", actual, expected, hint, offset)

    parse = _PARSERS.get(head[:8])
    if parse is None:
        expected = f"{MAGIC!r} and 1.0, 2.0 or 3.0"
        hint = "the file is corrupt, has another format, or is newer; save it with an older numpy"
        raise error("magic and version", repr(head[:8]), expected, hint)
    if _compute_header_stop(head) > MAX_HEADER_BYTES + 12:
        expected = f"at most {MAX_HEADER_BYTES} bytes"
        hint = "load it with np.load(path, max_header_size=...) if you trust the file"
        raise error("the size of the header", f"more than {MAX_HEADER_BYTES}", expected, hint)
    file = BytesIO(head[8:])
    try:
        lengths, is_fortran, dtype = parse(file, max_header_size=MAX_HEADER_BYTES)
    except (*_UNREADABLE, *_TOO_DEEP) as fault:
        actual = f"not readable ({str(fault).partition(chr(10))[0]})"
        expected, hint = "a header that numpy can read", "the file is truncated or corrupt"
        raise error("the header", actual, expected, hint) from None
    is_time = dtype.kind in "mM" and np.datetime_data(dtype) in _TIMES
    if not (is_time or (dtype.kind in "biufcSU" and dtype.itemsize > 0)):
        expected = "numbers, bools, strings, or times in s, ms, us or ns"
        hint = "load it with np.load(path), and convert it (.astype or .view) or take a field"
        if dtype.hasobject:
            hint = "Python objects are a pickle: trust it to np.load(path, allow_pickle=True)"
        return error("the dtype", dtype, expected, hint), offset
    shape = tuple(map(int, lengths))
    if min(shape, default=0) < 0:
        raise error("the shape", shape, "lengths", "the header is corrupt")
    if dtype.itemsize > MAX_ELEMENT_BYTES:
        actual, expected = f"{dtype.itemsize} bytes", f"at most {MAX_ELEMENT_BYTES} bytes"
        raise error("an element", actual, expected, "the header is corrupt")
    element = Boolean() if dtype.kind == "b" else Plain(dtype)
    start = offset + 8 + file.tell()
    check_size(path, shape, dtype.itemsize, offset, repr(key))
    stored = Dense(shape[::-1] if is_fortran else shape, element, start)
    return column_major(stored) if is_fortran else stored, stored.stop
