"""What a host's time went to in its steps, from the events of its threads.

Each moment of the thread that runs the steps is counted once, for the first of these that applies: the program computed
(XLA's operations on the CPU, modules on a device); the thread compiled, moved data between host and device, was in the
innermost region that the user annotated, or in a call of JAX or XLA; else it was in no annotated region. So an
annotation's time is what it cost, without what it overlapped with computation.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from xprofiler.summary.host_operations import HOST_PLANE, operation_spans
from xprofiler.summary.spans import joined, merged, overlaid
from xprofiler.summary.summary import ActivityKind
from xprofiler.summary.xspace import Plane, integer_of

__all__ = ["HostStep", "HostTime", "Label", "host_time"]

_COMPILATION = re.compile(
    r"backend_compile|lower_sharding_computation|trace_to_jaxpr|[A-Z]\w*::(Compile|CompileAndLoad|RunBackend)\b"
)
"""JAX's tracing, lowering and compilation, and the compilation of PJRT clients."""
_COMPILED = re.compile(r"backend_compile|[A-Z]\w*::Compile")
"""What runs once for each program."""
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
"""A transfer if the array is one of JAX."""
_PYTHON_FRAME = re.compile(r"\$(?P<place>\S+) (?P<function>.*)")
_COMPUTING_LINES: Final = {"TPU": "XLA Modules", "GPU": "Stream #"}


class Label(NamedTuple):
    """What a moment is counted for."""

    kind: ActivityKind
    name: str = ""


_NONE: Final = Label(ActivityKind.NONE)
_COMPUTATION: Final = Label(ActivityKind.COMPUTATION)


@dataclass(frozen=True)
class HostStep:
    """One step as the program marked it.

    Attributes:
        number: The `step_num` of its StepTraceAnnotation.
        begin_ns: When it began.
        end_ns: When it ended.
        spent_ns: What its time went to.
    """

    number: int
    begin_ns: int
    end_ns: int
    spent_ns: dict[ActivityKind, int] = field(default_factory=dict)


@dataclass
class HostTime:
    """What a host's time went to.

    Attributes:
        steps: The marked steps, in order.
        whole_ns: From the first step's begin to the last step's end; of all events of the thread if no
            step is marked.
        spent_ns: The same time by what it went to.
        calls: How often each region, transfer, compilation or call began, and how long all took, in nanoseconds.
        compilations: How many programs were compiled.
        roots: The numbers of all marked steps of the host, in the order in which XProf counts them.
    """

    steps: list[HostStep] = field(default_factory=list)
    whole_ns: int = 0
    spent_ns: dict[Label, int] = field(default_factory=dict)
    calls: dict[Label, tuple[int, int]] = field(default_factory=dict)
    compilations: int = 0
    roots: list[int] = field(default_factory=list)


class _Event(NamedTuple):
    begin_ns: int
    end_ns: int
    label: Label
    is_compiled: bool


def host_time(planes: Sequence[Plane]) -> HostTime | None:
    """Return what a host's time went to; None if its profile has no thread that runs the program."""
    plane = next((plane for plane in planes if plane.name == HOST_PLANE), None)
    if plane is None:
        return None
    line, steps, roots = _steps(plane)
    line = line if line is not None else _busiest_line(plane)
    if line is None:
        return None
    events = _events(line, plane)
    # The times of the profile itself are of another clock than those of events.
    whole = steps or events
    if not whole:
        return None
    begin_ns, end_ns = whole[0].begin_ns, max(each.end_ns for each in whole)
    if end_ns <= begin_ns:
        return None
    time = HostTime(steps, end_ns - begin_ns, roots=roots)
    events = [event for event in events if event.begin_ns < end_ns and event.end_ns > begin_ns]
    own = joined(_segments(events, begin_ns, end_ns, time))
    segments = overlaid(own, _computing(planes, plane), _COMPUTATION)
    elsewhere = Label(ActivityKind.TRANSFER, "transfers of other threads")
    first = 0  # Of the steps that have not ended: segments are in order.
    for begin, end, label in overlaid(segments, _transferring(plane, line), elsewhere, _is_unannotated):
        time.spent_ns[label] = time.spent_ns.get(label, 0) + end - begin
        while first < len(steps) and steps[first].end_ns <= begin:
            first += 1
        at = first
        while at < len(steps) and steps[at].begin_ns < end:
            inside_ns = min(end, steps[at].end_ns) - max(begin, steps[at].begin_ns)
            steps[at].spent_ns[label.kind] = steps[at].spent_ns.get(label.kind, 0) + inside_ns
            at += 1
    return time


def _is_unannotated(label: Label) -> bool:
    return label.kind in (ActivityKind.NONE, ActivityKind.PYTHON)


def _steps(plane: Plane) -> tuple[Any, list[HostStep], list[int]]:
    """Return the thread of the steps, the steps of the name that took the most time, and all steps' numbers."""
    marks = plane.stat_ids("step_num")
    found: dict[tuple[int, int], list[HostStep]] = {}
    for place, line in enumerate(plane.lines if marks else ()):
        is_step: dict[int, bool] = {}
        for event in line.events:
            if is_step.get(event.metadata_id) is False:
                continue
            stat = next((stat for stat in event.stats if stat.metadata_id in marks), None)
            is_step.setdefault(event.metadata_id, stat is not None)
            if stat is not None:
                begin_ns = line.timestamp_ns + event.offset_ps // 1000
                step = HostStep(integer_of(stat), begin_ns, begin_ns + event.duration_ps // 1000)
                found.setdefault((place, event.metadata_id), []).append(step)
    if not found:
        return None, [], []
    longest = max(found, key=lambda key: sum(step.end_ns - step.begin_ns for step in found[key]))
    every = sorted((step.begin_ns, step.number) for steps in found.values() for step in steps)
    steps = sorted(found[longest], key=lambda step: step.begin_ns)
    return plane.lines[longest[0]], steps, [number for _, number in every]


def _busiest_line(plane: Plane) -> Any:
    """Return the thread that calls JAX the most; None if none does."""
    calls = {number for number, name in plane.event_names.items() if _classified(name) is not None}
    runs = [
        (sum(event.duration_ps for event in line.events if event.metadata_id in calls), place)
        for place, line in enumerate(plane.lines)
        if not line.name.startswith(b"tf_")
    ]
    most, place = max(runs, default=(0, 0))
    return plane.lines[place] if most else None


def _classified(name: str) -> Label | None:
    """Return what an event's name stands for; None if it says nothing."""
    frame = _PYTHON_FRAME.fullmatch(name)
    if _TRANSFER.match(name):
        return Label(ActivityKind.TRANSFER, frame["function"] if frame else name)
    if frame:
        return Label(ActivityKind.PYTHON, _frame_name(frame["place"], frame["function"]))
    if _COMPILATION.match(name):
        return Label(ActivityKind.COMPILATION, name)
    if _RUNTIME.match(name):
        return Label(ActivityKind.RUNTIME, name)
    return Label(ActivityKind.ANNOTATION, name) if name else None


def _frame_name(place: str, function: str) -> str:
    """The tracer writes "$file.py:line function" of Python, "$module function" of C."""
    return f"{function} ({place})" if ":" in place else f"{place}.{function}"


def _events(line: Any, plane: Plane) -> list[_Event]:
    """The labelled events of a thread, by their begin, the longest first."""
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
            begin_ns = line.timestamp_ns + event.offset_ps // 1000
            is_compiled = label.kind is ActivityKind.COMPILATION and _COMPILED.match(label.name) is not None
            found.append(_Event(begin_ns, begin_ns + event.duration_ps // 1000, label, is_compiled))
    found.sort(key=lambda event: (event.begin_ns, -event.end_ns))
    for place, (event, inner) in enumerate(itertools.pairwise(found)):
        is_inside = inner.begin_ns < event.end_ns and inner.label.kind is ActivityKind.TRANSFER
        if is_inside and event.label.name in _NUMPY_CALLS:
            found[place] = event._replace(label=Label(ActivityKind.TRANSFER, event.label.name))
    return found


def _inside(outer: Label, inner: Label) -> Label:
    """Return what the time of an event counts for, inside another one."""
    if outer.kind in (ActivityKind.COMPILATION, ActivityKind.TRANSFER):
        return outer
    if inner.kind in (ActivityKind.COMPILATION, ActivityKind.TRANSFER):
        return inner
    if inner.kind is ActivityKind.ANNOTATION and outer.kind is not ActivityKind.RUNTIME:
        return inner  # Inside a call of JAX it is an annotation of JAX's own.
    return inner if outer.kind in (ActivityKind.NONE, ActivityKind.PYTHON) else outer


def _segments(events: Sequence[_Event], begin_ns: int, end_ns: int, time: HostTime) -> Iterator[tuple[int, int, Label]]:
    """Yield what the thread did from moment to moment, and count in `time` what began."""
    around: list[tuple[int, Label]] = []
    at = begin_ns
    for event in (*events, _Event(end_ns, end_ns, _NONE, False)):  # The last ends all that is open.
        while around and around[-1][0] <= event.begin_ns:
            ended_ns, label = around.pop()
            if ended_ns > at:
                yield at, ended_ns, label
                at = ended_ns
        outer = around[-1][1] if around else _NONE
        if event.begin_ns > at:
            yield at, event.begin_ns, outer
            at = event.begin_ns
        label = _inside(outer, event.label)
        ended_ns = min(event.end_ns, around[-1][0] if around else end_ns)
        if label is not outer and label.kind is not ActivityKind.PYTHON:
            runs, spent_ns = time.calls.get(label, (0, 0))
            time.calls[label] = runs + 1, spent_ns + ended_ns - max(event.begin_ns, begin_ns)
        time.compilations += event.is_compiled and not _COMPILED.match(outer.name)
        around.append((ended_ns, label))


def _computing(planes: Sequence[Plane], host: Plane) -> list[tuple[int, int]]:
    """Return when the program computed: on a device if the profile has one, else on the CPU."""
    of_devices = [
        (line.timestamp_ns + event.offset_ps // 1000, event.duration_ps // 1000)
        for plane in planes
        if plane.name.startswith("/device:")
        for line in _computing_lines(plane)
        for event in line.events
    ]
    if of_devices:
        return merged((begin, begin + lasted) for begin, lasted in of_devices)
    return merged((begin, end) for of_line in operation_spans(host) for begin, end, _ in of_line)


def _transferring(plane: Plane, own: Any) -> list[tuple[int, int]]:
    """Return when threads other than that of the steps moved data: it may wait for them."""
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
