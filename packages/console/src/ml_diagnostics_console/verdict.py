"""Verdicts of the doctor on a job, with their evidence, cost and next command. Pure.

The form of a verdict as JSON is that of `Verdict.to_json`; times are RFC 3339 in UTC.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from ml_diagnostics_common.entry import format_timestamp
from ml_diagnostics_common.story import Confidence

__all__ = [
    "EXIT_CODES",
    "Blame",
    "Confidence",
    "Cost",
    "CostBasis",
    "NextCommand",
    "NotChecked",
    "Part",
    "Ref",
    "Verdict",
    "VerdictClass",
]


class VerdictClass(str, enum.Enum):
    """The kinds of verdicts."""

    WAITING = "waiting"
    BEFORE_START = "before_start"
    CRASH = "crash"
    STUCK = "stuck"
    SLOW = "slow"
    NUMBERS = "numbers"
    RESTARTS = "restarts"
    HEALTHY = "healthy"
    UNKNOWN = "unknown"


EXIT_CODES: Final[Mapping[VerdictClass, int]] = {
    VerdictClass.HEALTHY: 0,
    VerdictClass.WAITING: 10,
    VerdictClass.BEFORE_START: 11,
    VerdictClass.CRASH: 12,
    VerdictClass.STUCK: 13,
    VerdictClass.SLOW: 14,
    VerdictClass.NUMBERS: 15,
    VerdictClass.RESTARTS: 16,
    VerdictClass.UNKNOWN: 19,
}
"""The exit code of `mldiagnostics doctor` for the class of the headline."""


class Blame(str, enum.Enum):
    """The side that has to act."""

    USER = "user"
    SYSTEM = "system"
    PREEMPTION = "preemption"
    UNKNOWN = "unknown"


class Part(str, enum.Enum):
    """The part that the thing has in what is wrong with the job."""

    INITIATING = "initiating"
    CONTRIBUTING = "contributing"
    CASCADE = "cascade"
    TEARDOWN = "teardown"


class CostBasis(str, enum.Enum):
    """The source of a cost."""

    LEDGER = "ledger"
    STUCK_TIME = "stuck time"
    LOWER_BOUND = "lower bound"


class Ref(NamedTuple):
    """The source of a fact: an entry of a log, a line of a file, an object of Kubernetes."""

    id: str
    """The insertId, `file:line`, or `pod/<uid>`."""
    source: str
    """The log's name, `run`, `file`, `kubernetes`, `goodput`, `profile` or `monitored-events`."""
    time_ns: int | None = None
    """When it was recorded, in ns since 1970, by the clock of that host."""
    host: str = ""
    shows: str = ""
    """The sentence for people: what it shows."""

    def to_json(self) -> dict[str, Any]:
        """Return it in the types of JSON."""
        time = None if self.time_ns is None else format_timestamp(self.time_ns)
        return {"ref": self.id, "log": self.source, "time": time, "host": self.host, "says": self.shows}


class NextCommand(NamedTuple):
    """The next command."""

    command: str
    """A command line, or two lines of a program; empty if the reason alone is the advice."""
    why: str

    def to_json(self) -> dict[str, Any]:
        """Return it in the types of JSON."""
        return {"command": self.command, "why": self.why}


@dataclass(frozen=True, slots=True)
class Cost:
    """The loss of the job by it.

    Attributes:
        seconds: Wall time.
        basis: The source of that number.
        chip_hours: The same for all chips of the job; None where their number is not known. Filled in by the ranking.
        shows: The parts of it, to follow the duration: `since the last checkpoint (step 40,000)`; may be empty.
    """

    seconds: float
    basis: CostBasis = CostBasis.LOWER_BOUND
    chip_hours: float | None = None
    shows: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it in the types of JSON."""
        chip_hours = None if self.chip_hours is None else round(self.chip_hours, 3)
        return {"seconds": round(self.seconds, 3), "chip_hours": chip_hours, "basis": self.basis.value}


@dataclass(frozen=True, slots=True)
class Verdict:
    """One conclusion.

    Attributes:
        rule: The id of the rule, such as C1.
        verdict_class: Its kind.
        sentence: The finding, with host, step and time where they are known.
        blame: The side that has to act; None if nothing is wrong.
        confidence: proven: the kernel, the control group, the interpreter or Kubernetes reports it; likely: two
            independent signals; possible: one.
        part: Its part in what is wrong. Cascade and teardown are never the headline.
        hosts: The hosts that it is about.
        process_indices: The processes that it is about.
        step: The step at which it started.
        since_ns: When it started, in ns since 1970.
        ended_ns: When it ended; None if it has not.
        cost: The cost; None where nothing is known.
        evidence: The entries that show it, the most important first. The text output has the first three as proof.
        next: The next commands, the best first.
    """

    rule: str
    verdict_class: VerdictClass
    sentence: str
    blame: Blame | None = Blame.UNKNOWN
    confidence: Confidence = Confidence.POSSIBLE
    part: Part = Part.INITIATING
    hosts: tuple[str, ...] = ()
    process_indices: tuple[int, ...] = ()
    step: int | None = None
    since_ns: int | None = None
    ended_ns: int | None = None
    cost: Cost | None = None
    evidence: tuple[Ref, ...] = ()
    next: tuple[NextCommand, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """Return it in the types of JSON; the keys are public."""

        def time(moment_ns: int | None) -> str | None:
            return None if moment_ns is None else format_timestamp(moment_ns)

        return {
            "rule": self.rule,
            "class": self.verdict_class.value,
            "sentence": self.sentence,
            "blame": None if self.blame is None else self.blame.value,
            "confidence": self.confidence.value,
            "role": self.part.value,
            "hosts": list(self.hosts),
            "process_indices": list(self.process_indices),
            "step": self.step,
            "began": time(self.since_ns),
            "ended": time(self.ended_ns),
            "cost": None if self.cost is None else self.cost.to_json(),
            "evidence": [ref.to_json() for ref in self.evidence],
            "next": [command.to_json() for command in self.next],
        }


class NotChecked(NamedTuple):
    """A rule that could not be judged."""

    rule: str
    why: str
    """The missing record, and how to provide it."""
    is_by_choice: bool = False
    """True if an option of the command, or its absence, is the reason: only `--all` lists it."""

    def to_json(self) -> dict[str, Any]:
        """Return it in the types of JSON."""
        return {"rule": self.rule, "why": self.why}
