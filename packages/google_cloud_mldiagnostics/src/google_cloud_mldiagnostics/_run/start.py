"""Start a run: make and start its parts."""

from __future__ import annotations

import datetime
import functools
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from ml_diagnostics_common.agreement import jax_processes, publish, subscribe
from ml_diagnostics_common.credentials import known_project
from ml_diagnostics_common.credentials.instance_metadata import instance_metadata, metadata_value
from ml_diagnostics_common.entry import COMPANION_LOG_ID, ProcessEndings, format_timestamp, parse_timestamp
from ml_diagnostics_common.environment import Backend, announce_plan, announce_run, diagnostics_directory
from ml_diagnostics_common.environment import identity as identity_of_process
from ml_diagnostics_common.guard import job_logger, report_loss
from ml_diagnostics_common.process_hooks import import_undisturbed
from ml_diagnostics_common.texts import readable_id
from ml_diagnostics_common.worker import start

from google_cloud_mldiagnostics._identity import (
    RunIdentity,
    Workload,
    identify,
    process_position,
    warn_if_split,
    with_instance,
    workload_of,
)
from google_cloud_mldiagnostics._recording.run_log import RunLog
from google_cloud_mldiagnostics._run.arguments import DEFAULT_REGION, RunArguments, resource_of
from google_cloud_mldiagnostics._run.lifecycle import USUAL_PAUSES, Lifecycle, Pauses
from google_cloud_mldiagnostics._run_state import attempts
from google_cloud_mldiagnostics._run_state.active_run import ActiveRun, set_active_run
from google_cloud_mldiagnostics._run_state.process_life import is_alive, own_mark
from google_cloud_mldiagnostics._run_state.registration import Registration
from google_cloud_mldiagnostics._run_state.unreported_runs import warn_folder_failed
from google_cloud_mldiagnostics._system_configs import collector
from google_cloud_mldiagnostics._system_metrics.sampler import SystemMetrics
from google_cloud_mldiagnostics._tensorboard import run_started
from google_cloud_mldiagnostics._user_configs import to_wire
from google_cloud_mldiagnostics.control_plane import Connection, find_google, find_self_hosted
from google_cloud_mldiagnostics.control_plane.local import LocalControlPlane
from google_cloud_mldiagnostics.exceptions import ControlPlaneError, RunExistsError
from google_cloud_mldiagnostics.mlrun_types import ConfigDict, MLRun, Orchestrator

__all__ = ["RunStart", "details_logger"]

logger = job_logger("google_cloud_mldiagnostics")
# The name of the logger that is documented for the run's details.
details_logger = job_logger("google_cloud_mldiagnostics.core.global_manager")

# Enough if the clients are loaded and the network is near. The rest continues in threads.
_WAIT_SECONDS: Final = 0.15
_STRICT_SECONDS: Final = 120.0
_PROJECT_SECONDS: Final = 0.8
_INSTANCE_SECONDS: Final = 1.0

# State of the process: the number of runs that it has started, by name.
_occasions_of_this_process: dict[str, int] = {}


class RunStart:
    """The start of one run.

    Args:
        arguments: The arguments of `machinelearning_run`.
        backend: The destination of entries besides the journal.
        pauses: The waits of the run's life.
    """

    def __init__(self, arguments: RunArguments, backend: Backend, *, pauses: Pauses = USUAL_PAUSES) -> None:
        self.arguments = arguments
        self.backend = backend
        self.pauses = pauses
        self.workload = workload_of(arguments.run_workload_id)
        self.index, self.count = process_position()
        self.identity = _identity(arguments, self.workload)
        warn_if_split(self.identity.run_id, self.workload, self.count)
        self.local = LocalControlPlane(diagnostics_directory())
        self.user_configs = to_wire(arguments.configs)
        self.location = arguments.region or _region_of_this_machine()
        self._is_shared = False

    def start(self) -> MLRun:
        """Start the run; return a strict one once the control plane has it."""
        deadline = time.monotonic() + (_STRICT_SECONDS if self.arguments.strict else _WAIT_SECONDS)
        process = identity_of_process()
        member = attempts.Member(process.host, self.index, process.pid, own_mark())
        self._run = run = self._new_run()
        run.attempt = self._join_attempt(member, _attempt_number(process.attempt))
        self._active = active = self._new_active_run(member)
        active.registration = self._registration = self._new_registration()
        self._lifecycle = lifecycle = Lifecycle(
            active, member, self.local, active.registration, collect=collector(run), pauses=self.pauses
        )
        set_active_run(active)
        announce_plan(expected_processes=self.arguments.expected_processes, planned_steps=self.arguments.planned_steps)
        announce_run(run.name, run.display_name, run.attempt)
        lifecycle.start(self.user_configs, is_settled=self._is_attempt_settled())
        active.registration.start()
        self._agree_on_attempt()
        lifecycle.complete()
        self._start_measuring()
        run_started(active)
        is_settled = active.registration.wait_until_settled(max(0.0, deadline - time.monotonic()))
        if self.arguments.strict:
            self._raise_what_failed(is_settled=is_settled)
        return run

    # --- The parts of a run ---------------------------------------------------------------------------

    def _new_run(self) -> MLRun:
        given = self.arguments
        project = given.project or ""
        if not project and self.backend is not Backend.LOCAL and given.base_url is None:
            project = known_project(wait_seconds=_PROJECT_SECONDS)
        return MLRun(
            **given.of_run()
            | {
                "name": self.identity.run_id,
                "configs": ConfigDict(given.configs),
                "location": self.location,
                "project": project.strip(),
                "created_at": datetime.datetime.now(datetime.timezone.utc),
                "workload_details": self.workload.details,
                "orchestrator": self.workload.orchestrator,
                "display_name": given.name,
                "control_plane_url": given.base_url,
                "workload_id": self.workload.given_id or None,
                "namespace": ((self.workload.details or {}).get("gke") or {}).get("namespace") or None,
                "ml_run_id": self.identity.run_id,
            }
        )

    def _join_attempt(self, member: attempts.Member, number: int) -> int:
        """Start or join an attempt in the run's folder; return its number."""
        run_id, now = self.identity.run_id, format_timestamp(time.time_ns())
        resource = resource_of(self.arguments, self.workload, self.user_configs)
        token = self.identity.token
        try:
            try:
                new = attempts.new_run(resource, member, token=token, number=number, now=now)
                kept = self.local.create_run(run_id, new)
            except RunExistsError:
                is_alive_here = functools.partial(is_alive, host=member.host)
                join = attempts.join(resource, member, token=token, number=number, now=now, is_alive=is_alive_here)
                kept = self.local.update_run(run_id, join)
        except ControlPlaneError as error:
            warn_folder_failed(run_id, error)
            return number
        except Exception as error:
            report_loss("machinelearning_run", error, f"keep the run {run_id} in its folder")
            return number
        self._is_shared = attempts.is_shared(kept, member)
        self._run.created_at = _moment(kept.get("createTime")) or self._run.created_at
        unexplained = attempts.unexplained_attempt(kept)
        if unexplained is not None and self.index == 0:
            start(lambda: self._explain(unexplained), "mldiagnostics-attempts")
        last = attempts.last_attempt(kept)
        return int(last["number"]) if last is not None else number

    def _explain(self, attempt: Mapping[str, Any]) -> None:
        """Record the outcome of an earlier attempt, in a thread, since this reads all of the companions' log."""
        import_undisturbed("ml_diagnostics_common.log_source")  # In a thread: the job may fork meanwhile.
        from ml_diagnostics_common.log_source import LogSource

        endings = ProcessEndings()
        for entries in LogSource(COMPANION_LOG_ID).read_new():
            endings.add(entries)
        outcome = _outcome_of(attempt, endings)
        if outcome is not None:
            self.local.update_run(self.identity.run_id, attempts.explain(int(attempt["number"]), *outcome))

    def _new_active_run(self, member: attempts.Member) -> ActiveRun:
        run = self._run
        labels = {
            **identity_of_process().labels(job=run.display_name),
            "run": run.name,
            "attempt": str(run.attempt),
            "process_index": str(self.index),
        }
        is_shipped = self.backend is not Backend.LOCAL and self.arguments.base_url is None
        return ActiveRun(
            run=run,
            log=RunLog(run.name, location=run.location, project=run.project, labels=labels, is_shipped=is_shipped),
            folder=self.local.folder(run.name),
            host=member.host,
            process_index=self.index,
            process_count=self.count,
            pid=member.pid,
            is_local=self.backend is not Backend.CLOUD or self.arguments.base_url is not None,
        )

    def _new_registration(self) -> Registration:
        run, is_owner = self._run, self.index == 0
        connect: Callable[[], Connection] | None = None
        if self.arguments.base_url is not None:
            connect = find_self_hosted(
                self.arguments.base_url,
                # Without a workload, use the run's name: the run's id differs at each start.
                workload_id="-".join(self.workload.id_parts) or readable_id(run.display_name),
                cluster_id=run.cluster_id or "",
                joined_run=None if is_owner else run.name,
            )
        elif self.backend is not Backend.LOCAL:
            connect = find_google(self.arguments.project, run.location, run.environment)
        return Registration(
            run.name,
            self.local,
            connect,
            is_owner=is_owner,
            is_shared=self._is_shared,
            on_found=self._found,
            on_attempt=self._attempt_is,
            on_settled=self._log_link,
        )

    def _found(self, connection: Connection) -> None:
        """Handle that the control plane was found, in the registration's thread."""
        if connection.project:
            self._run.project = connection.project
            self._active.is_local = False
            if self.workload.orchestrator is Orchestrator.CUSTOM and self.index == 0:
                self._add_instance()

    def _add_instance(self) -> None:
        """Add the id of this VM to the run before it is created, in the registration's thread."""
        status, instance_id = metadata_value("instance/id", timeout_seconds=_INSTANCE_SECONDS)
        metadata = instance_metadata()
        if status == 200 and instance_id.isdigit():
            details = with_instance(self.workload.details or {}, instance_id, metadata.zone if metadata else "")
            self._run.workload_details = details
            self.local.update_run(self.identity.run_id, lambda kept: {**kept, "workloadDetails": details})

    # --- The attempt's number, which process 0 publishes to the others------------------------------------

    def _attempt_is(self, number: int) -> None:
        """Publish the settled number, in the registration's thread of process 0."""
        self._lifecycle.attempt_is(number)
        publish(self._attempt_key, str(number))

    def _is_attempt_settled(self) -> bool:
        """Return True if no other process can correct the attempt's number."""
        if not self.workload.id_parts:
            return True  # The run's id was made at this start.
        return not self._registration.is_searching if self.index == 0 else jax_processes() is None

    def _agree_on_attempt(self) -> None:
        if self.index != 0:
            subscribe(self._attempt_key, lambda text: self._lifecycle.attempt_is(int(text)))
        elif not self._registration.is_searching:
            publish(self._attempt_key, str(self._run.attempt))

    @property
    def _attempt_key(self) -> str:
        return f"attempt/{self.identity.run_id}"

    # --- Around it ------------------------------------------------------------------------------------

    def _start_measuring(self) -> None:
        given = self.arguments
        if given.log_system_metrics:
            metrics = SystemMetrics(self._active, given.interval_seconds)
            metrics.start()
            self._lifecycle.at_end(metrics.stop)
        if given.on_demand_xprof:
            from google_cloud_mldiagnostics._profiling.on_demand import start_on_demand_xprof, stop_on_demand_xprof

            start_on_demand_xprof(given.on_demand_xprof_port)
            self._lifecycle.at_end(stop_on_demand_xprof)

    def _raise_what_failed(self, *, is_settled: bool) -> None:
        registration = self._registration
        if is_settled and registration.error is None:
            return
        self._lifecycle.finish("FAILED", "the control plane does not have the run, which is strict")
        raise registration.error or ControlPlaneError(
            f"the control plane did not take the run {self._run.name} within {_STRICT_SECONDS:g} s", is_temporary=True
        )

    def _log_link(self) -> None:
        """Log one INFO as soon as the run's link is known."""
        run = self._run
        logger.info(
            "The run %s%s: %s (or `mldiagnostics show %s`)",
            run.name,
            f", attempt {run.attempt}" if run.attempt > 1 else "",
            self._registration.link,
            run.name,
        )
        if details_logger.isEnabledFor(logging.DEBUG):
            details_logger.debug("current run details: %s", _details(run))


# --- Parts --------------------------------------------------------------------------------------------


def _identity(arguments: RunArguments, workload: Workload) -> RunIdentity:
    occasion = _occasions_of_this_process.get(arguments.name, 0) + 1
    _occasions_of_this_process[arguments.name] = occasion
    return identify(arguments.name, workload, occasion=occasion)


def _region_of_this_machine() -> str:
    metadata = instance_metadata()
    return (metadata.zone.rpartition("-")[0] if metadata else "") or DEFAULT_REGION


def _attempt_number(text: str) -> int:
    """Return the attempt's number from the scheduler's count of restarts."""
    return int(text) + 1 if text.isascii() and text.isdigit() and len(text) < 9 else 1


def _moment(text: object) -> datetime.datetime | None:
    try:
        return datetime.datetime.fromtimestamp(parse_timestamp(str(text)) / 1e9, datetime.timezone.utc)
    except (ValueError, OverflowError, OSError):
        return None


def _details(run: MLRun) -> dict[str, Any]:
    prefix = f"projects/{run.project}/locations/{run.location}/mlRuns/" if run.project else ""
    return {
        "name": prefix + run.name,
        "gcs_path": run.gcs_path,
        "display_name": run.display_name,
        "run_group": run.run_group,
        "attempt": run.attempt,
        "run_phase": run.run_phase.value,
        "orchestrator": run.orchestrator.value if run.orchestrator else None,
        "workload_details": run.workload_details,
        "on_demand_xprof": run.on_demand_xprof,
        "environment": run.environment,
        "configs": to_wire(run.configs),
    }


def _outcome_of(attempt: Mapping[str, Any], endings: ProcessEndings) -> tuple[str, str] | None:
    """Return the phase and the reason of an attempt, from the companions' records of its processes.

    Returns:
        COMPLETED if all of these ended well; None if nothing was recorded.
    """
    found = [
        entry
        for process in attempt.get("processes") or ()
        for entry in endings.after(str(process.get("hostname")), str(process.get("pid")), _started_ns(process))
    ]
    for entry in sorted(found, key=lambda entry: entry.timestamp_ns):
        if entry.payload.get("how") != "clean":
            return "FAILED", str(entry.payload.get("message") or entry.payload.get("how") or "")
    return ("COMPLETED", "") if found else None


def _started_ns(process: Mapping[str, Any]) -> int:
    try:
        return parse_timestamp(str(process.get("startTime")))
    except ValueError:
        return 0
