"""The creation of a viewer on GKE, until its link leads to XProf, and its cleanup at every stage."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Final

from ml_diagnostics_common.command.console import Console
from ml_diagnostics_common.command.errors import TimedOutError, UsageError
from ml_diagnostics_common.exceptions import DiagnosticsError

from xprofiler.log_directory import LogDirectory
from xprofiler.viewers.on_gke import Progress, ViewersOnGke
from xprofiler.viewers.viewer import Sought

__all__ = ["ViewerSetupOnGke"]

_POLL_SECONDS: Final = 2.0


class ViewerSetupOnGke:
    """A `NewViewer` for deployments and services on a cluster.

    Args:
        viewers: The viewers of the cluster.
        name: The viewer's name.
        zone: The zone in its label.
        log_directory: The log directory to show.
        console: Receives progress messages.
        timeout_seconds: The time XProf has to answer and to be registered with the proxy.
        clock: Return monotonic seconds.
        sleep: Wait for a number of seconds.

    Raises:
        UsageError: The name is not valid.
    """

    def __init__(
        self,
        viewers: ViewersOnGke,
        name: str,
        zone: str,
        log_directory: LogDirectory,
        console: Console,
        timeout_seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.noun = viewers.noun
        self.name = name
        self.zone = zone
        self.others = Sought(log_directories=[log_directory.path])
        self.delete_command = f"xprofiler delete --gke -z {zone} -n {name}"
        self.may_exist = False
        self._viewers = viewers
        self._console = console
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._sleep = sleep
        self._creation_id = uuid.uuid4().hex
        self._objects = viewers.manifest(name, zone, log_directory, self._creation_id)

    def recipe(self) -> str:
        """See `NewViewer.recipe`: the input of kubectl."""
        import yaml

        return "# for: kubectl create --filename=-\n" + yaml.safe_dump_all(self._objects, sort_keys=False).rstrip("\n")

    def check(self) -> None:
        """See `NewViewer.check`.

        Raises:
            UsageError: The name is in use.
            CommandError: The cluster does not answer.
        """
        taken = self._viewers.taken(self.name, self._objects)
        if taken:
            raise UsageError(
                f"a viewer {self.name} already exists on this cluster, or some of its objects do "
                f"({', '.join(taken)}): choose another name with --vm-name"
            )

    def make(self) -> str:
        """See `NewViewer.make`.

        Raises:
            TimedOutError: XProf does not answer, or is not registered with the proxy.
            CommandError: kubectl could not create it.
        """
        self.may_exist = True
        self._viewers.create(self._objects)
        self._console.notify(f"{self.name} exists; installing XProf in it.")
        return f"\nStarted on URL {self._wait()}"

    def remove(self) -> DiagnosticsError | None:
        """See `NewViewer.remove`."""
        try:
            self._viewers.delete_creation(self._creation_id)
        except DiagnosticsError as error:
            return error
        return None

    def _wait(self) -> str:
        deadline = self._clock() + self._timeout_seconds
        while True:
            progress = self._viewers.progress(self._creation_id)
            if progress.url and not progress.waits_for:
                return progress.url
            left = deadline - self._clock()
            if left <= 0:
                raise TimedOutError(self._timeout_message(progress))
            self._sleep(min(_POLL_SECONDS, left))

    def _timeout_message(self, progress: Progress) -> str:
        why = (
            f"No pod of {', '.join(progress.waits_for)} is ready"
            if progress.waits_for
            else "It is not registered with the proxy"
        )
        return (
            f"Timed out to wait XProfiler start after {self._timeout_seconds:g} seconds. {why}. Inspect the pods with "
            f"the label instance={self.name}, with --auto-delete-on-failure-off"
        )
