"""What a thread does, told by its stack, in a few words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from cloud_tpu_diagnostics.traces import Frame

__all__ = ["Activity", "activity_of", "plural", "short_path", "telling_frame", "where"]


class Activity(NamedTuple):
    """What a thread does."""

    text: str
    """`idle worker pool`, `waits in psum (collectives.py:88)`, `is in parse (data.py:12)`."""
    frame: Frame | None
    """The frame that tells it."""
    is_idle: bool
    """Nobody need look at it: it waits for work."""


_IDLE: Final = (
    # File, function, and what a thread does whose first frames that tell anything end there.
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
    r"|^<frozen |\.so(?:\.[\d.]+)?$"  # Native frames tell less than who called them.
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
    """Tells what a thread does.

    Args:
        frames: Innermost first.
    """
    if not frames:
        return Activity("has no Python frame", None, False)
    frame = telling_frame(frames)
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


def telling_frame(frames: Sequence[Frame]) -> Frame:
    """The innermost frame that is not one of the standard library's ways to wait; the innermost if all are."""
    return next((frame for frame in frames if not _WAITING_FILES.search(frame.file)), frames[0])


def where(frame: Frame) -> str:
    """`psum (collectives.py:88)`."""
    line = f":{frame.line}" if frame.line else ""
    return f"{frame.function} ({short_path(frame.file)}{line})"


def short_path(file: str) -> str:
    """The path inside of its library, or the name of the file."""
    library = _LIBRARY.search(file)
    if library is not None:
        return file[library.end() :]
    return re.split(r"[/\\]", file)[-1] or file


def plural(text: str) -> str:
    """An activity's text of several: `wait in psum (collectives.py:88)`."""
    verb, space, rest = text.partition(" ")
    return {"waits": "wait", "is": "are", "has": "have"}.get(verb, verb) + space + rest


def _bare(function: str) -> str:
    """Without its class, which py-spy writes as well."""
    return function.rpartition(".")[2]


def _idle_text(frames: Sequence[Frame]) -> str | None:
    """What the table says of the innermost frame that it has, if all frames further in only wait."""
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
    """The innermost frame of the user's own code, if `frame` is a library's."""
    if not _LIBRARIES.search(frame.file):
        return None
    return next((other for other in frames if not _LIBRARIES.search(other.file)), None)
