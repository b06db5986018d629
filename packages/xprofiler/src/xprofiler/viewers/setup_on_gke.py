"""The making of a viewer on GKE, until its link leads to XProf; or its undoing, at whatever stage."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Final

from ml_diagnostics_common.exceptions import DiagnosticsError

from xprofiler.console import Console
from xprofiler.exceptions import TimedOutError, UsageError
from xprofiler.log_directory import LogDirectory
from xprofiler.viewers.on_gke import Progress, ViewersOnGke
from xprofiler.viewers.viewer import Sought

__all__ = ["ViewerSetupOnGke"]

_LOOK_SECONDS: Final = 2.0


class ViewerSetupOnGke:
    """A `NewViewer`: deployments and services of a cluster.

    Args:
        viewers: Those of the cluster.
        name: Its name.
        zone: Where it is said to be.
        log_directory: What it is to show.
        console: Is told how far things are.
        timeout_seconds: How long XProf may take to answer, and the proxy to know it.
        clock: Monotonic seconds.
        sleep: Waits a number of seconds.

    Raises:
        UsageError: It cannot be called so.
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
        self.way_to_delete = f"xprofiler delete --gke -z {zone} -n {name}"
        self.may_exist = False
        self._viewers = viewers
        self._console = console
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._sleep = sleep
        self._creation_id = uuid.uuid4().hex
        self._objects = viewers.manifest(name, zone, log_directory, self._creation_id)

    def recipe(self) -> str:
        """See `NewViewer.recipe`: what kubectl is given."""
        import yaml

        return "# for: kubectl create --filename=-\n" + yaml.safe_dump_all(self._objects, sort_keys=False).rstrip("\n")

    def check(self) -> None:
        """See `NewViewer.check`.

        Raises:
            UsageError: The name is taken.
            XprofilerError: The cluster cannot be asked.
        """
        taken = self._viewers.taken(self.name, self._objects)
        if taken:
            raise UsageError(
                f"there is a viewer {self.name} on this cluster already, or what it would be made of "
                f"({', '.join(taken)}): give another name by --vm-name"
            )

    def make(self) -> str:
        """See `NewViewer.make`.

        Raises:
            TimedOutError: XProf does not answer, or the proxy does not know it.
            XprofilerError: kubectl could not create it.
        """
        self.may_exist = True
        self._viewers.create(self._objects)
        self._console.notify(f"{self.name} is there; XProf is being installed in it.")
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
                raise TimedOutError(self._too_late(progress))
            self._sleep(min(_LOOK_SECONDS, left))

    def _too_late(self, progress: Progress) -> str:
        why = f"No pod of {', '.join(progress.waits_for)} is ready" if progress.waits_for else "The proxy knows it not"
        return (
            f"Timed out to wait XProfiler start after {self._timeout_seconds:g} seconds. {why}. Look at the pods with "
            f"the label instance={self.name}, with --auto-delete-on-failure-off"
        )
