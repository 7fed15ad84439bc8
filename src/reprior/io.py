"""One file format for everything that reprior saves.

A file is a single `.safetensors` file: named tensors, and a header whose metadata holds one key,
`"reprior"`, with this JSON text:

    {"format": "reprior", "version": 1, "kind": ..., "meta": {...}, "digest": ...}

`kind` says what the file is ("simulations", "posterior", ...). `meta` is plain data: dictionaries with text
keys, lists, numbers, text, true/false, null. `digest` is the fingerprint (`reprior.fingerprint`) of kind, meta and the
tensors, so that a damaged or hand-edited file is refused instead of giving wrong numbers.

Files are written whole or not at all: to a temporary file in the same folder, flushed to disk, then renamed
over the target. Reading runs no code from the file: nothing is ever unpickled. The same content gives the
same bytes.
"""

from __future__ import annotations

import csv
import json
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from reprior.errors import FileFormatError, InputError
from reprior.fingerprint import fingerprint

__all__ = [
    "FORMAT_VERSION",
    "SUFFIX",
    "File",
    "header_of",
    "read",
    "read_rows",
    "resolve",
    "write",
    "write_bytes",
    "write_rows",
    "write_text",
]

FORMAT_VERSION = 1
SUFFIX = ".safetensors"
_KEY = "reprior"
_LENGTH = 8  # bytes that state how long the header is
_DIGITS = 64  # hexadecimal digits of the digest: all that SHA-256 has
# A safetensors header is at most 100 MB; a larger "length" in the first 8 bytes means another kind of file.
_MAX_HEADER = 100_000_000


@dataclass(frozen=True)
class File:
    """What a file holds.

    Arguments:
        kind: What the file is, e.g. "simulations".
        tensors: The named tensors, on the CPU.
        meta: The plain data beside them.
    """

    kind: str
    tensors: dict[str, Tensor]
    meta: dict[str, Any]


def write(path: str | os.PathLike[str], kind: str, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> Path:
    """Writes a file, whole or not at all, and returns its path.

    Arguments:
        path: Where to write; `.safetensors` is appended when it has no suffix. Missing folders are created.
        kind: What the file is; `read` asks for it.
        tensors: Named tensors of any shape; saved from the CPU, without gradients.
        meta: Plain JSON data.
    """
    target = resolve(path)
    kept = {name: _plain_tensor(name, tensor) for name, tensor in tensors.items()}
    text = _canonical(meta)
    header = {
        "format": _KEY,
        "version": FORMAT_VERSION,
        "kind": kind,
        "meta": json.loads(text),
        "digest": fingerprint(kind, text, kept, digits=_DIGITS),
    }
    data = safetensors.torch.save(kept, metadata={_KEY: json.dumps(header, sort_keys=True)})

    return write_bytes(target, data)


def write_bytes(path: str | os.PathLike[str], data: bytes) -> Path:
    """Writes bytes to a file, whole or not at all, and returns its path; missing folders are created.

    The one way in which reprior writes a file: a temporary file beside it, flushed to disk, then renamed.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        with open(temporary, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return target


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Writes a text file (UTF-8), whole or not at all, and returns its path."""
    return write_bytes(path, text.encode("utf-8"))


def write_rows(rows: Sequence[Mapping[str, Any]], path: str | os.PathLike[str], digits: int | None = None) -> Path:
    """Writes rows of one kind as CSV, whole or not at all, and returns its path.

    Arguments:
        rows: At least one; the first one names the columns.
        path: The file.
        digits: How many decimals a float has; all of them if None.
    """
    stream = StringIO(newline="")
    writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: f"{v:.{digits}f}" if digits and isinstance(v, float) else v for k, v in row.items()})
    return write_text(path, stream.getvalue())


def read_rows(path: str | os.PathLike[str]) -> list[dict[str, str]]:
    """The rows of a CSV file; none if it does not exist."""
    if not Path(path).exists():
        return []
    with open(path, newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def read(path: str | os.PathLike[str], kind: str | tuple[str, ...]) -> File:
    """Reads a file that `write` wrote.

    Arguments:
        path: The file; `.safetensors` is appended when it has no suffix.
        kind: The kind, or kinds, that the caller can use.

    Raises:
        FileNotFoundError: There is no such file.
        FileFormatError: The file is truncated, foreign, altered, of a newer version, or of another kind.
    """
    source = _existing(path)
    # Read once, then checked: another process may put a newer file in its place at any moment.
    data = source.read_bytes()
    header = _header(source, data, len(data))
    allowed = (kind,) if isinstance(kind, str) else tuple(kind)
    if header["kind"] not in allowed:
        wanted = " or ".join(repr(name) for name in allowed)
        raise FileFormatError(f"{source} holds {header['kind']!r}, but {wanted} is needed here.")
    try:
        tensors = safetensors.torch.load(data)
    except SafetensorError as error:
        raise FileFormatError(f"{source} is truncated or damaged: {error}.") from error
    if fingerprint(header["kind"], _canonical(header["meta"]), tensors, digits=_DIGITS) != header["digest"]:
        raise FileFormatError(
            f"{source} was altered after it was written (its content does not match its digest). "
            "Restore it from a copy, or make it again."
        )
    return File(kind=header["kind"], tensors=tensors, meta=header["meta"])


def header_of(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The header of a file, with its kind, meta and digest; the tensors are not read.

    Arguments:
        path: The file; `.safetensors` is appended when it has no suffix.
    """
    source = _existing(path)
    with open(source, "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        start = stream.read(_LENGTH)
        start += stream.read(min(int.from_bytes(start, "little"), _MAX_HEADER))
    return _header(source, start, size)


def resolve(path: str | os.PathLike[str]) -> Path:
    """The file that a path means, there or not: `.safetensors` is appended when it has no suffix.

    Arguments:
        path: The path as the user gave it.
    """
    given = Path(path)
    return given if given.suffix else given.with_name(given.name + SUFFIX)


def _existing(path: str | os.PathLike[str]) -> Path:
    named = (resolve(path), Path(path)) if Path(path).name else ()
    for candidate in named:
        if candidate.is_file():
            return candidate
    if Path(path).is_dir():
        raise FileNotFoundError(f"{path} is a folder: the path of a file is needed.")
    raise FileNotFoundError(f"there is no file {resolve(path)}.")


def _plain_tensor(name: str, tensor: Tensor) -> Tensor:
    if not isinstance(tensor, Tensor):
        raise InputError(f"tensors[{name!r}] must be a torch tensor, not {type(tensor).__name__}.")
    if tensor.layout != torch.strided:
        raise InputError(f"tensors[{name!r}] must be a dense tensor, not {tensor.layout}.")
    # A copy of its own: safetensors refuses tensors that share memory (tied weights, views).
    return tensor.detach().cpu().contiguous().clone()


def _canonical(meta: Mapping[str, Any]) -> str:
    _check_plain(meta, "meta")
    return json.dumps(meta, sort_keys=True, separators=(",", ":"))


def _check_plain(value: Any, where: str) -> None:
    """Refuses what JSON would change without saying so (keys that are not text) or cannot hold."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise InputError(f"{where} has the key {key!r}: keys must be text.")
            _check_plain(item, f"{where}[{key!r}]")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _check_plain(item, f"{where}[{index}]")
    elif not (value is None or isinstance(value, bool | int | float | str)):
        raise InputError(
            f"{where} is a {type(value).__name__}: it must be plain data (dict, list, number, text, true/false, None)."
        )


def _header(path: Path, data: bytes, size: int) -> dict[str, Any]:
    """The checked reprior header of a file of `size` bytes that starts with `data`."""
    metadata = _metadata(path, data, size)
    if _KEY not in metadata:
        raise FileFormatError(
            f"{path} is a safetensors file, but reprior did not write it (no {_KEY!r} in its header)."
        )
    try:
        header = json.loads(metadata[_KEY])
    except json.JSONDecodeError as error:
        raise FileFormatError(f"{path} was altered: its reprior header is not JSON ({error}).") from error
    version = header.get("version") if isinstance(header, dict) and header.get("format") == _KEY else None
    if not isinstance(version, int) or version < 1:
        raise FileFormatError(f"{path} was altered: its reprior header states no format and version.")
    if version > FORMAT_VERSION:
        raise FileFormatError(
            f"{path} has format version {version}; this reprior reads up to version {FORMAT_VERSION}. "
            "Upgrade reprior to read it."
        )
    fields = {"kind": str, "meta": dict, "digest": str}
    for name, type_ in fields.items():
        if not isinstance(header.get(name), type_):
            raise FileFormatError(f"{path} was altered: its reprior header has no usable {name!r}.")
    return header


def _metadata(path: Path, data: bytes, size: int) -> dict[str, Any]:
    """The metadata of a safetensors file: 8 bytes of header length, then a JSON object."""
    if size <= _LENGTH:
        raise FileFormatError(f"{path} is truncated or empty: it has {size} bytes.")
    length = int.from_bytes(data[:_LENGTH], "little")
    if data[_LENGTH : _LENGTH + 1] != b"{" or length > _MAX_HEADER:
        raise FileFormatError(f"{path} is not a safetensors file, so reprior did not write it.")
    if size < _LENGTH + length:
        raise FileFormatError(
            f"{path} is truncated: it has {size} bytes, and its header alone needs {_LENGTH + length}."
        )
    try:
        metadata = json.loads(data[_LENGTH : _LENGTH + length]).get("__metadata__")
    except ValueError as error:
        raise FileFormatError(f"{path} is truncated or damaged: {error}.") from error
    return metadata if isinstance(metadata, dict) else {}
