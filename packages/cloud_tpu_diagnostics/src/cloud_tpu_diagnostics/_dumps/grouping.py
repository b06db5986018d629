"""Equal stacks grouped: the threads of a process, and the processes of a job; and the activity that a stack shows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from cloud_tpu_diagnostics._dumps.parser import Frame, ThreadStack
from cloud_tpu_diagnostics._dumps.text import EXCEPTION_START

__all__ = [
    "Activity",
    "JobPicture",
    "ProcessDump",
    "ProcessGroup",
    "ThreadGroup",
    "activity_of",
    "comparable_frames",
    "describe",
    "group_processes",
    "group_threads",
    "is_compiler",
    "main_thread",
    "name_processes",
    "plural",
    "relevant_frame",
    "short_path",
    "where",
]

MAIN_THREAD: Final = "MainThread"
_COMPILER: Final = ("backend_compile", "compile_and_load", "compile_or_get_cached", "lower_and_compile")
"""The starts of the names of JAX's functions in which a program is compiled; versions differ in their ends."""
_PATIENCE_SECONDS: Final = 60.0
_NAMES_KEPT: Final = 3
_NAMES_SHOWN: Final = 5


class ThreadGroup(NamedTuple):
    """Threads with the same stack."""

    frames: tuple[Frame, ...]
    """Innermost first."""
    threads: int
    """The number of threads."""
    names: tuple[str, ...]
    """The names of the first few."""
    has_main: bool
    """True if the main thread is one of them."""


class ProcessDump(NamedTuple):
    """The newest dump of one process."""

    process: str
    """Its name in output: see `name_processes`."""
    host: str
    process_index: int | None
    pid: int
    step: int | None
    phase: str | None
    time_ns: int
    """When it was written, in nanoseconds since the epoch."""
    threads: tuple[ThreadStack, ...]
    headline: str = ""
    """`Fatal Python error: Segmentation fault`, if it crashed; or the line of an exception that left the block."""
    ended: str = ""
    """Its outcome, if it has ended."""
    interval_seconds: float | None = None
    """The interval of its dumps, if known."""
    has_ended_well: bool = False
    """True if it exited with 0, or left its block at the end."""

    @property
    def has_crashed(self) -> bool:
        """True if its newest dump is of a fault."""
        return self.headline.startswith("Fatal Python error")

    @property
    def exception(self) -> str:
        """`ValueError: batch 12 is empty`, if an exception left the block; else empty."""
        return self.headline.partition(": ")[2] if self.headline.startswith(EXCEPTION_START) else ""


class ProcessGroup(NamedTuple):
    """Processes with the same stack of their main threads."""

    frames: tuple[Frame, ...]
    """The frames of the main thread, innermost first; empty if unknown."""
    processes: tuple[ProcessDump, ...]

    @property
    def steps(self) -> tuple[int, ...]:
        """Their present steps, each once, ascending."""
        return tuple(sorted({dump.step for dump in self.processes if dump.step is not None}))


class JobPicture(NamedTuple):
    """All processes of a job."""

    groups: tuple[ProcessGroup, ...]
    """The processes that still write, the largest group first."""
    ended: tuple[ProcessDump, ...]
    """The processes that crashed or ended."""
    silent: tuple[tuple[ProcessDump, float], ...]
    """The processes with an overdue dump, and the seconds since their last one."""
    missing: tuple[int, ...]
    """The process indices below the highest without any dump."""

    @property
    def processes(self) -> int:
        """The number of processes."""
        return sum(len(group.processes) for group in self.groups) + self.not_in_groups

    @property
    def not_in_groups(self) -> int:
        """The number of processes that ended, are silent or missing."""
        return len(self.ended) + len(self.silent) + len(self.missing)


def group_threads(threads: Iterable[ThreadStack]) -> tuple[ThreadGroup, ...]:
    """Group threads by equal stack.

    Args:
        threads: The threads of one process, in the order of the dump.

    Returns:
        The main thread's group first, then the others by number of threads.
    """
    threads = tuple(threads)
    main = main_thread(threads)
    by_stack: dict[tuple[Frame, ...], list[ThreadStack]] = {}
    for thread in threads:
        by_stack.setdefault(thread.frames, []).append(thread)
    groups = [
        ThreadGroup(
            frames, len(same), tuple(thread.thread for thread in same[:_NAMES_KEPT]), any(one is main for one in same)
        )
        for frames, same in by_stack.items()
    ]
    return tuple(sorted(groups, key=lambda group: (not group.has_main, -group.threads)))


def main_thread(threads: Sequence[ThreadStack]) -> ThreadStack | None:
    """Return the main thread of one process; None if it is not among them.

    A dump has the main thread last, unless it was cut; then that follows it alone and without a name. The main thread
    was not started by the module `threading`.
    """
    for thread in reversed(threads):
        if thread.thread in ("", MAIN_THREAD):
            return thread
    return threads[-1] if threads and not _is_started_by_threading(threads[-1]) else None


def _is_started_by_threading(thread: ThreadStack) -> bool:
    return bool(thread.frames) and thread.frames[-1].function == "_bootstrap" and "threading" in thread.frames[-1].file


def name_processes(dumps: Iterable[ProcessDump]) -> list[ProcessDump]:
    """Name each process by its host, and also by its index or pid if the host has several."""
    dumps = list(dumps)
    of_host = Counter(dump.host for dump in dumps)
    of_index = Counter((dump.host, dump.process_index) for dump in dumps)
    named = []
    for dump in dumps:
        own = dump.pid if dump.process_index is None or of_index[dump.host, dump.process_index] > 1 else None
        detail = f":{own}" if own is not None else f"/{dump.process_index}"
        named.append(dump._replace(process=dump.host if of_host[dump.host] == 1 else dump.host + detail))
    return named


def group_processes(
    dumps: Iterable[ProcessDump], *, now_ns: int | None = None, silent_after_seconds: float | None = None
) -> JobPicture:
    """Group processes by equal stacks of their main threads.

    Args:
        dumps: The newest of each process.
        now_ns: Now, in nanoseconds since the epoch; None is the newest dump's time, for records of the past.
        silent_after_seconds: A process without a dump for this time is silent; None is 1.5 intervals of the process,
            of the slowest process if its own is unknown, or a minute if all are.
    """
    dumps = sorted(dumps, key=lambda dump: (dump.process_index is None, dump.process_index or 0, dump.process))
    usual_seconds = max((dump.interval_seconds or 0.0 for dump in dumps), default=0.0)
    newest_ns = max((dump.time_ns for dump in dumps), default=0) if now_ns is None else now_ns
    by_stack: dict[tuple[Frame, ...], list[ProcessDump]] = {}
    ended, silent = [], []
    for dump in dumps:
        quiet_seconds = (newest_ns - dump.time_ns) / 1e9
        if dump.ended or dump.has_crashed or dump.exception:
            ended.append(dump)
        elif quiet_seconds > (silent_after_seconds or _patience_seconds(dump.interval_seconds or usual_seconds)):
            silent.append((dump, quiet_seconds))
        else:
            main = main_thread(dump.threads)
            by_stack.setdefault(main.frames if main else (), []).append(dump)
    groups = [ProcessGroup(frames, tuple(same)) for frames, same in by_stack.items()]
    groups.sort(key=lambda group: -len(group.processes))
    return JobPicture(tuple(groups), tuple(ended), tuple(silent), _missing(dumps))


def _patience_seconds(interval_seconds: float) -> float:
    return max(10.0, 1.5 * interval_seconds) if interval_seconds else _PATIENCE_SECONDS


def _missing(dumps: Sequence[ProcessDump]) -> tuple[int, ...]:
    """Return the indices without a process, if every process has one of its own."""
    indices = {dump.process_index for dump in dumps if dump.process_index is not None}
    if len(indices) != len(dumps) or max(indices, default=0) >= 4 * len(dumps):
        return ()  # Only known in part, or not indices of the job, for example TPU_WORKER_ID of one slice.
    return tuple(sorted(set(range(max(indices, default=-1) + 1)) - indices))


def describe(picture: JobPicture) -> str:
    """Describe the picture in one sentence: the activity of most processes, and the exceptions.

    `126 of 128 wait in psum (train.py:88) at step 4210; host-17 is in __next__ (data.py:40); host-40 has sent nothing
    for 92 s`
    """
    parts = []
    for number, group in enumerate(picture.groups):
        many = len(group.processes)
        subject = _names(group.processes)
        if number == 0 and picture.processes > 1:
            subject = f"all {many}" if many == picture.processes else f"{many} of {picture.processes}"
        text = activity_of(group.frames).text if group.frames else "did not show their main thread"
        parts.append(f"{subject} {plural(text) if many > 1 else text}{_steps(group)}")
    ends: dict[str, list[ProcessDump]] = {}
    for dump in picture.ended:
        ends.setdefault(_end(dump), []).append(dump)
    parts += [_names(same) + end for end, same in ends.items()]
    parts += _silent_texts(picture.silent)
    if picture.missing:
        some = ", ".join(str(index) for index in picture.missing[:_NAMES_SHOWN])
        more = f" and {len(picture.missing) - _NAMES_SHOWN} more" if len(picture.missing) > _NAMES_SHOWN else ""
        parts.append(f"process {some}{more} has written nothing")
    return "; ".join(parts)


def _silent_texts(silent: Sequence[tuple[ProcessDump, float]]) -> list[str]:
    if len(silent) <= _NAMES_SHOWN:
        return [f"{dump.process} has sent nothing for {seconds:.0f} s" for dump, seconds in silent]
    seconds = [seconds for _, seconds in silent]
    return [f"{_names([dump for dump, _ in silent])} have sent nothing for {min(seconds):.0f} to {max(seconds):.0f} s"]


def _end(dump: ProcessDump) -> str:
    if dump.has_crashed:
        end = f" crashed: {dump.headline}"
    elif dump.exception:
        end = f" raised {dump.exception}"
    else:
        return f": {dump.ended}"
    current = next((thread for thread in dump.threads if thread.is_current and thread.frames), None)
    location = "" if current is None else f" in {where(relevant_frame(current.frames))}"
    return end + location + (f" at step {dump.step}" if dump.exception and dump.step is not None else "")


def _names(dumps: Sequence[ProcessDump]) -> str:
    some = ", ".join(dump.process for dump in dumps[:_NAMES_SHOWN])
    return some + (f" and {len(dumps) - _NAMES_SHOWN} more" if len(dumps) > _NAMES_SHOWN else "")


def _steps(group: ProcessGroup) -> str:
    counts = Counter(dump.step for dump in group.processes if dump.step is not None)
    if not counts:
        phases = {dump.phase for dump in group.processes}
        phase = next(iter(phases)) if len(phases) == 1 else None
        return f" in phase {phase}" if phase and phase != "step" else ""
    if len(counts) == 1:
        return f" at step {next(iter(counts))}"
    return f" at steps {min(counts)} to {max(counts)}"


# --- The activity of a thread ---------------------------------------------------------------------------


class Activity(NamedTuple):
    """The activity of a thread, as its stack shows it."""

    text: str
    """`idle worker pool`, `waits in psum (collectives.py:88)`, `is in parse (data.py:12)`."""
    frame: Frame | None
    """The frame that shows it."""
    is_idle: bool
    """True if it waits for work, so that its stack is not of interest."""


_IDLE: Final = (
    # File, function, and the activity of a thread if all its frames further in only wait.
    ("concurrent/futures/thread.py", "_worker", "idle worker pool"),
    ("concurrent/futures/process.py", "run", "process pool's manager"),
    ("concurrent/futures/process.py", "_process_worker", "idle process pool worker"),
    ("multiprocessing/pool.py", "worker", "idle worker pool"),
    ("multiprocessing/pool.py", "_handle_workers", "process pool's manager"),
    ("multiprocessing/pool.py", "_handle_tasks", "process pool's manager"),
    ("multiprocessing/pool.py", "_handle_results", "process pool's manager"),
    ("multiprocessing/queues.py", "_feed", "idle queue feeder"),
    ("multiprocessing/resource_sharer.py", "_serve", "idle resource sharer"),
    ("asyncio/base_events.py", "run_forever", "idle event loop"),
    ("asyncio/base_events.py", "_run_once", "idle event loop"),
    ("socketserver.py", "serve_forever", "idle server"),
    ("logging/handlers.py", "_monitor", "idle log listener"),
    ("threading.py", "run", "waits in native code"),
    ("tqdm/_monitor.py", "run", "progress bar's monitor"),
    ("tensorboard/summary/writer/event_file_writer.py", "run", "idle summary writer"),
)
_WAITING_FILES: Final = re.compile(
    r"(?:^|[/\\])(?:lib(?:64)?[/\\]python3\.\d+t?|Lib|python3\.\d+t?)[/\\]"
    r"(?:(?:threading|queue|socket|selectors|ssl|subprocess|_weakrefset|contextlib|signal"
    r"|concurrent[/\\]futures[/\\]_base|multiprocessing[/\\](?:connection|queues|synchronize|popen_\w+|process|pool)"
    r"|asyncio[/\\](?:runners|base_events|events|selector_events|locks|queues))\.py)$"
    r"|^<frozen |\.so(?:\.[\d.]+)?$"  # A native frame is less informative than its caller.
)
_LIBRARY: Final = re.compile(r"[/\\](?:site-packages|dist-packages|python3\.\d+t?)[/\\](?!site-packages|dist-packages)")
_LIBRARIES: Final = re.compile(r"[/\\](?:site-packages|dist-packages|python3\.\d+t?|Lib)[/\\]|^<")
_OURS: Final = re.compile(
    r"[/\\](?:site-packages|src)[/\\](?:cloud_tpu_diagnostics|ml_diagnostics_common|ml_goodput_measurement)[/\\]"
)
_WAITING_FUNCTIONS: Final = re.compile(
    r"(?:psum|pmean|pmax|all_?reduce|all_?gather|all_?to_?all|ppermute|broadcast|barrier|block_until_ready|wait\w*"
    r"|sync\w*|join|recv\w*|acquire|sleep|poll|select)$",
    re.IGNORECASE,
)


@lru_cache(maxsize=4096)
def activity_of(frames: tuple[Frame, ...]) -> Activity:
    """Return the activity of a thread.

    Args:
        frames: Innermost first.
    """
    if not frames:
        return Activity("has no Python frame", None, False)
    frame = relevant_frame(frames)
    idle = _idle_text(frames)
    if idle is None and _OURS.search(frame.file) and frames[-1].function != "<module>":
        idle = "the diagnostics' own"
    if idle is not None:
        return Activity(idle, frame, True)
    waits = (
        frame is not frames[0] or _WAITING_FUNCTIONS.match(frame.function.rpartition(".")[2].lstrip("_")) is not None
    )
    text = f"{'waits in' if waits else 'is in'} {where(frame)}"
    caller = _callers_frame(frames, frame)
    return Activity(text if caller is None else f"{text}, called from {where(caller)}", frame, False)


def relevant_frame(frames: Sequence[Frame]) -> Frame:
    """Return the innermost frame that is not a wait in the standard library; the innermost if all are."""
    return next((frame for frame in frames if not _WAITING_FILES.search(frame.file)), frames[0])


def is_compiler(function: str) -> bool:
    """Return True for the name of one of JAX's functions in which a program is compiled."""
    return function.rpartition(".")[2].lstrip("_").startswith(_COMPILER)


def comparable_frames(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """Return the frames that show what a thread does, in a form that is equal on all hosts and in all kinds of dumps.

    Those further in than `relevant_frame` are left out, since two threads in one wait may be at different lines of it;
    so are those of the import system and of this package. Paths are relative to their library, functions without class.

    Args:
        frames: Innermost first.
    """
    relevant = next((number for number, frame in enumerate(frames) if not _WAITING_FILES.search(frame.file)), 0)
    below = frames[relevant:]
    shown = [frame for frame in below if not (frame.file.startswith("<frozen ") or _OURS.search(frame.file))]
    return tuple(Frame(short_path(frame.file), frame.line, _bare(frame.function)) for frame in shown or frames)


def where(frame: Frame) -> str:
    """Return a frame as `psum (collectives.py:88)`."""
    line = f":{frame.line}" if frame.line else ""
    return f"{frame.function} ({short_path(frame.file)}{line})"


def short_path(file: str) -> str:
    """Return the path inside of its library, or the name of the file."""
    library = _LIBRARY.search(file)
    if library is not None:
        return file[library.end() :]
    return re.split(r"[/\\]", file)[-1] or file


def plural(text: str) -> str:
    """Return the text of an activity for several threads: `wait in psum (collectives.py:88)`."""
    verb, space, rest = text.partition(" ")
    return {"waits": "wait", "is": "are", "has": "have"}.get(verb, verb) + space + rest


def _bare(function: str) -> str:
    """Return a function without its class, which py-spy writes as well."""
    return function.rpartition(".")[2]


def _idle_text(frames: Sequence[Frame]) -> str | None:
    """Return the table's text for the innermost frame in it, if all frames further in only wait."""
    for frame in frames:
        path = frame.file.replace("\\", "/")
        name = _bare(frame.function)
        for file, function, text in _IDLE:
            if name == function and (path == file or path.endswith("/" + file)):
                return text
        if not _WAITING_FILES.search(frame.file):
            return None
    return None


def _callers_frame(frames: Sequence[Frame], frame: Frame) -> Frame | None:
    """Return the innermost frame of the user's own code, if `frame` is a library's."""
    if not _LIBRARIES.search(frame.file):
        return None
    return next((other for other in frames if not _LIBRARIES.search(other.file)), None)
