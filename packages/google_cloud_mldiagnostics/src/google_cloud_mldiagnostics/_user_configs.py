"""Convert the user's configs, of any type, to the texts that a control plane stores.

A control plane stores a map of text to text. A config's text is its value as JSON, but a text is stored without quotes
unless it would be read as another value: `adam` and `"1"`, but `1` for the number. So a reader can restore the values.
"""

from __future__ import annotations

import enum
import hashlib
import itertools
import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from types import SimpleNamespace
from typing import Any, Final

from ml_diagnostics_common.guard import warn_once
from ml_diagnostics_common.payload import is_of_numpy, printable
from ml_diagnostics_common.redaction import TRUNCATED, redact

from google_cloud_mldiagnostics._entries import json_number
from google_cloud_mldiagnostics.exceptions import MLRunConfigurationError

__all__ = ["CUT_KEY", "MAX_CONFIG_BYTES", "MAX_TOTAL_BYTES", "as_mapping", "digest_of", "to_wire"]

MAX_CONFIG_BYTES: Final = 16_384
"""The limit of one config's text as UTF-8."""
MAX_TOTAL_BYTES: Final = 100_000
"""The limit of all texts and their keys: an entry of Cloud Logging has 256 KiB, and a quote takes two bytes."""
CUT_KEY: Final = "(truncated)"
"""The key of the note on what was cut or left out."""

_MAX_KEY_CHARACTERS: Final = 256
_MAX_VALUES: Final = 4096
_MAX_DEPTH: Final = 16
_MAX_ARRAY_VALUES: Final = 256
_MAX_INTEGER_BITS: Final = 1024
_NAMED_IN_A_NOTE: Final = 8
_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")


def as_mapping(configs: object) -> dict[str, Any]:
    """Return the configs of `machinelearning_run` by name: a shallow copy.

    Args:
        configs: A mapping, dataclass, named tuple, namespace of argparse, or an object with `to_dict()` or
            `model_dump()` (ml_collections, transformers, pydantic); None for none.

    Raises:
        MLRunConfigurationError: The configs have another type.
    """
    if configs is None:
        return {}
    try:
        items = _fields(configs)
    except Exception as error:
        raise MLRunConfigurationError(f"configs cannot be read ({type(error).__name__}: {error})") from error
    if items is None:
        raise MLRunConfigurationError(
            f"configs is of type {type(configs).__name__}; give a dict, a dataclass or another mapping"
        )
    return _named(_items(items))


def to_wire(configs: Mapping[str, Any]) -> dict[str, str]:
    """Return configs as texts to send: redacted, and no larger than MAX_TOTAL_BYTES.

    Args:
        configs: Values of any type by name: nested, recursive, of numpy; arrays on a device are described, not
            fetched.

    Returns:
        The texts, in the same order. CUT_KEY lists what was cut or left out. Never raises.
    """
    wire: dict[str, str] = {}
    cut: list[str] = []
    bytes_left = MAX_TOTAL_BYTES
    items = list(_named(_items(configs)).items())
    for position, (key, value) in enumerate(items):
        name, text, is_cut = _entry(key, value)
        bytes_left -= len(name.encode()) + len(text.encode())
        if bytes_left < 0:
            wire[CUT_KEY] = _note(cut, [key for key, _ in items[position:]])
            break
        wire[name] = text
        if is_cut:
            cut.append(name)
    if cut and CUT_KEY not in wire:
        wire[CUT_KEY] = _note(cut, [])
    if CUT_KEY in wire:
        warn_once(("configs cut", wire[CUT_KEY]), "Configs of the run are too large: %s", wire[CUT_KEY])
    return wire


def digest_of(wire: Mapping[str, str]) -> str:
    """Return 16 hex digits that are equal on two hosts only if their configs are, in any order.

    Args:
        wire: The result of `to_wire`.
    """
    text = json.dumps(wire, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# --- One config ---------------------------------------------------------------------------------------


def _entry(key: str, value: Any) -> tuple[str, str, bool]:
    """Return its name, its text, and True if the text was cut."""
    most_bytes, most_values = MAX_CONFIG_BYTES, _MAX_VALUES
    while True:
        plain = _Plain(most_values)
        cleaned = redact({key: plain.of(value, 0)}, max_bytes=most_bytes)
        [(name, kept)] = itertools.islice(cleaned.items(), 1)
        text = _text_of(kept)
        if len(text.encode()) <= MAX_CONFIG_BYTES:
            return name, text, TRUNCATED in text
        # The separators of many small values take more bytes than the values.
        most_bytes, most_values = most_bytes // 2, most_values // 2


def _text_of(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False) if _is_json(value) else value
    return json.dumps(value, ensure_ascii=False)


def _is_json(text: str) -> bool:
    try:
        _strict_json(text)
    except (ValueError, RecursionError):
        return False
    return True


def _strict_json(text: str) -> Any:
    return json.loads(text, parse_constant=_no_constant)


def _no_constant(name: str) -> Any:
    raise ValueError(f"JSON has no {name}")


def _note(cut: list[str], left_out: list[str]) -> str:
    parts = []
    if cut:
        parts.append(f"{_listed(cut)} is kept in part (more than {MAX_CONFIG_BYTES:,} bytes, or nested too deeply)")
    if left_out:
        parts.append(f"{_listed(left_out)} is left out (all configs together exceed {MAX_TOTAL_BYTES:,} bytes)")
    return "; ".join(parts)


def _listed(names: list[str]) -> str:
    more = len(names) - _NAMED_IN_A_NOTE
    return ", ".join(names[:_NAMED_IN_A_NOTE]) + (f" and {more:,} more" if more > 0 else "")


# --- Values of any kind, in the types of JSON ---------------------------------------------------------


class _Plain:
    """One walk through one config: how many values it may still hold, and what we are inside of."""

    def __init__(self, most_values: int) -> None:
        self._values_left = most_values
        self._inside: set[int] = set()

    def of(self, value: Any, depth: int) -> Any:
        self._values_left -= 1
        try:
            return self._of(value, depth)
        except Exception:  # The value's own code failed: iteration, str, attributes.
            return f"<{type(value).__name__}>"

    def _of(self, value: Any, depth: int) -> Any:
        if isinstance(value, enum.Enum):
            return value.value if isinstance(value.value, str) else value.name
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return printable(str.__str__(value))
        if isinstance(value, int):
            return _tame_integer(int.__int__(value))
        if isinstance(value, float):
            return json_number(float.__float__(value))
        if isinstance(value, (bytes, bytearray)):
            return bytes(value[: MAX_CONFIG_BYTES + 1]).decode("utf-8", "backslashreplace")
        if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
            return _code_name(value)
        if hasattr(value, "shape") and hasattr(value, "dtype"):
            return self._array(value, depth)
        return self._container(value, depth)

    def _array(self, value: Any, depth: int) -> Any:
        """Return the numbers of a short array in host memory; of others only the type and shape."""
        if is_of_numpy(value) and value.size <= _MAX_ARRAY_VALUES:
            return self.of(value.tolist(), depth)
        return f"<{type(value).__name__} shape={tuple(value.shape)} dtype={value.dtype}>"

    def _container(self, value: Any, depth: int) -> Any:
        fields = _fields(value)
        items = None if fields is not None else _elements(value)
        if fields is None and items is None:
            return printable(_ADDRESS.sub("", str(value)[: MAX_CONFIG_BYTES + 1]))
        if depth >= _MAX_DEPTH:
            return TRUNCATED
        if id(value) in self._inside:
            return "[CIRCULAR]"
        self._inside.add(id(value))
        try:
            if fields is not None:
                named = _named(itertools.islice(_items(fields), max(self._values_left, 0) + 1))
                return {name: self.of(each, depth + 1) for name, each in self._bounded(named.items(), _CUT_ITEM)}
            return [self.of(each, depth + 1) for each in self._bounded(items or (), TRUNCATED)]
        finally:
            self._inside.discard(id(value))

    def _bounded(self, items: Iterable[Any], mark: Any) -> Iterable[Any]:
        for item in items:
            if self._values_left <= 0:
                yield mark
                return
            yield item


_CUT_ITEM: Final = (TRUNCATED, TRUNCATED)


def _fields(value: Any) -> Mapping[Any, Any] | None:
    """Return an object's fields by name; None if it is not a record."""
    if isinstance(value, type):
        return None
    if isinstance(value, Mapping):
        return value
    if hasattr(type(value), "__dataclass_fields__"):
        return {name: getattr(value, name, None) for name in type(value).__dataclass_fields__}
    if isinstance(value, tuple):
        return dict(zip(value._fields, value, strict=True)) if hasattr(value, "_fields") else None
    if isinstance(value, SimpleNamespace) or any(kind.__module__ == "argparse" for kind in type(value).__mro__):
        return dict(vars(value))
    if hasattr(type(value), "__attrs_attrs__"):
        return {each.name: getattr(value, each.name, None) for each in type(value).__attrs_attrs__}
    if hasattr(value, "shape"):  # A table of pandas has to_dict too.
        return None
    for method in ("model_dump", "to_dict"):
        give: Callable[[], object] | None = getattr(value, method, None)
        if callable(give) and isinstance(fields := give(), Mapping):
            return fields
    return None


def _elements(value: Any) -> Iterable[Any] | None:
    if isinstance(value, (list, tuple, deque)):
        return value
    if isinstance(value, Set):  # Their order differs from host to host.
        return sorted(itertools.islice(value, _MAX_VALUES), key=str)
    return None


def _items(fields: Mapping[Any, Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the items of a mapping, which may fail for one key (a dangling reference) and have the others."""
    if isinstance(fields, dict):
        yield from list(dict.items(fields))  # A copy, since other threads may change it meanwhile.
        return
    for key in fields:
        try:
            yield key, fields[key]
        except Exception as error:
            yield key, f"<{type(error).__name__}>"


def _named(items: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
    """Return items with texts as names; a name that another item has is extended."""
    named: dict[str, Any] = {}
    for key, value in items:
        name = _key_text(key)
        while name in named:
            name += f" ({type(key).__name__})"
        named[name] = value
    return named


def _key_text(key: Any) -> str:
    if isinstance(key, enum.Enum):
        key = key.value if isinstance(key.value, str) else key.name
    if isinstance(key, type):
        key = _code_name(key)
    try:
        text = json.dumps(key) if key is None or isinstance(key, bool) else _ADDRESS.sub("", str(key))
    except Exception:  # The key's own code failed.
        text = f"<{type(key).__name__}>"
    return printable(str.__str__(text))[:_MAX_KEY_CHARACTERS] or "(empty)"


def _code_name(value: Any) -> str:
    """Return the name of a class or function: jax.numpy.bfloat16."""
    module = getattr(value, "__module__", None)
    return str(value.__qualname__) if module in (None, "builtins") else f"{module}.{value.__qualname__}"


def _tame_integer(value: int) -> int | str:
    return value if value.bit_length() <= _MAX_INTEGER_BITS else f"{hex(value)[:64]}... ({value.bit_length():,} bits)"
