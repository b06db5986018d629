"""The messages between the companions of a job: lines of JSON, each with a code that needs the token of the job. Pure.

The hub sends a line with its nonce. Each line after that has a sequence number from 0, the content as text, and an
HMAC-SHA256 by the token over the nonce, the direction, the sequence number and the content (RFC 2104). The content of
the first one of a member has a nonce of its own, which all later codes of both directions contain as well: so neither
a member's messages nor the hub's can be replayed on another connection.

A message is data. None has a command, a path, or a text that is executed.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any, Final

__all__ = [
    "HUB",
    "MEMBER",
    "MOST_LINE_BYTES",
    "NONCE_BYTES",
    "TOKEN_BYTES",
    "Channel",
    "Lines",
    "RefusedError",
    "nonce_in",
    "nonce_line",
    "short",
]

MOST_LINE_BYTES: Final = 4096
TOKEN_BYTES: Final = 32
NONCE_BYTES: Final = 32
HUB: Final = "hub"
MEMBER: Final = "member"
"""The directions, by the sender."""

_KINDS: Final = frozenset({"hello", "ping", "event", "end", "ack"})
_MOST_TEXT_BYTES: Final = 400
_HEX: Final = frozenset("0123456789abcdef")


class RefusedError(ValueError):
    """A line that is not a message of this job; the connection is closed.

    Attributes:
        reason: `garbage`, `oversize`, `token`, `sequence`, `duplicate` or `job`, for counts.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Lines:
    """Splits the bytes of a connection into lines."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that these bytes complete.

        Raises:
            RefusedError: A line is too long.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        if any(len(line) >= MOST_LINE_BYTES for line in (*lines, self._rest)):
            raise RefusedError("oversize")
        return lines


class Channel:
    """One connection, after the hub's nonce: it seals the messages of this side, and opens those of the other.

    Args:
        token: The job's token.
        nonce: The hub's.
        side: HUB or MEMBER.
    """

    def __init__(self, token: bytes, nonce: str, side: str) -> None:
        self._token, self._nonce, self._side = token, nonce, side
        self._sent = self._opened = 0

    def add_nonce(self, nonce: str) -> None:
        """Add the member's nonce to the codes of all messages that follow."""
        self._nonce += nonce

    def seal(self, kind: str, **fields: Any) -> bytes:
        """Return the line of the next message.

        Raises:
            ValueError: It is too long.
        """
        content = json.dumps({"kind": kind, **fields}, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        code = self._code(self._side, self._sent, content)
        envelope = {"code": code, "sequence": self._sent, "content": content}
        line = json.dumps(envelope, ensure_ascii=False).encode() + b"\n"
        if len(line) > MOST_LINE_BYTES:
            raise ValueError(f"a message of {len(line)} bytes is too long")
        self._sent += 1
        return line

    def open(self, line: bytes) -> dict[str, Any]:
        """Return the content of the other side's next message.

        Raises:
            RefusedError: It is not one.
        """
        envelope = _object(line)
        code, sequence, content = (envelope.get(name) for name in ("code", "sequence", "content"))
        if not isinstance(code, str) or type(sequence) is not int or not isinstance(content, str):
            raise RefusedError("garbage")
        other = MEMBER if self._side == HUB else HUB
        if not code.isascii() or not hmac.compare_digest(code, self._code(other, sequence, content)):
            raise RefusedError("token")
        if sequence != self._opened:
            raise RefusedError("sequence")
        self._opened += 1
        message = _object(content.encode("utf-8", "replace"))
        if message.get("kind") not in _KINDS:
            raise RefusedError("garbage")
        return message

    def _code(self, direction: str, sequence: int, content: str) -> str:
        text = "\n".join((self._nonce, direction, str(sequence), content))
        return hmac.new(self._token, text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def nonce_line(nonce: str) -> bytes:
    """Return the hub's first line."""
    return json.dumps({"nonce": nonce}).encode() + b"\n"


def nonce_in(values: Mapping[str, Any] | bytes) -> str:
    """Return the nonce of the hub's first line, or of a hello.

    Raises:
        RefusedError: There is none.
    """
    nonce = (_object(values) if isinstance(values, bytes) else values).get("nonce")
    if not isinstance(nonce, str) or len(nonce) != 2 * NONCE_BYTES or not _HEX.issuperset(nonce):
        raise RefusedError("garbage")
    return nonce


def short(text: object, most_bytes: int = _MOST_TEXT_BYTES) -> str:
    """Return a text that fits into a message with several others: JSON escapes some characters with up to six."""
    whole = str(text)[:most_bytes].encode("utf-8", "replace").decode()
    while len(json.dumps(whole, ensure_ascii=False).encode()) > most_bytes:
        whole = whole[: len(whole) * 3 // 4]
    return whole if len(whole) == len(str(text)) else whole[:-3] + "..."


def _object(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise RefusedError("garbage") from None
    if not isinstance(value, dict):
        raise RefusedError("garbage")
    return value


def _refuse(_: str) -> None:
    raise RefusedError("garbage")  # NaN and Infinity, which are not JSON.
