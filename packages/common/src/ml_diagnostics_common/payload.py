"""Any payload to one line of JSON that every reader of the journal accepts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

__all__ = ["encode_payload", "encode_text", "printable"]

_MAX_DEPTH = 32
_MAX_INTEGER_BITS = 64


def printable(text: str) -> str:
    r"""`text` with each lone surrogate written as `\udc80`: it has no UTF-8, and Cloud Logging takes none."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def encode_text(text: str) -> str:
    """`text` as a JSON string, quotes included."""
    return json.dumps(printable(text))


def encode_payload(payload: Mapping[str, Any]) -> str:
    """`payload` as a JSON object in one line.

    Values that JSON does not have are written as what says most: NaN and infinities as the strings that protobuf
    uses, numpy scalars as numbers, the rest as text. Never fails on a value, however odd.
    """
    try:
        text = _plain.encode(payload)
    except (TypeError, ValueError, RecursionError, OverflowError):
        return _plain.encode(_tame(payload, _MAX_DEPTH))
    # An escaped surrogate: half of a pair (an emoji), or lone, which no strict reader accepts.
    return _plain.encode(_tame(payload, _MAX_DEPTH)) if "\\ud" in text else text


_plain = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def _tame(value: Any, depth: int) -> Any:
    """`value` in the types of JSON, cut at `depth` levels (which also ends a payload that contains itself)."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, int):
        whole = int(value)
        return whole if whole.bit_length() <= _MAX_INTEGER_BITS else hex(whole)[:_MAX_INTEGER_BITS]
    if isinstance(value, float):
        return _tame_float(float(value))
    if depth == 0:
        return "..."
    if isinstance(value, Mapping):
        return {printable(_text(key)): _tame(item, depth - 1) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_tame(item, depth - 1) for item in value]
    return _tame_object(value, depth)


def _tame_float(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _tame_object(value: Any, depth: int) -> Any:
    """A number if the object is one (a scalar of numpy or JAX has `item`), else its text."""
    try:
        scalar = value.item()
    except Exception:
        return printable(_text(value))
    return _tame(scalar, depth - 1)


def _text(value: Any) -> str:
    try:
        return str(value)[:4096]
    except Exception:
        return f"<{type(value).__name__}>"
