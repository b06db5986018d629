"""machinelearning_run: starts a run, or another attempt of one."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any, Final

from ml_diagnostics_common.environment import Backend, configured_backend
from ml_diagnostics_common.exceptions import DiagnosticsError
from ml_diagnostics_common.guard import log_once, report_loss
from ml_diagnostics_common.texts import readable_id

from google_cloud_mldiagnostics._run.arguments import DEFAULT_REGION, RunArguments
from google_cloud_mldiagnostics._run.start import RunStart
from google_cloud_mldiagnostics._run_state.active_run import active_run
from google_cloud_mldiagnostics.mlrun_types import (
    AcceleratorOrchestrator,
    ApplicationFramework,
    ConfigDict,
    Framework,
    MLRun,
    RlOrchestrator,
    ServingEngine,
)

__all__ = ["machinelearning_run"]

_WAIT_FOR_PREVIOUS_SECONDS: Final = 0.5


def machinelearning_run(
    name: str,
    run_group: str = "",
    configs: Mapping[str, Any] | Any | None = None,
    gcs_path: str | os.PathLike[str] | None = None,
    project: str | None = None,
    region: str | None = DEFAULT_REGION,
    metrics_record_interval_sec: float = 10.0,
    on_demand_xprof: bool = False,
    environment: str = "prod",
    *,
    base_url: str | None = None,
    cluster_id: str | None = None,
    log_system_metrics: bool = True,
    framework: Framework | str = Framework.JAX,
    serving_engine: ServingEngine | str = ServingEngine.NONE,
    run_workload_id: str | None = None,
    metric_only_run: bool = False,
    metrics_exporter_config: Any = None,
    accelerator_orchestrator: AcceleratorOrchestrator | str = AcceleratorOrchestrator.NONE,
    application_framework: ApplicationFramework | str = ApplicationFramework.NONE,
    rl_orchestrator: RlOrchestrator | str = RlOrchestrator.NONE,
    on_demand_xprof_port: int = 9999,
    strict: bool = False,
    expected_processes: int | None = None,
    planned_steps: int | None = None,
) -> MLRun:
    """Start a run on this process; all further recordings belong to it. Call it on every process.

    The run is stored on this machine and, if Google Cloud is found and ML_DIAGNOSTICS_BACKEND allows it, also there.
    The call waits for the cloud for a fraction of a second at most. A failure of the cloud is logged once, and the job
    continues. A run that this process has started before ends as COMPLETED.

    Args:
        name: The name of the run; its id starts with it.
        run_group: The group that it belongs to, such as a sweep.
        configs: The user's configs: a mapping, nested or not, or a dataclass. Secrets are redacted.
        gcs_path: The destination of profiles: `gs://bucket/folder`, or a folder on a disk.
        project: The Google Cloud project; None to find it.
        region: The region that stores the run; None for the region of this machine.
        metrics_record_interval_sec: Seconds between two measurements of the system.
        on_demand_xprof: True to let other processes profile this one while it runs.
        environment: The environment of Google's control plane: prod, staging or autopush.
        base_url: The URL of a control plane on your own cluster instead of Google's; None reads DIAGON_BASE_URL.
        cluster_id: The cluster's id at that control plane.
        log_system_metrics: True to measure the host and its accelerators.
        framework: The framework that the job computes with.
        serving_engine: The engine that serves a model, if the job serves one.
        run_workload_id: An id of the workload, the same in all its processes and attempts; None reads RUN_WORKLOAD_ID.
        metric_only_run: True if the run has only metrics.
        metrics_exporter_config: Not used; accepted for compatibility with the public package.
        accelerator_orchestrator: The system between the job and its accelerators.
        application_framework: The training framework that the job is written with.
        rl_orchestrator: The orchestrator of reinforcement learning.
        on_demand_xprof_port: The port of the profiler; 0 selects a free port.
        strict: True to wait until the control plane has the run, and to raise an error if it does not take it.
        expected_processes: The number of processes of the job, so that a missing one is noticed; None reads the
            config of that name, what JAX was given, or the variables of the launcher.
        planned_steps: The number of steps of the job, so that an early end is noticed; None reads the config of that
            name.

    Returns:
        The run. It ends with the process, with `finish()`, or as a context manager.

    Raises:
        MLRunConfigurationError: An argument cannot be used; nothing was created.
        ConfigurationError: The value of ML_DIAGNOSTICS_BACKEND is not valid.
        CredentialsError: ML_DIAGNOSTICS_BACKEND is `cloud`, or the run is strict, and no cloud is found.
        ControlPlaneError: The run is strict, and the control plane does not have it.
    """
    arguments = RunArguments.checked(**locals())
    if _is_imported_by_a_worker():
        log_once(
            logging.INFO,
            "worker",
            "This worker of multiprocessing imports the script that started the run %s: it starts none of its own.",
            arguments.name,
        )
        return _without_a_run(arguments)
    backend = configured_backend()
    if backend is Backend.CLOUD and arguments.base_url is None:
        from ml_diagnostics_common.credentials import find_cloud

        find_cloud(arguments.project)  # Raise the error now; the run's own thread searches again.
    previous = active_run()
    if previous is not None and previous.pid == os.getpid():
        previous.run.end("COMPLETED", "", wait_seconds=_WAIT_FOR_PREVIOUS_SECONDS)
    try:
        return RunStart(arguments, backend).start()
    except DiagnosticsError:
        raise  # Only a strict run raises.
    except Exception as error:
        # A bug in this library may cost the run, or a part of it, but never the job.
        report_loss("machinelearning_run", error, "start the run")
        started = active_run()
        if started is not None and started.pid == os.getpid():
            return started.run
        return _without_a_run(arguments)


def _is_imported_by_a_worker() -> bool:
    """Return True if a worker that multiprocessing has spawned imports the script, as `__mp_main__`."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__mp_main__":
            return True
        frame = frame.f_back
    return False


def _without_a_run(arguments: RunArguments) -> MLRun:
    """Return the run of a program that continues without one."""
    return MLRun(name=readable_id(arguments.name), display_name=arguments.name, configs=ConfigDict(arguments.configs))
