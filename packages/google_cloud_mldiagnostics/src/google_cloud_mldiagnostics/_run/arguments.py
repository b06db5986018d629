"""Check the arguments of `machinelearning_run`, and build the run to send to a control plane."""

from __future__ import annotations

import enum
import operator
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, TypeVar

from ml_diagnostics_common.exceptions import ConfigurationError
from ml_diagnostics_common.files import check_scheme, in_bucket
from ml_diagnostics_common.guard import log_once, warn_once
from ml_diagnostics_common.payload import printable
from ml_diagnostics_common.redaction import redact_text

from google_cloud_mldiagnostics._identity import Workload
from google_cloud_mldiagnostics._user_configs import as_mapping
from google_cloud_mldiagnostics._version import get_version
from google_cloud_mldiagnostics.control_plane import Resource
from google_cloud_mldiagnostics.exceptions import MLRunConfigurationError
from google_cloud_mldiagnostics.mlrun_types import (
    AcceleratorOrchestrator,
    ApplicationFramework,
    Framework,
    MLRun,
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
_MOST_COUNTED: Final = 10**9
_PLAN: Final = ("expected_processes", "planned_steps")
"""Arguments that the configs may have instead."""

_TRUE: Final = ("true", "1", "yes", "on")
_FALSE: Final = ("false", "0", "no", "off", "")

_Enum = TypeVar("_Enum", bound=enum.Enum)


def checked_gcs_path(path: object) -> str | None:
    """Return a path for profiles without double and trailing slashes; None if it is None.

    Raises:
        MLRunConfigurationError: The value is not a path, lacks a bucket, or has a scheme other than gs://.
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
        check_scheme(text)
    except ConfigurationError as error:
        raise MLRunConfigurationError(f"gcs_path: {error}") from error
    scheme = "gs://" if in_bucket(text) else ""
    rest = re.sub("//+", "/", text[len(scheme) :])
    if scheme:
        rest = rest.strip("/")
        if not rest:
            raise _wrong("gcs_path", path, "it names no bucket: give 'gs://bucket/folder' or a folder")
        return scheme + rest
    return rest.rstrip("/") or ("/" if rest else None)


def checked_region(region: object) -> str | None:
    """Return a region, or the region of a zone; None if it is None.

    Raises:
        MLRunConfigurationError: The value is not a text that could name a region.
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
    """Return prod, staging or autopush; 'env', the default of the documented example, means prod.

    Raises:
        MLRunConfigurationError: The value is another one.
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


def _optional_text(name: str, value: object) -> str | None:
    return _text(name, value) or None


def _flag(name: str, value: object) -> bool:
    """Return True or False; accepts 1 and 0, texts and numpy's types; None is False."""
    text = value.strip().lower() if isinstance(value, str) else str(_truth(value)).lower()
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise _wrong(name, value, "give True or False")


def _truth(value: object) -> bool | None:
    """Return None if a value is neither true nor false."""
    if value is None:
        return False
    try:
        is_number = isinstance(value, (bool, int, float)) or getattr(value, "shape", None) == ()
        return bool(value) if is_number and value in (0, 1) else None
    except Exception:
        return None


def _interval(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not _SHORTEST_INTERVAL_SECONDS <= value < 1e9:
        raise _wrong(name, value, f"give seconds, {_SHORTEST_INTERVAL_SECONDS} or more")
    return float(value)


def _port(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 65536:
        raise _wrong(name, value, "give a port, such as 9999, or 0 for any that is free")
    return value


def _whole_number(name: str, value: object) -> int | None:
    """Return a number from 1, also one of numpy's; None if it is None."""
    if value is None:
        return None
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except Exception:
        number = None
    if number is None or not 0 < number < _MOST_COUNTED:
        raise _wrong(name, value, "give a whole number from 1, or leave it out")
    return number


def _url(name: str, value: object) -> str | None:
    text = _text(name, value)
    if not text:
        return None
    if not re.match(r"https?://[^/\s]", text):
        raise _wrong(name, value, "give a URL such as 'http://diagnostics.example:8080'")
    return text.rstrip("/")


def _member(kind: type[_Enum]) -> Callable[[str, object], _Enum]:
    """Return a check for a member of an enumeration, or its value in any case; None is NONE."""

    def check(name: str, value: object) -> _Enum:
        if isinstance(value, kind):
            return value
        text = _text(name, value).upper() or "NONE"
        for member in kind:
            if text == member.value:
                return member
        raise _wrong(name, value, f"give one of {', '.join(str(member.value) for member in kind)}")

    return check


def _unused(name: str, value: object) -> object:
    if value is not None:
        warn_once(name, f"{name} is not used: metrics go to the journal on this machine, and to Cloud Logging.")
    return value


def _wrong(name: str, value: object, todo: str) -> MLRunConfigurationError:
    try:
        shown = repr(value)[:200]
    except Exception:
        shown = f"a {type(value).__name__}"
    return MLRunConfigurationError(f"{name} is {shown}; {todo}")


def _argument(check: Callable[[str, Any], Any], *, name: str = "", variable: str = "") -> dict[str, Any]:
    """Return the metadata of a field of `RunArguments`.

    Args:
        check: Called with the argument's name and its value; returns the field's value.
        name: The argument's name, if it is not the field's.
        variable: The environment variable that is read if the argument is None or empty.
    """
    return {"check": check, "argument": name, "variable": variable}


@dataclass(frozen=True)
class RunArguments:
    """The arguments of `machinelearning_run`: each with its name, its check and its type after the check.

    Attributes:
        configs: The user's configs by name.
        project: The project's id; None to find it.
        region: None for the region of this machine.
        interval_seconds: Seconds between two collections of system metrics.
        base_url: The URL of a self-hosted control plane; None for Google's.
        expected_processes: None if neither the argument nor the configs say it.
        planned_steps: The same.
    """

    name: str = field(metadata=_argument(lambda name, value: redact_text(_text(name, value, required=True))))
    run_group: str = field(metadata=_argument(lambda name, value: redact_text(_text(name, value))))
    configs: dict[str, Any] = field(metadata=_argument(lambda _, value: as_mapping(value)))
    gcs_path: str | None = field(metadata=_argument(lambda _, value: checked_gcs_path(value)))
    project: str | None = field(metadata=_argument(_optional_text))
    region: str | None = field(metadata=_argument(lambda _, value: checked_region(value)))
    interval_seconds: float = field(metadata=_argument(_interval, name="metrics_record_interval_sec"))
    on_demand_xprof: bool = field(metadata=_argument(_flag))
    on_demand_xprof_port: int = field(metadata=_argument(_port))
    environment: str = field(metadata=_argument(lambda _, value: checked_environment(value)))
    base_url: str | None = field(metadata=_argument(_url, variable="DIAGON_BASE_URL"))
    cluster_id: str | None = field(metadata=_argument(_optional_text, variable="DIAGON_CLUSTER_ID"))
    log_system_metrics: bool = field(metadata=_argument(_flag))
    framework: Framework = field(metadata=_argument(_member(Framework)))
    serving_engine: ServingEngine = field(metadata=_argument(_member(ServingEngine)))
    run_workload_id: str | None = field(metadata=_argument(_optional_text))
    metric_only_run: bool = field(metadata=_argument(_flag))
    accelerator_orchestrator: AcceleratorOrchestrator = field(metadata=_argument(_member(AcceleratorOrchestrator)))
    application_framework: ApplicationFramework = field(metadata=_argument(_member(ApplicationFramework)))
    rl_orchestrator: RlOrchestrator = field(metadata=_argument(_member(RlOrchestrator)))
    strict: bool = field(metadata=_argument(_flag))
    expected_processes: int | None = field(metadata=_argument(_whole_number))
    planned_steps: int | None = field(metadata=_argument(_whole_number))
    metrics_exporter_config: Any = field(metadata=_argument(_unused))

    @classmethod
    def checked(cls, *, environ: Mapping[str, str] = os.environ, **given: Any) -> RunArguments:
        """Return the checked arguments.

        Args:
            environ: The environment variables.
            **given: The arguments of `machinelearning_run`, by name.

        Raises:
            MLRunConfigurationError: An argument cannot be used.
        """
        values = {}
        for column in fields(cls):
            check, name, variable = (column.metadata[key] for key in ("check", "argument", "variable"))
            value = check(name or column.name, given[name or column.name])
            if value is None and variable:
                value = check(variable, environ.get(variable))
            values[column.name] = value
        for name in _PLAN:
            if values[name] is None and name in values["configs"]:
                values[name] = _whole_number(name, values["configs"][name])
        return cls(**values)

    def of_run(self) -> dict[str, Any]:
        """Return the fields that `MLRun` has by the same names."""
        return {column.name: getattr(self, column.name) for column in fields(MLRun) if hasattr(self, column.name)}


def resource_of(given: RunArguments, workload: Workload, user_configs: dict[str, str]) -> Resource:
    """Return the run as a control plane stores it, before anything is collected.

    Args:
        given: The arguments.
        workload: The workload of this process.
        user_configs: Configs as texts: see `user_configs.to_wire`.
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
    """Return labels as Google allows them: lower case, digits, - and _."""
    kinds = (given.serving_engine, given.accelerator_orchestrator, given.application_framework, given.rl_orchestrator)
    names = ("serving_engine", "accelerator_orchestrator", "application_framework", "rl_orchestrator")
    return {
        "created_by": "diagon_sdk",
        "create-tool-mode": "regular",
        "diagon_sdk_version": _label(get_version()),
        "on_demand_xprof": "enabled" if given.on_demand_xprof else "disabled",
        "sdk_report_system_metrics": str(given.log_system_metrics).lower(),
        "metric_only_run": str(given.metric_only_run).lower(),
        "framework": given.framework.value.lower(),
        **{name: _label(kind.value) for name, kind in zip(names, kinds, strict=True) if kind.value != "NONE"},
    }


def _label(text: str) -> str:
    kept = "".join(char if (char.isalnum() and char.isascii()) or char in "-_" else "-" for char in text.lower())
    return kept[:63]
