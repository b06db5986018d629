"""Facts of a job, for the rules: frozen values with the entries that show them. Pure.

A value that is not known is `Unknown` with the reason, so that a rule reports what is missing instead of guessing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from ml_diagnostics_common.story import ProcessEnd, Role, Story

from ml_diagnostics_console._facts.curves import Curves
from ml_diagnostics_console.verdict import Ref

if TYPE_CHECKING:
    from google_cloud_mldiagnostics.reading import State
    from ml_diagnostics_common.raised_exception import RaisedException
    from ml_goodput_measurement.partition import JobReport

    from ml_diagnostics_console._facts.kubernetes_facts import KubernetesFacts
    from ml_diagnostics_console._facts.monitored_events import MonitoredEvent
    from ml_diagnostics_console._facts.profile_facts import ProfileFacts

__all__ = [
    "SIGTERM_CAUGHT",
    "AttemptFacts",
    "CompileBatch",
    "ConsoleText",
    "Fact",
    "Facts",
    "HangVerdict",
    "Held",
    "KernelState",
    "MainStack",
    "Pause",
    "ProcessFacts",
    "Ref",
    "Signal",
    "SigtermHandler",
    "StepSummary",
    "Times",
    "Unknown",
]

T = TypeVar("T")

SIGTERM_CAUGHT: Final = "SIGTERM caught"
"""JAX's preemption notifier, which swallows the signal, prints this."""


@dataclass(frozen=True, slots=True)
class Fact(Generic[T]):
    """A value, the entries that show it, and the time for which they do, in ns since 1970."""

    value: T
    refs: tuple[Ref, ...] = ()
    as_of_ns: int = 0


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that is not known."""

    why: str
    """The missing record, and how to provide it."""
    is_by_choice: bool = False
    """True if an option of the command, or its absence, is the reason."""


class HangVerdict(NamedTuple):
    """The companion's entry that a process made no progress for longer than its timeout."""

    time_ns: int
    phase: str
    step: int | None
    stuck_seconds: float
    timeout_seconds: float
    frame: str
    """The frame of the main thread, `function (file:line)`; empty if it is not known."""
    ref: Ref

    @property
    def since_ns(self) -> int:
        """When the last progress was made."""
        return self.time_ns - round(self.stuck_seconds * 1e9)


class MainStack(NamedTuple):
    """The stack of a main thread at one moment."""

    time_ns: int
    frames: tuple[str, ...]
    """`function (file:line)`, innermost first."""
    step: int | None
    phase: str
    unchanged_seconds: float
    """For how long it had been the same; 0 if that is not known."""
    trigger: str
    """`snapshot`, or of a dump: timer, signal, fault, exception."""
    ref: Ref
    headline: str = ""
    """The first line of a dump: `Fatal Python error: Segmentation fault`."""


class KernelState(NamedTuple):
    """The kernel's view of a process that seems to be stuck: two samples some time apart."""

    time_ns: int
    states: tuple[str, ...]
    """The states of the main thread: R computes, S asleep, D waits for a disk, T stopped."""
    wait_channels: tuple[str, ...]
    cpu_seconds: float | None
    """CPU that the process used between the samples."""
    main_thread_cpu_seconds: float | None
    seconds: float | None
    """The time between the samples."""
    ref: Ref


class Times(NamedTuple):
    """Durations of the steps of one summary, in seconds."""

    sum: float
    p50: float
    p95: float
    max: float


class Pause(NamedTuple):
    """The saves or the evaluations between the steps of one summary."""

    phase: str
    """checkpoint or eval."""
    times: int
    sum: float
    """Seconds."""
    max: float
    """The longest, in seconds."""


class StepSummary(NamedTuple):
    """The steps of some ten seconds of one process."""

    time_ns: int
    first_step: int
    last_step: int
    steps: int
    """The number of completed steps."""
    wall: Times
    own: Times | None
    """All but the wait for the devices; None if the program does not mark that."""
    data: Times | None
    """None if data loading is not marked."""
    wait: Times | None
    return_step: int | None
    """The step of one return from a wait: all hosts return together."""
    return_ns: int | None
    """When it returned, by the clock of this host."""
    ref: Ref
    pauses: tuple[Pause, ...] = ()
    """Phases between the steps: their time is in none of the times above."""
    returns: tuple[tuple[int, int], ...] = ()
    """Further returns from waits: the step, and the time by the clock of this host."""


class CompileBatch(NamedTuple):
    """The compilations of JAX in some seconds."""

    time_ns: int
    programs: int
    seconds: float
    functions: Mapping[str, int]
    """The number of compilations by the name of the function: the five most frequent."""
    ref: Ref


class Signal(NamedTuple):
    """A signal that asked the process to end, seen by the parent `run`."""

    time_ns: int
    name: str
    sender_pid: int
    """0 is outside of the container."""
    sender_uid: int | None
    ref: Ref


class SigtermHandler(NamedTuple):
    """A handler of SIGTERM that the process had installed."""

    time_ns: int
    handler: str
    """default, ignored, c or python."""
    function: str
    ref: Ref


class ConsoleText(NamedTuple):
    """The last lines that a process printed."""

    time_ns: int
    stream: str
    """out, err or out+err."""
    occasion: str
    """end or hang."""
    text: str
    ref: Ref
    times: tuple[tuple[int, int], ...] = ()
    """Numbers of lines with the time by which they were printed, in ns since 1970, by the clock of the host."""
    path: str = ""
    """The file that the process printed to; empty if it is not one."""
    is_of_python: bool = False
    """True if lines of native code are missing."""


class Held(NamedTuple):
    """The last entry on a process that `run --hold-on-failure` keeps for debugging after its failure."""

    time_ns: int
    wrapper_pid: int
    """The process that keeps it, which SIGTERM ends."""
    until_ns: int
    """When it ends by itself."""
    released_by: str
    """Empty while it is held."""
    ref: Ref


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """One process of one attempt.

    Attributes:
        attempt: The attempt of the run, from 1.
        host: The host's name.
        pid: The process id on its host.
        index: The index of the process in the job; None if it is not known.
        process_count: The number of processes that it knew of; 0 if it is not known.
        expected_processes: The number of processes that the launcher or the program announced; None if none was.
        planned_steps: The number of steps that the program announced; None if none was.
        coordinator: The address that `jax.distributed.initialize` was called with; empty if it is not known.
        started_ns: Its first event, in ns since 1970, by its clock.
        last_event_ns: Its last event.
        state: Its state by the view of the run.
        end: Its end, with `ended_ns` on the clock of the job's first host where the difference is known.
        end_refs: The entries on its end.
        end_message: The sentence of the entry on its end.
        role: Its part in the end of the attempt.
        is_first_cause: True if the attempt failed because of it, as far as that is known.
        last_step: The last step that it reported.
        last_phase: The phase that it reported last; empty if it reported none.
        exception: The exception that ended it or left its block, first, and those that it is linked to.
        file_systems: The file systems that the exception is about: `path`, `free_bytes`, `total_bytes`, `free_inodes`.
        left_block_ns: When it left the block; None if it did not.
        hangs: The hang verdicts of its companion, the oldest first.
        stacks: Stacks of its main thread, the oldest first: the last ones.
        kernel_states: The kernel's view at hangs, the oldest first.
        summaries: Its step summaries, the oldest first; of a long life old ones are merged with their neighbours.
        compiles: Its compilations, the oldest first.
        signals: Signals that asked it to end.
        sigterm_handlers: Its handlers of SIGTERM in their order.
        console: Its last lines, by stream and occasion.
        lost_entries: The number of entries that it could not record.
        software: The versions on its host; empty if they are not known.
        hardware: The machine of its host.
        config_digest: A digest of its configs; empty if it is not known.
        user_configs: The configs that the user gave in it, as texts.
        config_refs: The entries on its configs, software and hardware.
        shown_name: Its name for people; empty for its host and index.
        fields: All further fields of its entries in the run's log.
        end_fields: All fields of the companion's entry on its end.
        held: The hold after its failure; None if it is not held.
        resource: The labels of its monitored resource in Cloud Logging, with its `type`; empty outside of a cloud.
    """

    attempt: int
    host: str
    pid: int
    index: int | None
    started_ns: int
    last_event_ns: int
    state: State
    end: ProcessEnd
    process_count: int = 0
    expected_processes: int | None = None
    planned_steps: int | None = None
    coordinator: str = ""
    end_refs: tuple[Ref, ...] = ()
    end_message: str = ""
    role: Role = Role.NONE
    is_first_cause: bool = False
    last_step: Fact[int] | Unknown = field(default_factory=lambda: Unknown("the process reports no steps"))
    last_phase: str = ""
    exception: tuple[RaisedException, ...] = ()
    file_systems: tuple[Mapping[str, Any], ...] = ()
    left_block_ns: int | None = None
    hangs: tuple[HangVerdict, ...] = ()
    stacks: tuple[MainStack, ...] = ()
    kernel_states: tuple[KernelState, ...] = ()
    summaries: Sequence[StepSummary] = ()
    compiles: tuple[CompileBatch, ...] = ()
    signals: tuple[Signal, ...] = ()
    sigterm_handlers: tuple[SigtermHandler, ...] = ()
    console: tuple[ConsoleText, ...] = ()
    lost_entries: int = 0
    software: Mapping[str, str] = field(default_factory=dict)
    hardware: Mapping[str, str] = field(default_factory=dict)
    config_digest: str = ""
    user_configs: Mapping[str, str] = field(default_factory=dict)
    config_refs: tuple[Ref, ...] = ()
    shown_name: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    end_fields: Mapping[str, Any] = field(default_factory=dict)
    resource: Mapping[str, str] = field(default_factory=dict)
    held: Held | None = None

    @property
    def name(self) -> str:
        """A name for people: `host-3`, or `vm (process 1)` if the host has several processes of the job."""
        return self.shown_name or (self.host if self.index is None else f"{self.host} (process {self.index})")

    @property
    def has_ended(self) -> bool:
        """True if an end of it is known."""
        return bool(self.end.how)

    @property
    def step(self) -> int | None:
        """The last step that it reported; None if it is not known."""
        return self.last_step.value if isinstance(self.last_step, Fact) else None


@dataclass(frozen=True, slots=True)
class AttemptFacts:
    """One attempt of the job, from a start to the next.

    Attributes:
        number: The number of the attempt, from 1.
        state: Its state.
        reason: The exit reason in the run's own view.
        started_ns: Its start, in ns since 1970; None if it is not known.
        ended_ns: Its end; None if it has not ended, or that is not known.
        processes: Its processes by index.
        story: The roles of their ends and the first cause, in the same order.
        best_step: The highest step of any process; None if none is known.
        clock_uncertainty_ns: The largest error of the times of ends after correction.
        clock_offsets_ns: The clock of each host less that of the reference host, where waits show it.
    """

    number: int
    state: State
    reason: str
    started_ns: int | None
    ended_ns: int | None
    processes: tuple[ProcessFacts, ...]
    story: Story
    best_step: int | None = None
    clock_uncertainty_ns: int = 1_000_000_000
    clock_offsets_ns: Mapping[str, int] = field(default_factory=dict)

    @property
    def first(self) -> tuple[ProcessFacts, ...]:
        """The processes that are the first cause: several if they cannot be ordered; none if there is none."""
        return tuple(self.processes[index] for index in self.story.first)

    @property
    def has_failed(self) -> bool:
        """True if one of its processes ended by a failure, was asked to end, or is missed."""
        return bool(self.story.first)


@dataclass(frozen=True, slots=True)
class Facts:
    """All that is known of one job.

    Attributes:
        name: The run's id, or the name of a job without a run.
        display_name: The name that commands of the other libraries know it by: that of the job.
        now_ns: The time of the question, in ns since 1970; of a job that has ended, as of its last event.
        is_live: True if the job may still run.
        attempts: All attempts in their order.
        judged: The index in `attempts` of the one that rules judge; None if no process has recorded anything.
        chips: The number of accelerator chips of the job.
        metrics: The metrics of the run and its hosts.
        ledger: The goodput of the job.
        kubernetes: Pods, events, nodes and queues.
        profile: The summary of the newest profile.
        monitored_events: Findings of Google's analyzers.
        user_configs: The configs that the user gave, as texts.
        notes: Sentences on what could not be read, for the user.
        entry_count: The number of entries that were read.
    """

    name: str
    now_ns: int
    is_live: bool
    attempts: tuple[AttemptFacts, ...] = ()
    judged: int | None = None
    display_name: str = ""
    chips: Fact[int] | Unknown = field(default_factory=lambda: Unknown("the run's configs have no number of chips"))
    metrics: Curves = field(default_factory=Curves)
    ledger: Fact[JobReport] | Unknown = field(
        default_factory=lambda: Unknown("the job records no goodput: use ml_goodput_measurement or `instrument`")
    )
    kubernetes: Fact[KubernetesFacts] | Unknown = field(
        default_factory=lambda: Unknown("Kubernetes was not asked: give --kubernetes CONTEXT", is_by_choice=True)
    )
    profile: Fact[ProfileFacts] | Unknown = field(
        default_factory=lambda: Unknown("the run has no profile: take one with `mldiagnostics profile RUN`")
    )
    monitored_events: Fact[tuple[MonitoredEvent, ...]] | Unknown = field(
        default_factory=lambda: Unknown("Google's monitored events are only read with --project", is_by_choice=True)
    )
    user_configs: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    entry_count: int = 0

    @property
    def attempt(self) -> AttemptFacts | None:
        """The attempt that is judged."""
        return None if self.judged is None else self.attempts[self.judged]

    @property
    def processes(self) -> tuple[ProcessFacts, ...]:
        """The processes of the attempt that is judged."""
        return self.attempt.processes if self.attempt is not None else ()

    def of_attempt(self, index: int) -> Facts:
        """Return the same facts, to judge another attempt; an earlier one is not live.

        Args:
            index: The index in `attempts`.
        """
        return replace(self, judged=index, is_live=self.is_live and index == len(self.attempts) - 1)
