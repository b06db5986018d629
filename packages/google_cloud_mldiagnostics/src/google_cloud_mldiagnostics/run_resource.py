"""A run as a control plane has it, made of what `machinelearning_run` was given."""

from __future__ import annotations

from google_cloud_mldiagnostics._version import get_version
from google_cloud_mldiagnostics.control_plane import Resource
from google_cloud_mldiagnostics.identity import Workload
from google_cloud_mldiagnostics.run_arguments import RunArguments

__all__ = ["resource_of"]


def resource_of(given: RunArguments, workload: Workload, user_configs: dict[str, str]) -> Resource:
    """Returns the run as far as it is known before anything is collected.

    Args:
        given: The arguments.
        workload: What started this process.
        user_configs: As texts, see `user_configs.to_wire`.
    """
    run: Resource = {
        "displayName": given.name,
        "configs": {"userConfigs": user_configs, "softwareConfigs": {}, "hardwareConfigs": {}},
        "labels": _labels(given),
        "runPhase": "ACTIVE",
        "tools": [{"xprof": {}}],
        "orchestrator": workload.wire,
    }
    if given.run_group:
        run["runSet"] = given.run_group
    if given.gcs_path is not None:
        run["artifacts"] = {"gcsPath": given.gcs_path}
    if workload.details is not None:
        run["workloadDetails"] = dict(workload.details)
    return run


def _labels(given: RunArguments) -> dict[str, str]:
    """Values as Google's labels may be: lower case, digits, - and _."""
    kinds = {
        "serving_engine": given.serving_engine,
        "accelerator_orchestrator": given.accelerator_orchestrator,
        "application_framework": given.application_framework,
        "rl_orchestrator": given.rl_orchestrator,
    }
    texts = {name: str(getattr(kind, "value", kind)) for name, kind in kinds.items()}
    return {
        "created_by": "diagon_sdk",
        "create-tool-mode": "regular",
        "diagon_sdk_version": get_version().replace(".", "-"),
        "on_demand_xprof": "enabled" if given.on_demand_xprof else "disabled",
        "sdk_report_system_metrics": str(given.log_system_metrics).lower(),
        "metric_only_run": str(given.metric_only_run).lower(),
        "framework": given.framework.value.lower(),
        **{name: _label(text) for name, text in texts.items() if text != "NONE"},
    }


def _label(text: str) -> str:
    kept = "".join(char if (char.isalnum() and char.isascii()) or char in "-_" else "-" for char in text.lower())
    return kept[:63]
