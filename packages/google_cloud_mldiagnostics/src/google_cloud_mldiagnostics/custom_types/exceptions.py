"""The errors of this library, by the name of the public package."""

from __future__ import annotations

from google_cloud_mldiagnostics.exceptions import (
    ControlPlaneClientNotInitializedError,
    ControlPlaneError,
    MLDiagnosticError,
    MLRunConfigurationError,
    NoActiveRunError,
    ProfilingError,
    RecordingError,
    RunChangedError,
    RunExistsError,
    RunNotFoundError,
)

__all__ = [
    "ControlPlaneClientNotInitializedError",
    "ControlPlaneError",
    "MLDiagnosticError",
    "MLRunConfigurationError",
    "NoActiveRunError",
    "ProfilingError",
    "RecordingError",
    "RunChangedError",
    "RunExistsError",
    "RunNotFoundError",
]
