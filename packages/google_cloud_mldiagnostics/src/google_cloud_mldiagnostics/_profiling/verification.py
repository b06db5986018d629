"""Checks of profiles: of a file's contents, and that the files of all processes have arrived."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from ml_diagnostics_common.backoff import Backoff
from ml_diagnostics_common.exceptions import DiagnosticsError
from ml_diagnostics_common.guard import job_logger
from ml_diagnostics_common.storage import storage_for
from ml_diagnostics_common.xplane import Xplane

from google_cloud_mldiagnostics._profiling.locations import SUFFIX
from google_cloud_mldiagnostics._profiling.sessions import FAILED, SUCCEEDED, Session

__all__ = ["HostsCheck", "hosts_of", "problem_of"]


def problem_of(xplane: Xplane, *, has_accelerator: bool) -> str:
    """Return the problem of a profile; empty if there is none.

    Args:
        xplane: The profile.
        has_accelerator: Whether the process has a TPU or a GPU, which then must be in it.
    """
    if not xplane.size_bytes:
        return "its file is empty"
    if not xplane.is_whole:
        return "its file is cut off, or not a profile"
    if not xplane.planes:
        return "it has no events; profile something that takes longer"
    if has_accelerator and not xplane.device_planes:
        return "it shows no device: nothing ran on one meanwhile, or another profiler holds it"
    return ""


logger = job_logger("google_cloud_mldiagnostics.profiling")

_WAIT_SECONDS: Final = 120.0
_HURRIED_PAUSE_SECONDS: Final = 0.2


def hosts_of(folder: str) -> list[str]:
    """Return the hosts with a file in a session's folder that is not empty.

    Raises:
        StorageError: The folder cannot be read.
    """
    store = storage_for(folder)
    found = [path for path in store.list_prefix(f"{folder}/") if path.endswith(SUFFIX)]
    full = [path for path in found if store.read_with_generation(path, first_bytes=1)[0]]
    return sorted(path.rpartition("/")[2].removesuffix(SUFFIX) for path in full)


class HostsCheck:
    """Wait, in the thread of deliveries, until every host's file is in the session's folder, and report that.

    Args:
        session: The session, of the process that reports for all.
        wait_seconds: How long others may take after this process.
        monotonic: The clock.

    Attributes:
        is_over: True once it has reported.
    """

    def __init__(
        self,
        session: Session,
        wait_seconds: float = _WAIT_SECONDS,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_over = False
        self._session = session
        self._monotonic = monotonic
        self._deadline = monotonic() + (wait_seconds if session.expected_hosts > 1 else 0.0)
        self._is_hurried = False
        self._backoff = Backoff(1.0, 10.0)

    def hurry(self, wait_seconds: float) -> None:
        """Limit the wait, as the process ends; then the hosts that have arrived are reported."""
        self._is_hurried = True
        self._deadline = min(self._deadline, self._monotonic() + wait_seconds)

    def __call__(self) -> float | None:
        """Check once: a job of deliveries."""
        if self.is_over:
            return None
        hosts, problem = self._find_hosts()
        if len(hosts) < self._session.expected_hosts and self._monotonic() < self._deadline:
            return _HURRIED_PAUSE_SECONDS if self._is_hurried else self._backoff.failed()
        self.is_over = True
        self._report(hosts, problem)
        return None

    def _find_hosts(self) -> tuple[list[str], str]:
        try:
            return hosts_of(self._session.folder), ""
        except DiagnosticsError as error:
            return [], f": {error}"

    def _report(self, hosts: Sequence[str], problem: str) -> None:
        session = self._session
        if len(hosts) >= session.expected_hosts:
            if session.expected_hosts > 1:
                logger.info("Profile %s: all %d hosts are in %s.", session.session_id, len(hosts), session.folder)
        elif not self._is_hurried:  # Else they had less time than they may take.
            missing = f"{len(hosts)} of {session.expected_hosts} hosts are there{problem}"
            logger.warning(
                "Profile %s in %s: %s (%s). See in the logs of the others why; hosts that share no folder need "
                "gcs_path='gs://...'.",
                session.session_id,
                session.folder,
                missing,
                ", ".join(hosts) or "none",
            )
            session.record(SUCCEEDED if session.name in hosts else FAILED, missing)
        session.report(hosts or [session.name], SUCCEEDED)
