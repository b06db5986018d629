"""Signals: those that a process handles, and their names."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from ml_diagnostics_common.processes import handled_signals

__all__ = [
    "FAULTHANDLER_DUMP",
    "SignalsAmidText",
    "handled_signals_or_none",
    "real_time_signals",
    "signal_name",
    "sigterm_handler",
]

FAULTHANDLER_DUMP: Final = b"Stack ("
"""The first bytes of a dump of one thread."""
_LONGEST_DUMP_SECONDS: Final = 1.0
_SIGACTION_BYTES: Final = 512
"""More than the size of `struct sigaction`."""


class SignalsAmidText:
    """Separates numbers of signals from dumps of faulthandler that arrive at the same descriptor, in pieces.

    The newline that ends each line of a dump is the number of SIGUSR1 too, and digits are those of real-time signals.
    The first character of each line is a space or a letter, and no signal has such a number.

    Args:
        clock: Seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._is_in_line = False
        self._received_at = clock()

    def numbers(self, data: bytes) -> bytes:
        """Return the bytes of the next piece that are not a dump's text."""
        now = self._clock()
        if now - self._received_at > _LONGEST_DUMP_SECONDS:
            self._is_in_line = False  # The end of that line was dropped.
        self._received_at = now
        numbers = bytearray()
        for byte in data:
            if self._is_in_line:
                self._is_in_line = byte != ord("\n")
            elif byte == ord(" ") or chr(byte).isalpha():
                self._is_in_line = True
            else:
                numbers.append(byte)
        return bytes(numbers)


def sigterm_handler() -> dict[str, str | None]:
    """Return what handles SIGTERM in this process.

    Python does not know that native code has replaced its handler, as `jax.distributed.initialize` does. So the
    kernel's own is read, where the program has loaded ctypes, as all do that load JAX.

    Returns:
        `handler`: default, ignored, c or python; `function`: that of Python; `library`: the file of a native handler;
        `replaces`: the function of Python that it has replaced without Python's knowledge, or `jax` if a handler of
        Python has replaced JAX's, which then does not save at a preemption.
    """
    handler = signal.getsignal(signal.SIGTERM)
    known = _known_to_python(handler)
    library = _native_library(signal.SIGTERM)
    if library is None:
        return known
    if library:
        return {"handler": "c", "function": None, "library": library, "replaces": known["function"]}
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    has_replaced_jax = known["handler"] == "python" and getattr(state, "preemption_sync_manager", None) is not None
    return {**known, "replaces": "jax" if has_replaced_jax else None}


def _known_to_python(handler: object) -> dict[str, str | None]:
    known: dict[str, str | None] = {"handler": "python", "function": None, "library": None, "replaces": None}
    if handler in (signal.SIG_DFL, signal.SIG_IGN):
        return {**known, "handler": "default" if handler == signal.SIG_DFL else "ignored"}
    if handler is None:
        return {**known, "handler": "c"}
    names = (getattr(handler, name, None) for name in ("__module__", "__qualname__"))
    function = ".".join(name for name in names if isinstance(name, str))
    return {**known, "function": function or type(handler).__name__}


def _native_library(number: int) -> str | None:
    """Return the name of the library with the native handler of a signal; empty if it is Python's, or there is none.

    Returns:
        None if that cannot be read.
    """
    ctypes: Any = sys.modules.get("ctypes")
    if not sys.platform.startswith("linux") or not hasattr(ctypes, "pythonapi"):
        return None
    try:
        system = ctypes.CDLL(None)
        action = ctypes.create_string_buffer(_SIGACTION_BYTES)
        if system.sigaction(int(number), None, action) != 0:
            return None
        address = ctypes.c_void_p.from_buffer(action).value or 0  # The handler is the first member.
        if address <= 1:  # SIG_DFL, SIG_IGN
            return ""
        interrupt = ctypes.cast(ctypes.pythonapi.PyErr_SetInterrupt, ctypes.c_void_p).value
        library = _library_of(ctypes, system, address)
        return "" if library == _library_of(ctypes, system, interrupt) else library
    except Exception:  # A libc without one of these functions.
        return None


def _library_of(ctypes: Any, system: Any, address: int) -> str:
    """Return the name of the file that an address is in: `dladdr(3)`."""
    found = (ctypes.c_void_p * 4)()  # The first member of Dl_info is the path.
    if not system.dladdr(ctypes.c_void_p(address), ctypes.byref(found)) or not found[0]:
        return "unknown"
    path: bytes = ctypes.cast(found[0], ctypes.c_char_p).value
    return path.rpartition(b"/")[2].decode("utf-8", "replace")


def handled_signals_or_none() -> frozenset[int]:
    """Return the signals that this process has handlers for, also in C; none if the system does not show them."""
    try:
        return handled_signals()
    except (OSError, ValueError):
        return frozenset()


def real_time_signals() -> list[int]:
    """Return the real-time signals from the last, which programs use least; none on systems without them."""
    first, last = getattr(signal, "SIGRTMIN", 0), getattr(signal, "SIGRTMAX", -1)
    return list(range(int(last), int(first), -1))


def signal_name(number: int) -> str:
    """Return `SIGUSR1`, or `SIGRTMIN+3`: of the real-time signals only the first and the last have a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        first = getattr(signal, "SIGRTMIN", None)
        return f"signal {number}" if first is None or number < first else f"SIGRTMIN+{number - first}"
