"""What is said of a profile: plain values, with no trace of where they come from."""

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
"""What XProf calls the part of a step that it has no name for; on a TPU the core is idle then.

On a host it is the time that the thread of the steps spent in no annotated region, while nothing was computed."""


class ActivityKind(str, Enum):
    """What the thread that runs the steps did, each moment of it once."""

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
"""The parts of a step of a program that runs on the CPU; the rest is `OTHERS`."""


@dataclass(frozen=True)
class Step:
    """One step, as long as it took on its slowest core.

    Attributes:
        name: The number that the program gave it (StepTraceAnnotation's `step_num`), else XProf's.
        duration_us: From its begin to its end, in microseconds.
        parts_us: What that time went to, in microseconds, by what XProf calls it.
        slowest_host: The host of that core; empty if another host took as long.
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
        size_bytes: How large its xplane is.
        cores: How many of its cores (on a CPU: the host itself) have steps in the profile.
        start_offset_us: How much later than on the first host its profile began; None if the profile does not say.
        step_us: The mean time of its steps, in microseconds; None without steps.
        waiting_percent: The mean share of its steps in which it did nothing that XProf could name: 0 to 100.
        slowest_steps: How many steps it was the slowest in.
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
        name: What the compiler calls it.
        category: Its kind.
        framework_name: What the program calls it; empty if that is unknown.
        runs: How often it ran.
        self_us: How long it ran, in microseconds, without the operations that it called.
        percent: The share of the time of all operations: 0 to 100.
        bound_by: What it waits for, if XProf knows the device.
        gflops_per_second: How fast it computed; None if unknown.
        gib_per_second: How fast it moved memory; None if unknown.
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
    """What the hosts did in their steps, by name.

    Attributes:
        kind: A region that the user annotated, a transfer, compilation, a call of JAX or XLA, or a Python function
            that ran in no annotated region.
        name: Of the region or function.
        runs: How often it began; 0 of a Python function.
        spent_us: How long it took, in microseconds, with what ran inside it; of a Python function its own time.
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
        count: How many.
        seconds: How long tracing, lowering and compiling them took.
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
        ratio: The mean time of its steps, by the median of the others' mean times; about 1 where they wait for it.
        held_up_percent: If the others wait for it: the share of a step in which it does not compute and the others do,
            which includes their wait. 0 if they do not: then its steps take longer.
    """

    host: str
    ratio: float
    held_up_percent: float = 0.0


@dataclass(frozen=True)
class Cause:
    """What the most of the steps' time went to.

    Attributes:
        kind: An `ActivityKind`'s value, or XProf's name of the part of a step.
        percent: Its share of the steps' time: 0 to 100.
        text: The same in a sentence, with the slow host if there is one.
    """

    kind: str
    percent: float
    text: str


@dataclass(frozen=True)
class InputPipeline:
    """How the program gets its data.

    Attributes:
        conclusion: XProf's, if it measured on a device how long steps wait for input.
        waiting_percent: The mean share of a step that waits for input: 0 to 100; None if it is not measured.
        parts_us: What the hosts did for it, in microseconds.
    """

    conclusion: str = ""
    waiting_percent: float | None = None
    parts_us: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Summary:
    """A profile in short.

    Attributes:
        session: Which.
        device: What computed, such as "TPU v5p" or "CPU".
        device_count: How many cores of it; 0 on a CPU.
        hosts: In the order of their names.
        steps: In their order.
        busy_percent: The share of the profiled time in which the devices ran operations; None if there are none.
        busy_on: What that is the share of: "device", or "host" where the program ran on a CPU.
        utilization: What XProf says of the hardware's use, in percent, by what it is; only what is known.
        operations: The slowest first.
        input: How the program gets its data.
        notes: What XProf, or we, warn of.
        tools: XProf's tools that have data of this profile.
        cause: What the most time went to; None if the profile does not show it.
        slow_host: The host that takes longer than the others.
        time_percent: What the steps' time went to on the hosts, by `ActivityKind`, in percent; empty if unknown.
        activities: What the hosts did in their steps, the longest first.
        compilations: Programs that were compiled meanwhile.
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
        """What is not busy."""
        return None if self.busy_percent is None else 100 - self.busy_percent


@dataclass(frozen=True)
class StepTimes:
    """Steps in a few numbers, all in microseconds."""

    mean_us: float
    median_us: float
    minimum_us: float
    maximum_us: float
    deviation_us: float


def step_times(steps: Sequence[Step]) -> StepTimes | None:
    """Return the steps' times in short; None if there are no steps."""
    if not steps:
        return None
    times = [step.duration_us for step in steps]
    return StepTimes(
        statistics.fmean(times), statistics.median(times), min(times), max(times), statistics.pstdev(times)
    )


def mean_parts(steps: Sequence[Step]) -> dict[str, float]:
    """Return what the mean step's time goes to, in microseconds: the most first, what has no name last."""
    totals: dict[str, float] = {}
    for step in steps:
        for part, spent in step.parts_us.items():
            totals[part] = totals.get(part, 0.0) + spent
    means = {part: total / len(steps) for part, total in totals.items()}
    return dict(sorted(means.items(), key=lambda item: (item[0] == OTHERS, -item[1])))
