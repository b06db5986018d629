"""Columns of numbers as bytes that a browser reads without parsing.

`"MLD1"`, the length of the header (u32, little-endian), the header as JSON, padded with spaces so that the columns
start at a multiple of 8 bytes, then the columns one after the other: float64 little-endian, or bytes (u8), which are
padded with zeros to a multiple of 8. The header's `columns` is a list of `[name, length]`, or `[name, length, "u8"]`.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

__all__ = ["MAGIC", "decode", "encode"]

MAGIC: Final = b"MLD1"
_START: Final = struct.Struct("<4sI")
_ALIGNMENT: Final = 8

Column = npt.NDArray[Any]


def encode(header: Mapping[str, Any], columns: Sequence[npt.ArrayLike | array[Any]]) -> bytes:
    """Return the bytes of a header and its columns.

    Args:
        header: A JSON object; NaN and infinity become null. Its `columns` names the columns, as texts or as
            lists that start with the name; the lengths are filled in.
        columns: One array a name, of any length. Those of uint8 are sent as bytes, all others as float64.

    Raises:
        ValueError: The header does not name as many columns as there are.
    """
    arrays = [_as_column(column) for column in columns]
    names = [name if isinstance(name, str) else name[0] for name in header.get("columns", ())]
    if len(names) != len(arrays):
        raise ValueError(f"expected a name for each of {len(arrays)} columns, got {len(names)}")
    described = [
        [name, len(column), "u8"] if column.dtype == np.uint8 else [name, len(column)]
        for name, column in zip(names, arrays, strict=True)
    ]
    text = msgspec.json.encode({**header, "columns": described})
    text += b" " * (-(_START.size + len(text)) % _ALIGNMENT)
    parts = [_START.pack(MAGIC, len(text)), text]
    for column in arrays:
        data = column.tobytes()
        parts += [data, bytes(-len(data) % _ALIGNMENT)]
    return b"".join(parts)


def decode(data: bytes) -> tuple[dict[str, Any], dict[str, Column]]:
    """Return the header and the columns by name, as views of the bytes.

    Raises:
        ValueError: The bytes are not of this form.
    """
    if len(data) < _START.size or data[:4] != MAGIC:
        raise ValueError("the data does not start with MLD1")
    length = _START.unpack_from(data)[1]
    offset = _START.size + length
    header = msgspec.json.decode(data[_START.size : offset])
    columns: dict[str, Column] = {}
    for name, count, *kind in header["columns"]:
        dtype = np.dtype("u1") if kind == ["u8"] else np.dtype("<f8")
        if offset + count * dtype.itemsize > len(data):
            raise ValueError(f"the data ends in column {name}")
        columns[name] = np.frombuffer(data, dtype, count, offset)
        offset += count * dtype.itemsize
        offset += -offset % _ALIGNMENT
    return header, columns


def _as_column(column: npt.ArrayLike | array[Any]) -> Column:
    found = np.asarray(column)
    if found.ndim != 1:
        raise ValueError(f"expected a column of one dimension, got shape {found.shape}")
    return found if found.dtype == np.uint8 else found.astype("<f8", copy=False)
