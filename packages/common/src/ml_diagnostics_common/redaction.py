"""Remove secrets: configs, environments, argv, names and tracebacks pass here before they leave the process.

A secret is recognized by its key (`password`, `api_key`, `HF_TOKEN`, `--token`) or by its form (a JWT, a PEM block, a
Google, GitHub or AWS key, a URL with a password). Text that is cut as too deep or too big is marked.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Set
from typing import Any

from ml_diagnostics_common._secret_keys import (
    REDACTED,
    TRUNCATED,
    hold_secret,
    is_placeholder,
    is_secret_key,
    may_be_secret_key,
    resembles_secret,
)
from ml_diagnostics_common.process_hooks import import_undisturbed

__all__ = ["REDACTED", "TRUNCATED", "is_secret_key", "redact", "redact_text"]

CIRCULAR = "[CIRCULAR]"

_CHECKED_BEYOND = 4096  # Characters beyond the limit, since redacted text gets shorter.
_DEEPEST = 100  # Far below Python's recursion limit.
_MOST_SUSPECTS = 100  # Values under a key such as `tokens` that are checked for credentials.


def redact_text(text: str) -> str:
    """Replace secrets in a text.

    Args:
        text: Any text: a line of a log, a traceback, a command line, JSON.

    Returns:
        The text with `[REDACTED]` for each secret. A second call changes nothing. Never raises.
    """
    return _text_redactor()(text)


@functools.cache
def _text_redactor() -> Callable[[str], str]:
    """Import the patterns at first use: it takes 3 ms to compile them, which no import of a library should."""
    import_undisturbed("ml_diagnostics_common._secret_text")
    from ml_diagnostics_common._secret_text import redact_text

    return redact_text


def redact(value: Any, *, max_depth: int = 16, max_bytes: int = 65536) -> Any:
    """Copy a value into plain containers, without its secrets.

    Mappings, dataclasses and named tuples become dicts; lists, tuples and sets lists. Numbers, booleans and
    None stay; text and bytes keep their type; an array becomes its type, shape and dtype; all else its `str`.
    The flag before a value in a list shows if it is a secret, as in argv.

    Args:
        value: Anything; it may be recursive.
        max_depth: Containers nested deeper than this become `[TRUNCATED]`.
        max_bytes: Limit of the size of the result, in bytes as UTF-8; the rest becomes `[TRUNCATED]`.

    Returns:
        The copy. A second call changes nothing. Never raises.
    """
    return _Redaction(min(max_depth, _DEEPEST), max_bytes).copy(value, 0)


class _Redaction:
    """One walk through one value: the bytes that are left, and the containers around the current value."""

    def __init__(self, max_depth: int, max_bytes: int) -> None:
        self._max_depth = max_depth
        self._bytes_left = max_bytes
        self._inside: set[int] = set()

    def copy(self, value: Any, depth: int) -> Any:
        try:
            return self._copy(value, depth)
        except Exception:  # The value's own code failed: iteration, str, attributes.
            return self._text(f"<{type(value).__name__}>")

    def _copy(self, value: Any, depth: int) -> Any:
        if value is None or isinstance(value, (bool, int, float)):
            self._bytes_left -= 8
            return value
        if isinstance(value, str):
            return self._text(str.__str__(value))
        if isinstance(value, (bytes, bytearray)):
            return self._text(bytes(value).decode("latin-1")).encode("latin-1")
        items = _items(value)
        if items is None:
            return self._text(_describe(value))
        if depth >= self._max_depth:
            return TRUNCATED
        if id(value) in self._inside:
            return self._text(CIRCULAR)
        self._inside.add(id(value))
        try:
            return self._mapping(items, depth) if isinstance(items, dict) else self._list(items, depth)
        finally:
            self._inside.discard(id(value))

    def _mapping(self, items: dict[Any, Any], depth: int) -> dict[Any, Any]:
        copied: dict[Any, Any] = {}
        named = _keys_of_named_secrets(items)
        for key, value in items.items():
            if self._bytes_left <= 0 and key != TRUNCATED:
                copied[TRUNCATED] = TRUNCATED
                break
            name = self._text(key if isinstance(key, str) else _text_of_key(key))
            secret = is_secret_key(name) or (isinstance(key, str) and is_secret_key(key))
            secret = secret or key in named or (may_be_secret_key(name) and _holds_credential(name, value))
            cleaned = key if key is None or isinstance(key, (bool, int, float)) else name
            if cleaned in copied:
                continue  # Of two keys that are secrets the first stays: a second call must change nothing.
            copied[cleaned] = self._secret(value, depth + 1) if secret else self.copy(value, depth + 1)
        return copied

    def _list(self, items: list[Any], depth: int) -> list[Any]:
        copied: list[Any] = []
        secret_follows = False
        if _is_secret_pair(items):
            return [self.copy(items[0], depth + 1), self._secret(items[1], depth + 1)]
        for item in items:
            if self._bytes_left <= 0 and item != TRUNCATED:
                copied.append(TRUNCATED)
                break
            is_flag = isinstance(item, str) and item.startswith("-")
            copied.append(
                self._secret(item, depth + 1) if secret_follows and not is_flag else self.copy(item, depth + 1)
            )
            secret_follows = is_flag and "=" not in item and is_secret_key(item)
        return copied

    def _secret(self, value: Any, depth: int) -> Any:
        unset = value is None or isinstance(value, bool) or value in ("", b"", TRUNCATED)
        unset = unset or (isinstance(value, str) and is_placeholder(value))
        return self.copy(value, depth) if unset else self._text(REDACTED)

    def _text(self, text: str) -> str:
        """Redact a text, and cut it between two words if it is too long."""
        most = max(self._bytes_left, 0) + _CHECKED_BEYOND
        if len(text) > most:
            text = _whole_words(text[:most]) + TRUNCATED
        text = redact_text(text)
        data = text.removesuffix(TRUNCATED).encode("utf-8", "surrogatepass")
        if len(data) <= self._bytes_left:
            self._bytes_left -= len(data)
            return text
        kept = data[: max(self._bytes_left, 0)].decode("utf-8", "ignore")
        self._bytes_left = 0
        return _whole_words(kept) + TRUNCATED


def _keys_of_named_secrets(items: dict[Any, Any]) -> frozenset[Any]:
    """Return the keys that a sibling makes secret: Kubernetes' `{"name": "HF_TOKEN", "value": ...}`, Kaggle's file."""
    names = [items[key] for key in ("name", "Name", "key", "Key") if key in items]
    if any(isinstance(name, str) and is_secret_key(name) for name in names):
        return frozenset({"value", "Value"})
    return frozenset({"key"} if "username" in items else ())


def _is_secret_pair(items: list[Any]) -> bool:
    """Return True for `("password", "x")`, as in lists of headers; not for axes such as `("token", "embedding")`."""
    if len(items) != 2 or not isinstance(items[0], str) or not isinstance(items[1], (str, bytes)):
        return False
    if items[0].startswith("-") or " " in items[0] or not is_secret_key(items[0]):
        return False
    return items[0] != "token" or (isinstance(items[1], str) and resembles_secret(items[1]))


def _holds_credential(key: str, value: Any) -> bool:
    """Return True if a text under this key, or the texts directly inside of a container, are likely credentials."""
    inside = (
        value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple, Set)) else [value]
    )
    texts = [item for item, _ in zip(inside, range(_MOST_SUSPECTS), strict=False) if isinstance(item, str)]
    # Of a list that was cut, some are missing; all of them were checked before that.
    is_whole = not any(TRUNCATED in text for text in texts)
    return hold_secret(key, texts, in_container=is_whole and not isinstance(value, str))


def _whole_words(text: str) -> str:
    """Return a text up to its last space: the rest may be a part of a secret, which has another form."""
    found = re.match(r".*\s", text, re.DOTALL)
    return found.group() if found else ""


def _text_of_key(key: Any) -> str:
    try:
        return str(key)
    except Exception:  # As for values: the key's own code failed.
        return f"<{type(key).__name__}>"


def _items(value: Any) -> dict[Any, Any] | list[Any] | None:
    """Return the items of a container; None for any other value."""
    if isinstance(value, Mapping):
        return dict(value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return dict(zip(value._fields, value, strict=True))
    if isinstance(value, (list, tuple, Set)):
        return list(value)
    if hasattr(type(value), "__dataclass_fields__"):
        return {name: getattr(value, name) for name in type(value).__dataclass_fields__}
    return None


def _describe(value: Any) -> str:
    # The text of an array would be long, and may have to wait for a device.
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"<{type(value).__name__} shape={value.shape} dtype={value.dtype}>"
    return str(value)
