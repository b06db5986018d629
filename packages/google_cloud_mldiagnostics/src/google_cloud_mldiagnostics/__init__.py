"""Runs, configs, metrics and profiles of training jobs on XLA devices.

    from google_cloud_mldiagnostics import machinelearning_run, metrics, xprof, metric_types

A name is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module

from google_cloud_mldiagnostics._version import __version__

TYPE_CHECKING = False  # Not imported from typing: that takes 8 ms, in which Ctrl-C in a command prints a traceback.
if TYPE_CHECKING:
    from typing import Any

    from google_cloud_mldiagnostics import api, clients, core, custom_types, metric_types, metrics, utils
    from google_cloud_mldiagnostics._profiling.xprof import Xprof as xprof  # noqa: N813
    from google_cloud_mldiagnostics._run.machinelearning_run import machinelearning_run

__all__ = [
    "__version__",
    "api",
    "clients",
    "core",
    "custom_types",
    "machinelearning_run",
    "metric_types",
    "metrics",
    "utils",
    "xprof",
]

_HOMES = {
    "machinelearning_run": ("_run.machinelearning_run", "machinelearning_run"),
    "xprof": ("_profiling.xprof", "Xprof"),
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        module, attribute = _HOMES[name]
        value = globals()[name] = getattr(import_module(f"{__name__}.{module}"), attribute)
        return value
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
