"""JAX's profiler, on any backend."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ml_diagnostics_common.exceptions import MissingExtraError

from google_cloud_mldiagnostics.profiling.layout import captured_file, file_of
from google_cloud_mldiagnostics.runtimes import is_imported

__all__ = ["JaxEngine"]


class JaxEngine:
    """See `engines.Engine`."""

    def __init__(self) -> None:
        self._folder_descriptor: int | None = None
        """Open during a trace into a folder with a name that is not Unicode."""

    def start(self, folder: Path) -> None:
        """Start a trace; JAX initialises its backends, if the job has not yet."""
        try:
            import jax.profiler
        except ImportError as error:
            raise MissingExtraError("a profile of JAX", "google-cloud-mldiagnostics", "jax") from error

        jax.profiler.start_trace(self._path_for_jax(folder))

    def stop(self, folder: Path, *, trace_json: bool = False) -> Path:
        """End the trace.

        `stop_trace` also makes a JSON of it, for which the job would wait two to ten times as long. So
        the trace is taken from JAX's session, where JAX is as we know it.
        """
        try:
            return self._stop(folder, trace_json=trace_json)
        finally:
            self._close_folder()

    def _stop(self, folder: Path, *, trace_json: bool) -> Path:
        import jax.profiler

        state = _profile_state()
        if not trace_json and callable(getattr(getattr(state, "profile_session", None), "stop", None)):
            with state.lock:
                trace = state.profile_session.stop()
                state.reset()
            if isinstance(trace, bytes):
                file = folder / file_of("trace")
                file.write_bytes(trace)
                return file
        jax.profiler.stop_trace()  # type: ignore[no-untyped-call, unused-ignore]
        return captured_file(folder)

    def abandon(self) -> None:
        """Forgets the trace: after a failure JAX keeps it, and would refuse all others."""
        self._close_folder()
        state = _profile_state()
        try:
            newer = getattr(state, "session", None)  # Since JAX 0.12, with the trace inside of it.
            if newer is not None:
                newer._is_running, newer._raw_session = False, None
            if newer is not None or getattr(state, "profile_session", None) is not None:
                state.reset()
        except Exception:
            pass  # Another JAX: it may still work.

    def _path_for_jax(self, folder: Path) -> str:
        """Return a path of a folder that JAX accepts: since 0.12, its C++ code takes Unicode only.

        With LC_ALL=C, Python has bytes beyond ASCII as surrogates.
        """
        self._close_folder()
        try:
            str(folder).encode()
        except UnicodeEncodeError:
            if Path("/proc/self/fd").is_dir():
                self._folder_descriptor = os.open(folder, os.O_RDONLY)
                return f"/proc/self/fd/{self._folder_descriptor}"
        return str(folder)

    def _close_folder(self) -> None:
        if self._folder_descriptor is not None:
            os.close(self._folder_descriptor)
            self._folder_descriptor = None

    def has_accelerator(self) -> bool:
        """Whether JAX computes on something else than the CPU."""
        import jax

        return jax.default_backend() != "cpu"

    def can_serve(self) -> bool:
        """Whether the job has JAX and its devices."""
        return is_imported("jax") and _has_backends()

    def start_server(self, port: int) -> None:
        """Starts JAX's server."""
        import jax.profiler

        jax.profiler.start_server(port)

    def stop_server(self) -> None:
        """Ends JAX's server."""
        import jax.profiler

        jax.profiler.stop_server()  # type: ignore[no-untyped-call, unused-ignore]


def _profile_state() -> Any:
    try:
        from jax._src import profiler

        return profiler._profile_state
    except (ImportError, AttributeError):
        return None


def _has_backends() -> bool:
    try:
        from jax._src import xla_bridge

        return xla_bridge.backends_are_initialized()
    except (ImportError, AttributeError):
        return True
