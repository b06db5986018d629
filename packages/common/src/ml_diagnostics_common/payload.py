"""Any payload to one line of JSON that every reader of the journal accepts."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["decoded", "encode_payload", "encode_text", "is_of_numpy", "printable"]

_MAX_DEPTH = 32
_MAX_VALUES = 100_000
_MAX_INTEGER_BITS = 64
_CUT = "..."


def printable(text: str) -> str:
    r"""Return `text`, decoded, with each lone surrogate as `\udc80`: it has no UTF-8, and Cloud Logging takes none."""
    return str.encode(decoded(text), "utf-8", "backslashreplace").decode("utf-8")


def decoded(text: str) -> str:
    """Return a text from the arguments or the environment of the process as it was meant.

    With a C locale what is not ASCII arrives as one surrogate a byte (PEP 383). Other text is returned as it is.
    """
    try:
        return str.encode(text, "utf-8", "surrogateescape").decode("utf-8")
    except UnicodeError:
        return text


def encode_text(text: str) -> str:
    """Return a text as a JSON string, with quotes."""
    return json.dumps(printable(text))


def encode_payload(payload: Mapping[str, Any]) -> str:
    """Return a payload as a JSON object in one line.

    Values that JSON does not have are written as their closest form: NaN and infinities as the strings that protobuf
    uses, numpy scalars as numbers, the rest as text. Never raises, whatever the value.
    """
    try:
        text = _plain.encode(payload)
    except Exception:  # Not JSON, or a value with code that failed.
        return _encode_tamed(payload)
    # An escaped surrogate: half of a pair (an emoji), or lone, which strict readers reject.
    return _encode_tamed(payload) if "\\ud" in text or text[0] != "{" else text


_plain = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def _encode_tamed(payload: Any) -> str:
    tamed = _Taming().tame(payload, _MAX_DEPTH)
    return _plain.encode(tamed if isinstance(tamed, dict) else {"payload": tamed})


class _Taming:
    """One walk through one payload: the number of values that are left, and the containers around the current value."""

    def __init__(self) -> None:
        self._values_left = _MAX_VALUES
        self._inside: set[int] = set()

    def tame(self, value: Any, depth: int) -> Any:
        """Return a value in the types of JSON, cut at `depth` levels, if it contains itself, and if it is too long."""
        self._values_left -= 1
        try:
            return self._tame(value, depth)
        except Exception:  # The value's own code failed: iteration, str, attributes.
            return f"<{type(value).__name__}>"

    def _tame(self, value: Any, depth: int) -> Any:
        # The methods of the built-in types, since a subclass's may fail.
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return printable(value)
        if isinstance(value, int):
            whole = int.__int__(value)
            return whole if whole.bit_length() <= _MAX_INTEGER_BITS else hex(whole)[:_MAX_INTEGER_BITS]
        if isinstance(value, float):
            return _tame_float(float.__float__(value))
        if depth == 0 or id(value) in self._inside:
            return _CUT
        self._inside.add(id(value))
        try:
            return self._tame_inside(value, depth - 1)
        finally:
            self._inside.discard(id(value))

    def _tame_inside(self, value: Any, depth: int) -> Any:
        if isinstance(value, Mapping):
            return self._tame_mapping(value, depth)
        if isinstance(value, (list, tuple, set, frozenset)):
            return self._tame_list(value, depth)
        if is_of_numpy(value) and value.size == 1 and value.ndim == 0:
            return self.tame(value.item(), depth)
        if hasattr(value, "shape") and hasattr(value, "dtype") and not is_of_numpy(value):
            # Its text, like its number, would wait for the device that computes it.
            return f"<{type(value).__name__} shape={value.shape} dtype={value.dtype}>"
        return printable(_text(value))

    def _tame_mapping(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        tamed = {}
        for key, item in value.items():
            if self._values_left <= 0:
                tamed[_CUT] = _CUT
                break
            tamed[printable(_text(key))] = self.tame(item, depth)
        return tamed

    def _tame_list(self, value: Iterable[Any], depth: int) -> list[Any]:
        tamed = []
        for item in value:
            if self._values_left <= 0:
                tamed.append(_CUT)
                break
            tamed.append(self.tame(item, depth))
        return tamed


def _tame_float(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def is_of_numpy(value: Any) -> bool:
    """Return True for arrays and scalars of numpy, also those that ml_dtypes adds, such as bfloat16."""
    return any(kind.__module__ == "numpy" for kind in type(value).__mro__)


def _text(value: Any) -> str:
    try:
        return str.__str__(str(value))[:4096]
    except Exception:
        return f"<{type(value).__name__}>"
