"""The compilations of JAX in this process, as JAX reports them to its listeners when each is done."""

from __future__ import annotations

import sys
import time
from collections import Counter, deque
from typing import Any, Final

from ml_diagnostics_common.texts import jitted_name

__all__ = ["Compilations"]

_COMPILED: Final = "/jax/core/compile/backend_compile_duration"
_MOST_FUNCTIONS: Final = 5
_MOST_WAITING: Final = 10_000
_INTERVAL_SECONDS: Final = 10.0
_LONGEST_NAME: Final = 100


class Compilations:
    """Counts compilations. The listener costs nothing in a step that compiles nothing, and never waits.

    A program may remove all listeners (`jax.monitoring.clear_event_listeners`): then this one is added again.
    """

    def __init__(self) -> None:
        self._done: deque[tuple[str, float]] = deque(maxlen=_MOST_WAITING)
        self._monitoring: Any = None
        self._next_message = 0.0

    def check(self) -> None:
        """Listen, if the program has imported JAX and this does not listen; call it about once a second."""
        monitoring = sys.modules.get("jax.monitoring")
        register = getattr(monitoring, "register_event_duration_secs_listener", None)
        if register is None or (monitoring is self._monitoring and self._is_registered()):
            return
        self._monitoring = monitoring
        register(self._on_duration)

    def close(self) -> None:
        """Listen no longer."""
        monitoring, self._monitoring = self._monitoring, None
        try:
            monitoring.unregister_event_duration_listener(self._on_duration)
        except (AttributeError, AssertionError, ValueError):
            pass  # Not registered, or an older JAX: what it notes is read by nobody.

    def message(self, now: float) -> dict[str, Any] | None:
        """Return the compilations since the last message; None if there was none, or a message too recently.

        Args:
            now: Monotonic seconds.
        """
        if not self._done or now < self._next_message:
            return None
        self._next_message = now + _INTERVAL_SECONDS
        done = []
        try:
            while True:
                done.append(self._done.popleft())
        except IndexError:
            pass
        times = Counter(name for name, _ in done)
        functions = [{"name": name, "count": count} for name, count in times.most_common(_MOST_FUNCTIONS)]
        seconds = round(sum(duration for _, duration in done), 3)
        return {"count": len(done), "seconds": seconds, "functions": functions, "time_ns": time.time_ns()}

    def _is_registered(self) -> bool:
        listeners = getattr(sys.modules.get("jax._src.monitoring"), "get_event_duration_listeners", None)
        return listeners is None or self._on_duration in listeners()

    def _on_duration(self, event: str, duration: float, **details: Any) -> None:
        if event == _COMPILED and self._monitoring is not None:
            try:
                name = jitted_name(str(details.get("fun_name", "")))[:_LONGEST_NAME]
                self._done.append((name, float(duration)))
            except Exception:
                pass  # It runs in the program's own thread, amid its compilation.
