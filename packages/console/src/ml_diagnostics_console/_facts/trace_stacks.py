"""Stacks from trace files, for processes of this machine of which no companion recorded anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from cloud_tpu_diagnostics.reading import ProcessDump, dumps_of_processes, main_thread
from ml_diagnostics_common.environment import identity

from ml_diagnostics_console._facts.facts import AttemptFacts, MainStack, ProcessFacts
from ml_diagnostics_console.verdict import Ref

__all__ = ["with_trace_stacks"]

_BEFORE_NS: Final = 5_000_000_000
"""The largest difference of the times of files and of entries."""
_AFTER_NS: Final = 3_600 * 1_000_000_000
"""A file that was written longer after the last event of a process is of a later one with its pid."""
_MOST_FRAMES: Final = 64


def with_trace_stacks(attempts: Sequence[AttemptFacts]) -> list[AttemptFacts]:
    """Return attempts with the stacks of trace files, where companions recorded none.

    Only processes of this machine have their files here, and only in the usual folder.

    Args:
        attempts: The attempts of a job.
    """
    wanted = {process.pid for attempt in attempts for process in attempt.processes if _is_without_entries(process)}
    dumps = dumps_of_processes(wanted) if wanted else {}
    if not dumps:
        return list(attempts)
    stacks = [(dump, stack) for path, dump in dumps.items() if (stack := _stack(str(path), dump)) is not None]
    return [
        replace(attempt, processes=tuple(_with_stacks(process, stacks) for process in attempt.processes))
        for attempt in attempts
    ]


def _is_without_entries(process: ProcessFacts) -> bool:
    """Return True for a process of this machine of which no companion recorded anything."""
    is_recorded = process.stacks or process.hangs or process.end_fields or process.last_phase or process.console
    return process.host == identity().host and not is_recorded


def _with_stacks(process: ProcessFacts, stacks: Sequence[tuple[ProcessDump, MainStack]]) -> ProcessFacts:
    if not _is_without_entries(process):
        return process
    first_ns, last_ns = process.started_ns - _BEFORE_NS, process.last_event_ns + _AFTER_NS
    found = [stack for dump, stack in stacks if dump.pid == process.pid and first_ns <= stack.time_ns <= last_ns]
    return replace(process, stacks=tuple(sorted(found, key=lambda stack: stack.time_ns)))


def _stack(path: str, dump: ProcessDump) -> MainStack | None:
    main = main_thread(dump.threads)
    if main is None:
        return None
    frames = tuple(map(str, main.frames[:_MOST_FRAMES]))
    shows = f"the main thread is in {frames[0]}" if frames else "the main thread has no Python frame"
    ref = Ref(path, "file", dump.time_ns, dump.host, shows)
    trigger = "fault" if dump.has_crashed else "exception" if dump.exception else "timer"
    return MainStack(dump.time_ns, frames, dump.step, "", 0.0, trigger, ref, dump.headline)
