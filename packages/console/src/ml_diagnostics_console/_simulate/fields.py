"""Typed reads of a manifest: each error names the field. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from ml_diagnostics_common.command.errors import UsageError

__all__ = ["Fields", "ManifestError"]

_MOST_ITEMS: Final = 1_000
_MOST_CHARACTERS: Final = 65_536
_MOST_NUMBER: Final = 100_000


class ManifestError(UsageError):
    """The manifest cannot be simulated; the message names the field."""


class Fields:
    """A mapping of a manifest, with its path.

    Args:
        value: The value of the manifest; None is an empty mapping.
        path: The path for errors, such as `spec.template`.

    Raises:
        ManifestError: It is not a mapping.
    """

    def __init__(self, value: object, path: str = "") -> None:
        if value is not None and not isinstance(value, Mapping):
            raise ManifestError(f"{path or 'the document'}: expected a mapping, got {_described(value)}")
        self.raw: Mapping[str, Any] = value or {}
        self.path = path

    def __contains__(self, name: str) -> bool:
        return self.raw.get(name) is not None

    def names(self) -> list[str]:
        """Return the names of all fields that have a value."""
        return [str(name) for name, value in self.raw.items() if value is not None]

    def fields(self, name: str) -> Fields:
        """Return a mapping; an empty one if it is missing."""
        return Fields(self.raw.get(name), self._path(name))

    def each(self, name: str) -> Iterator[Fields]:
        """Yield the mappings of a list."""
        for number, item in enumerate(self._list(name)):
            yield Fields(item, f"{self._path(name)}[{number}]")

    def texts(self, name: str) -> tuple[str, ...]:
        """Return the texts of a list."""
        return tuple(_text(item, f"{self._path(name)}[{number}]") for number, item in enumerate(self._list(name)))

    def pairs(self, name: str) -> dict[str, str]:
        """Return a mapping of texts, such as labels."""
        fields = self.fields(name)
        if len(fields.raw) > _MOST_ITEMS:
            raise ManifestError(f"{fields.path}: more than {_MOST_ITEMS:,} entries")
        return {_text(key, fields.path): _text(value, f"{fields.path}.{key}") for key, value in fields.raw.items()}

    def text(self, name: str, default: str = "") -> str:
        """Return a text; a number is one, too."""
        value = self.raw.get(name)
        return default if value is None else _text(value, self._path(name))

    def number(self, name: str, default: int, *, least: int = 0) -> int:
        """Return a whole number."""
        value = self.raw.get(name)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _MOST_NUMBER:
            expected = f"a whole number from {least} to {_MOST_NUMBER:,}"
            raise ManifestError(f"{self._path(name)}: expected {expected}, got {_described(value)}")
        return value

    def numbers(self, name: str) -> tuple[int, ...]:
        """Return the whole numbers of a list."""
        items = self._list(name)
        if not all(isinstance(item, int) and not isinstance(item, bool) for item in items):
            raise ManifestError(f"{self._path(name)}: expected whole numbers")
        return tuple(items)

    def _list(self, name: str) -> list[Any]:
        value = self.raw.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or len(value) > _MOST_ITEMS:
            raise ManifestError(
                f"{self._path(name)}: expected a list of at most {_MOST_ITEMS:,} items, got {_described(value)}"
            )
        return value

    def _path(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name


def _text(value: object, path: str) -> str:
    if isinstance(value, bool):
        value = "true" if value else "false"
    if isinstance(value, int) and abs(value) < 10**18:
        value = str(value)
    if isinstance(value, float):
        value = repr(value)
    if not isinstance(value, str) or len(value) > _MOST_CHARACTERS or "\0" in value:
        raise ManifestError(f"{path}: expected a text, got {_described(value)}")
    return value


def _described(value: object) -> str:
    if isinstance(value, (Mapping, list)):
        return "a mapping" if isinstance(value, Mapping) else f"a list of {len(value)}"
    return ascii(value)[:60] if isinstance(value, (str, float, bool)) else type(value).__name__
