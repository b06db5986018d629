"""JAX's own events: compilations, the compilation cache, and Orbax's saves and restores.

JAX calls its listeners in the thread that does the work, when it is done, with the duration. Only work of the main
thread takes the program's time; Orbax's threads write while the program trains.
"""

from __future__ import annotations

import os
import sys
import threading
from types import FrameType, ModuleType
from typing import Any, Final, Protocol

from ml_diagnostics_common.clock import now_seconds
from ml_diagnostics_common.texts import jitted_name

from ml_diagnostics._inference.imports import after_import, forget_import

__all__ = ["EventSink", "JaxEvents"]

_COMPILE: Final = "/jax/core/compile/"
_COMPILED: Final = "/jax/core/compile/backend_compile_duration"
_CACHE_EVENTS: Final = {"/jax/compilation_cache/cache_hits": True, "/jax/compilation_cache/cache_misses": False}
_ORBAX: Final = ("/jax/orbax/", "/jax/checkpoint/")
_SAVE_STARTS: Final = ("/jax/orbax/write/start", "/jax/orbax/write/async/start")
_SAVED: Final = (
    "/jax/orbax/write/total_duration_secs",
    "/jax/orbax/write/async/blocking_duration_secs",
    "/jax/checkpoint/write/async/blocking_duration_secs",
)
"""A synchronous save is done; an asynchronous one (new versions report both) goes on in a thread of Orbax's."""
_RESTORED: Final = ("/jax/orbax/read/total_duration_secs",)
_WAITED: Final = "/jax/checkpoint/write/wait_for_prev_duration_secs"

_NEAR_SECONDS: Final = 0.01
"""Tracing, lowering and compiling of one function follow each other without a longer pause."""
_NOTABLE_SECONDS: Final = 0.001
_DEEPEST: Final = 60


class EventSink(Protocol):
    """Receives what JAX and Orbax did; all times are seconds since 1970."""

    def compiled(self, function: str, start: float, end: float) -> None:
        """Note that a function was traced and compiled, or read from the compilation cache."""
        ...

    def used_cache(self, *, is_hit: bool) -> None:
        """Note that the compilation cache was searched for a function."""
        ...

    def checkpointed(self, kind: str, step: int | None, start: float, end: float) -> None:
        """Note a `save` or a `restore` of Orbax, for which the program waited."""
        ...

    def waited_for_save(self, start: float, end: float) -> None:
        """Note that the program waited for a save that threads of Orbax were making."""
        ...


class JaxEvents:
    """Listens to JAX from its import on, also after a program has removed all listeners."""

    def __init__(self, sink: EventSink) -> None:
        """Listen to nothing yet.

        Args:
            sink: Receives the events.
        """
        self._sink = sink
        self._main = threading.main_thread().ident
        self._pid = os.getpid()
        self._monitoring: Any = None
        self._clear: Any = None
        self._compile_start: float | None = None
        self._compile_end = 0.0
        self._waited: tuple[float, float] | None = None
        self._save_start: float | None = None
        self._is_saving = False
        self._is_closed = False

    def open(self) -> None:
        """Listen as soon as the program has imported JAX."""
        after_import("jax.monitoring", self._register_first)

    def close(self) -> None:
        """Listen no longer."""
        self._is_closed = True
        forget_import("jax.monitoring", self._register_first)
        monitoring = self._monitoring
        if monitoring is None:
            return
        self._monitoring = None
        again = getattr(getattr(monitoring, "clear_event_listeners", None), "_ml_diagnostics", [])
        if self._register in again:
            again.remove(self._register)
        for unregister, listener in (
            ("unregister_event_listener", self._on_event),
            ("unregister_event_duration_listener", self._on_duration),
        ):
            try:
                getattr(monitoring, unregister)(listener)
            except (AttributeError, AssertionError, ValueError):
                pass  # An older JAX, or a program that removed all listeners: it does nothing from here on.

    def _register_first(self, monitoring: ModuleType) -> None:
        if self._is_closed:
            return
        self._monitoring = monitoring
        self._register()
        clear = getattr(monitoring, "clear_event_listeners", None)
        if clear is None or getattr(clear, "_ml_diagnostics", None) is not None:
            if clear is not None:
                clear._ml_diagnostics.append(self._register)
            return
        again = [self._register]

        def clear_event_listeners() -> None:
            """Clear event listeners."""
            clear()
            for register in again:
                register()

        clear_event_listeners._ml_diagnostics = again  # type: ignore[attr-defined]
        # Programs call the name that they imported; JAX's own module is where others import it from.
        for module in (monitoring, sys.modules.get("jax._src.monitoring")):
            if module is not None and getattr(module, "clear_event_listeners", None) is clear:
                module.clear_event_listeners = clear_event_listeners  # type: ignore[attr-defined]

    def _register(self) -> None:
        if self._monitoring is not None:
            self._monitoring.register_event_listener(self._on_event)
            self._monitoring.register_event_duration_secs_listener(self._on_duration)

    def _on_event(self, event: str, **_: Any) -> None:
        try:
            if event in _CACHE_EVENTS and not self._is_closed:
                self._sink.used_cache(is_hit=_CACHE_EVENTS[event])
            elif event in _SAVE_STARTS and self._is_in_main_thread():
                self._is_saving = True
                self._end_wait(is_part_of_save=True)
        except Exception as error:
            _report(error)

    def _on_duration(self, event: str, duration: float, **details: Any) -> None:
        try:
            if event.startswith(_COMPILE):
                if self._is_in_main_thread():
                    self._compile_part(event, float(duration), str(details.get("fun_name", "")))
            elif event.startswith(_ORBAX) and self._is_in_main_thread():
                self._checkpoint_part(event, float(duration))
        except Exception as error:
            _report(error)

    def _is_in_main_thread(self) -> bool:
        is_here = threading.get_ident() == self._main and os.getpid() == self._pid  # And not in a forked child.
        return is_here and not self._is_closed

    def _compile_part(self, event: str, duration: float, function: str) -> None:
        now = now_seconds()
        start = now - duration
        if self._compile_start is None or start > self._compile_end + _NEAR_SECONDS:
            self._compile_start = start
        # The parts of a function within a function end first, so a later part may start before them.
        self._compile_start = min(self._compile_start, start)
        self._compile_end = now
        if event == _COMPILED:
            start, self._compile_start = self._compile_start, None
            self._sink.compiled(jitted_name(function), start, now)

    def _checkpoint_part(self, event: str, duration: float) -> None:
        now = now_seconds()
        if event == _WAITED:
            if duration >= _NOTABLE_SECONDS:
                self._waited = (now - duration, now)
                if not _is_called_by("save"):
                    self._end_wait(is_part_of_save=False)
        elif event in _SAVED:
            if not self._is_saving:
                return  # It was reported by its other name.
            self._is_saving = False
            start, self._save_start = min(now - duration, self._save_start or now), None
            self._sink.checkpointed("save", _step_of("save"), start, now)
        elif event in _RESTORED:
            self._sink.checkpointed("restore", _step_of("restore"), now - duration, now)

    def _end_wait(self, *, is_part_of_save: bool) -> None:
        waited, self._waited = self._waited, None
        if waited is None:
            return
        if is_part_of_save and now_seconds() - waited[1] < 1.0:
            self._save_start = waited[0]
        else:
            self._sink.waited_for_save(*waited)


def _managers() -> list[FrameType]:
    """Return the frames of Orbax's checkpoint manager that called this thread's work, which know the step."""
    frames = []
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_DEEPEST):
        if frame is None:
            break
        if str(frame.f_globals.get("__name__", "")).startswith("orbax.") and frame.f_code.co_name in (
            "save",
            "restore",
        ):
            frames.append(frame)
        frame = frame.f_back
    return frames


def _is_called_by(name: str) -> bool:
    return any(frame.f_code.co_name == name for frame in _managers())


def _step_of(name: str) -> int | None:
    """Return the step that is saved or restored; None where Orbax is used without a checkpoint manager."""
    for frame in _managers():
        step = frame.f_locals.get("step") if frame.f_code.co_name == name else None
        if isinstance(step, int) and not isinstance(step, bool):
            return step
    return None


def _report(error: Exception) -> None:
    from ml_diagnostics_common.guard import report_loss

    report_loss("ml_diagnostics", error, "record an event of JAX")
