"""The data of a summary, independent of its source."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Final

__all__ = [
    "HOST_PARTS",
    "OTHERS",
    "Activity",
    "ActivityKind",
    "Cause",
    "Compilations",
    "Host",
    "InputPipeline",
    "Operation",
    "SlowHost",
    "Step",
    "StepTimes",
    "Summary",
    "mean_parts",
    "step_times",
]

OTHERS: Final = "All others"
"""XProf's name for the rest of a step, in which the core of a TPU is idle.

On a host, it is the time that the thread of the steps spent in no annotated region while nothing was computed."""


class ActivityKind(str, Enum):
    """The category of each moment of the thread that runs the steps."""

    COMPUTATION = "computation"
    COMPILATION = "compilation"
    TRANSFER = "transfer"
    ANNOTATION = "annotation"
    RUNTIME = "runtime"
    PYTHON = "python"
    NONE = "none"


HOST_PARTS: Final[Mapping[ActivityKind, str]] = MappingProxyType(
    {
        ActivityKind.COMPUTATION: "XLA operations",
        ActivityKind.COMPILATION: "Compilation",
        ActivityKind.TRANSFER: "Transfers",
        ActivityKind.ANNOTATION: "Annotated regions",
        ActivityKind.RUNTIME: "Calls of JAX and XLA",
    }
)
"""The parts of a step on the CPU; the rest is `OTHERS`."""


@dataclass(frozen=True)
class Step:
    """One step on its slowest core.

    Attributes:
        name: The program's number of the step (StepTraceAnnotation's `step_num`), otherwise XProf's.
        duration_us: The duration in microseconds.
        parts_us: The breakdown of the duration in microseconds, by XProf's names.
        slowest_host: The host of the slowest core; empty if another host took as long.
    """

    name: str
    duration_us: float
    parts_us: Mapping[str, float]
    slowest_host: str


@dataclass(frozen=True)
class Host:
    """One host of the profile.

    Attributes:
        name: Its name.
        size_bytes: The size of its file.
        cores: The number of its cores with steps in the profile; on a CPU, the host counts as one.
        start_offset_us: The delay of its profile's start after the first host's; None if not recorded.
        step_us: The mean time of its steps, in microseconds; None without steps.
        waiting_percent: The mean share of its steps that XProf has no name for: 0 to 100.
        slowest_steps: The number of steps in which it was the slowest.
    """

    name: str
    size_bytes: int
    cores: int = 0
    start_offset_us: float | None = None
    step_us: float | None = None
    waiting_percent: float | None = None
    slowest_steps: int = 0


@dataclass(frozen=True)
class Operation:
    """One operation of the program, over all cores and steps.

    Attributes:
        name: The compiler's name.
        category: The category.
        framework_name: The program's name; empty if unknown.
        runs: The number of runs.
        self_us: The total time in microseconds, without the operations that it called.
        percent: The share of the time of all operations: 0 to 100.
        bound_by: The limiting resource, if XProf knows the device.
        gflops_per_second: The rate of computation; None if unknown.
        gib_per_second: The rate of memory traffic; None if unknown.
    """

    name: str
    category: str
    runs: int
    self_us: float
    percent: float
    framework_name: str = ""
    bound_by: str = ""
    gflops_per_second: float | None = None
    gib_per_second: float | None = None


@dataclass(frozen=True)
class Activity:
    """An activity of the hosts in their steps.

    Attributes:
        kind: A region that the user annotated, a transfer, compilation, a call of JAX or XLA, or a Python function
            that ran in no annotated region.
        name: The name of the region or function.
        runs: The number of runs; 0 for a Python function.
        spent_us: The total time in microseconds, including nested activities; for a Python function, its own time.
        percent: The share of the steps' time: 0 to 100.
    """

    kind: ActivityKind
    name: str
    runs: int
    spent_us: float
    percent: float


@dataclass(frozen=True)
class Compilations:
    """Programs that were compiled while steps ran.

    Attributes:
        count: The number of programs.
        seconds: The total time of tracing, lowering and compilation.
        percent: The share of the steps' time: 0 to 100.
    """

    count: int
    seconds: float
    percent: float


@dataclass(frozen=True)
class SlowHost:
    """A host that is slower than the others.

    Attributes:
        host: Its name.
        ratio: The mean time of its steps, divided by the median of the others' means; about 1 if they wait for it.
        held_up_percent: If the others wait for it: the share of a step in which it does not compute and the others do,
            which includes their wait. 0 if they do not: then its steps take longer.
    """

    host: str
    ratio: float
    held_up_percent: float = 0.0


@dataclass(frozen=True)
class Cause:
    """The largest part of the steps' time.

    Attributes:
        kind: An `ActivityKind`'s value, or XProf's name of the part of a step.
        percent: Its share of the steps' time: 0 to 100.
        text: The cause as a sentence, with the slow host if there is one.
    """

    kind: str
    percent: float
    text: str


@dataclass(frozen=True)
class InputPipeline:
    """The input of the program.

    Attributes:
        conclusion: XProf's conclusion, if it measured on a device how long steps wait for input.
        waiting_percent: The mean share of a step that waits for input: 0 to 100; None if not measured.
        parts_us: The breakdown of the hosts' time for input, in microseconds.
    """

    conclusion: str = ""
    waiting_percent: float | None = None
    parts_us: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Summary:
    """The summary of a profile.

    Attributes:
        session: The session's name.
        device: The kind of device, such as "TPU v5p" or "CPU".
        device_count: The number of device cores; 0 on a CPU.
        hosts: The hosts, by name.
        steps: The steps, in order.
        busy_percent: The share of the profiled time in which devices ran operations; None if there are none.
        busy_on: The subject of that share: "device", or "host" if the program ran on a CPU.
        utilization: XProf's measurements of hardware utilization in percent, by name; only known ones.
        operations: The operations, the slowest first.
        input: The input of the program.
        notes: Warnings of XProf and of this program.
        tools: XProf's tools that have data for this profile.
        cause: The largest part of the steps' time; None if the profile does not show it.
        slow_host: The host that is slower than the others.
        time_percent: The breakdown of the steps' time on the hosts, by `ActivityKind`, in percent; empty if unknown.
        activities: The activities of the hosts in their steps, the longest first.
        compilations: The compilations during steps.
    """

    session: str
    device: str = ""
    device_count: int = 0
    hosts: Sequence[Host] = ()
    steps: Sequence[Step] = ()
    busy_percent: float | None = None
    busy_on: str = "device"
    utilization: Mapping[str, float] = field(default_factory=dict)
    operations: Sequence[Operation] = ()
    input: InputPipeline = field(default_factory=InputPipeline)
    notes: Sequence[str] = ()
    tools: Sequence[str] = ()
    cause: Cause | None = None
    slow_host: SlowHost | None = None
    time_percent: Mapping[str, float] = field(default_factory=dict)
    activities: Sequence[Activity] = ()
    compilations: Compilations | None = None

    @property
    def idle_percent(self) -> float | None:
        """The share of the time that is not busy; None if unknown."""
        return None if self.busy_percent is None else 100 - self.busy_percent


@dataclass(frozen=True)
class StepTimes:
    """Statistics of the steps' times, in microseconds."""

    mean_us: float
    median_us: float
    minimum_us: float
    maximum_us: float
    deviation_us: float


def step_times(steps: Sequence[Step]) -> StepTimes | None:
    """Return statistics of the steps' times; None without steps."""
    if not steps:
        return None
    times = [step.duration_us for step in steps]
    return StepTimes(
        statistics.fmean(times), statistics.median(times), min(times), max(times), statistics.pstdev(times)
    )


def mean_parts(steps: Sequence[Step]) -> dict[str, float]:
    """Return the breakdown of the mean step in microseconds: the largest part first, `OTHERS` last."""
    totals: dict[str, float] = {}
    for step in steps:
        for part, spent in step.parts_us.items():
            totals[part] = totals.get(part, 0.0) + spent
    means = {part: total / len(steps) for part, total in totals.items()}
    return dict(sorted(means.items(), key=lambda item: (item[0] == OTHERS, -item[1])))
