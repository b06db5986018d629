"""MLRun and what its fields take, by the name of the public package."""

from __future__ import annotations

from google_cloud_mldiagnostics.mlrun_types import (
    AcceleratorOrchestrator,
    ApplicationFramework,
    ConfigDict,
    Framework,
    MLRun,
    Orchestrator,
    RlOrchestrator,
    RunPhase,
    ServingEngine,
)

__all__ = [
    "AcceleratorOrchestrator",
    "ApplicationFramework",
    "ConfigDict",
    "Framework",
    "MLRun",
    "Orchestrator",
    "RlOrchestrator",
    "RunPhase",
    "ServingEngine",
]
