"""The parts of an instrumented job: which are on, and the block of the library that does each one's work."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ml_diagnostics_common.exceptions import ConfigurationError
from ml_diagnostics_common.guard import log_once, report_loss

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ml_goodput_measurement.goodput import GoodputMonitor, Recorder

__all__ = [
    "END_ORDER",
    "LONGEST_NAME",
    "PARTS",
    "Plan",
    "blocks_of",
    "checked_job_name",
    "enabled_parts",
    "installed_parts",
]

Block: TypeAlias = AbstractContextManager[Any]

PARTS: Final = ("goodput", "stacks", "hangs", "run", "monitor")
"""The parts, in the order in which they start."""
END_ORDER: Final = ("goodput", "monitor", "run", "diagnose")
"""The blocks in the order in which they end: the monitor's last point contains the job's end."""

LONGEST_NAME: Final = 200
"""The number of characters that the name of a job may have."""

_DISTRIBUTIONS: Final = {
    "goodput": ("ml_goodput_measurement", "ml-goodput-measurement"),
    "stacks": ("cloud_tpu_diagnostics", "cloud-tpu-diagnostics"),
    "hangs": ("cloud_tpu_diagnostics", "cloud-tpu-diagnostics"),
    "run": ("google_cloud_mldiagnostics", "google-cloud-mldiagnostics"),
    "monitor": ("ml_goodput_measurement", "ml-goodput-measurement"),
}
_DISABLED_VARIABLE: Final = "ML_DIAGNOSTICS_DISABLE"
_UPLOAD_INTERVAL_SECONDS: Final = 30.0


@dataclass(frozen=True)
class Plan:
    """The description of a job that its parts are started from.

    Attributes:
        name: The name of the job, its run and its logs.
        config: The user's configs.
        group: The group of runs that it belongs to.
        directory: The destination of profiles and TensorBoard's files: a folder, or `gs://bucket/folder`.
        is_recording: True on the process that records the job's goodput.
        on_demand_xprof: True to let other processes profile this one.
        fast_fail: True to end all processes of the job once one of them has failed.
    """

    name: str
    config: Mapping[str, Any] | Any | None
    group: str
    directory: str
    is_recording: bool
    on_demand_xprof: bool = False
    fast_fail: bool = False

    @property
    def tensorboard_directory(self) -> str:
        """The folder of TensorBoard's files of this job."""
        return f"{self.directory}/tensorboard/{self.name}"


def checked_job_name(name: object) -> str:
    """Return the name of a job without spaces around it.

    Raises:
        ConfigurationError: It cannot be the name of a job.
    """
    if not isinstance(name, str) or not name.strip() or len(name) > LONGEST_NAME:
        raise ConfigurationError(
            f"expected name to be text of 1 to {LONGEST_NAME} characters, such as 'digits'; got {name!r:.250}"
        )
    return name.strip()


def enabled_parts(given: Mapping[str, bool | None], environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the parts that are on, in the order in which they start.

    Args:
        given: The caller's choice for each part; None leaves it to the environment.
        environ: The environment variables; ML_DIAGNOSTICS_DISABLE lists parts that are off, or is `all`.

    Raises:
        ConfigurationError: The variable has another name in it.
    """
    listed = [name.strip().lower() for name in environ.get(_DISABLED_VARIABLE, "").split(",") if name.strip()]
    if unknown := [name for name in listed if name not in (*PARTS, "all")]:
        raise ConfigurationError(
            f"{_DISABLED_VARIABLE} has {unknown[0]!r}; expected 'all', or some of {', '.join(PARTS)}, with commas"
        )
    if "all" in listed:
        return []
    return [part for part in PARTS if part not in listed and given.get(part) is not False]


def installed_parts(parts: Sequence[str], *, is_quiet: bool) -> list[str]:
    """Return the parts with an installed library; log one line for each library that is not installed.

    Args:
        parts: The parts that are on.
        is_quiet: True to log nothing.
    """
    installed = []
    for part in parts:
        module, distribution = _DISTRIBUTIONS[part]
        if importlib.util.find_spec(module) is not None:
            installed.append(part)
        elif not is_quiet:
            log_once(
                logging.WARNING,
                ("not installed", distribution),
                "%s is not installed, so this job has no %s: pip install %s",
                distribution,
                " and no ".join(each for each in parts if _DISTRIBUTIONS[each][1] == distribution),
                distribution,
            )
    return installed


def blocks_of(plan: Plan, parts: Sequence[str]) -> list[tuple[str, Callable[[], Block]]]:
    """Return the name of each block of a job, and the function that makes it; to be entered in this order.

    Args:
        plan: The job.
        parts: The parts that are on and installed.
    """
    blocks: list[tuple[str, Callable[[], Block]]] = []
    if "goodput" in parts:
        blocks.append(("goodput", lambda: _recorder(plan)))
    stacks, hangs, fast_fail = "stacks" in parts, "hangs" in parts, plan.fast_fail
    if stacks or hangs or (fast_fail and importlib.util.find_spec(_DISTRIBUTIONS["stacks"][0]) is not None):
        blocks.append(("diagnose", lambda: _diagnose(stacks=stacks, hangs=hangs, fast_fail=fast_fail)))
    if "run" in parts:
        in_tensorboard = "monitor" in parts and plan.is_recording
        blocks.append(("run", lambda: _Run(plan, in_tensorboard=in_tensorboard)))
    if "monitor" in parts and "goodput" in parts and plan.is_recording:
        blocks.append(("monitor", lambda: _Monitoring(plan)))
    return blocks


def _recorder(plan: Plan) -> Recorder:
    from ml_goodput_measurement.goodput import Recorder

    return Recorder(plan.name, logging_enabled=plan.is_recording)


def _diagnose(*, stacks: bool, hangs: bool, fast_fail: bool) -> Block:
    from cloud_tpu_diagnostics.configuration.debug_configuration import DebugConfig
    from cloud_tpu_diagnostics.configuration.diagnostic_configuration import DiagnosticConfig
    from cloud_tpu_diagnostics.configuration.fast_fail_configuration import FastFailConfig
    from cloud_tpu_diagnostics.configuration.hang_configuration import HangConfig
    from cloud_tpu_diagnostics.configuration.stack_trace_configuration import StackTraceConfig
    from cloud_tpu_diagnostics.diagnostic import diagnose

    traces = StackTraceConfig(collect_stack_trace=stacks, stack_trace_to_cloud=True)
    debug = DebugConfig(traces, HangConfig(enabled=hangs), FastFailConfig(enabled=fast_fail))
    return diagnose(DiagnosticConfig(debug))


class _Run(AbstractContextManager[Any]):
    """The run. Its metrics are also written to TensorBoard if that is wanted."""

    def __init__(self, plan: Plan, *, in_tensorboard: bool) -> None:
        self._plan = plan
        self._in_tensorboard = in_tensorboard
        self._run: Any = None

    def __enter__(self) -> Any:
        from google_cloud_mldiagnostics import machinelearning_run

        plan = self._plan
        self._run = machinelearning_run(
            plan.name,
            plan.group,
            plan.config,
            on_demand_xprof=plan.on_demand_xprof,
            gcs_path=f"{plan.directory}/profiles",
            # The same run after a restart, unless the scheduler's environment names the workload.
            run_workload_id=os.environ.get("RUN_WORKLOAD_ID") or plan.name,
        )
        if self._in_tensorboard:
            self._write_to_tensorboard()
        return self._run.__enter__()

    def __exit__(self, *raised: Any) -> None:
        self._run.__exit__(*raised)

    def _write_to_tensorboard(self) -> None:
        from google_cloud_mldiagnostics import metrics

        try:
            metrics.to_tensorboard(self._plan.tensorboard_directory)
        except Exception as error:  # Such as a missing client for the bucket. The run continues without.
            report_loss("instrument: metrics", error, "be written to TensorBoard")


class _Monitoring(AbstractContextManager[None]):
    """Upload the job's goodput to TensorBoard while the block runs."""

    def __init__(self, plan: Plan) -> None:
        from ml_goodput_measurement.goodput import GoodputMonitor

        self._monitor: GoodputMonitor = GoodputMonitor(
            plan.name,
            f"goodput_{plan.name}",
            plan.tensorboard_directory,
            _UPLOAD_INTERVAL_SECONDS,
            monitoring_enabled=True,
            include_badput_breakdown=True,
        )

    def __enter__(self) -> None:
        self._monitor.start_goodput_uploader()

    def __exit__(self, *_: object) -> None:
        self._monitor.stop_goodput_uploader()
