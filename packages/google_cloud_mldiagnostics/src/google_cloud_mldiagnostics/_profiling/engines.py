"""The profilers of JAX and of PyTorch/XLA."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any, Protocol

from ml_diagnostics_common.exceptions import MissingExtraError

from google_cloud_mldiagnostics._profiling.locations import captured_file, file_of
from google_cloud_mldiagnostics._runtimes import computes_with_pytorch, is_imported
from google_cloud_mldiagnostics.exceptions import ProfilingError
from google_cloud_mldiagnostics.mlrun_types import Framework

__all__ = ["Engine", "JaxEngine", "XlaEngine", "engine_for"]


class Engine(Protocol):
    """A framework's profiler. It takes one profile at a time, and may raise any exception."""

    def start(self, folder: Path) -> None:
        """Start to trace; `folder` is empty and of this profile alone."""
        ...

    def stop(self, folder: Path, *, trace_json: bool) -> Path:
        """End the trace and return its xplane file, which is in or below the folder; write one in JSON if asked to."""
        ...

    def abandon(self) -> None:
        """Forget a trace that could not be ended, so that the next one can start. Never raises."""
        ...

    def has_accelerator(self) -> bool:
        """Return True if this process computes on a TPU or a GPU; called after a trace has started."""
        ...

    def can_serve(self) -> bool:
        """Return True if a server can be started now without initialising what the job has not."""
        ...

    def start_server(self, port: int) -> None:
        """Let other processes profile this one: a ProfilerService, on all interfaces."""
        ...

    def stop_server(self) -> None:
        """End the server."""
        ...


def engine_for(framework: Framework) -> Engine:
    """Return the profiler of a framework; of PyTorch also if the program evidently computes with it.

    JAX is the default of `machinelearning_run`, so it does not mean that the user chose it.
    """
    if framework is Framework.PYTORCH or computes_with_pytorch():
        return XlaEngine()

    return JaxEngine()


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

    def stop(self, folder: Path, *, trace_json: bool) -> Path:
        """End the trace.

        `stop_trace` also converts the trace to JSON, which takes two to ten times as long. So the trace is taken from
        JAX's session, if this release of JAX has one.
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
        """Forget the trace: after a failure JAX keeps it, and would refuse all others."""
        self._close_folder()
        state = _profile_state()
        try:
            newer = getattr(state, "session", None)  # Since JAX 0.12, with the trace inside of it.
            if newer is not None:
                newer._is_running, newer._raw_session = False, None
            if newer is not None or getattr(state, "profile_session", None) is not None:
                state.reset()
        except Exception:
            pass  # An unknown release of JAX: it may still work.

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
        """Return True if JAX computes on a device other than the CPU."""
        import jax

        return jax.default_backend() != "cpu"

    def can_serve(self) -> bool:
        """Return True if the job has imported JAX and initialised its devices."""
        return is_imported("jax") and _has_backends()

    def start_server(self, port: int) -> None:
        """Start JAX's server."""
        import jax.profiler

        jax.profiler.start_server(port)

    def stop_server(self) -> None:
        """End JAX's server."""
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


class XlaEngine:
    """See `engines.Engine`."""

    def __init__(self) -> None:
        self._server: Any = None

    def start(self, folder: Path) -> None:
        """Start to trace.

        Raises:
            ProfilingError: There is no torch_xla, or one that can only be profiled on demand.
        """
        profiler = _profiler()
        if not hasattr(profiler, "start_trace"):
            raise ProfilingError(
                "this torch_xla has no torch_xla.debug.profiler.start_trace: install a newer one, or profile on demand "
                "(on_demand_xprof=True)"
            )
        profiler.start_trace(str(folder))

    def stop(self, folder: Path, *, trace_json: bool) -> Path:
        """End the trace; torch_xla writes it as JSON in any case."""
        _profiler().stop_trace()
        return captured_file(folder)

    def abandon(self) -> None:
        """Forget the trace: after a failure torch_xla keeps it, and would refuse all others."""
        state = getattr(_profiler(), "_profile_state", None)
        try:
            if state is not None and state.profile_session is not None:
                state.reset()
        except Exception:
            pass  # An unknown release of torch_xla: it may still work.

    def has_accelerator(self) -> bool:
        """Return True if PJRT_DEVICE names a device other than the CPU; False if it is not set."""
        return os.environ.get("PJRT_DEVICE", "CPU").partition(":")[0].upper() not in ("", "CPU")

    def can_serve(self) -> bool:
        """Return True if torch_xla is imported."""
        return is_imported("torch_xla")

    def start_server(self, port: int) -> None:
        """Start torch_xla's server on every process, since each profiles only its own host."""
        self._server = _profiler().start_server(port, only_on_master=False)

    def stop_server(self) -> None:
        """End the server: it lives as long as its object."""
        self._server = None


def _profiler() -> Any:
    try:
        return importlib.import_module("torch_xla.debug.profiler")
    except ImportError as error:
        raise ProfilingError(
            f"xprof profiles PyTorch through torch_xla, which cannot be imported ({error}): install torch_xla, or "
            "profile this job with torch.profiler"
        ) from error
