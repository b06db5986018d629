"""The body of an HTTP response, decompressed and counted as it is read. Needs nothing but the standard library.

HTTP libraries decompress all that they have read at once: 2 MB may become 2 GiB in memory.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator

__all__ = ["BodyError", "BodyTooLargeError", "bounded_pieces"]

_PIECE_BYTES = 1 << 18
_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32


class BodyError(Exception):
    """A body that cannot be decompressed."""


class BodyTooLargeError(BodyError):
    """A body that is larger than the limit."""


def bounded_pieces(
    read: Callable[[int], bytes], *, announced: int | None, encoding: str | None, most_bytes: int
) -> Iterator[bytes]:
    """Yield a body in pieces.

    Args:
        read: Returns up to so many bytes of the body as it was sent; none at its end.
        announced: Its length as it was sent, where that is known.
        encoding: The response's Content-Encoding; gzip and deflate are known.
        most_bytes: The limit after decompression.

    Raises:
        BodyTooLargeError: It is larger than that.
        BodyError: It cannot be decompressed.
    """
    encoding = (encoding or "identity").strip().lower()
    received = _received(read, announced or 0, most_bytes)
    count = 0
    for piece in received if encoding == "identity" else _decompressed(encoding, received):
        count += len(piece)
        if count > most_bytes:
            raise _too_large(most_bytes)
        yield piece


def _received(read: Callable[[int], bytes], announced: int, most_bytes: int) -> Iterator[bytes]:
    if announced > most_bytes:
        raise _too_large(most_bytes)
    while piece := read(max(announced, _PIECE_BYTES)):
        yield piece


def _decompressed(encoding: str, pieces: Iterator[bytes]) -> Iterator[bytes]:
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise BodyError(f"the response is compressed by {encoding[:40]!r}, which was not asked for")
    member = zlib.decompressobj(_GZIP_OR_ZLIB)
    received = False
    for piece in pieces:
        rest = piece
        while rest:
            if member.eof:  # RFC 1952: one gzip file may follow another.
                member = zlib.decompressobj(_GZIP_OR_ZLIB)
            try:
                decompressed = member.decompress(rest, _PIECE_BYTES)
            except zlib.error as error:
                raise BodyError(f"the response cannot be decompressed: {error}") from error
            received = True
            rest = member.unused_data or member.unconsumed_tail
            yield decompressed
    yield member.flush()  # At most a few bytes, which did not fit into the last piece.
    if received and not member.eof:
        raise BodyError("the compressed response ends in the middle")


def _too_large(most_bytes: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"the response is larger than {most_bytes / 2**20:.4g} MiB; it was dropped")
