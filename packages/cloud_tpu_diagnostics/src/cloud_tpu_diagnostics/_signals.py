"""Signals: those that a process handles, and their names."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Final

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
    """Return the handler of SIGTERM as far as Python knows it: `handler` (default, ignored, c, python), `function`."""
    handler = signal.getsignal(signal.SIGTERM)
    if handler in (signal.SIG_DFL, signal.SIG_IGN):
        return {"handler": "default" if handler == signal.SIG_DFL else "ignored", "function": None}
    if handler is None:
        return {"handler": "c", "function": None}
    names = (getattr(handler, name, None) for name in ("__module__", "__qualname__"))
    function = ".".join(name for name in names if isinstance(name, str))
    return {"handler": "python", "function": function or type(handler).__name__}


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
