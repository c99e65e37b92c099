"""Open a file, recognise its format, and read its header."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from xr_tensorfmt.core.file_format import (
    SHARED_OPTIONS,
    Container,
    Format,
    Match,
    OpenOptions,
    Option,
    match_names,
)
from xr_tensorfmt.core.header import UNFINISHED_MARK, HeaderReader
from xr_tensorfmt.core.source import InputOutput, check_pointer
from xr_tensorfmt.errors import (
    Finding,
    TensorFormatError,
    build_directory_error,
    did_you_mean,
    redact,
    shorten,
    warn,
)
from xr_tensorfmt.formats import registry
from xr_tensorfmt.formats.registry import find_format, find_format_by_suffix, load_formats
from xr_tensorfmt.formats.zip_members import ZIP_MAGIC
from xr_tensorfmt.sources import find_source, get_path, is_remote, list_names

# Names of unsupported formats, and hints, by the start of the file.
_FETCH = "fetch the file again"
_DECOMPRESS = "decompress it first"
_CONVERT = "run xr-tensorfmt convert --from"
_PICKLE = ("a Python pickle", "load it only if you trust the file: it can run code")
_HTML = ("a page of HTML", f"log in if the server requires it, and {_FETCH}")
_FOREIGN = {
    b"\x1f\x8b\x08": ("compressed by gzip", _DECOMPRESS),
    b"\x28\xb5\x2f\xfd": ("compressed by zstd", _DECOMPRESS),
    b"\x04\x22\x4d\x18": ("compressed by lz4", _DECOMPRESS),
    b"BZh": ("compressed by bzip2", _DECOMPRESS),
    b"\xfd7zXZ\0": ("compressed by xz", _DECOMPRESS),
    b"\x89HDF\r\n\x1a\n": (
        "HDF5 or netCDF-4",
        f"pass engine='h5netcdf' to xarray, or {_CONVERT} netcdf",
    ),
    b"CDF": ("netCDF", f"pass engine='scipy' to xarray, or {_CONVERT} netcdf"),
    b"GGUF": ("GGUF", "read it with the package gguf"),
    b"PK\x05\x06": ("an empty zip archive", _FETCH),
    ZIP_MAGIC: ("a zip archive", "unzip it"),
    **dict.fromkeys((b"\x80\x02", b"\x80\x03", b"\x80\x04\x95", b"\x80\x05\x95"), _PICKLE),
    **dict.fromkeys((b"<!DOCTYPE ", b"<!doctype ", b"<html", b"<HTML"), _HTML),
}


def open_header(
    file: Any,
    io: InputOutput = "auto",
    storage_options: Mapping[str, Any] | None = None,
    fs: Any = None,
    **keywords: Any,
) -> HeaderReader:
    """Open a file, or the model of a directory, and return a reader of its header."""
    try:
        return HeaderReader(*find_source(file, io, storage_options, fs, **keywords))
    except IsADirectoryError:
        model = _find_in_directory(file, storage_options, fs)
        if model is None:
            raise
    return HeaderReader(*find_source(model, io, storage_options, fs, **keywords))


def _list_directory(
    path: str, storage_options: Mapping[str, Any] | None, fs: Any
) -> tuple[list[str], list[str], Callable[[str], HeaderReader]]:
    """Return the names in a directory, those that it can open as, and what opens one of them."""
    names = list_names(path, storage_options, fs)

    def open_reader(name: str) -> HeaderReader:
        return open_header(_join(path, name), "read", storage_options, fs)

    models = (name for known in load_formats() for name in known.find_models(names, open_reader))
    return names, sorted(models), open_reader


def _join(directory: str, name: str) -> str:
    return f"{directory.rstrip('/')}/{name}"


def list_files(directory: str, storage_options: Mapping[str, Any] | None, fs: Any) -> list[str]:
    """Return the tensor files in a directory. A directory with an index is one file."""
    names, models, open_reader = _list_directory(directory, storage_options, fs)
    if len(models) == 1 and models[0].casefold().endswith(".json") and models[0] in names:
        return [directory]  # the index of other files
    names = [name for name in names if find_format_by_suffix(name)]
    parts = find_parts(names, open_reader)
    files = [_join(directory, name) for name in names if name not in parts]
    if not files:
        hint = "pass a file of any name and its format, or another directory"
        if directory.casefold().rstrip("/").endswith(".zarr"):
            hint = f"pass engine='zarr' to xarray, or {_CONVERT} zarr"
        raise IsADirectoryError(f"{redact(directory)} is a directory without tensor files; {hint}")
    return files


def find_parts(names: Iterable[str], open_reader: Callable[[str], HeaderReader]) -> dict[str, str]:
    """Return the files without tensors of their own, by the formats of their suffixes."""
    by_format = defaultdict[Format | None, list[str]](list)
    for name in names:
        by_format[find_format_by_suffix(name)].append(name)
    parts: dict[str, str] = {}
    for file_format, named in by_format.items():
        parts |= file_format.find_parts(named, open_reader) if file_format else {}
    return parts


def _find_in_directory(file: Any, storage_options: Mapping[str, Any] | None, fs: Any) -> str | None:
    directory = get_path(file)
    if not isinstance(directory, str):
        return None
    names, models, _ = _list_directory(directory, storage_options, fs)
    if missing := next((model for model in models if model not in names), None):
        raise IsADirectoryError(
            f"{redact(directory)} is a directory with files of a model, but without its index "
            f"{missing}; fetch the index, or pass the path of one of the files"
        )
    if len(models) == 1:
        return _join(directory, models[0])
    if not models:
        for known in filter(None, map(find_format_by_suffix, names)):
            if known.directory_hint:
                raise build_directory_error(redact(directory), known.directory_hint)
        return None
    raise IsADirectoryError(
        f"{redact(directory)} is a directory with several models: {shorten(', '.join(models))}; "
        "pass the path of one of these files"
    )


def is_recognised(file: Any) -> bool:
    """Return whether a file certainly has one of the formats. URLs are not requested."""
    if is_remote(file):
        return False
    return _find_best_match(HeaderReader(*find_source(file, "read")))[1] is Match.CERTAIN


def choose_format(reader: HeaderReader, name: str | None = None) -> Format:
    """Return the named format. Without a name, return the format that matches a file best."""
    check_pointer(reader.source.name, reader.head)
    if name is not None:
        return find_format(name)
    file_format, match = _find_best_match(reader)
    # A suffix alone does not count if another program has written the file: a zip named a.tbf.
    has_magic = reader.head.startswith(file_format.magics)
    foreign = None if match is Match.CERTAIN or has_magic else _find_by_magic(reader)
    if match is Match.NONE or foreign:
        raise _build_unknown_error(reader, foreign or _find_without_magic(reader))
    return file_format


def _find_best_match(reader: HeaderReader) -> tuple[Format, Match]:
    """Return the format that matches a file best. If equal, the longest suffix decides."""
    path = reader.source.file_name
    best, length, match = registry.BUILT_IN[0], 0, Match.NONE
    for built_in in sorted(registry.BUILT_IN, key=lambda known: -len(known.find_suffix(path))):
        if match < Match.CERTAIN and (actual := built_in.match(reader)) > match:
            best, length, match = built_in, len(built_in.find_suffix(path)), actual
    # Listing other packages takes 10 ms, and their formats only win with a longer suffix.
    if match is Match.CERTAIN and "." not in path[: len(path) - length]:
        return best, match
    for plugin in registry.load_plugins():
        candidate = _match_plugin(plugin, reader), len(plugin.find_suffix(path))
        if candidate > (match, length):
            best, (match, length) = plugin, candidate
    return best, match


def _match_plugin(file_format: Format, reader: HeaderReader) -> Match:
    """Compare a file with a format of another package, which never breaks an open."""
    try:
        return Match(file_format.match(reader))
    except (OSError, TensorFormatError):
        return Match.NONE
    except (Exception, SystemExit) as error:  # noqa: BLE001  # packages can raise anything
        problem = f"{file_format.name!r} cannot be compared with {reader.source.name}: {error!r}"
        warn(f"the format {problem}; update or remove its package")
        return Match.NONE


def _build_unknown_error(
    reader: HeaderReader, foreign: tuple[str, str] | None
) -> TensorFormatError:
    if foreign is None:
        without_magic = [repr(other.name) for other in load_formats() if not other.magics]
        hint = (
            "leave out engine= to try other engines, read bare values with numpy.memmap(path, "
            "dtype, 'r', shape=...), or pass format= or --from for a "
            "format that has no magic number: "
        )
        foreign = "of no known format", hint + ", ".join(without_magic)
    title, advice = foreign
    actual = f"{repr(reader.head[:8]) if reader.head else 'no bytes'}, the file is {title}"
    names = ", ".join(file_format.title for file_format in load_formats())
    expected = f"a file of one of the formats {names}"
    return reader.error("the magic number", actual, expected, advice, 0)


def _find_by_magic(reader: HeaderReader) -> tuple[str, str] | None:
    """Return the name and a hint for the unsupported format with a magic number, if any."""
    if not reader.head:
        return "empty", _FETCH
    for file_format in load_formats():
        if related := file_format.describe_unsupported(reader):
            return related
    if reader.read_head(262)[257:] == b"ustar":
        return "a tar archive", "extract it (tar -xf) and open its files"
    return next((_FOREIGN[magic] for magic in _FOREIGN if reader.head.startswith(magic)), None)


def _find_without_magic(reader: HeaderReader) -> tuple[str, str] | None:
    """Guess the format of a file without magic number."""
    text = reader.read_head(512).decode(errors="replace").rstrip("\ufffd").lstrip("\ufeff")
    if "\ufffd" in text or not "".join(text.split()).isprintable():
        hint = "read it with scipy.io.FortranFile, or write it with access='stream' in Fortran"
        return ("probably records of Fortran", hint) if reader.has_fortran_records() else None
    if text.lstrip().casefold().startswith("&fci"):
        return "FCIDUMP", "read it with pyscf.tools.fcidump.read"
    return "text", "read it with numpy.loadtxt if it is a table, or with ase if VASP wrote it"


def read_container(reader: HeaderReader, file_format: Format, options: OpenOptions) -> Container:
    """Read a header, and apply embedded metadata."""
    options = _complete_options(file_format, options)
    is_unfinished = reader.head.startswith(UNFINISHED_MARK)
    hint = "a writer is replacing its files, or has failed; write them again"
    reader.check(not is_unfinished, "the index", "a mark of a writer", "an index of files", hint, 0)
    container = file_format.read(reader, options)
    ends = tuple(_check_ends(container, options))
    if options.dims is None:
        _check_lengths(reader, container)
    if container.embedded is not None:
        from xr_tensorfmt.core.embedded_metadata import apply_embedded_metadata  # noqa: PLC0415

        container = apply_embedded_metadata(reader.source.name, container, options)
    _check_named_variables(container, options)
    return replace(container, findings=(*container.findings, *ends))


def _check_ends(container: Container, options: OpenOptions) -> Iterator[Finding]:
    """Report trailing bytes. Raise an error if `verify` is True."""
    for end in container.ends:
        try:
            end.check()
        except TensorFormatError as error:
            if options.format_options.get("verify", True):
                raise
            yield error.to_finding()


def describe_omitted(omitted: Mapping[str, TensorFormatError]) -> Iterator[Finding]:
    """Describe the first omitted tensor, with the number of others."""
    for error in list(omitted.values())[:1]:
        others = list(omitted)[1:]
        also = f", like {len(others)} more ({shorten(', '.join(others))})" if others else ""
        hint = f"{error.hint}; the tensor is omitted{also}"
        yield replace(error.to_finding("warning"), hint=hint)


def _check_lengths(reader: HeaderReader, container: Container) -> None:
    """Raise TensorFormatError if a dimension has different lengths in a file."""
    first: dict[str, tuple[int, str]] = {}
    for tensor in (*container.tensors, *container.coordinates):
        for dim, length in zip(tensor.dims, tensor.layout.shape, strict=True):
            if first.setdefault(dim, (length, tensor.name))[0] != length:
                other, owner = first[dim]
                field = f"the length of {dim!r} in {tensor.name!r}"
                offset = getattr(tensor.layout, "offset", None)
                raise reader.error(field, length, f"{other} as in {owner!r}", offset=offset)


def find_open_options() -> dict[str, Option]:
    """Return the keywords of all formats for opening, by name."""
    own = (item for known in load_formats() for item in known.open_options.items())
    return {**SHARED_OPTIONS, **dict(own)}


def _complete_options(file_format: Format, options: OpenOptions) -> OpenOptions:
    """Return options with all values of a format. Raise an error if one does not apply."""
    declared, given = file_format.open_options, dict(options.format_options)
    if options.name != OpenOptions.name:
        given["name"] = options.name
    for name in given.keys() - declared.keys():
        if given[name] != find_open_options()[name].default:
            raise ValueError(
                f"{name}={given[name]!r} does not apply to format {file_format.name!r}; omit it"
            )
    values = {
        name: option.normalize(name, given.get(name, option.default))
        for name, option in declared.items()
    }
    return replace(options, format_options=values)


def _check_named_variables(container: Container, options: OpenOptions) -> None:
    """Raise an error if `dims` has a key that fits no variable."""
    ranks = {tensor.name: len(tensor.dims) for tensor in container.tensors}
    for key, dims in options.dims.items() if isinstance(options.dims, Mapping) else ():
        matching = match_names(key, ranks)
        if key in ranks or any(ranks[name] == len(dims) for name in matching):
            continue
        for name in match_names(key, container.omitted):
            raise container.omitted[name]
        variables = ", ".join(f"{name!r} ({rank})" for name, rank in ranks.items())
        raise ValueError(
            f"dims={shorten(options.dims)} names {len(dims)} dimensions of {shorten(repr(key))}"
            f"{'' if matching else did_you_mean(key, ranks)}, but the variables and their "
            f"numbers of dimensions are {shorten(variables)}; pass a name for each dimension, or "
            "call ds.rename"
        )
