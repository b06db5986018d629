"""Facts of jobs that were never run, for tests of rules: `process`, `attempt`, `facts` with what matters given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from google_cloud_mldiagnostics.reading import State
from ml_diagnostics_common.entry import EntryContext, LogEntry
from ml_diagnostics_common.story import ProcessEnd, story_of
from ml_diagnostics_console._facts.curves import Curves
from ml_diagnostics_console._facts.facts import AttemptFacts, Fact, Facts, ProcessFacts
from ml_diagnostics_console.verdict import Ref

SECOND_NS = 1_000_000_000
START_NS = 1_763_700_000 * SECOND_NS


def after(seconds: float) -> int:
    """Return a time so many seconds after the start of the job, in ns since 1970."""
    return START_NS + round(seconds * SECOND_NS)


def ref(shows: str = "", *, seconds: float = 0.0, host: str = "host-0") -> Ref:
    """Return a reference to an entry."""
    number = round(seconds * 1000) + 100_000_000_000
    return Ref(f"{host}.{number}", "tpu.googleapis.com/runtime_monitor", after(seconds), host, shows)


def process(index: int = 0, *, host: str = "", step: int | None = None, **fields: Any) -> ProcessFacts:
    """Return a process that runs; `end` and other fields change that.

    A text of `end` in the form `how[: exception]` is short for a ProcessEnd: `exception: ValueError: x`, `clean`,
    `signal: SIGKILL`, `exit: 3`, `out_of_memory`. `ended` is its time in seconds after the start.
    """
    host = host or f"host-{index}"
    ended = fields.pop("ended", None)
    end = fields.pop("end", ProcessEnd())
    if isinstance(end, str):
        how, _, rest = end.partition(": ")
        ended_ns = after(60.0 if ended is None else ended)
        end = ProcessEnd(how=how, ended_ns=ended_ns, host=host)
        if how == "exception":
            end = end._replace(exception=rest)
        elif how == "signal":
            end = end._replace(signal=rest)
        elif how == "exit":
            end = end._replace(exit_code=int(rest))
    known: dict[str, Any] = {
        "attempt": 1,
        "host": host,
        "pid": 4000 + index,
        "index": index,
        "started_ns": START_NS,
        "last_event_ns": after(60),
        "state": State.ACTIVE if not end.how else State.COMPLETED if end.how == "clean" else State.FAILED,
        "end": end,
        "end_refs": (ref(f"the end of {host}: {end.how}", seconds=ended or 60.0, host=host),) if end.how else (),
    }
    if step is not None:
        known["last_step"] = Fact(step, (ref(f"step {step}", seconds=50, host=host),), after(50))
    return ProcessFacts(**{**known, **fields})


def attempt(processes: Sequence[ProcessFacts], number: int = 1, **fields: Any) -> AttemptFacts:
    """Return an attempt with the roles of its processes' ends."""
    story = story_of([each.end for each in processes])
    hosts = [each.host for each in processes]
    marked = tuple(
        replace(
            each,
            attempt=number,
            role=role,
            is_first_cause=index in story.first,
            shown_name=each.host if hosts.count(each.host) == 1 else "",
        )
        for index, (each, role) in enumerate(zip(processes, story.roles, strict=True))
    )
    ends = [each.end.ended_ns for each in processes if each.end.ended_ns is not None]
    states = {each.state for each in processes}
    known: dict[str, Any] = {
        "state": State.FAILED
        if State.FAILED in states
        else State.ACTIVE
        if State.ACTIVE in states
        else State.COMPLETED,
        "reason": "",
        "started_ns": START_NS,
        "ended_ns": max(ends) if ends and len(ends) == len(processes) else None,
        "best_step": max((each.step for each in processes if each.step is not None), default=None),
    }
    return AttemptFacts(number=number, processes=marked, story=story, **{**known, **fields})


def facts(*attempts: AttemptFacts | Sequence[ProcessFacts], **fields: Any) -> Facts:
    """Return the facts of a job whose last attempt is judged; a list of processes is an attempt."""
    made = tuple(
        each if isinstance(each, AttemptFacts) else attempt(each, number) for number, each in enumerate(attempts, 1)
    )
    is_live = bool(made) and made[-1].ended_ns is None
    known: dict[str, Any] = {"now_ns": after(120), "is_live": is_live, "judged": len(made) - 1 if made else None}
    return Facts(name="run-1", display_name="job", attempts=made, **{**known, **fields})


def metrics(*series: tuple[str, str, Sequence[float]], interval: float = 10.0, unit: str = "1") -> Curves:
    """Return curves of metrics of hosts: name, host and values, one each `interval` seconds from the start."""
    curves = Curves()
    for name, host, values in series:
        context = EntryContext("ml_diagnostics_metric", "", {}, {"host": host, "pid": "4000"}, writer=f"{host}-4000-1")
        for number, value in enumerate(values):
            payload = {"values": [value], "unit": unit, "hostname": host}
            entry = LogEntry(after(number * interval), 100_000_000_000 + number, payload, context)
            curves.add(name, entry)
    return curves


def metric_of_steps(name: str, values: Sequence[float | str], *, first_step: int = 0, host: str = "host-0") -> Curves:
    """Return one metric with steps, such as a loss; a text is a value that is not finite."""
    curves = Curves()
    context = EntryContext("ml_diagnostics_metric", "", {}, {"host": host, "pid": "4000"}, writer=f"{host}-4000-1")
    for number, value in enumerate(values):
        payload = {"values": [value], "step_index": first_step + number, "unit": "1"}
        curves.add(name, LogEntry(after(number), 100_000_000_000 + number, payload, context))
    return curves
