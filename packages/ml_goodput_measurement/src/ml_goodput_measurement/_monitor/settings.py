"""The arguments of a monitor: checked once in the trainer, sent to its helper process as JSON."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ml_diagnostics_common.environment import configured_backend
from ml_diagnostics_common.exceptions import ConfigurationError
from ml_diagnostics_common.files import in_bucket

from ml_goodput_measurement._record.arguments import LONGEST_SECONDS, checked_name, retention_ns, seconds_of, shown
from ml_goodput_measurement.metric_details import GCPOptions

__all__ = ["LONGEST_FLUSH_SECONDS", "MonitorSettings", "Upload", "checked_windows"]

LONGEST_FLUSH_SECONDS = 3600.0
"""The limit of a final flush without a deadline, so that no process outlives its job forever."""

_GCS_SYNC_INTERVAL = "ML_GOODPUT_GCS_SYNC_INTERVAL_SECONDS"
_CACHE_DIR = "ML_GOODPUT_CACHE_DIR"


class Upload(str, enum.Enum):
    """The kinds of uploads of a monitor."""

    CUMULATIVE = "cumulative"
    DEVIATION = "deviation"
    WINDOWS = "windows"


@dataclass(frozen=True)
class MonitorSettings:
    """The arguments of a monitor, as its helper process needs them; times in seconds."""

    job_name: str
    logger_name: str
    tensorboard_dir: str
    upload_interval_seconds: float
    step_deviation_interval_seconds: float
    gcs_sync_interval_seconds: float
    final_flush_timeout_seconds: float | None
    skip_final_flush: bool
    include_badput_breakdown: bool
    include_step_deviation: bool
    include_slice_efficiency: bool
    is_elastic: bool
    using_pathways: bool
    configured_ideal_step_seconds: float | None
    gcp_options: GCPOptions
    cache_dir: str
    retention_seconds: float | None

    @classmethod
    def checked(
        cls,
        arguments: Mapping[str, Any],
        *,
        is_elastic: bool,
        environ: Mapping[str, str] = os.environ,
    ) -> MonitorSettings:
        """Check a monitor's arguments.

        Args:
            arguments: Values by the names of the constructor's parameters.
            is_elastic: True for the arguments of `ElasticGoodputMonitor`.
            environ: The environment variables; `ML_GOODPUT_GCS_SYNC_INTERVAL_SECONDS` and `ML_GOODPUT_CACHE_DIR` win
                over the arguments.

        Raises:
            ConfigurationError: An argument, or one of the variables, is not valid.
        """
        configured_backend(environ)  # The helper process would fail with an invalid one.
        sync_name, sync_seconds = "gcs_sync_interval_seconds", arguments["gcs_sync_interval_seconds"]
        if environ.get(_GCS_SYNC_INTERVAL):
            sync_name, sync_seconds = _GCS_SYNC_INTERVAL, _number_in(environ[_GCS_SYNC_INTERVAL])
        return cls(
            job_name=checked_name("job_name", arguments["job_name"]),
            logger_name=checked_name("logger_name", arguments["logger_name"]),
            tensorboard_dir=_bucket_or_local("tensorboard_dir", arguments["tensorboard_dir"]),
            upload_interval_seconds=_interval("upload_interval", arguments["upload_interval"]),
            step_deviation_interval_seconds=_interval(
                "step_deviation_interval_seconds", arguments["step_deviation_interval_seconds"]
            ),
            gcs_sync_interval_seconds=_interval(sync_name, sync_seconds),
            final_flush_timeout_seconds=_optional_seconds(
                "final_flush_timeout_seconds", arguments["final_flush_timeout_seconds"]
            ),
            skip_final_flush=bool(arguments["skip_final_flush"]),
            include_badput_breakdown=bool(arguments["include_badput_breakdown"]),
            include_step_deviation=bool(arguments["include_step_deviation"]),
            include_slice_efficiency=bool(arguments.get("include_slice_efficiency", False)),
            is_elastic=is_elastic,
            using_pathways=is_elastic or bool(arguments.get("pathway_enabled", False)),
            configured_ideal_step_seconds=_optional_seconds(
                "configured_ideal_step_time", arguments["configured_ideal_step_time"], below=LONGEST_SECONDS
            ),
            gcp_options=_gcp_options(arguments["gcp_options"]),
            cache_dir=_local("cache_dir", environ.get(_CACHE_DIR) or arguments["cache_dir"]),
            retention_seconds=_retention_seconds(arguments["max_logs_retention_period"]),
        )

    @property
    def gcs_path(self) -> str | None:
        """The folder for a copy of the saved state: that of the event files, if it is in a bucket."""
        return self.tensorboard_dir if in_bucket(self.tensorboard_dir) else None

    @property
    def flush_seconds(self) -> float:
        """The seconds that a final flush may last."""
        timeout = self.final_flush_timeout_seconds
        return LONGEST_FLUSH_SECONDS if timeout is None else min(timeout, LONGEST_FLUSH_SECONDS)

    def interval_seconds(self, upload: Upload) -> float:
        """Return the seconds between two uploads of a kind."""
        if upload is Upload.DEVIATION:
            return self.step_deviation_interval_seconds
        return self.upload_interval_seconds

    def to_json(self) -> dict[str, Any]:
        """Return the argument of `from_json`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> MonitorSettings:
        """Return the settings that `to_json` was called on."""
        return cls(**{**fields, "gcp_options": GCPOptions(**fields["gcp_options"])})


def checked_windows(rolling_windows_seconds: Any) -> list[int]:
    """Return the lengths of rolling windows in seconds, each once, in the order given.

    Raises:
        ConfigurationError: It is not a list with at least one whole number of seconds above zero.
    """
    try:
        if isinstance(rolling_windows_seconds, (str, bytes, Mapping)):
            raise TypeError
        # An integer of numpy has __index__, like an int; so has a bool, which is not valid.
        windows = [window.__index__() for window in rolling_windows_seconds if not isinstance(window, bool)]
        is_usable = (
            len(windows) == len(rolling_windows_seconds) > 0 and 0 < min(windows) <= max(windows) < LONGEST_SECONDS
        )
    except (AttributeError, TypeError):
        is_usable = False
    if not is_usable:
        raise ConfigurationError(
            f"rolling_windows_seconds is {shown(rolling_windows_seconds)}; give a list of at least one whole number of "
            "seconds above zero, such as [3600, 86400]"
        )
    return list(dict.fromkeys(windows))


def _number_in(text: str) -> float | str:
    """Return the number in an environment variable, or its text if that is not a number."""
    try:
        return float(text)
    except ValueError:
        return text


def _seconds(name: str, value: Any) -> float:
    # numpy's booleans convert to float as its numbers do.
    seconds = None if type(value).__name__ in ("bool_", "bool") else seconds_of(value)
    if seconds is None or not math.isfinite(seconds):
        raise ConfigurationError(f"{name} is {shown(value)}; expected a number of seconds")
    return seconds


def _interval(name: str, value: Any) -> float:
    seconds = _seconds(name, value)
    if seconds <= 0:
        raise ConfigurationError(f"{name} is {shown(value)}; expected a number of seconds above zero")
    return seconds


def _optional_seconds(name: str, value: Any, *, below: float = math.inf) -> float | None:
    if value is None:
        return None
    seconds = _seconds(name, value)
    if seconds < 0:
        raise ConfigurationError(f"{name} is {shown(value)}; give a number of seconds that is not negative, or None")
    if seconds >= below:
        raise ConfigurationError(f"{name} is {shown(value)}; give a number of seconds below {below:g}, or None")
    return seconds


def _retention_seconds(max_logs_retention_period: Any) -> float | None:
    period_ns = retention_ns(max_logs_retention_period)
    return None if period_ns is None else period_ns / 1e9


def _bucket_or_local(name: str, value: Any) -> str:
    """Return the path of a folder: a local one, or one in a bucket."""
    path = _text(value)
    if path is None or not in_bucket(path):
        return _local(name, value, "give the path of a local folder, or gs://bucket/folder as text")
    if not path.removeprefix("gs://").partition("/")[0] or "\0" in path:
        raise ConfigurationError(f"{name} is {shown(value)}; give gs://bucket/folder")
    return path


def _local(name: str, value: Any, instead: str = "give the path of a local folder") -> str:
    """Return an absolute path, which does not depend on the trainer's working directory."""
    path = _text(value)
    # pathlib makes gs:/bucket of gs://bucket.
    if not path or not path.strip() or "\0" in path or "://" in path or path.startswith("gs:/"):
        raise ConfigurationError(f"{name} is {shown(value)}; {instead}")
    return os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111


def _text(path: Any) -> str | None:
    try:
        text = os.fspath(path)
    except TypeError:
        return None
    return text if isinstance(text, str) else None


def _gcp_options(options: Any) -> GCPOptions:
    if options is None:
        return GCPOptions()
    if not isinstance(options, GCPOptions):
        raise ConfigurationError(f"gcp_options is {shown(options)}; give a monitoring.GCPOptions(...)")
    try:
        json.dumps(dataclasses.asdict(options))
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"gcp_options is {shown(options)}; its fields are texts, None, True or False"
        ) from None
    return dataclasses.replace(options)
