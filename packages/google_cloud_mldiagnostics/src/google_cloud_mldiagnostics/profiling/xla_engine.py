"""PyTorch/XLA's profiler: the public functions of `torch_xla.debug.profiler`."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

from google_cloud_mldiagnostics.exceptions import ProfilingError
from google_cloud_mldiagnostics.profiling.layout import captured_file
from google_cloud_mldiagnostics.runtimes import is_imported

__all__ = ["XlaEngine"]


class XlaEngine:
    """See `engines.Engine`."""

    def __init__(self) -> None:
        self._server: Any = None

    def start(self, folder: Path) -> None:
        """Begins to trace.

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

    def stop(self, folder: Path, *, trace_json: bool = False) -> Path:
        """End the trace; torch_xla writes it as JSON in any case."""
        _profiler().stop_trace()
        return captured_file(folder)

    def abandon(self) -> None:
        """Forgets the trace: after a failure torch_xla keeps it, and would refuse all others."""
        state = getattr(_profiler(), "_profile_state", None)
        try:
            if state is not None and state.profile_session is not None:
                state.reset()
        except Exception:
            pass  # Another torch_xla: it may still work.

    def has_accelerator(self) -> bool:
        """Whether PJRT_DEVICE names something else than the CPU; where it is not set, nobody knows."""
        return os.environ.get("PJRT_DEVICE", "CPU").partition(":")[0].upper() not in ("", "CPU")

    def can_serve(self) -> bool:
        """Whether torch_xla is imported."""
        return is_imported("torch_xla")

    def start_server(self, port: int) -> None:
        """Starts torch_xla's server, on every process: each is one host's."""
        self._server = _profiler().start_server(port, only_on_master=False)

    def stop_server(self) -> None:
        """Ends it: it lives as long as its object."""
        self._server = None


def _profiler() -> Any:
    try:
        return importlib.import_module("torch_xla.debug.profiler")
    except ImportError as error:
        raise ProfilingError(
            f"xprof profiles PyTorch through torch_xla, which cannot be imported ({error}): install torch_xla, or "
            "profile this job with torch.profiler"
        ) from error
