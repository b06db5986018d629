"""What takes a profile: the framework that the job computes with."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from google_cloud_mldiagnostics.mlrun_types import Framework
from google_cloud_mldiagnostics.runtimes import computes_with_pytorch

__all__ = ["Engine", "engine_for"]


class Engine(Protocol):
    """A framework's profiler. One profile at a time; what it cannot do, it says with an exception of any kind."""

    def start(self, folder: Path) -> None:
        """Begins to trace; `folder` is an empty one of this profile alone."""
        ...

    def stop(self, folder: Path, *, trace_json: bool = False) -> Path:
        """End the trace and return its xplane file, which is somewhere in the folder; and if asked, one in JSON."""
        ...

    def abandon(self) -> None:
        """Forgets a trace that could not be ended, so that the next one can begin. Never raises."""
        ...

    def has_accelerator(self) -> bool:
        """Whether this process computes on a TPU or a GPU; asked after a trace has begun."""
        ...

    def can_serve(self) -> bool:
        """Whether a server can be started now without anything being initialised that the job did not."""
        ...

    def start_server(self, port: int) -> None:
        """Lets others profile this process: a ProfilerService, on all interfaces."""
        ...

    def stop_server(self) -> None:
        """Ends that server."""
        ...


def engine_for(framework: Framework) -> Engine:
    """Return the profiler of a framework; of PyTorch also if the program evidently computes with it.

    JAX is the default of `machinelearning_run`, so it does not mean that the user chose it.
    """
    if framework is Framework.PYTORCH or computes_with_pytorch():
        from google_cloud_mldiagnostics.profiling.xla_engine import XlaEngine

        return XlaEngine()
    from google_cloud_mldiagnostics.profiling.jax_engine import JaxEngine

    return JaxEngine()
