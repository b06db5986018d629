"""C1: one process failed by itself, by an exception or an exit code; the others failed because of it, or wait."""

from __future__ import annotations

import re
from typing import Final

from ml_diagnostics_common.story import Confidence

from ml_diagnostics_console._facts.facts import Facts, ProcessFacts
from ml_diagnostics_console._rules.b2_program_error import is_program_error
from ml_diagnostics_console._rules.causes import Cause, exit_code_of, titles
from ml_diagnostics_console._rules.crashes import crash, error_of, logs_around
from ml_diagnostics_console._rules.leads import lead_of
from ml_diagnostics_console._rules.rule import Judgement, Rule
from ml_diagnostics_console._rules.wording import quoted
from ml_diagnostics_console.verdict import Blame

__all__ = ["RULE"]

_OF_MACHINES: Final = re.compile(
    r"\b(?:INTERNAL|UNAVAILABLE|DATA_LOSS|ABORTED|UNKNOWN):|\bECC\b|\bXid\b|CUDA_ERROR_(?:ECC|HARDWARE|LAUNCH_FAILED)"
    r"|core halted|chip reset|device or resource busy",
    re.IGNORECASE,
)
"""Codes with which XLA reports a fault of a device or of the network: the program may not be the reason."""
_RUNTIME_ERROR: Final = re.compile(r"(?:Xla|Jax)RuntimeError|RuntimeError|AcceleratorError")


def _judge(facts: Facts) -> Judgement:
    """Return the verdict on a process that failed by an exception or an exit code of its own."""
    lead = lead_of(facts)
    if lead is None or lead.cause not in (Cause.ERROR, Cause.EXIT) or is_program_error(facts, lead):
        return None
    process = lead.process
    is_one_of_several = facts.attempt is not None and len(facts.attempt.processes) > len(lead.processes)
    what = "failed first" if is_one_of_several else "failed"
    if lead.is_common:
        what = "failed by the same error"
    frame = _frame(process)
    if lead.cause is Cause.EXIT:
        code = exit_code_of(process)
        after = f": it exited with code {code}" if code else ""
    else:
        after = f": {error_of(process)}{f', in {frame}' if frame else ''}"
    return crash(
        facts,
        lead,
        "C1",
        what,
        after=after,
        blame=Blame.UNKNOWN if _is_of_machine(process) else Blame.USER,
        confidence=Confidence.PROVEN,
        commands=[logs_around(facts, process)],
    )


def _frame(process: ProcessFacts) -> str:
    """Return the innermost frame of the exception; empty if it is not recorded."""
    frames = process.exception[0].frames if process.exception and titles(process) else ()
    return quoted(str(frames[0])) if frames and frames[0].file else ""


def _is_of_machine(process: ProcessFacts) -> bool:
    text = next(iter(titles(process)), "")
    return bool(_RUNTIME_ERROR.match(text) and _OF_MACHINES.search(text))


RULE = Rule(
    id="C1",
    title="one process failed by an exception or an exit code of its own",
    needs=(
        "the ends of the processes: `with diagnose(...)`, or machinelearning_run for exceptions",
        "its frames: `with diagnose(...)` around the training function",
    ),
    judge=_judge,
    example="host host-3 failed first at step 30 (16:02:11 UTC): ValueError: batch 12 is empty, in next_batch "
    "(/job/data.py:40); the 63 others failed 0.1 to 104 s later because of it",
    replaces=("U0",),
)
