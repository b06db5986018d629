"""A run's life in this process: its start, a heartbeat, changes of its configs, and its end.

One thread writes all of it to the run's log and its folder, and never waits for a network. The caller that ends the run
may be a signal handler. It passes the end to the thread by a queue without a lock, and waits a bounded time.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from ml_diagnostics_common.entry import format_timestamp
from ml_diagnostics_common.environment import announce_run, expected_processes, planned_steps
from ml_diagnostics_common.file_systems import FileSystem, FileSystemProbes
from ml_diagnostics_common.guard import guarded_as, warn_once
from ml_diagnostics_common.program_end import ExitHooks, exit_deadline
from ml_diagnostics_common.raised_exception import RaisedException, failed_paths
from ml_diagnostics_common.worker import Task, Worker, start

from google_cloud_mldiagnostics import _entries as entries
from google_cloud_mldiagnostics._identity import warn_if_started_too_early
from google_cloud_mldiagnostics._profiling import end_profiles
from google_cloud_mldiagnostics._recording import device_values
from google_cloud_mldiagnostics._run.termination import Termination
from google_cloud_mldiagnostics._run_state import attempts
from google_cloud_mldiagnostics._run_state.active_run import ActiveRun, active_run, set_active_run
from google_cloud_mldiagnostics._run_state.unreported_runs import warn_folder_failed
from google_cloud_mldiagnostics._tensorboard import end_export, is_exported, wait_for_export
from google_cloud_mldiagnostics._user_configs import digest_of, to_wire
from google_cloud_mldiagnostics.exceptions import ControlPlaneError
from google_cloud_mldiagnostics.mlrun_types import RunPhase

if TYPE_CHECKING:
    from google_cloud_mldiagnostics._run_state.registration import Registration
    from google_cloud_mldiagnostics.control_plane import Change, Resource
    from google_cloud_mldiagnostics.control_plane.local import LocalControlPlane

__all__ = ["COLLECTED", "USUAL_PAUSES", "Lifecycle", "Pauses"]

COLLECTED: Final = ("softwareConfigs", "hardwareConfigs")
"""The sections of a run's configs that this library collects."""

_MOST_HARDWARE_SECONDS = 60.0
_DEBOUNCE_SECONDS = 1.0
_GRACE_SECONDS = 0.2
_FIRST_ENTRY_SECONDS = 1.0
_LAST_COLLECT_SECONDS = 1.0
_SYNC_SECONDS = 0.2
_DEVICES_SHARE = 0.5  # Of the seconds at the end, for values on devices that are also written to TensorBoard.
_PROFILES_SHARE = 0.6  # The share of the seconds at the end for a profile in progress.


@dataclass(frozen=True)
class Pauses:
    """The waits of a run's life.

    Attributes:
        heartbeat_seconds: The time between two heartbeats.
        hardware_seconds: The time between the first two collections of configs; it then grows to a minute.
        end_seconds: The limit of the wait for the network at the end of the run.
    """

    heartbeat_seconds: float = 60.0
    hardware_seconds: float = 5.0
    end_seconds: float = 5.0


USUAL_PAUSES: Final = Pauses()


class _End(NamedTuple):
    phase: str
    reason: str
    deadline: float
    awaits_profiles: bool
    raised: Sequence[RaisedException] = ()


class Lifecycle:
    """The entries of this process on its run, and the changes of the run's folder.

    Args:
        active: The run.
        member: This process, as the run's folder has it.
        local: The runs of this machine.
        registration: Reports the run to the control plane.
        collect: Returns the sections of configs that are known now, and True if that is all; called in a separate
            thread, since it may wait for the devices.
        pauses: The waits.
    """

    def __init__(
        self,
        active: ActiveRun,
        member: attempts.Member,
        local: LocalControlPlane,
        registration: Registration,
        *,
        collect: Callable[[], tuple[Mapping[str, Mapping[str, str]], bool]],
        pauses: Pauses = USUAL_PAUSES,
    ) -> None:
        self._active = active
        self._member = member
        self._local = local
        self._registration = registration
        self._collect = collect
        self._pauses = pauses
        self._pid = os.getpid()
        self._worker = Worker("mldiagnostics-run", self._do_what_is_due)
        self._hooks = ExitHooks(self._end_at_exit)
        self._termination = Termination(
            self._end_by_sigterm,
            self._record_signal,
            self._hooks.is_watching,
            {"run": active.run.name, "member": list(member), "root": str(active.folder.parents[1])},
        )
        self._is_ending = False
        self._has_ended = False
        self._profiles_until = math.inf
        self._on_end: list[Callable[[], object]] = []
        self._user_configs: dict[str, str] = {}
        self._config_digest = ""
        self._have_configs_changed = False
        # In monotonic seconds; None for never.
        self._first_entry_at: float | None = None
        self._configs_at: float | None = None
        self._collect_at: float | None = None
        self._collecting: Task | None = None
        self._is_collected = False
        self._collect_pause = pauses.hardware_seconds
        self._beat_at = 0.0

    def start(self, user_configs: Mapping[str, str], *, is_settled: bool) -> None:
        """Start the thread, and install the hooks for the end of the process.

        Args:
            user_configs: The configs that the run's folder has already.
            is_settled: True if the attempt's number is final; else the first entry waits a second for it.
        """
        self._user_configs = dict(user_configs)
        self._config_digest = digest_of(self._user_configs)
        now = time.monotonic()
        if is_settled:
            self._record_start()
        else:
            self._first_entry_at = now + _FIRST_ENTRY_SECONDS
        self._beat_at = now + self._pauses.heartbeat_seconds
        self._collect_at = now
        self._worker.start()
        self._hooks.install()
        self._termination.install()
        if not threading.main_thread().is_alive():
            warn_once(
                "started at exit",
                "A run was started while the interpreter is shutting down: its end is not seen. Call its finish().",
            )
        run = self._active.run
        run.ends_with(self.finish)
        run.is_shown_by(_page)
        run.configs.on_change(self._configs_changed)

    def complete(self) -> None:
        """Wait a bounded time for the helper that `start` has launched; it records a death by SIGTERM."""
        self._termination.complete()

    def at_end(self, stop: Callable[[], object]) -> None:
        """Call `stop` when the run ends, in the lifecycle's thread; it waits a bounded time."""
        self._on_end.append(stop)

    def attempt_is(self, number: int) -> None:
        """Set the number of this attempt; from any thread."""
        self._worker.put(lambda: self._set_attempt(number))

    @guarded_as("end the run")
    def finish(
        self, phase: str, reason: str, wait_seconds: float | None = None, raised: Sequence[RaisedException] = ()
    ) -> None:
        """End the run while the process continues: see `end`. Also wait for uploads of profiles.

        The process may end or be interrupted meanwhile: the hooks stay installed until all is recorded.
        """
        if os.getpid() != self._pid:
            return
        device_values.settle(may_compute=phase == "COMPLETED")
        now, end_seconds = time.monotonic(), self._pauses.end_seconds
        self._hand_over(_End(phase, reason, now + end_seconds, wait_seconds is None, raised))
        if active_run() is self._active:
            set_active_run(None)
        self._await_end(now + (2 * end_seconds + _GRACE_SECONDS if wait_seconds is None else wait_seconds))
        self._hooks.uninstall()
        self._termination.uninstall()

    @guarded_as("end the run")
    def end(self, phase: str, reason: str, seconds: float | None = None) -> None:
        """End the run with the process, and wait a bounded time until the end is recorded.

        Recording may continue after that time. A signal handler may call this, also while the interrupted thread
        executes it: it takes no lock that the interrupted code may hold, and its wait has a timeout. The first end
        counts.

        Args:
            phase: COMPLETED or FAILED.
            reason: The reason, for users.
            seconds: The longest to wait; None for the time that the end of a process may take.
        """
        if os.getpid() != self._pid:
            return
        now = time.monotonic()
        deadline = exit_deadline(self._pauses.end_seconds) if seconds is None else now + seconds
        seconds = deadline - now
        self._profiles_until = min(self._profiles_until, now + _PROFILES_SHARE * seconds)
        self._hand_over(_End(phase, reason, deadline, awaits_profiles=False))
        self._await_end(deadline + _GRACE_SECONDS)
        if not self._has_ended:
            name = self._active.run.name
            warn_once(
                ("end not recorded", name),
                "The process ends before all of the run %s was recorded, which may be shown as ACTIVE: the disk or the "
                "machine was too slow. `mldiagnostics sync %s` sends what is missing.",
                name,
                name,
            )

    def _end_at_exit(self, has_failed: bool, reason: str) -> None:
        self.end("FAILED" if has_failed else "COMPLETED", reason)

    def _end_by_sigterm(self, seconds: float | None) -> None:
        self.end("FAILED", self._hooks.failure or "SIGTERM", seconds)

    def _hand_over(self, end: _End) -> None:
        if not self._has_ended and not self._worker.put(lambda: self._do_end(end)) and not self._has_ended:
            self._do_end(end)  # No thread can be started any more.

    def _await_end(self, wait_until: float) -> None:
        if not self._has_ended:
            self._worker.wait(wait_until - time.monotonic())

    # --- The thread -----------------------------------------------------------------------------------

    def _seconds_until_due(self) -> float:
        moments = (self._first_entry_at, self._configs_at, self._collect_at, self._beat_at)
        return max(0.0, min(moment for moment in moments if moment is not None) - time.monotonic())

    def _do_what_is_due(self) -> float | None:
        now = time.monotonic()
        if self._first_entry_at is not None and self._first_entry_at <= now:
            self._worker.attempt(self._record_start)
        if self._collect_at is not None and self._collect_at <= now:
            self._collect_at = None
            self._collecting = start(self._collect_configs, "mldiagnostics-configs")
        if self._configs_at is not None and self._configs_at <= now:
            self._worker.attempt(self._send_user_configs)
        if self._beat_at <= now:
            self._beat_at = now + self._pauses.heartbeat_seconds
            self._worker.attempt(self._beat)
        return self._seconds_until_due()

    def _record_start(self) -> None:
        self._first_entry_at = None
        self._record_process("ACTIVE")
        if self._user_configs:
            self._active.log.write(entries.CONFIGS, {"userConfigs": self._user_configs})
        self._active.log.sync()

    def _record_process(
        self,
        phase: str,
        reason: str = "",
        raised: Sequence[RaisedException] = (),
        file_systems: Sequence[FileSystem] = (),
    ) -> None:
        active = self._active
        payload = entries.process_entry(
            phase,
            attempt=active.run.attempt,
            host=active.host,
            process_index=active.process_index,
            process_count=active.process_count,
            pid=active.pid,
            expected_processes=expected_processes(),
            planned_steps=planned_steps(),
            config_digest=self._config_digest,
            reason=reason,
            profiler_port=active.profiler_port,
            traceback=[exception.to_json() for exception in raised],
            file_systems=[file_system.to_json() for file_system in file_systems],
        )
        active.log.write(entries.PROCESS, payload, severity="ERROR" if phase == "FAILED" else None)

    def _record_signal(self, name: str) -> None:
        """Record a signal in its handler, with one write."""
        self._record_process("ACTIVE", f"{name} was received, and does not end this process by itself")

    def _set_attempt(self, number: int) -> None:
        run = self._active.run
        if number != run.attempt:
            run.attempt = number
            if active_run() is self._active:
                announce_run(run.name, run.display_name, number)
            self._change(attempts.renumber(self._member, number))
        if self._first_entry_at is not None:
            self._record_start()

    def _beat(self) -> None:
        self._record_process("ACTIVE")
        self._send_user_configs()  # A change inside a config calls no callback.
        self._change(self._with_averages)

    def _with_averages(self, kept: Resource) -> Resource:
        averages = self._active.log.averages.as_dict() if self._active.process_index == 0 else {}
        return {**kept, "metrics": averages} if averages else kept

    # --- Configs --------------------------------------------------------------------------------------

    def _configs_changed(self) -> None:
        """Schedule an entry, in the user's thread, at each change."""
        if not self._have_configs_changed and os.getpid() == self._pid:
            self._have_configs_changed = True
            self._worker.put(self._send_user_configs_soon)

    def _send_user_configs_soon(self) -> None:
        self._configs_at = time.monotonic() + _DEBOUNCE_SECONDS

    def _send_user_configs(self) -> None:
        self._configs_at = None
        self._have_configs_changed = False
        configs = dict(self._active.run.configs)
        wire = to_wire({name: value for name, value in configs.items() if name not in COLLECTED})
        if wire != self._user_configs:
            self._user_configs = wire
            self._config_digest = digest_of(wire)
            self._send_section("userConfigs", wire)

    def _collect_configs(self) -> None:
        """Collect configs, in a separate thread."""
        sections, is_all = self._collect()
        self._worker.put(lambda: self._take_collected(sections, is_all=is_all))

    def _take_collected(self, sections: Mapping[str, Mapping[str, str]], *, is_all: bool) -> None:
        self._is_collected = is_all
        self._collect_at = None if is_all else time.monotonic() + self._collect_pause
        self._collect_pause = min(2 * self._collect_pause, _MOST_HARDWARE_SECONDS)
        configs = self._active.run.configs
        for section, values in sections.items():
            if values and configs.get(section) != values:
                configs.set_quietly(section, dict(values))
                if self._active.process_index == 0:
                    self._send_section(section, dict(values))
                else:  # The run has those of process 0; a host with other versions is seen in the log.
                    self._active.log.write(entries.CONFIGS, {section: dict(values)})
        self._registration.configs_are_collected()
        warn_if_started_too_early(self._active.run.name, self._active.process_count)

    def _send_section(self, section: str, values: dict[str, str]) -> None:
        self._active.log.write(entries.CONFIGS, {section: values})
        labels = {"framework": values["framework"].lower()} if "framework" in values and section in COLLECTED else {}
        self._change(
            lambda kept: {
                **kept,
                "configs": {**(kept.get("configs") or {}), section: values},
                "labels": {**(kept.get("labels") or {}), **labels},
            }
        )
        self._registration.changed()

    # --- The end --------------------------------------------------------------------------------------

    def _do_end(self, end: _End) -> None:
        if self._is_ending:  # The first end counts.
            return
        self._is_ending = True
        try:
            if self._first_entry_at is not None:
                self._worker.attempt(self._record_start)
            self._worker.attempt(lambda: self._record_end(end))
            self._worker.attempt(self._send_user_configs)
            deadline, end_seconds = end.deadline, self._pauses.end_seconds
            if end.awaits_profiles:  # Their sessions are reported while the run is active.
                self._worker.attempt(lambda: self._end_profiles(end_seconds))
                deadline = time.monotonic() + end_seconds
            self._registration.end(end.phase, deadline)
            if not end.awaits_profiles:
                self._worker.attempt(lambda: self._end_profiles(_PROFILES_SHARE * end_seconds))
            self._worker.attempt(self._collect_at_the_end)
            for stop in self._on_end:
                self._worker.attempt(stop)
            if is_exported(self._active):
                self._worker.attempt(lambda: self._end_export(deadline))
            self._worker.attempt(lambda: self._active.log.close(max(0.0, deadline - time.monotonic())))
            self._worker.attempt(lambda: self._active.log.sync(_SYNC_SECONDS))
            self._worker.attempt(
                lambda: self._change(self._with_averages)
            )  # Includes values that were pending on devices.
            self._registration.wait(max(0.0, deadline - time.monotonic()))
            self._worker.attempt(lambda: wait_for_export(self._active, deadline))
        finally:
            self._has_ended = True
            self._worker.stop()

    def _end_export(self, deadline: float) -> None:
        """Start to write the last values to TensorBoard, which continues while they are sent to the cloud."""
        self._active.log.write_pending(_DEVICES_SHARE * max(0.0, deadline - time.monotonic()))
        end_export(self._active, deadline)

    def _collect_at_the_end(self) -> None:
        """Collect now if the run ends before anything was collected, or before its devices were known."""
        for _ in range(2):  # A collection that was started before may have been too early.
            if self._is_collected:
                return
            task = self._collecting or start(self._collect_configs, "mldiagnostics-configs")
            self._collecting = None
            if task is None:  # Python 3.12 starts no thread once the program has ended (gh-104690).
                self._collect_configs()
            elif not task.wait(_LAST_COLLECT_SECONDS):
                return
            self._worker.run_waiting()

    def _end_profiles(self, most_seconds: float) -> None:
        """End a profile in progress, and wait for uploads; for a shorter time if the process is about to end."""
        until = time.monotonic() + most_seconds
        end_profiles(self._active, lambda: min(until, self._profiles_until) - time.monotonic())

    def _record_end(self, end: _End) -> None:
        self._active.run.run_phase = RunPhase(end.phase)
        self._active.log.recheck_file()
        raised = end.raised or (self._hooks.raised if end.phase == "FAILED" else ())
        file_systems = (
            FileSystemProbes(failed_paths(end.raised)).answers() if end.raised else self._hooks.file_systems()
        )
        self._record_process(end.phase, end.reason, raised, file_systems if raised else ())
        now = format_timestamp(time.time_ns())
        ended = attempts.end(self._member, end.phase, end.reason, now=now)
        self._change(lambda kept: ended(self._with_averages(kept)))

    # --- Calls that may fail --------------------------------------------------------------------------------

    def _change(self, change: Change) -> None:
        """Change the run's folder; if that fails, the journal has the entries nevertheless."""
        try:
            self._local.update_run(self._active.run.name, change)
        except ControlPlaneError as error:
            warn_folder_failed(self._active.run.name, error)


def _page(run_id: str) -> str:
    from google_cloud_mldiagnostics.run_page import run_page  # Reads, and so loads much that a job does not need.

    return run_page(run_id)._repr_html_()
