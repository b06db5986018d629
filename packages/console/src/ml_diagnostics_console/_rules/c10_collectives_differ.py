"""C10: the hosts ran different collectives: the library that carries them ended one that received the wrong size."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from ml_diagnostics_common.story import Confidence

from ml_diagnostics_console._facts.facts import AttemptFacts, Facts, ProcessFacts
from ml_diagnostics_console._rules.causes import Cause
from ml_diagnostics_console._rules.compiled import LEAST_PROCESSES, Compiled, compiled_differently
from ml_diagnostics_console._rules.crashes import crash, logs_around
from ml_diagnostics_console._rules.leads import Lead
from ml_diagnostics_console._rules.rule import Judgement, Rule, Threshold
from ml_diagnostics_console._rules.wording import quoted
from ml_diagnostics_console.verdict import Blame, NextCommand, Ref

__all__ = ["RULE"]

_MISMATCH: Final = re.compile(r"op\.preamble\.length <= op\.nbytes|distributed collective mismatch")
"""Gloo, to the process that received more bytes than its own collective has (gloo/transport/tcp/pair.cc)."""
_SIZES: Final = re.compile(r"\b(\d+) vs (\d+)\b")


class _Report(NamedTuple):
    """The line that the library wrote on a mismatch."""

    process: ProcessFacts
    line: str
    ref: Ref


def _judge(facts: Facts) -> Judgement:
    """Return the verdict on different collectives; None if no process reports that."""
    attempt = facts.attempt
    report = _report(attempt.processes) if attempt is not None else None
    if attempt is None or report is None:
        return None
    compiled = compiled_differently(attempt.processes)
    odd = compiled.processes if compiled is not None else _elsewhere(attempt)
    if odd:
        count = len(attempt.processes)
        lead = Lead(Cause.NATIVE, tuple(_at_the_report(process, report) for process in odd), (), Confidence.LIKELY)
        what = f"ran another collective than the other {count - len(odd)} processes"
    else:
        lead = Lead(Cause.NATIVE, attempt.processes, (), Confidence.LIKELY, is_common=True)
        what = "ran different collectives"
    return crash(
        facts,
        lead,
        RULE.id,
        what,
        after=f": {_why(odd, compiled)}{_received(report)}",
        blame=Blame.USER,
        refs=[report.ref, *(compiled.refs if compiled is not None else ())],
        commands=[
            logs_around(facts, odd[0] if odd else report.process, "a branch on the process index, or another batch"),
            NextCommand(
                "jax.experimental.multihost_utils.assert_equal(step, 'step')",
                "put it before the step: it fails on the host that differs",
            ),
        ],
    )


def _report(processes: Sequence[ProcessFacts]) -> _Report | None:
    """Return the first line on different collectives that a process wrote, or that ended it."""
    for process in processes:
        for console in process.console:
            for line in console.text.splitlines():
                if _MISMATCH.search(line):
                    return _Report(process, line, console.ref._replace(shows=f"{process.name} wrote: {quoted(line)}"))
        if process.end_refs and any(_MISMATCH.search(error.title) for error in process.exception):
            return _Report(process, process.exception[0].title, process.end_refs[0])
    return None


def _elsewhere(attempt: AttemptFacts) -> tuple[ProcessFacts, ...]:
    """Return the one process that was in another phase than all others; none where the phases do not show one."""
    processes = attempt.processes
    phases = Counter(process.last_phase for process in processes)
    if len(processes) < LEAST_PROCESSES or "" in phases or len(phases) != 2:
        return ()
    rare = min(phases, key=lambda phase: phases[phase])
    found = tuple(process for process in processes if process.last_phase == rare)
    return found if len(found) == 1 else ()


def _at_the_report(process: ProcessFacts, report: _Report) -> ProcessFacts:
    """Return a process with the time of the report as that of its failure: it ended later, or has not ended."""
    ended_ns = report.process.end.ended_ns
    return replace(process, end=process.end._replace(ended_ns=ended_ns)) if ended_ns is not None else process


def _why(odd: Sequence[ProcessFacts], compiled: Compiled | None) -> str:
    if compiled is not None:
        return f"{compiled.text}; "
    return f"it was in phase {odd[0].last_phase}, the others were not; " if odd else ""


def _received(report: _Report) -> str:
    """Return what the library reports, in words."""
    sizes = _SIZES.search(report.line)
    if sizes is None:
        return f"{report.process.name} received data of another size"
    return f"{report.process.name} received {int(sizes[1]):,} bytes where its own collective has {int(sizes[2]):,}"


RULE = Rule(
    id="C10",
    title="hosts ran different collectives",
    needs=(
        "what native code wrote: `python -m cloud_tpu_diagnostics run --`",
        "which host differs: its compilations or phases, by `with diagnose(...)`",
    ),
    judge=_judge,
    thresholds=(Threshold("processes", LEAST_PROCESSES, "of two, nothing shows which is different"),),
    example="host host-1 ran another collective than the other 3 processes at step 76 (16:02:11 UTC): it compiled "
    "evaluate 1 times, the others 0; host-0 received 2,048 bytes where its own collective has 512; the 3 others failed "
    "because of it",
    replaces=("C1", "C5", "C7", "U0"),
)
