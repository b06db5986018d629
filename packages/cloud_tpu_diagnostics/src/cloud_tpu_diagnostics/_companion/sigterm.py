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
_SENTENCES: Final = {
    "default": "SIGTERM ends the job at once",
    "ignored": "The job ignores SIGTERM",
    "c": "Native code handles SIGTERM in the job: JAX does, to save at a preemption",
    "python": "Python handles SIGTERM in the job",
}


class SigtermHandlers:
    """The handlers of one job.

    Args:
        pid: The job.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._by_python: tuple[str, str | None] | None = None
        self._last: tuple[str, str | None] = "default", None
        self._changes = 0
        self._unwritten: list[dict[str, Any]] = []
        self._next_check = 0.0

    def learn(self, message: Mapping[str, Any]) -> None:
        """Take what the job's Python knows: `handler` and `function`."""
        self._by_python = str(message.get("handler")), message.get("function")
        self._next_check = 0.0

    def check(self, now: float) -> None:
        """Note a change. The first handler counts as one unless it is the default.

        Args:
            now: Monotonic seconds.
        """
        if self._by_python is None or now < self._next_check or self._changes >= _MOST_CHANGES:
            return
        self._next_check = now + _CHECK_SECONDS
        handler, function = self._by_python
        if handler == "default":
            try:
                handler = "c" if signal.SIGTERM in handled_signals(self._pid) else handler
            except (OSError, ValueError):  # It has ended, or the system does not show it.
                return
        if (handler, function) == self._last:
            return
        self._last = handler, function
        self._changes += 1
        sentence = _SENTENCES.get(handler, _SENTENCES["default"])
        text = f"{sentence}: {function}" if function else sentence
        fields = {"handler": handler, "function": function, "time_ns": time.time_ns()}
        self._unwritten.append(entry(SIGTERM_HANDLER, text, **fields))

    def take(self) -> list[dict[str, Any]]:
        """Return the entries of the changes since the last call."""
        taken, self._unwritten = self._unwritten, []
        return taken
