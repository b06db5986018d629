"""Bodies of any size for the fault `Oversize`: a JSON object that is generated while it is sent, to save memory."""

import struct
import zlib
from collections.abc import Iterator

__all__ = ["gzipped_object", "plain_object"]

_START, _END = b'{"padding": "', b'"}'
_BLOCK = b"x" * (1 << 20)
_GZIP_HEADER = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"


def plain_object(size_bytes: int) -> Iterator[bytes]:
    """Yield a JSON object of this size, in pieces."""
    yield _START
    left = size_bytes - len(_START) - len(_END)
    while left > 0:
        yield _BLOCK[:left]
        left -= len(_BLOCK)
    yield _END


def gzipped_object(size_bytes: int) -> Iterator[bytes]:
    """Yield the same object, gzip-compressed.

    After a full flush, a compressed block does not depend on earlier ones. Each distinct piece is therefore
    compressed once, and its block is sent repeatedly.
    """
    yield _GZIP_HEADER
    made: dict[bytes, bytes] = {}
    checksum = count = 0
    for piece in plain_object(size_bytes):
        if piece not in made:
            deflate = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
            made[piece] = deflate.compress(piece) + deflate.flush(zlib.Z_FULL_FLUSH)
        yield made[piece]
        checksum, count = zlib.crc32(piece, checksum), count + len(piece)
    yield zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS).flush()
    yield struct.pack("<II", checksum, count & 0xFFFFFFFF)
