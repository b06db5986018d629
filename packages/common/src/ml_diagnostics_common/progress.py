"""The progress of a process, in a page of memory that another process can read even while Python is stuck.

    <folder>/<pid>-<start>-<machine>    private (0600), mapped; removed when publishing stops

The name identifies the process: the page of a dead process is never mistaken for that of a live one with the same
pid. The page is a ring of slots; each publishing goes to the next, as one call in C that clears the slot, then
writes its sequence number first and once more last. A reader takes the newest slot with two equal numbers and without a
cleared field: whole states only, without a lock, whatever thread or signal handler published, and wherever a
writer was stopped. The ring holds the last seconds, so that a reader that reads now and then gets every state, at no
cost for the process.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
from collections.abc import Iterable, Iterator
from numbers import Integral
from pathlib import Path
from time import monotonic_ns, time
from typing import Final, NamedTuple

from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_common.process_hooks import at_fork
from ml_diagnostics_common.shared_maps import SharedMap

__all__ = [
    "PHASES",
    "Progress",
    "ProgressPage",
    "ProgressReader",
    "page_of",
    "progress_directory",
    "publish",
    "start_publishing",
    "stop_publishing",
]

PHASES: Final = ("init", "compile", "data", "step", "checkpoint", "eval", "other", "wait", "ended", "sync")
"""The phases of a process; `wait`: for something outside, such as slices, for as long as it takes; `sync`: for the
devices, at the end of a step."""

_CODES: Final = {phase: code for code, phase in enumerate(PHASES, start=1)}  # 0 is that of a slot being written.
_OTHER: Final = _CODES["other"]
_NO_STEP: Final = -(2**63)
_SLOT: Final = struct.Struct("=QqqQQ")  # sequence, time, step, phase, sequence
_SLOT_BYTES: Final = 64
_SLOTS: Final = 2048
_PAGE_BYTES: Final = _SLOTS * _SLOT_BYTES
_CHUNK: Final = 32
"""The slots that a reader reads at once: mostly, few are new."""
_LAST: Final = 16
"""The newest states that a reader reads in any case: some may be half written, or of the end."""
_IN_MEMORY: Final = Path("/dev/shm")
_READS: Final = 64
_RECENT_NS: Final = 60 * 10**9
_STRANGERS_AGE_SECONDS: Final = 30 * 86_400


class Progress(NamedTuple):
    """The last progress that a process published.

    Attributes:
        sequence: The number of its publication, from 1.
        monotonic_ns: The time of its publication, on the monotonic clock of the machine.
        phase: One of `PHASES`.
        step: The step's number; None if the process published none.
    """

    sequence: int
    monotonic_ns: int
    phase: str
    step: int | None


class ProgressPage:
    """The page of this process. Forked children drop it, and never write to it."""

    def __init__(self, path: Path, shared: SharedMap) -> None:
        """Use `create`."""
        self.path = path
        self._shared = shared
        self._mapped = shared.memory
        self._sequence = itertools.count(1)  # next() is atomic.

    @classmethod
    def create(cls, folder: Path | None = None) -> ProgressPage:
        """Create the page's file, and remove those of dead processes.

        Args:
            folder: It is made (0700) if it is not there; None for `progress_directory()`, or, where that is full, the
                folder with our other files.

        Raises:
            OSError: The file cannot be made, or would be on a network filesystem.
        """
        if folder is not None:
            return cls._create_in(folder)
        try:
            return cls._create_in(progress_directory())
        except OSError:
            return cls._create_in(_directory_on_disk())

    @classmethod
    def _create_in(cls, folder: Path) -> ProgressPage:
        if _may_wait_for_network(folder):
            raise OSError(
                f"{folder} is on a network filesystem, which may stall or end a process with a page mapped there"
            )
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _prune(folder)
        path = folder / _name_of(os.getpid(), _start_of(os.getpid()) or "0")
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        names = ("O_NOFOLLOW", "O_CLOEXEC")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | sum(getattr(os, name, 0) for name in names)
        descriptor = os.open(path, flags, 0o600)
        try:
            if os.write(descriptor, bytes(_PAGE_BYTES)) != _PAGE_BYTES:
                raise OSError(f"{path} cannot be written whole")
            shared = SharedMap(descriptor, _PAGE_BYTES)
        except BaseException:
            path.unlink()
            raise
        finally:
            os.close(descriptor)
        page = cls(path, shared)
        _pages_of_this_process.add(page)
        return page

    def publish(self, phase: str, step: int | None = None) -> None:
        """Publish the progress of this process; never raise or wait.

        Args:
            phase: One of `PHASES`; any other is `other`.
            step: The step's number; left out if it is not an integer of 64 bits.
        """
        sequence = next(self._sequence)
        if type(step) is not int:
            step = _plain(step)
        try:
            _pack_into(
                self._mapped,
                sequence % _SLOTS * _SLOT_BYTES,
                sequence,
                monotonic_ns(),
                step,
                _CODES.get(phase, _OTHER),
                sequence,
            )
        except struct.error:
            self.publish(phase)
        except Exception:
            pass  # A phase that cannot be looked up; or the page is closed.

    def close(self) -> None:
        """Publish the end, and remove the file; not in a forked child."""
        if self not in _pages_of_this_process:
            return
        self.publish("ended")
        _pages_of_this_process.discard(self)
        with contextlib.suppress(OSError):
            status = self.path.lstat()
            if (status.st_dev, status.st_ino) == self._shared.file:
                self.path.unlink()
        self._shared.release()


class ProgressReader:
    """Read the page of another process, or of this one; also after the file is removed."""

    def __init__(self, path: Path | str) -> None:
        """Open the page.

        Raises:
            OSError: There is no such page, or it is not for us to read.
        """
        names = ("O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK")
        self._descriptor = os.open(path, os.O_RDONLY | sum(getattr(os, name, 0) for name in names))
        self._newest = 0
        self._taken = 0

    def read(self, *, is_running: bool = False) -> Progress | None:
        """Return the last progress of the process; None if it has published none yet.

        Args:
            is_running: True returns the last progress before its end: of a phase other than `ended`.
        """
        states = self._since(max(0, self._newest - _LAST))
        self._newest = max((state.sequence for state in states), default=self._newest)
        return max((state for state in states if not (is_running and state.phase == "ended")), default=None)

    def read_new(self) -> tuple[list[Progress], int]:
        """Return the states since the last call in their order, and the number of those that were overwritten."""
        states = sorted(state for state in self._since(self._taken) if state.sequence > self._taken)
        newest = states[-1].sequence if states else self._taken
        lost = newest - self._taken - len(states)
        self._taken = newest
        return states, lost

    def close(self) -> None:
        """Close the page."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _since(self, sequence: int) -> list[Progress]:
        """Return the states from a sequence number on, and perhaps earlier ones, in any order."""
        found: list[Progress] = []
        position, left = sequence % _SLOTS, _SLOTS
        while left > 0:
            count = min(_CHUNK, left, _SLOTS - position)
            states = self._chunk(position, count)
            found += states
            if all(state.sequence <= sequence for state in states):
                break  # Later slots are older, except before the first publication.
            position, left = (position + count) % _SLOTS, left - count
        return found

    def _chunk(self, position: int, count: int) -> list[Progress]:
        page = self._slots_at(position, count)
        for _ in range(_READS):
            before, page = page, self._slots_at(position, count)
            # A slot that is being written may be read in parts, of which the first and the last are new.
            slots = zip(_slots(before), _slots(page), strict=True)
            states = _states(slot for earlier, slot in slots if earlier == slot)
            if states or not any(page):
                return states
        return _states(_slots(page))  # It publishes faster than this process reads.

    def _slots_at(self, position: int, count: int) -> bytes:
        return os.pread(self._descriptor, count * _SLOT_BYTES, position * _SLOT_BYTES)


def _states(slots: Iterable[tuple[int, int, int, int, int]]) -> list[Progress]:
    return [
        Progress(first, time_ns, PHASES[code - 1], None if step == _NO_STEP else step)
        for first, time_ns, step, code, last in slots
        if first == last != 0 and time_ns and 0 < code <= len(PHASES)
    ]


def _slots(page: bytes) -> Iterator[tuple[int, int, int, int, int]]:
    for offset in range(0, len(page) - _SLOT_BYTES + 1, _SLOT_BYTES):
        yield _SLOT.unpack_from(page, offset)


_pack_into = _SLOT.pack_into


def _plain(step: object) -> int:
    """Return a step as an int; that of an array is not read, since it may not have been computed yet."""
    try:
        return int(step) if isinstance(step, Integral) else _NO_STEP
    except Exception:
        return _NO_STEP


# --- The page of this process -------------------------------------------------------------------------

# State of the process: its current page, which callers read that cannot afford even a call; and all its pages, which a
# forked child must not write to.
page_of_this_process: ProgressPage | None = None
_pages_of_this_process: set[ProgressPage] = set()


def publish(phase: str, step: int | None = None) -> None:
    """Publish the progress of this process, if it has a page; never raise or wait.

    Args:
        phase: One of `PHASES`; any other is `other`.
        step: Its number.
    """
    page = page_of_this_process
    if page is not None:
        page.publish(phase, step)


def start_publishing(page: ProgressPage) -> None:
    """Have `publish` write to a page of this process."""
    global page_of_this_process
    page_of_this_process = page


def stop_publishing(page: ProgressPage) -> None:
    """Have `publish` no longer write to the page, and remove the page."""
    global page_of_this_process
    if page_of_this_process is page:
        page_of_this_process = None
    page.close()


def _drop_pages_in_child() -> None:
    global page_of_this_process
    page_of_this_process = None
    while _pages_of_this_process:
        _pages_of_this_process.pop()._shared.release()


at_fork(_drop_pages_in_child)

# --- Files --------------------------------------------------------------------------------------------


def progress_directory() -> Path:
    """Return the folder of pages: in memory if the system has a folder for that, else `state/progress`.

    A store to a mapped page of a file on a disk can wait for that disk, each time the system has written it out.
    """
    if hasattr(os, "getuid"):
        folder = _IN_MEMORY / f"ml-diagnostics-{os.getuid()}"
        with contextlib.suppress(OSError):
            if folder.parent.is_dir():
                folder.mkdir(mode=0o700, exist_ok=True)
                found = folder.lstat()
                if folder.is_dir() and not folder.is_symlink() and found.st_uid == os.getuid():
                    folder.chmod(0o700)
                    return folder
    return _directory_on_disk()


def _may_wait_for_network(folder: Path) -> bool:
    if folder.parent == _IN_MEMORY:
        return False
    from ml_diagnostics_common.files import is_network_filesystem

    return is_network_filesystem(folder)


def _directory_on_disk() -> Path:
    return diagnostics_directory() / "state" / "progress"


def page_of(pid: int, folder: Path | None = None, *, start: str | None = None) -> Path | None:
    """Return the page of a process of this machine; None if it has none, or has removed it.

    Args:
        pid: The process.
        folder: The folder of pages; None for those that processes use.
        start: The process's `start_mark`, for one that has ended; None for one that lives.
    """
    start = start or _start_of(pid)
    if start is None:
        return None
    name = _name_of(pid, start)
    folders = [progress_directory(), _directory_on_disk()] if folder is None else [folder]
    return next((path for path in (candidate / name for candidate in folders) if path.is_file()), None)


def _name_of(pid: int, start: str) -> str:
    return f"{pid}-{start}-{_machine()}"


def _machine() -> str:
    from ml_diagnostics_common.processes import pid_namespace

    return pid_namespace()


def _start_of(pid: int) -> str | None:
    """Return the start mark of a process; "0" if the system does not report it, None if the process is dead."""
    from ml_diagnostics_common.processes import exists, start_mark

    return start_mark(pid) or ("0" if not Path("/proc/self/stat").exists() and exists(pid) else None)


def _prune(folder: Path) -> None:
    """Remove the pages of dead processes, and pages of other machines and containers that are a month old.

    One that was written to in the last minute stays: the parent of a process that has just died may still read it.
    """
    machine = _machine()
    for path in folder.iterdir():
        pid, _, rest = path.name.partition("-")
        start, _, owner = rest.partition("-")
        if not (pid.isascii() and pid.isdigit() and owner):
            continue
        with contextlib.suppress(OSError):
            if owner == machine:
                is_stale = _start_of(int(pid)) != start and not _is_recent(path)
            else:
                is_stale = time() - path.lstat().st_mtime > _STRANGERS_AGE_SECONDS
            if is_stale:
                path.unlink()


def _is_recent(path: Path) -> bool:
    reader = ProgressReader(path)
    try:
        progress = reader.read()
    finally:
        reader.close()
    return progress is not None and 0 <= monotonic_ns() - progress.monotonic_ns < _RECENT_NS
