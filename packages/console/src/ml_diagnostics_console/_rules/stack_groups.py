"""Processes grouped by equal stacks of their main threads, and what single frames show. Pure.

In JAX a collective has no name in a Python stack: the wait is in C++, and the innermost frame is a line of the program.
So the processes that wait for the others are the largest group of equal stacks, never those in functions of some names:
by names a prototype found the culprit in none of three jobs, by the largest group in all three. Frames with names are
used for what has one: compilation, initialisation, and input.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from cloud_tpu_diagnostics.reading import Frame, comparable_frames, is_compiler

from ml_diagnostics_console._facts.facts import MainStack, ProcessFacts

__all__ = [
    "DATA",
    "SYNC",
    "Answer",
    "StackGroup",
    "frame_text",
    "group_stacks",
    "is_compiling",
    "is_in_shutdown",
    "is_initialising",
    "is_reading_input",
    "waiting_group",
]

SYNC: Final = "sync"
"""The phase in which a loop waits for the devices, as it marks itself."""
DATA: Final = "data"

_INNERMOST: Final = 6
"""The frames in which a function of input shows what a thread does; further out, it may be the whole program."""
_INPUT: Final = re.compile(
    r"_*(?:next|get_next|try_get_data|read|recv|open|fetch|load_(?:batch|data|shard|example|record|image))(?:_\w+)?$"
    r"|_*(?:get|make|produce)_(?:batch|example|record|data)(?:_\w+)?$|readinto$|readline$|recvfrom$"
)
_INPUT_FILES: Final = re.compile(
    r"^(?:grain|tensorflow_datasets|datasets|webdataset|array_record|torch/utils/data|tf_data|seqio|petastorm|fsspec|"
    r"gcsfs|google/cloud/storage)/"
)
_NOT_INPUT: Final = re.compile(r"distributed|^jaxlib/|^jax/|multihost|collective", re.IGNORECASE)
_INITIALISING: Final = (
    ("initialize", re.compile(r"(?:^|/)distributed\.py$")),
    ("init_process_group", re.compile(r"distributed_c10d\.py$")),
    ("rendezvous", re.compile(r"")),
    ("_init_backend", re.compile(r"xla_bridge\.py$")),
    ("make_tpu_client", re.compile(r"")),
    ("make_c_api_client", re.compile(r"")),
    ("make_gpu_client", re.compile(r"")),
)
_SHUTDOWN: Final = (
    ("shutdown", re.compile(r"(?:^|/)distributed\.py$")),
    ("clean_up", re.compile(r"(?:^jax/_src/|/)(?:distributed|api|xla_bridge)\.py$")),
    ("destroy_process_group", re.compile(r"distributed_c10d\.py$")),
)


class Answer(NamedTuple):
    """A process with the stack that it had while the job was stuck."""

    process: ProcessFacts
    stack: MainStack


class StackGroup(NamedTuple):
    """Processes with equal stacks."""

    frames: tuple[Frame, ...]
    """The frames that are compared, innermost first; empty if the stacks have none."""
    answers: tuple[Answer, ...]

    @property
    def processes(self) -> tuple[ProcessFacts, ...]:
        """Its processes."""
        return tuple(answer.process for answer in self.answers)

    @property
    def steps(self) -> frozenset[int]:
        """The steps that they were in, as far as they are known."""
        steps = (answer.process.step if answer.stack.step is None else answer.stack.step for answer in self.answers)
        return frozenset(step for step in steps if step is not None)

    @property
    def is_marked(self) -> bool:
        """True if all of them had marked that they wait for the devices."""
        return all(answer.stack.phase == SYNC for answer in self.answers)

    @property
    def text(self) -> str:
        """The innermost frame that is compared: `train_step (train.py:88)`."""
        return _shown(self.frames[0]) if self.frames else "an unknown frame"


def group_stacks(answers: Iterable[Answer]) -> tuple[StackGroup, ...]:
    """Group processes by equal stacks, the largest group first; groups of one size in the order of their processes.

    Where only the innermost frame of a process is known, only that is compared.
    """
    answers = tuple(answers)
    depth = 1 if any(len(answer.stack.frames) == 1 for answer in answers) else None
    groups: dict[tuple[Frame, ...], list[Answer]] = {}
    for answer in answers:
        groups.setdefault(_compared(answer.stack.frames)[:depth], []).append(answer)
    found = [StackGroup(frames, tuple(same)) for frames, same in groups.items()]
    return tuple(sorted(found, key=lambda group: -len(group.answers)))


def waiting_group(groups: Sequence[StackGroup]) -> StackGroup | None:
    """Return the group that waits for the others; None if that cannot be decided.

    That is the largest group, if it is of two processes at least. Otherwise, as in a job of two processes, the mark of
    the loop itself decides: the group that waits for the devices; and if there is none, or several, the only group that
    does not read input.
    """
    if not groups:
        return None
    sizes = [len(group.answers) for group in groups]
    if sizes[0] > 1 and (len(sizes) == 1 or sizes[0] > sizes[1]):
        return groups[0]
    marked = [group for group in groups if group.is_marked]
    if len(marked) == 1:
        return marked[0]
    not_reading = [group for group in groups if not all(is_reading_input(answer.stack) for answer in group.answers)]
    return not_reading[0] if len(not_reading) == 1 and len(groups) > 1 else None


def frame_text(stack: MainStack) -> str:
    """Return the frame that shows what a thread does: `load_shard (data.py:40)`; empty if it has none."""
    frames = _compared(stack.frames)
    return _shown(frames[0]) if frames else ""


def is_compiling(stack: MainStack) -> bool:
    """Return True if the thread is in JAX's compiler."""
    return any(is_compiler(frame.function) for frame in _compared(stack.frames))


def is_initialising(stack: MainStack) -> bool:
    """Return True if the thread waits for the other processes, or for its devices, at the start of the job."""
    return _is_any(stack, _INITIALISING)


def is_in_shutdown(stack: MainStack) -> bool:
    """Return True if the thread waits for the other processes at the end of the job."""
    return _is_any(stack, _SHUTDOWN)


def is_reading_input(stack: MainStack) -> bool:
    """Return True if the thread reads input, by its own mark, or by functions such as `next`, `read`, `open`."""
    if stack.phase == DATA:
        return True
    inner = [_parsed(text) for text in stack.frames[:_INNERMOST]]
    frames = _compared(tuple(map(str, inner)))
    if frames and _NOT_INPUT.search(frames[0].file):
        return False
    return any(_is_of_input(frame) for frame in frames)


def _is_of_input(frame: Frame) -> bool:
    if _NOT_INPUT.search(frame.file):
        return False
    return _INPUT.match(frame.function) is not None or _INPUT_FILES.match(frame.file) is not None


def _is_any(stack: MainStack, known: Sequence[tuple[str, re.Pattern[str]]]) -> bool:
    return any(
        frame.function == function and file.search(frame.file)
        for frame in _compared(stack.frames)
        for function, file in known
    )


@lru_cache(maxsize=4096)
def _compared(texts: tuple[str, ...]) -> tuple[Frame, ...]:
    return comparable_frames([_parsed(text) for text in texts])


def _shown(frame: Frame) -> str:
    return str(frame) if frame.line else frame.function.strip() or "an unknown frame"


def _parsed(text: str) -> Frame:
    try:
        return Frame.from_text(text)
    except ValueError:
        return Frame("", 0, text)
