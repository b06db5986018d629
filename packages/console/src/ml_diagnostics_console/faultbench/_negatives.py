"""Runs in which nothing is wrong, though some of it seems to be."""

from __future__ import annotations

from typing import Any, Final

from ml_diagnostics_console.faultbench._kinds import At, Check, Culprit, Expected, Kind
from ml_diagnostics_console.faultbench._verification import all_of, completed, has_event, is_stopped, of_attempts
from ml_diagnostics_console.verdict import Blame, VerdictClass

__all__ = ["NEGATIVES"]

_LONGEST_SECONDS: Final = 60.0
"""A job that has not completed by then is void."""
_HEALTHY = Expected((VerdictClass.HEALTHY,), (), Culprit.NONE)
_STOPPED = Expected((VerdictClass.HEALTHY,), (), Culprit.NONE, with_blame=Blame.PREEMPTION)
_INJECTED = all_of(has_event("injected"), completed)


def _negative(
    name: str, how: str, check: Check, at: At = At.INSIDE, *, expected: Expected = _HEALTHY, **settings: Any
) -> Kind:
    steps_after = settings.pop("steps_after", 60)
    least_processes = settings.pop("least_processes", 2)
    return Kind(
        name,
        how,
        expected,
        check,
        at,
        is_fault=False,
        steps_after=steps_after,
        observe_seconds=_LONGEST_SECONDS,
        least_processes=least_processes,
        settings=settings,
    )


NEGATIVES: Final = (
    _negative("healthy", "nothing", completed, At.NOWHERE, steps_after=120),
    _negative(
        "long_compile",
        "a compilation that is longer than the floor of the start",
        _INJECTED,
        is_on_all=True,
        step=-1,
        pause_seconds=9.0,
        startup_floor_seconds=6.0,
    ),
    _negative("save_pause", "one save of 9 s on one host", _INJECTED, pause_seconds=9.0, save_every=10),
    _negative("evaluation_pause", "an evaluation of 9 s on all", _INJECTED, pause_seconds=9.0, is_on_all=True),
    _negative("collection_pause", "a pause of 4 s in all of Python on one host", _INJECTED, pause_seconds=4.0),
    _negative(
        "sigterm_saved",
        "SIGTERM to all; all save, and end with 0 at the same step",
        all_of(has_event("signalled"), has_event("saved"), completed),
        At.OUTSIDE,
        expected=_STOPPED,
        signal="SIGTERM",
        sigterm="save",
        is_on_all=True,
        steps_after=400,
    ),
    _negative(
        "elastic_resize",
        "SIGTERM to all, saved; goes on with one process less, and completes",
        all_of(completed, of_attempts(2)),
        At.OUTSIDE,
        expected=_STOPPED,
        signal="SIGTERM",
        sigterm="save",
        is_on_all=True,
        attempts=2,
        shrinks=True,
        least_processes=3,
        steps_after=80,
    ),
    _negative(
        "clock_step",
        "the clock of one host is set by 30 s",
        completed,
        At.OUTSIDE,
        clock_step_seconds=30.0,
        hosts="own",
    ),
    _negative(
        "debugger",
        "one process is stopped for 9 s, then goes on",
        all_of(is_stopped(), completed),
        At.OUTSIDE,
        signal="SIGSTOP",
        continue_after_seconds=9.0,
        short_timeouts=False,  # A debugger for longer than JAX's timeout ends the job.
    ),
    _negative("loaded_machine", "4 busy processes a core", completed, At.OUTSIDE, busy_per_core=4),
    _negative("early_stop", "all stop at the same step, before the planned one", _INJECTED, is_on_all=True),
    _negative("input_pause", "the input of one host waits for 9 s, as for a file server", _INJECTED, pause_seconds=9.0),
)
