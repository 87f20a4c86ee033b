# SPDX-License-Identifier: MIT
"""The header of a safetensors file, read by the format's own rules.

A file is 8 bytes with the length of the header, the header as JSON, and the tensors, each a range of bytes
behind the header. The ranges cover the rest of the file without a hole and without an overlap, and each has
as many bytes as its tensor's shape and dtype take. A header that breaks a rule would make a reader take one
tensor's bytes for another's, or the header's own bytes for weights.

Everything accepted here is accepted by the safetensors library too. Refused beyond its rules are names that
occur twice, of which readers keep different ones, names longer than any model's, fields of a tensor that are
lists or objects, and shapes of more than 64 bits before a size of 0.
"""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any, NamedTuple

from attnscope.untrusted.limits import MAX_SAFETENSORS_HEADER_BYTES

#: Bits of an entry of each dtype.
BITS = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E5M2FNUZ", "F8_E4M3FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
}
#: Letters of a tensor's name.
MAX_TENSOR_NAME = 1_000
_FIELDS = ("dtype", "shape", "data_offsets")
#: Whole numbers have 64 bits in the format.
_LIMIT = 2**64


class StoredTensor(NamedTuple):
    """A tensor of a safetensors file: dtype by the format's name, shape, first byte in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int


def read_header(file: Path) -> list[StoredTensor]:
    """Return the tensors of a safetensors file in the order of its header.

    Raises:
        ValueError: the file breaks a rule of the format; the message names the file and the rule.
    """
    if not file.is_file():
        raise ValueError(f"{file} is no file")
    size = file.stat().st_size
    with open(file, "rb") as data:
        start = data.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= size - 8:
            raise ValueError(f"{file} is not a safetensors file, or not all of it is there")
        if length > MAX_SAFETENSORS_HEADER_BYTES:
            raise ValueError(f"{file} is not a safetensors file: a header of {length:,} bytes")
        content = data.read(length)
    try:
        tensors, end = _tensors_of(_parse(content), 8 + length)
    except ValueError as error:
        raise ValueError(f"{file} is not a safetensors file: {error}") from error
    if end > size:
        raise ValueError(f"{file} has {size} bytes of {end}: not all of it is there")
    if end < size:
        raise ValueError(f"{file} is not a safetensors file: its last {size - end} bytes are of no tensor")
    return tensors


def _parse(content: bytes) -> dict[str, Any]:
    """Return the object of a header, its numbers as the format reads them."""
    try:
        header = json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_unique_keys,
            parse_int=_whole_number,
            parse_float=_finite_number,
            parse_constant=_no_number,
        )
    except UnicodeDecodeError as error:
        raise ValueError("its header is not UTF-8 text") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"its header is no JSON ({error})") from error
    except RecursionError as error:
        raise ValueError("its header is nested too deeply") from error
    if not isinstance(header, dict):
        raise ValueError(f"its header is a {type(header).__name__}, no object")
    return header


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    header: dict[str, Any] = {}
    for key, value in pairs:
        if key in header:
            raise ValueError(f"its header names {key[:80]!r} twice")
        if not _is_text(key):
            raise ValueError(f"its header has the name {key[:80]!r}, which is no text")
        header[key] = value
    return header


def _whole_number(text: str) -> int | float:
    # a negative zero is no whole number, and neither is what takes more than 64 bits
    if text == "-0" or len(text) > 20:
        return _finite_number(text)
    return int(text)


def _finite_number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"its header holds the number {text[:20]}, which is out of range")
    return number


def _no_number(text: str) -> float:
    raise ValueError(f"its header is no JSON ({text} is no number)")


def _is_text(value: str) -> bool:
    """Return whether a text has no half of a surrogate pair."""
    return value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value)


def _tensors_of(header: dict[str, Any], first: int) -> tuple[list[StoredTensor], int]:
    """Return the tensors of a header, all its rules checked, and where the last one ends.

    The first byte behind the header is `first`.
    """
    metadata = header.pop("__metadata__", None)
    if metadata is not None and not (
        isinstance(metadata, dict)
        and all(isinstance(value, str) and _is_text(value) for value in metadata.values())
    ):
        raise ValueError("its __metadata__ must map texts to texts")
    tensors, spans = [], []
    for name, fields in header.items():
        dtype, shape, begin, end = _described(name, fields)
        tensors.append(StoredTensor(name, dtype, shape, first + begin))
        spans.append((begin, end, name))
    covered = 0
    for begin, end, name in sorted(spans):
        if begin != covered:
            fault = "overlaps another tensor" if begin < covered else f"leaves a hole behind byte {covered}"
            raise ValueError(f"{name[:80]!r} {fault}")
        covered = end
    return tensors, first + covered


def _described(name: str, fields: Any) -> tuple[str, tuple[int, ...], int, int]:
    """Return dtype, shape and range of bytes of a tensor, which fit each other."""
    if len(name) > MAX_TENSOR_NAME:
        raise ValueError(f"a tensor's name has {len(name):,} letters, at most {MAX_TENSOR_NAME:,} are read")
    # names go into messages, which are of one line
    if not name.isprintable():
        raise ValueError(f"the tensor's name {name[:80]!r} holds what cannot be printed")
    if not isinstance(fields, dict) or not set(_FIELDS) <= fields.keys():
        raise ValueError(f"{name[:80]!r} must have {', '.join(_FIELDS)}")
    extra = {key: value for key, value in fields.items() if key not in _FIELDS}
    for key, value in extra.items():
        if isinstance(value, (dict, list)) or (isinstance(value, str) and not _is_text(value)):
            raise ValueError(f"{name[:80]!r} has the field {key[:80]!r}, which is not of the format")
    dtype, shape, offsets = (fields[field] for field in _FIELDS)
    if not isinstance(dtype, str) or dtype not in BITS:
        raise ValueError(f"{name[:80]!r} has the dtype {str(dtype)[:40]!r}, which is not of the format")
    if not isinstance(shape, list) or not all(map(_is_size, shape)):
        raise ValueError(f"{name[:80]!r} has the shape {repr(shape)[:80]}, expected a list of whole numbers")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_size, offsets)):
        shown = repr(offsets)[:80]
        raise ValueError(f"{name[:80]!r} has the data_offsets {shown}, expected two whole numbers")
    entries = 1
    for count in shape:
        entries *= count
        if entries * BITS[dtype] >= _LIMIT:
            raise ValueError(f"{name[:80]!r} has the shape {repr(shape)[:80]}, which no file holds")
    (begin, end), (count, rest) = offsets, divmod(entries * BITS[dtype], 8)
    if end < begin or rest or end - begin != count:
        size = f"{dtype} {repr(shape)[:80]} takes {count}{' and a part' if rest else ''}"
        raise ValueError(f"{name[:80]!r} has {end - begin} bytes, {size}")
    return dtype, tuple(shape), begin, end


def _is_size(value: Any) -> bool:
    """Return whether a value of the header is a whole number of 64 bits."""
    return type(value) is int and 0 <= value < _LIMIT
