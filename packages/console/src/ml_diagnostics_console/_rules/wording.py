"""Parts of sentences that several rules write: hosts, steps, times, and what followed. Pure."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence

from ml_diagnostics_common.story import Role
from ml_diagnostics_common.texts import format_duration

from ml_diagnostics_console._facts.facts import AttemptFacts, ProcessFacts

__all__ = ["at", "clock", "command_line", "consequences", "hosts_of", "indices_of", "named", "quoted"]

_SECOND_NS = 1_000_000_000
_NAMES_SHOWN = 2
_LONGEST_TEXT = 160


def clock(time_ns: int) -> str:
    """Return the time of day: `16:02:11 UTC`."""
    return time.strftime("%H:%M:%S UTC", time.gmtime(time_ns // _SECOND_NS))


def at(step: int | None, time_ns: int | None) -> str:
    """Return `at step 41,207 (16:02:11 UTC)`, as far as it is known; empty if neither is."""
    if step is None:
        return "" if time_ns is None else f"at {clock(time_ns)}"
    return f"at step {step:,}" + ("" if time_ns is None else f" ({clock(time_ns)})")


def command_line(*words: object) -> str:
    """Return a command for a shell: names of runs, hosts and folders are the user's, and may hold any character."""
    return shlex.join(map(str, words))


def named(processes: Sequence[ProcessFacts]) -> str:
    """Return the names of some processes: `host-3`, `host-3 and host-9`, `host-3 and 5 others`."""
    if not processes:
        return "no process"
    if len(processes) <= _NAMES_SHOWN:
        return " and ".join(process.name for process in processes)
    return f"{processes[0].name} and {len(processes) - 1} others"


def hosts_of(processes: Sequence[ProcessFacts]) -> tuple[str, ...]:
    """Return the hosts of some processes, each once."""
    return tuple(dict.fromkeys(process.host for process in processes))


def indices_of(processes: Sequence[ProcessFacts]) -> tuple[int, ...]:
    """Return the known indexes of some processes."""
    return tuple(process.index for process in processes if process.index is not None)


def quoted(text: str) -> str:
    """Return a text of the job on one line, cut to what a sentence can hold."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_TEXT else f"{line[: _LONGEST_TEXT - 3]}..."


def consequences(attempt: AttemptFacts) -> str:
    """Return what the first cause did to the others: `; the 63 others failed 0.1 to 104 s later because of it`.

    Empty if no other process failed. Times are left out where the clocks of the hosts do not allow them.
    """
    others = [
        process
        for process, role in zip(attempt.processes, attempt.story.roles, strict=True)
        if role in (Role.CASCADE, Role.TEARDOWN) and not process.is_first_cause
    ]
    first_ns = min((process.end.ended_ns for process in attempt.first if process.end.ended_ns), default=None)
    if not others:
        return ""
    many = "the other process" if len(others) == 1 else f"the {len(others)} others"
    delays = sorted(
        process.end.ended_ns - first_ns for process in others if first_ns is not None and process.end.ended_ns
    )
    if not delays or delays[0] < 0 or attempt.clock_uncertainty_ns > max(delays[-1], _SECOND_NS):
        return f"; {many} failed because of it"
    shortest, longest = (format_duration(delay / 1e9) for delay in (delays[0], delays[-1]))
    span = longest if len(delays) == 1 or shortest == longest else f"{shortest} to {longest}"
    return f"; {many} failed {span} later because of it"
