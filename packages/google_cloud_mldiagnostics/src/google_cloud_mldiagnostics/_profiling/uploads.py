"""Upload profiles in a thread, so that no other thread waits for a network."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

from ml_diagnostics_common.backoff import Backoff
from ml_diagnostics_common.exceptions import DiagnosticsError
from ml_diagnostics_common.guard import LOSSES, warn_once
from ml_diagnostics_common.process_hooks import at_fork
from ml_diagnostics_common.storage import storage_for
from ml_diagnostics_common.worker import Worker, wait_until

from google_cloud_mldiagnostics._profiling.locations import SUFFIX

__all__ = ["Deliveries", "Job", "Upload", "deliveries_of_this_process", "move", "stage", "start_afresh"]

_POLL_SECONDS = 0.005
_FIRST_PAUSE_SECONDS: Final = 5.0
_LONGEST_PAUSE_SECONDS: Final = 600.0
_REQUEST_DEADLINE_SECONDS: Final = 120.0
_MOST_WAITING: Final = 100

Job: TypeAlias = Callable[[], "float | None"]
"""Do some work; return the seconds until the next call, None when it is done."""


class Deliveries:
    """Run jobs in one thread, each when it is due. The thread ends when there is nothing to do.

    Attributes:
        first_pause_seconds: The longest wait after the first failure of an upload.
        is_ending: True while the process ends: a job that fails now is given up.
    """

    def __init__(self, *, first_pause_seconds: float = _FIRST_PAUSE_SECONDS) -> None:
        self.first_pause_seconds = first_pause_seconds
        self._worker = Worker("mldiagnostics-profiles", self._do_next, idle_seconds=0.0)
        self._jobs: list[tuple[float, int, bool, Job]] = []  # A heap, of the thread that works.
        self._awaited: dict[int, None] = {}
        self._numbers = itertools.count()
        self._deadline = math.inf
        self._given_up = 0
        self.is_ending = False

    def add(self, job: Job, *, is_awaited: bool, delay_seconds: float = 0.0) -> None:
        """Add a job.

        Args:
            job: The function to call.
            is_awaited: True if the end of the process waits for it, within a time.
            delay_seconds: The delay before the first call.
        """
        number = next(self._numbers)
        if is_awaited:
            self._awaited[number] = None
        entry = (time.monotonic() + delay_seconds, number, is_awaited, job)
        if not self._worker.put(lambda: heapq.heappush(self._jobs, entry)):
            heapq.heappush(self._jobs, entry)  # No thread can be started any more: `wait` runs the job.

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until every awaited job is done; return False if that takes longer, or one was given up."""
        deadline = time.monotonic() + timeout_seconds
        return self.wait_until_idle(lambda: deadline - time.monotonic()) and not self._given_up

    def wait_until_idle(self, seconds_left: Callable[[], float]) -> bool:
        """Wait until no job is awaited, for a time that may become shorter; return False if that was not enough."""
        if self._awaited and not self._worker.start():  # The interpreter exits, and starts no more threads.
            self._work_here(time.monotonic() + seconds_left())
        return wait_until(self.is_idle, seconds_left)

    def is_idle(self) -> bool:
        """Return True if no job is awaited."""
        return not self._awaited

    def end(self) -> None:
        """Run the awaited jobs now, before they are due, and no others, since the process ends."""
        self.is_ending = True
        if not self._worker.put(self._hasten):
            self._hasten()

    def give_up(self) -> None:
        """Count a job that is not tried again."""
        self._given_up += 1

    def seconds_left(self) -> float:
        """Return how long a job may take: without limit in the thread."""
        return max(1.0, self._deadline - time.monotonic())

    def _work_here(self, deadline: float) -> None:
        self._deadline = deadline
        try:
            while self._awaited and (left := deadline - time.monotonic()) > 0:
                self._worker.run_waiting()  # Jobs that were added just before the thread ended.
                pause_seconds = self._worker.attempt(self._do_next) or 0.0
                time.sleep(min(max(_POLL_SECONDS, pause_seconds), left))
        finally:
            self._deadline = math.inf

    def _hasten(self) -> None:
        now = time.monotonic()
        self._jobs = [(now if job[2] else job[0], *job[1:]) for job in self._jobs]
        heapq.heapify(self._jobs)

    def _do_next(self) -> float | None:
        """Do the job that is due, if there is one; return in how many seconds there is another."""
        if not self._jobs:
            return None
        pause_seconds = self._jobs[0][0] - time.monotonic()
        if pause_seconds > 0:
            return pause_seconds
        _, number, is_awaited, job = heapq.heappop(self._jobs)
        again_seconds = self._worker.attempt(job)
        if again_seconds is not None:
            heapq.heappush(self._jobs, (time.monotonic() + again_seconds, number, is_awaited, job))
        else:
            self._awaited.pop(number, None)
        return 0.0


# State of the process.
_deliveries = Deliveries()


def deliveries_of_this_process() -> Deliveries:
    """Return the deliveries of this process; a forked child has its own."""
    return _deliveries


def start_afresh() -> None:
    """Forget all jobs: they are the parent's."""
    global _deliveries
    _deliveries = Deliveries()


at_fork(start_afresh)


class Upload:
    """Upload a staged file, and retry while the destination cannot be reached; the file stays until then.

    Args:
        file: The staged file.
        target: The path of the upload.
        when_done: Called with the problem, or an empty text, once it is uploaded or cannot be.
    """

    def __init__(self, file: Path, target: str, when_done: Callable[[str], None]) -> None:
        self._file = file
        self._target = target
        self._when_done = when_done
        self._backoff = Backoff(deliveries_of_this_process().first_pause_seconds, _LONGEST_PAUSE_SECONDS)

    def __call__(self) -> float | None:
        """Try once."""
        try:
            data = self._file.read_bytes()
        except FileNotFoundError:  # `mldiagnostics sync` was faster.
            self._when_done("")
            return None
        deliveries = deliveries_of_this_process()
        try:
            deadline_seconds = min(_REQUEST_DEADLINE_SECONDS, deliveries.seconds_left())
            storage_for(self._target, deadline_seconds=deadline_seconds).write(self._target, data)
        except DiagnosticsError as error:
            LOSSES.add(f"profile upload: {type(error).__name__}")
            warn_once(
                ("profile upload", type(error)),
                "A profile could not be uploaded (%s). It waits in %s; the upload is repeated while this "
                "process lives, and `mldiagnostics sync` uploads it later.",
                error,
                self._file,
            )
            if deliveries.is_ending:
                deliveries.give_up()
                return None
            return self._backoff.failed(None)
        del data
        self._file.unlink(missing_ok=True)
        _remove_if_empty(self._file.parent)
        self._when_done("")
        return None


def move(source: Path, target: Path) -> None:
    """Move a file on this machine, so that a reader sees none of it or all.

    Raises:
        OSError: The file cannot be moved; the source still exists.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        source.replace(target)
    except OSError:  # Another disk, or a failure that copying shows.
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            shutil.copyfile(source, temporary)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
        source.unlink(missing_ok=True)


def stage(source: Path, target: Path, staging: Path, *, most_waiting: int = _MOST_WAITING) -> None:
    """Move a file to the staging folder; of more than `most_waiting` files there the oldest is dropped.

    Raises:
        OSError: The file cannot be moved.
    """
    move(source, target)
    for file in _waiting(staging)[:-most_waiting]:
        file.unlink(missing_ok=True)
        LOSSES.add("profile_dropped")
        warn_once(
            ("profile dropped", staging),
            "More than %d profiles wait in %s to be uploaded: the oldest are dropped. Further ones are counted, not "
            "logged.",
            most_waiting,
            staging,
        )


def _waiting(staging: Path) -> list[Path]:
    """Return the staged files, oldest first; a file that is being uploaded may be among them or not."""
    times: dict[Path, int] = {}
    for folder, _, names in os.walk(staging):  # Unlike rglob, it bears with folders that vanish.
        for file in (Path(folder, name) for name in names if name.endswith(SUFFIX)):
            with contextlib.suppress(FileNotFoundError):
                times[file] = file.stat().st_mtime_ns
    return sorted(times, key=times.__getitem__)


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        pass
