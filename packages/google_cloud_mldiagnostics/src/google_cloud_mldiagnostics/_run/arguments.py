"""The arguments of `machinelearning_run`, checked, and the run that a control plane is sent for them."""

from __future__ import annotations

import enum
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from ml_diagnostics_common.exceptions import ConfigurationError
from ml_diagnostics_common.files import in_bucket
from ml_diagnostics_common.guard import log_once, warn_once
from ml_diagnostics_common.payload import printable
from ml_diagnostics_common.redaction import redact_text

from google_cloud_mldiagnostics._configs.user_configs import as_mapping
from google_cloud_mldiagnostics._identity import Workload
from google_cloud_mldiagnostics._version import get_version
from google_cloud_mldiagnostics.control_plane import Resource
from google_cloud_mldiagnostics.exceptions import MLRunConfigurationError
from google_cloud_mldiagnostics.mlrun_types import (
    AcceleratorOrchestrator,
    ApplicationFramework,
    Framework,
    RlOrchestrator,
    ServingEngine,
)

__all__ = ["DEFAULT_REGION", "RunArguments", "checked_environment", "checked_gcs_path", "checked_region", "resource_of"]

DEFAULT_REGION: Final = "us-central1"

_INFO: Final = 20
_ENVIRONMENTS: Final = ("prod", "staging", "autopush")
_ZONE: Final = re.compile(r"([a-z]+(?:-[a-z]+)*-[a-z]+[0-9]+)-[a-z]", re.ASCII)
_REGION: Final = re.compile(r"[a-z]+(-[a-z]+)*-[a-z]+[0-9]+|global", re.ASCII)
_LONGEST_NAME: Final = 1024
_SHORTEST_INTERVAL_SECONDS: Final = 0.1

_TRUE: Final = ("true", "1", "yes", "on")
_FALSE: Final = ("false", "0", "no", "off", "")

_Enum = TypeVar("_Enum", bound=enum.Enum)


@dataclass(frozen=True)
class RunArguments:
    """The arguments of `machinelearning_run`, in the types that the rest works with.

    Attributes:
        name: What the user calls the run.
        run_group: What it belongs to; may be empty.
        configs: The user's, by name.
        gcs_path: `gs://...` or a folder; None for none.
        project: The project's id; None for the one that is found.
        region: None for the one that this machine is in.
        interval_seconds: Between two collections of system metrics.
        base_url: Of a self-hosted control plane; None for Google's.
    """

    name: str
    run_group: str
    configs: dict[str, Any]
    gcs_path: str | None
    project: str | None
    region: str | None
    interval_seconds: float
    on_demand_xprof: bool
    on_demand_xprof_port: int
    environment: str
    base_url: str | None
    cluster_id: str | None
    log_system_metrics: bool
    framework: Framework
    serving_engine: ServingEngine
    run_workload_id: str | None
    metric_only_run: bool
    accelerator_orchestrator: AcceleratorOrchestrator
    application_framework: ApplicationFramework
    rl_orchestrator: RlOrchestrator
    strict: bool
    metrics_exporter_config: Any

    @classmethod
    def checked(cls, *, environ: Mapping[str, str] = os.environ, **given: Any) -> RunArguments:
        """Returns the arguments.

        Args:
            environ: The environment variables.
            **given: Those of `machinelearning_run`.

        Raises:
            MLRunConfigurationError: One of them cannot be used.
        """
        if given["metrics_exporter_config"] is not None:
            warn_once(
                "metrics_exporter_config",
                "metrics_exporter_config is not used: metrics go to the journal on this machine, and to Cloud Logging.",
            )
        return cls(
            name=redact_text(_text("name", given["name"], required=True)),
            run_group=redact_text(_text("run_group", given["run_group"])),
            configs=as_mapping(given["configs"]),
            gcs_path=checked_gcs_path(given["gcs_path"]),
            project=_text("project", given["project"]) or None,
            region=checked_region(given["region"]),
            interval_seconds=_interval(given["metrics_record_interval_sec"]),
            on_demand_xprof=_flag("on_demand_xprof", given["on_demand_xprof"]),
            on_demand_xprof_port=_port(given["on_demand_xprof_port"]),
            environment=checked_environment(given["environment"]),
            base_url=_url("base_url", given["base_url"]) or _url("DIAGON_BASE_URL", environ.get("DIAGON_BASE_URL")),
            cluster_id=_text("cluster_id", given["cluster_id"]) or environ.get("DIAGON_CLUSTER_ID") or None,
            log_system_metrics=_flag("log_system_metrics", given["log_system_metrics"]),
            framework=_member(Framework, "framework", given["framework"]),
            serving_engine=_member(ServingEngine, "serving_engine", given["serving_engine"]),
            run_workload_id=_text("run_workload_id", given["run_workload_id"]) or None,
            metric_only_run=_flag("metric_only_run", given["metric_only_run"]),
            accelerator_orchestrator=_member(
                AcceleratorOrchestrator, "accelerator_orchestrator", given["accelerator_orchestrator"]
            ),
            application_framework=_member(
                ApplicationFramework, "application_framework", given["application_framework"]
            ),
            rl_orchestrator=_member(RlOrchestrator, "rl_orchestrator", given["rl_orchestrator"]),
            strict=_flag("strict", given["strict"]),
            metrics_exporter_config=given["metrics_exporter_config"],
        )


def checked_gcs_path(path: object) -> str | None:
    """Returns a place for profiles without doubled slashes and the one at its end; None where none was given.

    Raises:
        MLRunConfigurationError: It is not a path, names no bucket, or has another scheme than gs://.
    """
    if path is None:
        return None
    if not isinstance(path, (str, os.PathLike)):
        raise _wrong("gcs_path", path, "give 'gs://bucket/folder' or a folder")
    text = os.fspath(path)
    if not isinstance(text, str) or "\0" in text:
        raise _wrong("gcs_path", path, "give 'gs://bucket/folder' or a folder")
    text = printable(text.strip())
    try:
        scheme = "gs://" if in_bucket(text) else ""
    except ConfigurationError as error:
        raise MLRunConfigurationError(f"gcs_path: {error}") from error
    rest = re.sub("//+", "/", text[len(scheme) :])
    if scheme:
        rest = rest.strip("/")
        if not rest:
            raise _wrong("gcs_path", path, "it names no bucket: give 'gs://bucket/folder' or a folder")
        return scheme + rest
    return rest.rstrip("/") or ("/" if rest else None)


def checked_region(region: object) -> str | None:
    """Returns a region; of a zone, its region; None where none was given.

    Raises:
        MLRunConfigurationError: It is no text that could be a region's name.
    """
    text = _text("region", region)
    if not text:
        return None
    if "/" in text or not text.isprintable():
        raise _wrong("region", region, "give a region such as 'us-central1'")
    name = text.lower().replace("_", "-")
    zone = _ZONE.fullmatch(name)
    if zone:
        log_once(_INFO, ("zone", text), "region is %r, a zone; its region %s is used", text, zone[1])
        return zone[1]
    if _REGION.fullmatch(name):
        return name
    warn_once(("region", text), "region is %r, which does not look like one, such as 'us-central1'; it is used", text)
    return text


def checked_environment(environment: object) -> str:
    """Returns one of prod, staging, autopush; what the documented example falls back to, 'env', is prod.

    Raises:
        MLRunConfigurationError: It is another.
    """
    if isinstance(environment, str) and environment in _ENVIRONMENTS:
        return environment
    if isinstance(environment, str) and environment == "env":
        warn_once("environment", "environment is 'env', which is taken for 'prod'; leave it out, or give 'prod'")
        return "prod"
    raise _wrong("environment", environment, f"give one of {', '.join(_ENVIRONMENTS)}")


def _text(name: str, value: object, *, required: bool = False) -> str:
    if value is None and not required:
        return ""
    if not isinstance(value, str):
        raise _wrong(name, value, "give a text")
    if required and not value.strip():
        raise _wrong(name, value, "it must not be empty: give the run a name")
    if len(value) > _LONGEST_NAME:
        raise _wrong(name, f"{value[:40]}...", f"give at most {_LONGEST_NAME} characters")
    return printable(value.strip())


def _flag(name: str, value: object) -> bool:
    """True or False, also as 1 and 0, as a text and in numpy's types; None is False."""
    text = value.strip().lower() if isinstance(value, str) else str(_truth(value)).lower()
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise _wrong(name, value, "give True or False")


def _truth(value: object) -> bool | None:
    """None for what is neither true nor false."""
    if value is None:
        return False
    try:
        is_number = isinstance(value, (bool, int, float)) or getattr(value, "shape", None) == ()
        return bool(value) if is_number and value in (0, 1) else None
    except Exception:
        return None


def _interval(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not _SHORTEST_INTERVAL_SECONDS <= value < 1e9:
        raise _wrong("metrics_record_interval_sec", value, f"give seconds, {_SHORTEST_INTERVAL_SECONDS} or more")
    return float(value)


def _port(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 65536:
        raise _wrong("on_demand_xprof_port", value, "give a port, such as 9999, or 0 for any that is free")
    return value


def _url(name: str, value: object) -> str | None:
    text = _text(name, value)
    if not text:
        return None
    if not re.match(r"https?://[^/\s]", text):
        raise _wrong(name, value, "give a URL such as 'http://diagnostics.example:8080'")
    return text.rstrip("/")


def _member(kind: type[_Enum], name: str, value: object) -> _Enum:
    """Return a member of an enumeration, also by its value in any case; none is NONE."""
    if isinstance(value, kind):
        return value
    text = _text(name, value).upper() or "NONE"
    for member in kind:
        if text == member.value:
            return member
    raise _wrong(name, value, f"give one of {', '.join(str(member.value) for member in kind)}")


def _wrong(name: str, value: object, todo: str) -> MLRunConfigurationError:
    try:
        shown = repr(value)[:200]
    except Exception:
        shown = f"a {type(value).__name__}"
    return MLRunConfigurationError(f"{name} is {shown}; {todo}")


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
