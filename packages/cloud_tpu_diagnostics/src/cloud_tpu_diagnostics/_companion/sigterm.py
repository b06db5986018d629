"""The job's handlers of SIGTERM in their order: they decide if the job can save before its end.

Python knows the handlers that Python code has installed; the kernel shows that there is one at all. JAX installs its
own from C++ in `jax.distributed.initialize`; a Python handler that is installed later replaces it.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from typing import Any, Final

from ml_diagnostics_common.processes import handled_signals

from cloud_tpu_diagnostics.entries import SIGTERM_HANDLER, entry

__all__ = ["SigtermHandlers"]

_CHECK_SECONDS: Final = 10.0
_MOST_CHANGES: Final = 20
_DEFAULT: Final = {"handler": "default", "function": None, "library": None, "replaces": None}
_SENTENCES: Final = {
    "default": "SIGTERM ends the job at once",
    "ignored": "The job ignores SIGTERM",
    "c": "Native code handles SIGTERM in the job, as JAX does, to save at a preemption",
    "python": "Python handles SIGTERM in the job",
}


class SigtermHandlers:
    """The handlers of one job.

    Args:
        pid: The job.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._by_python: dict[str, Any] | None = None
        self._read_ns = 0
        self._first: dict[str, Any] | None = None
        self._last: dict[str, Any] = dict(_DEFAULT)
        self._changes = 0
        self._unwritten: list[dict[str, Any]] = []
        self._next_check = 0.0

    def learn(self, message: Mapping[str, Any]) -> None:
        """Take what the job's Python knows: the result of `_signals.sigterm_handler`."""
        read_ns = message.get("read_ns", self._read_ns)
        if read_ns >= self._read_ns:  # Two threads of the job may send in another order than they read.
            self._read_ns = read_ns
            self._by_python = {name: message.get(name) for name in _DEFAULT}
            self._next_check = 0.0

    def check(self, now: float) -> None:
        """Note a change. The first handler counts as one unless it is the default.

        Args:
            now: Monotonic seconds.
        """
        if self._by_python is None or now < self._next_check or self._changes >= _MOST_CHANGES:
            return
        self._next_check = now + _CHECK_SECONDS
        found = self._by_python
        if found["handler"] == "default":
            try:
                if signal.SIGTERM in handled_signals(self._pid):
                    found = {**found, "handler": "c"}
            except (OSError, ValueError):  # It has ended, or the system does not show it.
                if self._first is not None:
                    return
        if self._first is None:
            self._first = found
        if found == self._last:
            return
        self._last = found
        self._changes += 1
        self._unwritten.append(entry(SIGTERM_HANDLER, _sentence(found), **found, time_ns=time.time_ns()))

    def take(self) -> list[dict[str, Any]]:
        """Return the entries of the changes since the last call."""
        taken, self._unwritten = self._unwritten, []
        return taken

    def fields(self) -> dict[str, str]:
        """Return the fields of an entry on an end: the first handler and the last; none if the job has sent none."""
        if self._first is None:
            return {}
        return {"sigterm_handler_at_start": self._first["handler"], "sigterm_handler": self._last["handler"]}


def _sentence(found: Mapping[str, Any]) -> str:
    sentence = _SENTENCES.get(found["handler"], _SENTENCES["default"])
    name = found["function"] or found["library"]
    text = f"{sentence}: {name}" if name else sentence
    if found["replaces"] == "jax":
        return f"{text}. It has replaced JAX's handler, so JAX does not save at a preemption"
    return f"{text}. It has replaced {found['replaces']}" if found["replaces"] else text
