"""The breakdown of a host's time in its steps, from the events of its threads.

Each moment of the thread that runs the steps is counted once, for the first match in this order: the program computed
(XLA operations on the CPU, modules on a device); the thread compiled; it moved data between host and device; it was in
the innermost annotated region; it was in a call of JAX or XLA; it was in no annotated region. So the time of an
annotation excludes what overlapped with computation.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from xprofiler.summary.host_operations import HOST_PLANE, joined, merged, operation_spans, overlaid
from xprofiler.summary.summary import ActivityKind
from xprofiler.summary.xspace import Plane, integer_of

__all__ = ["HostStep", "HostTime", "Label", "host_time"]

_COMPILATION = re.compile(
    r"backend_compile|lower_sharding_computation|trace_to_jaxpr|[A-Z]\w*::(Compile|CompileAndLoad|RunBackend)\b"
)
"""JAX's tracing, lowering and compilation, and the compilation of PJRT clients."""
_COMPILED = re.compile(r"backend_compile|[A-Z]\w*::Compile")
"""Events that occur once for each compiled program."""
_TRANSFER = re.compile(
    r"np\.asarray\(jax\.Array\)|(\w+\.)?copy_to_host_async|(Batched)?DevicePut|shard_args|device_(get|put)\b|ToLiteral"
    r"|Transfer\w*(To|From)|CopyTo(Device|Host)|BufferFromHost|[HD]2[HD]\b"
    r"|[A-Z]\w*::(ToLiteral|CopyTo|BufferFromHost|Transfer)"
    r"|\$(api|array)\.py:\d+ (device_get|device_put\w*|_value|__array__|copy_to_host_async)$"
)
_RUNTIME = re.compile(
    r"\w+(::\w+)*::[A-Z]|(Pjit|Pmap)Function\(|ParseArguments|Handle input|AllocateOutput|Wait for |Threadpool|Thunk"
    r"|end: |(Xla|XLA|xla|PjRt|Pjrt|Tfrt|Execut|CheckCompatible|PythonRefManager|DistributedCallable)"
)
_NUMPY_CALLS: Final = frozenset({"numpy.array", "numpy.asarray"})
"""Calls that are transfers if the array belongs to JAX."""
_PYTHON_FRAME = re.compile(r"\$(?P<origin>\S+) (?P<function>.*)")
_LAUNCH = re.compile(r"(Pjit|Pmap)Function\(")
"""Calls of compiled functions, which the thread that runs the steps makes and helper threads do not."""
_HELPER_FRAME = re.compile(r"\$(worker\.py:\d+ (_take|attempt)|sidecar\.py:\d+ receive)$")
"""Python functions of the threads of ml-diagnostics-common, which wait most of the time."""
_END_OF_TRACE = re.compile(r"\$(engines\.py:\d+ _?stop|profiler\.py:\d+ stop_trace)$")
"""Python functions that end the trace: google-cloud-mldiagnostics's and JAX's."""
_COMPUTING_LINES: Final = {"TPU": "XLA Modules", "GPU": "Stream #"}


class Label(NamedTuple):
    """The category that a moment is counted for."""

    kind: ActivityKind
    name: str = ""


_NONE: Final = Label(ActivityKind.NONE)
_COMPUTATION: Final = Label(ActivityKind.COMPUTATION)


@dataclass(frozen=True)
class HostStep:
    """One step, as marked by the program.

    Attributes:
        number: The `step_num` of its StepTraceAnnotation.
        start_ns: The start of the step.
        end_ns: The end of the step.
        spent_ns: The breakdown of its time.
    """

    number: int
    start_ns: int
    end_ns: int
    spent_ns: dict[ActivityKind, int] = field(default_factory=dict)


@dataclass
class HostTime:
    """The breakdown of a host's time.

    Attributes:
        steps: The marked steps, in order.
        whole_ns: The time from the start of the first step to the end of the last; without marked steps, that of all
            events of the thread.
        spent_ns: The breakdown of that time.
        calls: The number of calls and their total time in nanoseconds, for each region, transfer, compilation or call.
        compilations: The number of compiled programs.
        roots: The numbers of all marked steps of the host, in XProf's order.
    """

    steps: list[HostStep] = field(default_factory=list)
    whole_ns: int = 0
    spent_ns: dict[Label, int] = field(default_factory=dict)
    calls: dict[Label, tuple[int, int]] = field(default_factory=dict)
    compilations: int = 0
    roots: list[int] = field(default_factory=list)


class _Event(NamedTuple):
    start_ns: int
    end_ns: int
    label: Label
    is_compiled: bool


def host_time(planes: Sequence[Plane]) -> HostTime | None:
    """Return the breakdown of a host's time; None if its profile has no thread that runs the program."""
    plane = next((plane for plane in planes if plane.name == HOST_PLANE), None)
    if plane is None:
        return None
    line, steps, roots = _steps(plane)
    line = line if line is not None else _busiest_line(plane)
    if line is None:
        return None
    events = _events(line, plane)
    if not steps:
        events = _before_the_end_of_the_trace(events, line, plane)
    # The start and stop times of the profile use another clock than events.
    whole = steps or events
    if not whole:
        return None
    start_ns, end_ns = whole[0].start_ns, max(each.end_ns for each in whole)
    if end_ns <= start_ns:
        return None
    time = HostTime(steps, end_ns - start_ns, roots=roots)
    events = [event for event in events if event.start_ns < end_ns and event.end_ns > start_ns]
    own = joined(_segments(events, start_ns, end_ns, time))
    segments = overlaid(own, _computing(planes, plane), _COMPUTATION)
    elsewhere = Label(ActivityKind.TRANSFER, "transfers of other threads")
    first = 0  # The first step that has not ended; segments are in order.
    for start, end, label in overlaid(segments, _transferring(plane, line), elsewhere, _is_unannotated):
        time.spent_ns[label] = time.spent_ns.get(label, 0) + end - start
        while first < len(steps) and steps[first].end_ns <= start:
            first += 1
        at = first
        while at < len(steps) and steps[at].start_ns < end:
            inside_ns = min(end, steps[at].end_ns) - max(start, steps[at].start_ns)
            steps[at].spent_ns[label.kind] = steps[at].spent_ns.get(label.kind, 0) + inside_ns
            at += 1
    return time


def _is_unannotated(label: Label) -> bool:
    return label.kind in (ActivityKind.NONE, ActivityKind.PYTHON)


def _steps(plane: Plane) -> tuple[Any, list[HostStep], list[int]]:
    """Return the thread of the steps, the steps of the name with the most time, and the numbers of all steps."""
    marks = plane.stat_ids("step_num")
    found: dict[tuple[int, int], list[HostStep]] = {}
    for index, line in enumerate(plane.lines if marks else ()):
        is_step: dict[int, bool] = {}
        for event in line.events:
            if is_step.get(event.metadata_id) is False:
                continue
            stat = next((stat for stat in event.stats if stat.metadata_id in marks), None)
            is_step.setdefault(event.metadata_id, stat is not None)
            if stat is not None:
                start_ns = line.timestamp_ns + event.offset_ps // 1000
                step = HostStep(integer_of(stat), start_ns, start_ns + event.duration_ps // 1000)
                found.setdefault((index, event.metadata_id), []).append(step)
    if not found:
        return None, [], []
    longest = max(found, key=lambda key: sum(step.end_ns - step.start_ns for step in found[key]))
    every = sorted((step.start_ns, step.number) for steps in found.values() for step in steps)
    steps = sorted(found[longest], key=lambda step: step.start_ns)
    return plane.lines[longest[0]], steps, [number for _, number in every]


def _busiest_line(plane: Plane) -> Any:
    """Return the thread that calls JAX's functions the most; None if no thread has events.

    The time in Python functions decides only between threads that do not call JAX: a helper thread that waits in one
    function, as those of these packages do, has more of it than the thread that runs the program.
    """
    launches, calls, frames, helpers = set[int](), set[int](), set[int](), set[int]()
    for number, name in plane.event_names.items():
        label = _classified(name)
        if label is None:
            continue
        frames.add(number)
        if not name.startswith("$"):
            calls.add(number)
        if _LAUNCH.match(name):
            launches.add(number)
        elif _HELPER_FRAME.match(name):
            helpers.add(number)
    best, found = (0, 0, False, 0), None
    for line in plane.lines:
        if line.name.startswith(b"tf_"):
            continue
        spent: dict[int, int] = {}
        for event in line.events:
            spent[event.metadata_id] = spent.get(event.metadata_id, 0) + event.duration_ps
        of_launches, of_calls, of_all = (
            sum(lasted for number, lasted in spent.items() if number in kind) for kind in (launches, calls, frames)
        )
        rank = of_launches, of_calls, not helpers.intersection(spent), of_all
        if of_all and rank > best:
            best, found = rank, line
    return found


def _before_the_end_of_the_trace(events: list[_Event], line: Any, plane: Plane) -> list[_Event]:
    """Return the events before the thread ended the trace, which takes time that is not the program's."""
    ends = {number for number, name in plane.event_names.items() if _END_OF_TRACE.match(name)}
    starts = (line.timestamp_ns + each.offset_ps // 1000 for each in line.events if each.metadata_id in ends)
    end_ns = min(starts, default=None)
    if end_ns is None:
        return events
    return [each._replace(end_ns=min(each.end_ns, end_ns)) for each in events if each.start_ns < end_ns]


def _classified(name: str) -> Label | None:
    """Return the category of an event by its name; None if it has no name."""
    frame = _PYTHON_FRAME.fullmatch(name)
    if _TRANSFER.match(name):
        return Label(ActivityKind.TRANSFER, frame["function"] if frame else name)
    if frame:
        return Label(ActivityKind.PYTHON, _frame_name(frame["origin"], frame["function"]))
    if _COMPILATION.match(name):
        return Label(ActivityKind.COMPILATION, name)
    if _RUNTIME.match(name):
        return Label(ActivityKind.RUNTIME, name)
    return Label(ActivityKind.ANNOTATION, name) if name else None


def _frame_name(origin: str, function: str) -> str:
    """Return the name of a frame. The tracer writes "$file.py:line function" for Python, "$module function" for C."""
    return f"{function} ({origin})" if ":" in origin else f"{origin}.{function}"


def _events(line: Any, plane: Plane) -> list[_Event]:
    """Return the categorized events of a thread, sorted by start, the longest first."""
    operations, steps = plane.stat_ids("hlo_op"), plane.stat_ids("step_num")
    labels: dict[int, Label | None] = {}
    found = []
    for event in line.events:
        number = event.metadata_id
        if number not in labels:
            marks = {stat.metadata_id for stat in event.stats}
            name = plane.event_names.get(number, "")
            labels[number] = None if marks & operations or marks & steps else _classified(name)
        label = labels[number]
        if label is not None:
            start_ns = line.timestamp_ns + event.offset_ps // 1000
            is_compiled = label.kind is ActivityKind.COMPILATION and _COMPILED.match(label.name) is not None
            found.append(_Event(start_ns, start_ns + event.duration_ps // 1000, label, is_compiled))
    found.sort(key=lambda event: (event.start_ns, -event.end_ns))
    for index, (event, inner) in enumerate(itertools.pairwise(found)):
        is_inside = inner.start_ns < event.end_ns and inner.label.kind is ActivityKind.TRANSFER
        if is_inside and event.label.name in _NUMPY_CALLS:
            found[index] = event._replace(label=Label(ActivityKind.TRANSFER, event.label.name))
    return found


def _inside(outer: Label, inner: Label) -> Label:
    """Return the category of an event's time inside another event."""
    if outer.kind in (ActivityKind.COMPILATION, ActivityKind.TRANSFER):
        return outer
    if inner.kind in (ActivityKind.COMPILATION, ActivityKind.TRANSFER):
        return inner
    if inner.kind is ActivityKind.ANNOTATION and outer.kind is not ActivityKind.RUNTIME:
        return inner  # Inside a call of JAX, it is JAX's own annotation.
    return inner if outer.kind in (ActivityKind.NONE, ActivityKind.PYTHON) else outer


def _segments(events: Sequence[_Event], start_ns: int, end_ns: int, time: HostTime) -> Iterator[tuple[int, int, Label]]:
    """Yield the thread's categories over time, and count calls in `time`."""
    around: list[tuple[int, Label]] = []
    at = start_ns
    for event in (*events, _Event(end_ns, end_ns, _NONE, False)):  # The sentinel closes all open events.
        while around and around[-1][0] <= event.start_ns:
            ended_ns, label = around.pop()
            if ended_ns > at:
                yield at, ended_ns, label
                at = ended_ns
        outer = around[-1][1] if around else _NONE
        if event.start_ns > at:
            yield at, event.start_ns, outer
            at = event.start_ns
        label = _inside(outer, event.label)
        ended_ns = min(event.end_ns, around[-1][0] if around else end_ns)
        if label is not outer and label.kind is not ActivityKind.PYTHON:
            runs, spent_ns = time.calls.get(label, (0, 0))
            time.calls[label] = runs + 1, spent_ns + ended_ns - max(event.start_ns, start_ns)
        time.compilations += event.is_compiled and not _COMPILED.match(outer.name)
        around.append((ended_ns, label))


def _computing(planes: Sequence[Plane], host: Plane) -> list[tuple[int, int]]:
    """Return the intervals of computation: on devices if the profile has some, otherwise on the CPU."""
    of_devices = [
        (line.timestamp_ns + event.offset_ps // 1000, event.duration_ps // 1000)
        for plane in planes
        if plane.name.startswith("/device:")
        for line in _computing_lines(plane)
        for event in line.events
    ]
    if of_devices:
        return merged((start, start + lasted) for start, lasted in of_devices)
    return merged((start, end) for of_line in operation_spans(host) for start, end, _ in of_line)


def _transferring(plane: Plane, own: Any) -> list[tuple[int, int]]:
    """Return the intervals in which other threads moved data, since the thread of the steps may wait for them."""
    moves = {number for number, name in plane.event_names.items() if _TRANSFER.match(name)}
    return merged(
        (line.timestamp_ns + event.offset_ps // 1000, line.timestamp_ns + (event.offset_ps + event.duration_ps) // 1000)
        for line in plane.lines
        if line is not own and line.name.startswith(b"tf_")
        for event in line.events
        if event.metadata_id in moves
    )


def _computing_lines(plane: Plane) -> list[Any]:
    wanted = next((prefix for kind, prefix in _COMPUTING_LINES.items() if f":{kind}:" in plane.name), "XLA")
    lines = [line for line in plane.lines if line.name.startswith(wanted.encode())]
    # A GPU's stream may only copy: "Stream #20(MemcpyD2H)".
    return [line for line in lines if b"Memcpy" not in line.name or b"Compute" in line.name]
