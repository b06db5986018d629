"""Answers of routes, without a socket: a body, its media type, a status and headers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

__all__ = [
    "GREATEST_ANSWER_BYTES",
    "Answer",
    "BadQueryError",
    "NotThereError",
    "binary_answer",
    "json_answer",
    "text_answer",
]

GREATEST_ANSWER_BYTES: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a route.

    Attributes:
        body: The bytes to send.
        media_type: Their type.
        status: The HTTP status.
        headers: Further headers, by name.
    """

    body: bytes
    media_type: str = "application/json"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


class BadQueryError(ValueError):
    """A parameter of the URL is not valid; the message is a sentence for the user."""


class NotThereError(LookupError):
    """The run, metric or session of the URL does not exist; the message is a sentence for the user."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


def json_answer(value: Any, status: int = 200) -> Answer:
    """Return a value as compact JSON. NaN and infinity become null, and objects of other types their text.

    Args:
        value: A value of JSON, a dataclass or a named tuple.
        status: The HTTP status.
    """
    # msgspec writes NaN and infinity as null, as the browser's JSON.parse needs.
    try:
        body = _encoder.encode(value)
    except UnicodeEncodeError:  # A lone surrogate, of a name that was not valid UTF-8.
        body = _encoder.encode(_encodable(value))
    return Answer(body, status=status)


def text_answer(text: str, headers: Mapping[str, str] | None = None) -> Answer:
    """Return a text; lone surrogates become escapes."""
    body = text.encode("utf-8", "backslashreplace")
    return Answer(body, "text/plain; charset=utf-8", headers=dict(headers or {}))


def binary_answer(data: bytes) -> Answer:
    """Return columns as `wire.encode` makes them."""
    return Answer(data, "application/octet-stream")


def _as_json(value: Any) -> Any:
    item = getattr(value, "item", None)  # A number of numpy.
    return item() if callable(item) else str(value)


_encoder = msgspec.json.Encoder(enc_hook=_as_json)


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {_encodable(str(key)): _encodable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encodable(item) for item in value]
    return value
