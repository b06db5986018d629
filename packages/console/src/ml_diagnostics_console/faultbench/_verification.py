"""Proofs that an injection had its effect. A run without one is void: it counts for no tool. Pure.

Each function returns a check, which returns why the run is void; empty if it is not.
"""

from __future__ import annotations

from ml_diagnostics_console.faultbench._evidence import Evidence
from ml_diagnostics_console.faultbench._kinds import Check

__all__ = [
    "all_of",
    "completed",
    "exited",
    "failed_with",
    "has_computed",
    "has_event",
    "has_gone_on",
    "is_asleep_in",
    "is_stopped",
    "never_started_steps",
    "of_attempts",
    "replayed",
]

_LEAST_SAMPLES = 3
_BUSY_SHARE = 0.2
"""The least share of a core, on a machine that several jobs share."""


def all_of(*checks: Check) -> Check:
    """Return a check that all of these pass."""
    return lambda evidence: next((why for check in checks if (why := check(evidence))), "")


def exited(*, signals: tuple[str, ...] = (), code: int | None = None) -> Check:
    """Return a check that the culprit ended by a signal, or with a code."""

    def check(evidence: Evidence) -> str:
        process = evidence.guilty
        if signals and process.signal_name not in signals:
            return f"process {process.index} ended with {process.exit_status}, not by {' or '.join(signals)}"
        if code is not None and process.exit_status != code:
            return f"process {process.index} ended with {process.exit_status}, not with {code}"
        return ""

    return check


def failed_with(*texts: str, on_all: bool = False) -> Check:
    """Return a check that a traceback with one of these texts was printed by the culprit, or by all."""

    def check(evidence: Evidence) -> str:
        for process in evidence.processes if on_all else [evidence.guilty]:
            if not any(text in process.output for text in texts):
                return f"process {process.index} has not printed {texts[0]!r}"
        return ""

    return check


def is_stopped(states: str = "Tt") -> Check:
    """Return a check that the culprit was stopped."""

    def check(evidence: Evidence) -> str:
        seen = [sample.state for sample in evidence.guilty.samples if sample.state]
        stopped = [state for state in seen if state in states]
        return "" if len(stopped) >= _LEAST_SAMPLES else f"its states were {''.join(seen)}"

    return check


def is_asleep_in(*channels: str) -> Check:
    """Return a check that the culprit's main thread sleeps in one of these functions of the kernel, at its step."""

    def check(evidence: Evidence) -> str:
        last = [sample for sample in evidence.guilty.samples if sample.state][-_LEAST_SAMPLES:]
        if len(last) < _LEAST_SAMPLES:
            return "too few samples"
        if any(sample.step != last[0].step for sample in last):
            return f"it went on to step {last[-1].step}"
        seen = {sample.wait_channel for sample in last}
        if not all(any(wanted in channel for wanted in channels) for channel in seen):
            return f"it sleeps in {', '.join(sorted(seen))}"
        return ""

    return check


def has_computed(evidence: Evidence) -> str:
    """Check that the culprit used the CPU all the time, without a step."""
    seen = [sample for sample in evidence.guilty.samples if sample.state]
    if len(seen) < _LEAST_SAMPLES:
        return "too few samples"
    first, last = seen[0], seen[-1]
    share = (last.cpu_seconds - first.cpu_seconds) / max(1e-9, (last.monotonic_ns - first.monotonic_ns) / 1e9)
    if first.step != last.step:
        return f"it went on to step {last.step}"
    return "" if share >= _BUSY_SHARE else f"it used {share:.0%} of a core"


def has_event(what: str) -> Check:
    """Return a check that a trainer has reported something itself."""
    return lambda evidence: "" if evidence.happened(what) else f"no process has reported {what!r}"


def has_gone_on(steps: int) -> Check:
    """Return a check that the job has taken so many steps since the onset."""

    def check(evidence: Evidence) -> str:
        if not evidence.happened("injected"):
            return "no process has reported the injection"
        reached = max((sample.step for process in evidence.processes for sample in process.samples), default=-1)
        taken = reached - evidence.step
        return "" if taken >= steps else f"the job has taken {taken} steps since"

    return check


def completed(evidence: Evidence) -> str:
    """Check that all processes ended with 0."""
    bad = {process.index: process.exit_status for process in evidence.processes if process.exit_status != 0}
    return f"exit statuses {bad}" if bad else ""


def never_started_steps(evidence: Evidence) -> str:
    """Check that no process has reached a step."""
    reached = max((sample.step for process in evidence.processes for sample in process.samples), default=-1)
    return f"the job has reached step {reached}" if reached >= 0 else ""


def of_attempts(number: int) -> Check:
    """Return a check of the number of attempts."""
    return lambda evidence: "" if evidence.attempts == number else f"{evidence.attempts} attempts"


def replayed(_: Evidence) -> str:
    """Check nothing: there is no job that a fault could have an effect on."""
    return ""
