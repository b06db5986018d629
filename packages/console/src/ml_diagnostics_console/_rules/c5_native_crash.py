"""C5: native code crashed: a segmentation fault, an illegal instruction, or an abort with a report of its own."""

from __future__ import annotations

import re
from typing import Final

from ml_diagnostics_common.story import Confidence

from ml_diagnostics_console._facts.facts import Facts, MainStack, ProcessFacts
from ml_diagnostics_console._rules.causes import Cause, signal_of
from ml_diagnostics_console._rules.crashes import command, crash, logs_around
from ml_diagnostics_console._rules.leads import lead_of
from ml_diagnostics_console._rules.rule import Judgement, Rule
from ml_diagnostics_console._rules.wording import command_line, quoted
from ml_diagnostics_console.verdict import Blame, NextCommand, NotChecked, Ref

__all__ = ["RULE"]

_LIBRARY: Final = re.compile(r"(?:site|dist)-packages/([A-Za-z0-9_.]+?)(?:/|\.py|\.so|:)")
_REPORTS: Final = re.compile(
    r"Check failed:|terminate called|double free|corrupted|free\(\): |malloc\(\): |munmap_chunk|stack smashing"
    r"|Assertion .* failed|pure virtual method|panicked at|AddressSanitizer|^F\d{4} (?!.*JAX distributed)"
)
"""Lines that C and C++ libraries write before an abort: glibc, absl and glog, libstdc++, Rust."""
_NAMES: Final = {
    "SIGSEGV": "segmentation fault",
    "SIGBUS": "bus error",
    "SIGILL": "illegal instruction",
    "SIGFPE": "arithmetic error",
    "SIGABRT": "abort",
}
_WHY_NOT: Final = "the end of {} is not recorded: use `with diagnose(...)`, or `python -m cloud_tpu_diagnostics run --`"


def _judge(facts: Facts) -> Judgement:
    """Return the verdict on a crash of native code."""
    lead = lead_of(facts)
    if lead is None:
        return None
    process = lead.process
    if lead.cause is Cause.SILENT:
        return NotChecked("C5", _WHY_NOT.format(process.name))
    if lead.cause is not Cause.NATIVE:
        return None
    signal, stack, report = signal_of(process), _fault(process), _report(process)
    frame = stack.frames[0] if stack is not None and stack.frames else ""
    library = _library(stack)
    what = f"crashed in native code{f' of {library}' if library else ''}"
    after = f": {_NAMES.get(signal, 'fault')} ({signal})"
    after += f", main thread in {quoted(frame)}" if frame else ""
    after += f"; it wrote: {quoted(report[0])}" if report is not None else ""
    refs = [*process.end_refs[:1], *([stack.ref] if stack is not None else [])]
    refs += [report[1]] if report is not None else []
    return crash(
        facts,
        lead,
        "C5",
        what,
        after=after,
        blame=Blame.UNKNOWN,
        confidence=Confidence.PROVEN,
        refs=refs,
        commands=[
            _stacks(facts),
            command(facts, "mldiagnostics show RUN", "compare the versions with those that worked"),
            logs_around(facts, process),
        ],
    )


def _stacks(facts: Facts) -> NextCommand:
    job = facts.display_name or facts.name
    return NextCommand(command_line("tpu-stacks", "show", "--job", job), "read the stacks of all threads")


def _fault(process: ProcessFacts) -> MainStack | None:
    """Return the stack that the fault handler wrote; None without one."""
    return next((stack for stack in reversed(process.stacks) if stack.trigger == "fault"), None)


def _library(stack: MainStack | None) -> str:
    """Return the package of the innermost frame; empty for the program's own code."""
    match = _LIBRARY.search(stack.frames[0]) if stack is not None and stack.frames else None
    return match.group(1) if match else ""


def _report(process: ProcessFacts) -> tuple[str, Ref] | None:
    """Return the line that a native library wrote before the end."""
    for console in process.console:
        if console.occasion != "end":
            continue
        for line in reversed(console.text.splitlines()):
            if _REPORTS.search(line):
                return line, console.ref._replace(shows=f"{process.name} wrote: {quoted(line)}")
    return None


RULE = Rule(
    id="C5",
    title="native code crashed",
    needs=(
        "the signal and the stack: `with diagnose(...)`",
        "what native code wrote: `python -m cloud_tpu_diagnostics run --`",
    ),
    judge=_judge,
    example="host host-3 crashed in native code of jaxlib at step 30 (16:02:11 UTC): segmentation fault (SIGSEGV), "
    "main thread in execute_replicated (/venv/lib/site-packages/jaxlib/xla_client.py:40); the 3 others failed 0.1 s "
    "later because of it",
    replaces=("U0",),
)
