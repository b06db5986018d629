"""The creation of a viewer VM, from the first request until XProf answers, and its cleanup at every stage."""

from __future__ import annotations

import contextlib
import re
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ml_diagnostics_common.backoff import Backoff
from ml_diagnostics_common.command.console import Console
from ml_diagnostics_common.command.errors import (
    CommandError,
    NotFoundError,
    NotPermittedError,
    TimedOutError,
    UsageError,
)
from ml_diagnostics_common.exceptions import DiagnosticsError, ObjectNotFoundError
from ml_diagnostics_common.failures import Kind, classify
from ml_diagnostics_common.storage import Storage

from xprofiler.gcloud.processes import Programs
from xprofiler.viewers.instances import Instances
from xprofiler.viewers.plan import ViewerPlan
from xprofiler.viewers.status import StartupStatus, status_path
from xprofiler.viewers.viewer import BACKEND_LABEL, CREATION_LABEL, Sought, viewer_url

__all__ = ["SetupTimes", "ViewerSetup"]

_ENDING = ("STOPPING", "SUSPENDING", "SUSPENDED", "TERMINATED")
_POLLS_FOR_LATE_VM = 4
_SHOWN_LINES = 40
_CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class SetupTimes:
    """Timeouts and intervals, in seconds.

    Attributes:
        startup: The time XProf has to answer after the VM exists.
        first_poll: The delay before the status is first read.
        poll: The interval of further reads. It does not back off: an answer of XProf must be reported within two
            seconds, the VM runs anyway, and a read is one small GET.
        vm_poll: The interval of checks of the VM itself, which may have been stopped or deleted.
        removal: The time the VM has to be deleted.
    """

    startup: float = 300.0
    first_poll: float = 2.0
    poll: float = 1.5
    vm_poll: float = 10.0
    removal: float = 120.0


class ViewerSetup:
    """A `NewViewer` for a VM.

    Args:
        plan: The VM's configuration.
        instances: The VMs of the project.
        storage: Return the storage to which the VM writes its status.
        console: Receives progress messages.
        times: Timeouts and intervals.
        gcloud_argv: The command line that creates the same VM.
        by_gcloud: True to run that command line, for flags of gcloud; otherwise Compute's API is used.
        clock: Return monotonic seconds.
        sleep: Wait for a number of seconds.
    """

    noun = "VM"

    def __init__(
        self,
        plan: ViewerPlan,
        instances: Instances,
        storage: Callable[[], Storage],
        console: Console,
        times: SetupTimes,
        gcloud_argv: Sequence[str] = (),
        *,
        by_gcloud: bool = False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.name = plan.name
        self.zone = plan.zone
        self.others = Sought(zones=[plan.zone], log_directories=[plan.log_directory.path])
        self.delete_command = f"xprofiler delete -z {plan.zone} -n {plan.name}"
        self.may_exist = False
        self._plan = plan
        self._instances = instances
        self._storage = storage
        self._console = console
        self._times = times
        self._gcloud_argv = gcloud_argv
        self._by_gcloud = by_gcloud
        self._clock = clock
        self._sleep = sleep
        self._status_path = status_path(plan.log_directory, plan.name)
        self._old_generation = 0
        self._may_appear_late = True

    def recipe(self) -> str:
        """See `NewViewer.recipe`: gcloud's command line."""
        return shlex.join(self._gcloud_argv)

    def check(self) -> None:
        """See `NewViewer.check`.

        Raises:
            NotFoundError: The zone, machine type or bucket does not exist.
            NotPermittedError: The credentials lack a permission on Compute.
            StorageError: The credentials do not permit reading the bucket, or the storage does not answer.
            UsageError: A VM of that name exists.
        """
        plan = self._plan
        if not self._instances.zone_exists(plan.zone):
            raise NotFoundError(f"there is no zone {plan.zone}; see 'gcloud compute zones list'")
        if not self._instances.machine_type_exists(plan.zone, plan.machine_type):
            raise NotFoundError(self._without_machine_type())
        self._check_bucket()
        with contextlib.suppress(NotFoundError):
            self._instances.get(plan.zone, plan.name, "name")
            raise UsageError(f"a VM {plan.name} already exists in zone {plan.zone}: choose another name with --vm-name")

    def make(self) -> str:
        """See `NewViewer.make`. Afterwards, the VM's labels have its link.

        Raises:
            StorageError: The VM's status could not be read for a minute.
            CommandError: The VM was not created, or XProf does not answer.
        """
        self.may_exist = True
        try:
            self._create()
        except DiagnosticsError as error:
            self.may_exist = not _is_refusal(error)
            # Without a cause, the operation failed. With one, its answer may be lost, and the VM may appear later.
            self._may_appear_late = error.__cause__ is not None or isinstance(error, TimedOutError)
            raise
        self._may_appear_late = False
        self._console.notify(f"The VM {self.name} exists; installing XProf on it.")
        try:
            status = self._wait()
        except DiagnosticsError:
            self._show_log()  # The log is deleted with the VM.
            raise
        self._label(status)
        return self._instructions(status)

    def remove(self) -> DiagnosticsError | None:
        """See `NewViewer.remove`.

        A VM may appear after its creation was interrupted, so check for it repeatedly. A VM of the same name that has
        another creation id is not deleted.
        """
        deadline = self._clock() + self._times.removal
        backoff = Backoff(0.5, 5.0)
        polls = _POLLS_FOR_LATE_VM if self._may_appear_late else 1
        while True:
            try:
                if not self._is_ours():
                    self._console.notify(f"The existing VM {self.name} was not created by this command, and is kept.")
                    return None
                left = max(1.0, deadline - self._clock())
                self._instances.delete(self.zone, self.name, timeout_seconds=left)
                return None
            except NotFoundError:
                polls -= 1
                if not polls:
                    return None
            except NotPermittedError as error:
                return error
            except DiagnosticsError as error:  # The VM is not ready yet, or the network is down.
                if self._clock() >= deadline:
                    return error
                self._console.detail(f"  {error}")
            self._sleep(backoff.failed())

    def _is_ours(self) -> bool:
        labels = self._instances.get(self.zone, self.name, "labels").get("labels", {})
        return bool(labels.get(CREATION_LABEL) == self._plan.creation_id)

    def _create(self) -> None:
        if not self._by_gcloud:
            self._instances.insert(self.zone, self._plan.body())
            return
        with Programs(self._console) as programs:
            ended = programs.run([*self._gcloud_argv, "--quiet"])
        if ended.exit_code:
            raise CommandError(f"gcloud could not create the VM {self.name}: {ended.complaint}")

    # --- Checks ----------------------------------------------------------------------------------------

    def _check_bucket(self) -> None:
        where = self._plan.log_directory
        try:
            # Reading a missing object does not show whether its bucket exists; listing does.
            if self._storage().list_prefix(self._status_path):
                self._old_generation = self._storage().read_with_generation(self._status_path, first_bytes=1)[1]
        except ObjectNotFoundError as error:
            raise NotFoundError(
                f"Log directory {where} does not exist: the bucket {where.bucket} does not exist, or is hidden from you"
            ) from error

    def _without_machine_type(self) -> str:
        plan = self._plan
        try:
            zones = self._instances.zones_with(plan.machine_type)
        except DiagnosticsError:
            zones = []
        return (
            f"Please check the machine type w/ {plan.zone} and try again. You can investigate zones with the machine "
            f"type {plan.machine_type} available:\n"
            f'gcloud compute machine-types list --filter="name={plan.machine_type}" --format="value(zone)"\n'
            "The machine type and zone do not match.\n"
            f"Suggested zones with machine type {plan.machine_type}:\n{zones}"
        )

    # --- Until XProf answers ---------------------------------------------------------------------------

    def _wait(self) -> StartupStatus:
        start = vm_seen = self._clock()
        last, delay = StartupStatus("starting"), self._times.first_poll
        while True:
            self._sleep(min(delay, self._times.startup))
            delay = self._times.poll
            status = self._read() or last
            if (status.state, status.step) != (last.state, last.step):
                self._console.notify(f"  {self._clock() - start:3.0f} s: {status.step}")
                last = status
            if status.state == "ready":
                return status
            if status.state != "starting":
                raise CommandError(f"XProf failed to start on {self._plan.name}: {status.step}: {status.error}")
            now = self._clock()
            if now - vm_seen >= self._times.vm_poll:
                self._check_vm()
                vm_seen = now
            if now - start >= self._times.startup:
                raise TimedOutError(self._timeout_message(last))

    def _read(self) -> StartupStatus | None:
        """Return the VM's status; None if it has written none. Ignore the status of an earlier VM of the same name."""
        try:
            data, generation = self._storage().read_with_generation(self._status_path)
        except ObjectNotFoundError:
            return None
        return None if generation == self._old_generation else StartupStatus.parse(data)

    def _check_vm(self) -> None:
        name = self._plan.name
        try:
            state = self._instances.get(self._plan.zone, name, "status").get("status")
        except NotFoundError as error:
            raise CommandError(f"the VM {name} was deleted while XProf was being installed on it") from error
        if state in _ENDING:
            raise CommandError(f"the VM {name} was stopped while XProf was being installed on it ({state})")

    def _show_log(self) -> None:
        try:
            log = self._instances.serial_output(self.zone, self.name)
        except DiagnosticsError as error:
            self._console.detail(f"  {error}")
            return
        lines = [_CONTROLS.sub("", line).rstrip() for line in log.splitlines()[-_SHOWN_LINES:]]
        if lines:
            self._console.notify(f"The last lines of the serial port of {self.name}:")
            self._console.notify("".join(f"  {line}\n" for line in lines))

    def _timeout_message(self, last: StartupStatus) -> str:
        name, zone = self._plan.name, self._plan.zone
        if last.step:
            why = f"its last step was: {last.step}"
        else:
            why = (
                f"it has written no status to {self._plan.log_directory}: can its service account write there "
                "(roles/storage.objectUser), and can it reach the internet?"
            )
        return (
            f"XProf did not answer on {name} within {self._times.startup:g} s; {why}. To inspect the VM, keep it with "
            f"--auto-delete-on-failure-off: 'gcloud compute instances get-serial-port-output {name} --zone={zone}'"
        )

    def _label(self, status: StartupStatus) -> None:
        """Request the labels without waiting. Until they are set, `list` reads the VM's status instead."""
        try:
            self._instances.set_labels(self._plan.zone, self._plan.name, status.labels, timeout_seconds=0)
        except TimedOutError:
            pass
        except DiagnosticsError as error:
            self._console.notify(f"note: {error}")

    def _instructions(self, status: StartupStatus) -> str:
        url = viewer_url(status.labels.get(BACKEND_LABEL), self.zone)
        where = self._plan.log_directory
        if not url:
            why = status.error or "it is not registered with the proxy"
            self._console.notify(f"note: it has no link ({why}); the tunnel needs none")
        lines = [
            f"Instance for {where} has been created.",
            "You can access it via following,",
            f"1. xprofiler connect -z {self.zone} -l {shlex.quote(where.path)} -m ssh",
            *([f"2. [Experimental (supports smaller files, < 200mb)] {url}."] if url else []),
            f"Instance is hosted at {self.name} VM.",
        ]
        self._console.notify()
        return "\n".join(lines)


def _is_refusal(error: DiagnosticsError) -> bool:
    """Return whether the creation was rejected, so that a VM of that name is not ours."""
    failure = classify(error)
    return 400 <= failure.status < 500 and failure.kind is not Kind.TIMEOUT
