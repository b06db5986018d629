"""The making of a viewer VM, from the first request until XProf answers there; or its undoing, at whatever stage."""

from __future__ import annotations

import contextlib
import re
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ml_diagnostics_common.backoff import Backoff
from ml_diagnostics_common.exceptions import DiagnosticsError, ObjectNotFoundError
from ml_diagnostics_common.storage import Failure, Storage, failure_of

from xprofiler.console import Console
from xprofiler.exceptions import NotFoundError, NotPermittedError, TimedOutError, UsageError, XprofilerError
from xprofiler.programs.processes import Programs
from xprofiler.viewers.instances import Instances
from xprofiler.viewers.labels import BACKEND_LABEL, CREATION_LABEL, viewer_url
from xprofiler.viewers.plan import ViewerPlan
from xprofiler.viewers.startup.status import StartupStatus, status_path
from xprofiler.viewers.viewer import Sought

__all__ = ["SetupTimes", "ViewerSetup"]

_ENDING = ("STOPPING", "SUSPENDING", "SUSPENDED", "TERMINATED")
_LOOKS_FOR_A_LATE_VM = 4
_SHOWN_LINES = 40
_CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class SetupTimes:
    """How long to wait, in seconds.

    Attributes:
        startup: For XProf to answer, from when the VM is there.
        first_look: Before the first look at its status.
        look: Before each further one: so late it is learnt, at most, that XProf answers, which is to be known within
            two seconds. So these do not back off: the VM runs all the while, and a look is one small GET.
        vm_look: Between two looks at the VM itself, which may have been stopped or deleted.
        removal: For the VM to be gone.
    """

    startup: float = 300.0
    first_look: float = 2.0
    look: float = 1.5
    vm_look: float = 10.0
    removal: float = 120.0


class ViewerSetup:
    """A `NewViewer`: a VM.

    Args:
        plan: What it is to be.
        instances: The VMs of the project.
        storage: Returns where it tells how far it is.
        console: Is told how far things are.
        times: How long to wait.
        gcloud_argv: The program that creates the same VM.
        by_gcloud: Whether it does so, for flags that only gcloud knows; else Compute's API does.
        clock: Monotonic seconds.
        sleep: Waits a number of seconds.
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
        self.way_to_delete = f"xprofiler delete -z {plan.zone} -n {plan.name}"
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
        self._may_come_late = True

    def recipe(self) -> str:
        """See `NewViewer.recipe`: the command of gcloud."""
        return shlex.join(self._gcloud_argv)

    def check(self) -> None:
        """Proves that the VM can be made, as far as that can be known before.

        Raises:
            NotFoundError: There is no such zone, machine type or bucket.
            NotPermittedError: The credentials may not even look.
            UsageError: There is a VM of that name.
        """
        plan = self._plan
        if not self._instances.zone_exists(plan.zone):
            raise NotFoundError(f"there is no zone {plan.zone}; see 'gcloud compute zones list'")
        if not self._instances.machine_type_exists(plan.zone, plan.machine_type):
            raise NotFoundError(self._without_machine_type())
        self._check_bucket()
        with contextlib.suppress(NotFoundError):
            self._instances.get(plan.zone, plan.name, "name")
            raise UsageError(f"there is a VM {plan.name} in zone {plan.zone} already: give another name by --vm-name")

    def make(self) -> str:
        """See `NewViewer.make`; its link is in its labels then.

        Raises:
            StorageError: For a minute, nobody could be asked how far it is.
            XprofilerError: It was not made, or XProf does not answer.
        """
        self.may_exist = True
        try:
            self._create()
        except DiagnosticsError as error:
            self.may_exist = not _is_refusal(error)
            # What has no cause is how the operation ended, and so no lost answer.
            self._may_come_late = error.__cause__ is not None or isinstance(error, TimedOutError)
            raise
        self._may_come_late = False
        self._console.notify(f"The VM {self.name} is there; XProf is being installed on it.")
        try:
            status = self._wait()
        except DiagnosticsError:
            self._show_log()  # With the VM, it would be deleted.
            raise
        self._label(status)
        return self._ways_to_it(status)

    def remove(self) -> DiagnosticsError | None:
        """See `NewViewer.remove`.

        A VM whose creation was interrupted may appear only now, so it is looked for more than once. One that somebody
        else has made of that name is left alone.
        """
        deadline = self._clock() + self._times.removal
        backoff = Backoff(0.5, 5.0)
        looks = _LOOKS_FOR_A_LATE_VM if self._may_come_late else 1
        while True:
            try:
                if not self._is_ours():
                    self._console.notify(f"The VM {self.name} that there is was made by somebody else, and stays.")
                    return None
                left = max(1.0, deadline - self._clock())
                self._instances.delete(self.zone, self.name, timeout_seconds=left)
                return None
            except NotFoundError:
                looks -= 1
                if not looks:
                    return None
            except NotPermittedError as error:
                return error
            except DiagnosticsError as error:  # It is not ready yet, or the network is gone.
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
            raise XprofilerError(f"gcloud could not create the VM {self.name}: {ended.complaint}")

    # --- Before ----------------------------------------------------------------------------------------

    def _check_bucket(self) -> None:
        from ml_diagnostics_common.exceptions import StorageError

        where = self._plan.log_directory
        try:
            # Of an object that is not there, only a list tells whether its bucket is.
            if self._storage().list_prefix(self._status_path):
                self._old_generation = self._storage().read_with_generation(self._status_path, first_bytes=1)[1]
        except ObjectNotFoundError as error:
            raise NotFoundError(
                f"Log directory {where} does not exist: there is no bucket {where.bucket}, or you may not know of it"
            ) from error
        except StorageError as error:
            if failure_of(error) is Failure.REFUSED:
                raise NotPermittedError(str(error)) from error
            raise

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
        began = vm_seen = self._clock()
        told, look = StartupStatus("starting"), self._times.first_look
        while True:
            self._sleep(min(look, self._times.startup))
            look = self._times.look
            status = self._read() or told
            if (status.state, status.step) != (told.state, told.step):
                self._console.notify(f"  {self._clock() - began:3.0f} s: {status.step}")
                told = status
            if status.state == "ready":
                return status
            if status.state != "starting":
                raise XprofilerError(f"XProf does not run on {self._plan.name}: {status.step}: {status.error}")
            now = self._clock()
            if now - vm_seen >= self._times.vm_look:
                self._look_at_vm()
                vm_seen = now
            if now - began >= self._times.startup:
                raise TimedOutError(self._too_late(told))

    def _read(self) -> StartupStatus | None:
        """What the VM has told; None before it told anything. What a VM of that name told before is not it."""
        try:
            data, generation = self._storage().read_with_generation(self._status_path)
        except ObjectNotFoundError:
            return None
        return None if generation == self._old_generation else StartupStatus.parse(data)

    def _look_at_vm(self) -> None:
        name = self._plan.name
        try:
            state = self._instances.get(self._plan.zone, name, "status").get("status")
        except NotFoundError as error:
            raise XprofilerError(f"the VM {name} was deleted while XProf was being installed on it") from error
        if state in _ENDING:
            raise XprofilerError(f"the VM {name} was stopped while XProf was being installed on it ({state})")

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

    def _too_late(self, told: StartupStatus) -> str:
        name, zone = self._plan.name, self._plan.zone
        if told.step:
            why = f"it is still at this: {told.step}"
        else:
            why = (
                f"it has told nothing in {self._plan.log_directory}: may its service account write there "
                "(roles/storage.objectUser), and does it reach the internet?"
            )
        return (
            f"XProf did not answer on {name} within {self._times.startup:g} s; {why}. To look at the VM, keep it with "
            f"--auto-delete-on-failure-off: 'gcloud compute instances get-serial-port-output {name} --zone={zone}'"
        )

    def _label(self, status: StartupStatus) -> None:
        """Ask for the labels, and does not wait for them; who lists the VM without them reads its status."""
        try:
            self._instances.set_labels(self._plan.zone, self._plan.name, status.labels, timeout_seconds=0)
        except TimedOutError:
            pass
        except DiagnosticsError as error:
            self._console.notify(f"note: {error}")

    def _ways_to_it(self, status: StartupStatus) -> str:
        url = viewer_url(status.labels.get(BACKEND_LABEL), self.zone)
        where = self._plan.log_directory
        if not url:
            why = status.error or "the proxy does not know it"
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
    """Whether a VM was refused before anything was made of it: there may be another's of that name."""
    status = int(getattr(getattr(error.__cause__, "resp", None), "status", 0) or 0)
    return 400 <= status < 500 and status != 408
