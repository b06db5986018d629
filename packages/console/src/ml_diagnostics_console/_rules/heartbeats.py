"""The processes that JAX's coordination service no longer has heartbeats of, by the last lines of the others. Pure.

JAX ends the survivors and prints the index of the task that "stopped sending heartbeats". A heartbeat does not show
that a process is healthy, since C++ sends it while Python is blocked; but where heartbeats have stopped, the machine,
the network or the process is gone.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from ml_diagnostics_console._facts.facts import ConsoleText, Facts, ProcessFacts
from ml_diagnostics_console.verdict import Ref

__all__ = ["Unresponsive", "unresponsive_processes"]

_UNHEALTHY: Final = re.compile(
    r"following tasks are unhealthy \(stopped sending heartbeats\):\s*"
    r"((?:(?:/job:\w+/replica:\d+/task:)?\d{1,9}[\s,]+)+)"
)
"""jax 0.10 prints an index a line, earlier versions names such as /job:jax_worker/replica:0/task:2."""
_INDEX: Final = re.compile(r"(?:task:|(?<![\w:/]))(\d{1,9})(?!\w)")
_LAST_CHARACTERS: Final = 65_536


class Unresponsive(NamedTuple):
    """Processes that sent no heartbeats any more, and the lines that show it."""

    processes: tuple[ProcessFacts, ...]
    ref: Ref


def unresponsive_processes(facts: Facts) -> Unresponsive | None:
    """Return the processes of the attempt that JAX no longer has heartbeats of; None if no line names one."""
    by_index = {process.index: process for process in facts.processes if process.index is not None}
    for process in facts.processes:
        for text in process.console:
            found = [by_index[index] for index in _indexes(text) if index in by_index]
            if found and len(found) < len(facts.processes):
                numbers = ", ".join(str(each.index) for each in found[:5])
                shows = f"JAX on {process.name}: process {numbers} stopped sending heartbeats"
                return Unresponsive(tuple(found), text.ref._replace(shows=shows))
    return None


def _indexes(text: ConsoleText) -> list[int]:
    matches = _UNHEALTHY.finditer(text.text[-_LAST_CHARACTERS:])
    return list(dict.fromkeys(int(index) for match in matches for index in _INDEX.findall(match[1])))
