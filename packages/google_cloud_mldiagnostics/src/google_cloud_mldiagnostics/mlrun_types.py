"""MLRun, what `machinelearning_run` returns, and the names that its fields take."""

from __future__ import annotations

import datetime
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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


class RunPhase(enum.Enum):
    """What a run does."""

    PHASE_UNSPECIFIED = "RUN_PHASE_UNSPECIFIED"
    PHASE_ACTIVE = "ACTIVE"
    PHASE_COMPLETED = "COMPLETED"
    PHASE_FAILED = "FAILED"


class Framework(enum.Enum):
    """What the job computes with."""

    JAX = "JAX"
    PYTORCH = "PYTORCH"


class ServingEngine(enum.Enum):
    """What serves a model, in a job that does."""

    NONE = "NONE"
    VLLM = "VLLM"


class AcceleratorOrchestrator(enum.Enum):
    """What stands between the job and its accelerators."""

    NONE = "NONE"
    PATHWAYS = "PATHWAYS"


class ApplicationFramework(enum.Enum):
    """The trainer that the job is written with."""

    NONE = "NONE"
    MAXTEXT = "MAXTEXT"
    AXLEARN = "AXLEARN"
    MAXDIFFUSION = "MAXDIFFUSION"


class RlOrchestrator(enum.Enum):
    """What conducts reinforcement learning."""

    NONE = "NONE"
    TUNIX = "TUNIX"


class Orchestrator(str, enum.Enum):
    """Who started the job."""

    GKE = "GKE"
    SLURM = "SLURM"
    CUSTOM = "CUSTOM"
    NONE = "NONE"


class ConfigDict(dict[str, Any]):
    """A run's configs, by key or by attribute; a change goes to wherever the run is kept."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the run has no config {name!r}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        try:
            del self[name]
        except KeyError:
            raise AttributeError(f"the run has no config {name!r}") from None


@dataclass
class MLRun:
    """One run of a job, in all its attempts and on all its hosts.

    Attributes:
        name: The run's id.
        run_group: What it belongs to.
        configs: The user's configs, and under `softwareConfigs` and `hardwareConfigs` what was collected.
        gcs_path: Where its profiles go: `gs://...` or a folder.
        location: The region in which the run is kept.
        project: The project in which it is kept; empty without a cloud.
        run_phase: What it does, as far as this process knows.
        created_at: When its first attempt began.
        workload_details: What started it, as the control plane has it.
        orchestrator: Who started it.
        display_name: The name that the user gave.
        attempt: How often it has begun, this time included.
    """

    name: str
    run_group: str = ""
    configs: ConfigDict = field(default_factory=ConfigDict)
    gcs_path: str | None = None
    location: str = "us-central1"
    project: str = ""
    run_phase: RunPhase = RunPhase.PHASE_ACTIVE
    created_at: datetime.datetime | None = None
    workload_details: Mapping[str, Any] | None = None
    orchestrator: Orchestrator | None = None
    display_name: str = ""
    on_demand_xprof: bool = False
    environment: str = "prod"
    log_system_metrics: bool = True
    metric_only_run: bool = False
    framework: Framework = Framework.JAX
    serving_engine: ServingEngine = ServingEngine.NONE
    accelerator_orchestrator: AcceleratorOrchestrator = AcceleratorOrchestrator.NONE
    application_framework: ApplicationFramework | str = ApplicationFramework.NONE
    rl_orchestrator: RlOrchestrator | str = RlOrchestrator.NONE
    workload_targets: list[dict[str, Any]] | None = None
    control_plane_url: str | None = None
    cluster_id: str | None = None
    workload_id: str | None = None
    namespace: str | None = None
    attempt: int = 1
