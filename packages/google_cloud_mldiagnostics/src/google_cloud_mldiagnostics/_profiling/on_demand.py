"""Profiles that another process requests while the job runs: the profiler's server in this process.

The server is the framework's own. It listens on all interfaces without authentication, which is how JAX and
PyTorch/XLA build it: keep its port inside the job's network.
"""

from __future__ import annotations

import datetime
import os
import re
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ml_diagnostics_common.agreement import jax_processes
from ml_diagnostics_common.guard import LOSSES, guarded_as, job_logger, warn_once
from ml_diagnostics_common.process_hooks import at_exit_from_now
from ml_diagnostics_common.xplane import read_xplane

from google_cloud_mldiagnostics import _entries as entries
from google_cloud_mldiagnostics._profiling.captures import captures_of_this_process
from google_cloud_mldiagnostics._profiling.engines import Engine, engine_for
from google_cloud_mldiagnostics._profiling.locations import (
    SUFFIX,
    Location,
    UploadMode,
    file_of,
    location_of,
    xplane_name,
)
from google_cloud_mldiagnostics._profiling.server_port import ServerPort
from google_cloud_mldiagnostics._profiling.sessions import FAILED, SUCCEEDED, HostsCheck, Session, problem_of
from google_cloud_mldiagnostics._profiling.uploads import Upload, deliveries_of_this_process
from google_cloud_mldiagnostics._run_state.active_run import ActiveRun, active_run
from google_cloud_mldiagnostics.exceptions import ProfilingError
from google_cloud_mldiagnostics.mlrun_types import Framework

__all__ = ["DEFAULT_PORT", "address_of_this_host", "start_on_demand_xprof", "stop_on_demand_xprof"]

logger = job_logger("google_cloud_mldiagnostics.profiling")

DEFAULT_PORT: Final = 9999
_READY_SECONDS: Final = 0.2
_POLL_SECONDS: Final = 2.0
_POD_SUFFIX: Final = "-[a-z0-9]{5}"
"""The pods of a Job have their host's name, and these characters. Source:
https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode
"""


def start_on_demand_xprof(port: int = DEFAULT_PORT) -> None:
    """Let other processes profile this one until the end of the run.

    Returns at once: a thread starts the server as soon as the job has initialised its devices, and does not initialise
    them itself. If another process has the port, a free port is used, logged as a WARNING and recorded in the run.

    Args:
        port: The port of the server; 0 selects a free one.

    Raises:
        ProfilingError: The port is not valid.
    """
    if not (isinstance(port, int) and 0 <= port < 65536):
        raise ProfilingError(f"expected a port from 0 to 65535, got {port!r}")
    _start(port)


@guarded_as("start the server for profiles on demand")
def _start(port: int, *, poll_seconds: float = _POLL_SECONDS) -> None:
    global _server_of_this_process
    if _server_of_this_process is not None and _server_of_this_process.pid == os.getpid():
        logger.warning("The server for profiles on demand runs already; nothing is done.")
        return
    _server_of_this_process = _Server(active_run(), port, poll_seconds)
    at_exit_from_now(stop_on_demand_xprof)
    deliveries_of_this_process().add(_server_of_this_process.start_when_ready, is_awaited=False)


@guarded_as("stop the server for profiles on demand")
def stop_on_demand_xprof() -> None:
    """End the server, if there is one."""
    global _server_of_this_process
    server, _server_of_this_process = _server_of_this_process, None
    if server is not None and server.pid == os.getpid():
        server.stop()


class _Server:
    """The server of this process, and its registration with the run."""

    def __init__(self, active: ActiveRun | None, port: int, poll_seconds: float) -> None:
        self.pid = os.getpid()
        self._active = active
        self._port = port
        self._reserved: ServerPort | None = None
        self._poll_seconds = poll_seconds
        self._engine: Engine = engine_for(active.run.framework if active else Framework.JAX)
        self._is_serving = False
        self._is_stopped = False
        self._lock = threading.Lock()  # A stop while it starts waits for that: milliseconds.

    def start_when_ready(self) -> float | None:
        """Start the server if that is possible now: a job of `uploads.Deliveries`."""
        with self._lock:
            if self._is_stopped:
                return None
            # The program may import its framework after machinelearning_run, and torch_xla instead of JAX.
            self._engine = engine_for(self._active.run.framework if self._active else Framework.JAX)
            if not self._engine.can_serve():
                return _READY_SECONDS
            if not self._start():
                return None
            self._is_serving = True
        if self._active is not None:
            self._register(self._active)
        return None

    def _start(self) -> bool:
        wanted = self._port
        try:
            self._reserved = ServerPort(wanted)
            self._port = self._reserved.number
            self._engine.start_server(self._port)
        except Exception as error:
            self._release()
            LOSSES.add(f"on-demand server: {type(error).__name__}")
            warn_once(
                "on-demand server",
                "The server for profiles on demand could not be started on port %d (%s: %s); the job continues.",
                wanted,
                type(error).__name__,
                error,
            )
            return False
        if wanted and self._port != wanted:
            logger.warning(
                "Port %d is taken by another process: profiles on demand are at port %d.", wanted, self._port
            )
        logger.debug("Profiles on demand: port %d.", self._port)
        return True

    def _register(self, active: ActiveRun) -> None:
        """Record the address for profiles of this process, and start to poll for profiles taken by others."""
        location: Location | None
        try:
            location = location_of(active)
        except ProfilingError:
            location = None  # The server works; the caller must name a folder.
        index, count = jax_processes() or (active.process_index, active.process_count)
        name = xplane_name(active, index, count)
        if location is not None:
            watch = CaptureWatch(active, location, name, index, lambda: self._is_stopped, self._poll_seconds)
            deliveries_of_this_process().add(watch, is_awaited=False, delay_seconds=self._poll_seconds)
        active.profiler_port = self._port
        payload = entries.process_entry(
            "ACTIVE",
            attempt=active.run.attempt,
            host=active.host,
            process_index=index,
            process_count=count,
            pid=self.pid,
            address=address_of_this_host(),
            profiler_port=self._port,
            capture_folder="" if location is None else str(location.captures),
            capture_name=name,
        )
        active.log.write(entries.PROCESS, payload)

    def stop(self) -> None:
        """End it; the folder is polled once more for profiles of the last seconds."""
        with self._lock:
            self._is_stopped = True
            if self._is_serving:
                self._is_serving = False
                self._engine.stop_server()
                self._release()
        if self._active is not None:
            self._active.profiler_port = None

    def _release(self) -> None:
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None


@dataclass
class CaptureWatch:
    """Poll for profiles that others took of this process; report and upload them.

    Attributes:
        active: The run.
        location: The destination of its profiles.
        name: The name of this process's file.
        process_index: The index of this process.
        is_stopped: Returns True before the last poll.
        poll_seconds: The time between two polls.
    """

    active: ActiveRun
    location: Location
    name: str
    process_index: int
    is_stopped: Callable[[], bool]
    poll_seconds: float = _POLL_SECONDS
    _known: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._known.update(session.name for session in self._unknown_sessions())

    def __call__(self) -> float | None:
        """Check the folder once: a job of `uploads.Deliveries`."""
        was_stopped = self.is_stopped()
        for session in self._unknown_sessions():
            self._inspect(session)
        return None if was_stopped else self.poll_seconds

    def _unknown_sessions(self) -> list[Path]:
        folder = self.location.captures
        try:
            with os.scandir(folder) as entries_there:
                unknown = [entry.name for entry in entries_there if entry.name not in self._known and entry.is_dir()]
        except OSError:  # There was no profile yet.
            return []
        return [folder / name for name in sorted(unknown)]

    def _own_file(self, folder: Path) -> Path:
        """Return the file of this process: by its name, or by that of its pod, with the end that a Job adds to it."""
        own = folder / file_of(self.name)
        if own.exists():
            return own
        of_pod = re.compile(re.escape(self.name) + _POD_SUFFIX + re.escape(SUFFIX))
        return next((file for file in sorted(folder.glob(file_of("*"))) if of_pod.fullmatch(file.name)), own)

    def _inspect(self, folder: Path) -> None:
        file = self._own_file(folder)
        try:
            written = datetime.datetime.fromtimestamp(file.stat().st_mtime, datetime.timezone.utc)
            xplane = read_xplane(file)
        except OSError:  # Not there: another process's profile, or not written yet.
            return
        if not xplane.is_whole:
            return  # It is being written.
        self._known.add(folder.name)
        if captures_of_this_process().has_taken(self.location.session(folder.name)):
            return  # The program's own.
        is_moved = self.location.mode is UploadMode.MOVED
        session = Session(
            active=self.active,
            session_id=folder.name,
            kind="on_demand",
            folder=self.location.session(folder.name) if self.location.mode is not UploadMode.STAGED else str(folder),
            name=file.name.removesuffix(SUFFIX),
            process_index=self.process_index,
            expected_hosts=1,  # Only the caller knows how many; each host adds itself.
            speaks=True,
            started=written,
            size_bytes=xplane.size_bytes,
            planes=xplane.planes,
        )
        problem = problem_of(xplane, has_accelerator=False)

        def done(_: str = "") -> None:
            session.record(FAILED if problem else SUCCEEDED, problem)
            logger.info("Profile %s was taken on demand: it is in %s.", session.session_id, session.folder)
            deliveries_of_this_process().add(HostsCheck(session), is_awaited=False)

        if is_moved or self.location.mode is UploadMode.STAGED:
            done()
        else:
            upload = Upload(file, f"{session.folder}/{file.name}", done)
            deliveries_of_this_process().add(upload, is_awaited=True)


def address_of_this_host() -> str:
    """Return the address under which other hosts reach this one; asks the routing table, and sends nothing."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))  # An address for documentation: no datagram is sent.
            return str(probe.getsockname()[0])
    except OSError:
        return "localhost"


_server_of_this_process: _Server | None = None
