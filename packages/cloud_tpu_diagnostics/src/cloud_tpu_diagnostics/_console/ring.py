"""The last bytes that a process has printed, in memory that its companion can read: a ring.

The first 8 bytes are the number of bytes that were ever written. From byte 64 on is the ring: byte n of the output is
at n modulo its size.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from threading import Lock
from typing import Final

from ml_diagnostics_common.descriptors import with_high_number
from ml_diagnostics_common.shared_maps import SharedMap

from cloud_tpu_diagnostics._console.memory import TAIL_BYTES

__all__ = ["Ring", "read_ring", "written_bytes"]

_NAME: Final = "ml-diagnostics-printed"
_COUNT: Final = struct.Struct("=Q")
_START: Final = 64
_SIZE: Final = TAIL_BYTES
_END: Final = _START + _SIZE
_READS: Final = 16
_MOST_WAITING: Final = 1024
"""The texts of signal handlers and other threads that may wait for a thread which is writing; more are left out."""

_pack_into = _COUNT.pack_into


class Ring:
    """The ring of this process. A forked child must not write to it.

    Raises:
        OSError: The system has no files in memory, or no memory.
    """

    def __init__(self) -> None:
        if not hasattr(os, "memfd_create"):
            raise OSError("this system has no files in memory")
        self.descriptor = with_high_number(os.memfd_create(_NAME))
        """For the companion; `close_descriptor` closes it."""
        try:
            if os.write(self.descriptor, bytes(_END)) != _END:
                raise OSError("a file in memory cannot be written whole")
            self._shared = SharedMap(self.descriptor, _END)
        except BaseException:
            self.close_descriptor()
            raise
        self._memory = self._shared.memory
        self._written = 0
        self._waiting: deque[bytes] = deque(maxlen=_MOST_WAITING)
        self._lock = Lock()

    def add(self, data: bytes) -> None:
        """Add bytes; never waits. Raises ValueError once it is released."""
        # Without waiting: a signal handler may print while its own thread is in here. That thread then adds its bytes.
        if self._lock.acquire(False):
            try:
                self._store(data)
            finally:
                self._lock.release()
        else:
            self._waiting.append(data)
        while self._waiting and self._lock.acquire(False):
            try:
                while self._waiting:
                    self._store(self._waiting.popleft())
            finally:
                self._lock.release()

    def _store(self, data: bytes) -> None:
        start = _START + self._written % _SIZE
        count = self._written + len(data)
        if start + len(data) <= _END:  # Mostly: in one piece.
            self._memory[start : start + len(data)] = data
            self._written = count
            _pack_into(self._memory, 0, count)
            return
        data = data[-_SIZE:]
        position = _START + (count - len(data)) % _SIZE
        fits = _END - position
        if len(data) <= fits:
            self._memory[position : position + len(data)] = data
        else:
            self._memory[position:] = data[:fits]
            self._memory[_START : _START + len(data) - fits] = data[fits:]
        self._written = count
        _pack_into(self._memory, 0, count)

    def close_descriptor(self) -> None:
        """Close the descriptor, which is not needed once the companion has it."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def release(self) -> None:
        """Release the memory of this process; the companion can still read it."""
        self.close_descriptor()
        self._shared.release()


def written_bytes(descriptor: int) -> int:
    """Return the number of bytes that another process has ever written to its ring."""
    count: int = _COUNT.unpack(os.pread(descriptor, _COUNT.size, 0))[0]
    return count


def read_ring(descriptor: int) -> tuple[bytes, int]:
    """Return the last bytes in the ring of another process, which may be writing, and their position in its output."""
    count, ring = _read(descriptor)
    for _ in range(_READS):
        before, (count, ring) = count, _read(descriptor)
        if count == before:
            break
    position = count % _SIZE
    if count < _SIZE:
        return ring[:position], 0
    return ring[position:] + ring[:position], count - _SIZE


def _read(descriptor: int) -> tuple[int, bytes]:
    data = os.pread(descriptor, _END, 0)
    return _COUNT.unpack_from(data)[0], data[_START:]
