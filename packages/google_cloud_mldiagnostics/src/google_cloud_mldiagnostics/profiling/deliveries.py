"""The thread that brings profiles to where they belong, and looks after them: nobody waits for a network but it."""

from __future__ import annotations

import heapq
import itertools
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from ml_diagnostics_common import background
from ml_diagnostics_common.backoff import Backoff
from ml_diagnostics_common.exceptions import DiagnosticsError
from ml_diagnostics_common.guard import LOSSES, warn_once
from ml_diagnostics_common.storage import storage_for

__all__ = ["Deliveries", "Job", "Upload", "deliveries_of_this_process", "move", "stage"]

Job: TypeAlias = Callable[[], "float | None"]
"""Does some work, and returns in how many seconds it shall be called again; None when it is done."""

_REQUEST_DEADLINE_SECONDS = 120.0
_FIRST_PAUSE_SECONDS = 5.0
_LONGEST_PAUSE_SECONDS = 600.0
_MOST_WAITING = 100


class Deliveries:
    """Runs jobs in one thread, each when it is due. The thread ends when there is nothing to do."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._lock = threading.Lock()  # Held for a few instructions, never while a job runs.
        self._changed = threading.Event()
        self._jobs: list[tuple[float, int, bool, Job]] = []
        self._awaited = 0
        self._all_delivered = threading.Event()
        self._all_delivered.set()
        self._is_running = False
        self._numbers = itertools.count()

    def add(self, job: Job, *, is_awaited: bool, delay_seconds: float = 0.0) -> None:
        """Adds a job.

        Args:
            job: What to do.
            is_awaited: Whether the end of the process waits for it, within a time.
            delay_seconds: How long not to do it yet.
        """
        with self._lock:
            if is_awaited:
                self._awaited += 1
                self._all_delivered.clear()
            self._push(job, is_awaited, delay_seconds)
            must_start, self._is_running = not self._is_running, True
        self._changed.set()
        if must_start and background.start(self._work) is None:
            with self._lock:
                self._is_running = False  # The interpreter ends. What is staged stays there.

    def wait(self, timeout_seconds: float) -> bool:
        """Waits until every awaited job is done; False if that takes longer, or no thread can be had to do them."""
        with self._lock:
            is_hopeless = self._awaited > 0 and not self._is_running
        return not is_hopeless and self._all_delivered.wait(max(0.0, timeout_seconds))

    def _push(self, job: Job, is_awaited: bool, delay_seconds: float) -> None:
        heapq.heappush(self._jobs, (time.monotonic() + delay_seconds, next(self._numbers), is_awaited, job))

    def _work(self) -> None:
        while True:
            self._changed.clear()
            with self._lock:
                if not self._jobs:
                    self._is_running = False
                    return
                pause = self._jobs[0][0] - time.monotonic()
                due = heapq.heappop(self._jobs) if pause <= 0 else None
            if due is None:
                self._changed.wait(pause)
            else:
                self._do(due[3], due[2])

    def _do(self, job: Job, is_awaited: bool) -> None:
        try:
            again = job()
        except Exception as error:  # Of a job that has no better answer to it.
            LOSSES.add(f"profile: {type(error).__name__}")
            warn_once(
                ("profile job", type(job), type(error)),
                "A profile could not be looked after (%s: %s). The job goes on; further losses of this kind are "
                "counted, not logged.",
                type(error).__name__,
                error,
            )
            again = None
        with self._lock:
            if again is not None:
                self._push(job, is_awaited, again)
            elif is_awaited:
                self._awaited -= 1
                if not self._awaited:
                    self._all_delivered.set()


_deliveries_of_this_process: Deliveries | None = None


def deliveries_of_this_process() -> Deliveries:
    """Returns the one of this process; a forked child has its own."""
    global _deliveries_of_this_process
    if _deliveries_of_this_process is None or _deliveries_of_this_process.pid != os.getpid():
        _deliveries_of_this_process = Deliveries()
    return _deliveries_of_this_process


class Upload:
    """Brings a staged file to its place, however long the place cannot be reached; the file stays until it is there.

    Args:
        file: The staged file.
        target: Where it goes.
        when_done: Called when it is there, or when trying is of no use: with what is wrong, or nothing.
    """

    def __init__(self, file: Path, target: str, when_done: Callable[[str], None]) -> None:
        self._file = file
        self._target = target
        self._when_done = when_done
        self._backoff = Backoff(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)

    def __call__(self) -> float | None:
        """Tries once."""
        try:
            data = self._file.read_bytes()
        except FileNotFoundError:  # `mldiagnostics sync` was faster.
            self._when_done("")
            return None
        try:
            storage_for(self._target, deadline_seconds=_REQUEST_DEADLINE_SECONDS).write(self._target, data)
        except DiagnosticsError as error:
            LOSSES.add(f"profile upload: {type(error).__name__}")
            warn_once(
                ("profile upload", type(error)),
                "A profile could not be uploaded (%s). It waits in %s; it is tried again while this process lives, and "
                "`mldiagnostics sync` uploads it later.",
                error,
                self._file,
            )
            return self._backoff.failed(None)
        del data
        self._file.unlink(missing_ok=True)
        _remove_if_empty(self._file.parent)
        self._when_done("")
        return None


def move(source: Path, target: Path) -> None:
    """Moves a file to its place on this machine; whoever looks sees none of it or all.

    Raises:
        OSError: It cannot be done; the source is still there.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        source.replace(target)
    except OSError:  # Another disk, or what really is wrong.
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            shutil.copyfile(source, temporary)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
        source.unlink(missing_ok=True)


def stage(source: Path, target: Path, staging: Path) -> None:
    """Moves a file to where it waits; of too many that wait the oldest is dropped.

    Raises:
        OSError: It cannot be done.
    """
    move(source, target)
    waiting = sorted(staging.rglob("*.xplane.pb"), key=lambda file: file.stat().st_mtime_ns)
    for file in waiting[:-_MOST_WAITING]:
        file.unlink(missing_ok=True)
        LOSSES.add("profile_dropped")
        warn_once(
            ("profile dropped", staging),
            "More than %d profiles wait in %s to be uploaded: the oldest are dropped. Further ones are counted, not "
            "logged.",
            _MOST_WAITING,
            staging,
        )


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        pass
