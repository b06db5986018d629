"""Build facts from the view of a run, its entries and the entries of companions. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from google_cloud_mldiagnostics.reading import (
    AttemptView,
    ProcessView,
    RunView,
    State,
    mappings,
    natural_number,
)
from ml_diagnostics_common.entry import LogEntry
from ml_diagnostics_common.raised_exception import RaisedException, raised_from_json
from ml_diagnostics_common.story import ProcessEnd, recorded_end, story_of

from ml_diagnostics_console._facts.clocks import compare_clocks
from ml_diagnostics_console._facts.entries import SILENT_BEFORE_NEXT_NS, Life, Lives, ref_of
from ml_diagnostics_console._facts.facts import SIGTERM_CAUGHT, AttemptFacts, Fact, ProcessFacts, Unknown
from ml_diagnostics_console._facts.run_records import RunRecords
from ml_diagnostics_console.verdict import Ref

__all__ = ["STUCK_BEFORE_END_SECONDS", "attempts_of_jobs", "attempts_of_runs", "chips_of", "process_of_view"]

_BEFORE_RUN_NS: Final = 600_000_000_000
"""A process may be in its block for so long before its run starts."""
STUCK_BEFORE_END_SECONDS: Final = 900.0
"""A job that is stuck is ended by its owner, or by JAX's timeouts of some minutes, within this time of a verdict."""
_SIGTERM: Final = "SIGTERM"


def attempts_of_runs(view: RunView, lives: Lives, records: RunRecords) -> list[AttemptFacts]:
    """Return the attempts of a run, with what companions recorded of its processes.

    Args:
        view: The run.
        lives: The entries of companions.
        records: The entries of the run.
    """
    reason_ref = Ref(view.run_id, "run", view.ended_ns, "", view.reason)
    used: set[int] = set()
    by_attempt: dict[int, list[ProcessFacts]] = {}
    for attempt in view.attempts:
        for process in attempt.processes:
            life = lives.of_process(process.host, process.pid, process.started_ns, process.last_event_ns)
            used.add(id(life))
            by_attempt.setdefault(attempt.number, []).append(_of_view(process, life, records, reason_ref))
    names = {name for name in (view.run_id, view.display_name) if name}
    for life in lives.labelled(names):
        if id(life) not in used and _may_be_of(life, view, names):
            _assign(life, view.attempts, by_attempt)
    known = {attempt.number: attempt for attempt in view.attempts}
    return [_attempt(number, known.get(number), by_attempt.get(number, [])) for number in sorted({*known, *by_attempt})]


def attempts_of_jobs(found: Sequence[Life]) -> list[AttemptFacts]:
    """Return the attempts of a job that started no run, from the entries of companions alone.

    A process with the host and index of one that has ended is of the next attempt; so is one with those of a process
    that has recorded nothing more: that one has no end.

    Args:
        found: The lives of its processes, in the order of their first entries.
    """
    attempts: list[list[Life]] = []
    for life in found:
        is_next = not attempts or any(
            (other.host, other.index) == (life.host, life.index) and _is_over(other, life) for other in attempts[-1]
        )
        if is_next:
            attempts.append([])
        attempts[-1].append(life)
    return [
        _attempt(number, None, [_closed(_of_life(life, number), life, found) for life in lives])
        for number, lives in enumerate(attempts, 1)
    ]


def _is_over(life: Life, other: Life) -> bool:
    """Return True if a process was over when another one with its host and index started."""
    if life.ended_ns is not None:
        return life.ended_ns <= other.first_ns
    # A pid is of one process at a time; of two pids, both may run with the same index, by mistake.
    silent_ns = 0 if life.pid == other.pid else SILENT_BEFORE_NEXT_NS
    return life.last_ns + silent_ns < other.first_ns


def _closed(process: ProcessFacts, life: Life, found: Sequence[Life]) -> ProcessFacts:
    """Return a process without a recorded end as one that is gone, if another one has started in its place."""
    is_gone = life.ended_ns is None and any(
        (other.host, other.index) == (life.host, life.index) and other is not life and _is_over(life, other)
        for other in found
    )
    return replace(process, state=State.FAILED, end=process.end._replace(is_silent=True)) if is_gone else process


def chips_of(view: RunView) -> Fact[int] | Unknown:
    """Return the number of chips of a run, from its hardware configs."""
    hardware = view.configs.get("hardware", {})
    number = natural_number(hardware.get("num_devices"))
    if hardware.get("accelerator_type") == "cpu":
        return Unknown("the job computes on CPUs: it uses no accelerator")
    if not number:
        return Unknown("the run's hardware configs have no `num_devices`: its devices were never initialised")
    shows = f"{number} devices"
    return Fact(number, (Ref(view.run_id, "run", view.started_ns, "", shows),), view.started_ns or 0)


def _may_be_of(life: Life, view: RunView, names: set[str]) -> bool:
    """Return True if a process that is not in the run belongs to it: it ended before the run started in it."""
    run = life.labels.get("run", "")
    started_ns = view.started_ns or 0
    return (run in names or not run) and life.last_ns >= started_ns - _BEFORE_RUN_NS


def _assign(life: Life, attempts: Sequence[AttemptView], by_attempt: dict[int, list[ProcessFacts]]) -> None:
    """Add a process without entries of the run to the attempt of its time; or what `run` recorded to its child."""
    number = _attempt_at(life, attempts)
    processes = by_attempt.setdefault(number, [])
    children = [
        index
        for index, process in enumerate(processes)
        if process.host == life.host
        and life.first_ns <= process.last_event_ns
        and (life.ended_ns is None or process.started_ns <= life.ended_ns)
    ]
    if not children:
        processes.append(_of_life(life, number))
    elif len(children) == 1 and not life.summaries and not life.hangs:  # A shell around the program, under `run`.
        child = processes[children[0]]
        processes[children[0]] = replace(
            child,
            console=child.console or tuple(life.console.values()),
            signals=child.signals or tuple(life.signals),
        )


def _attempt_at(life: Life, attempts: Sequence[AttemptView]) -> int:
    for attempt in attempts:
        if attempt.ended_ns is None or life.first_ns <= attempt.ended_ns:
            return attempt.number
    return attempts[-1].number + 1 if attempts else 1


def process_of_view(process: ProcessView) -> ProcessFacts:
    """Return a process with what the view of its run alone has of it.

    Args:
        process: The process in the view.
    """
    return ProcessFacts(
        attempt=process.attempt,
        host=process.host,
        pid=process.pid,
        index=process.process_index,
        started_ns=process.started_ns,
        last_event_ns=process.last_event_ns,
        state=process.state,
        end=process.end,
    )


def _of_view(process: ProcessView, life: Life | None, records: RunRecords, reason_ref: Ref) -> ProcessFacts:
    """Return a process of a run."""
    own = records.of_process(process.host, process.pid, process.attempt)
    fields = dict(own.last.payload) if own.last is not None else {}
    refs = _refs_of_end(life) if life is not None else []
    if own.last is not None and process.has_own_end:
        # ended_ns of a run's end is that of the entry.
        refs.insert(0, ref_of(own.last, process.reason or f"the process ended: {process.state.value}"))
    known = replace(
        process_of_view(process),
        process_count=process.process_count,
        expected_processes=natural_number(fields.get("expected_processes")),
        planned_steps=natural_number(fields.get("planned_steps")),
        end_refs=tuple(refs) or ((reason_ref,) if process.end.how else ()),
        end_message=process.reason,
        exception=process.traceback,
        file_systems=process.file_systems,
        lost_entries=own.lost_entries,
        software=own.software,
        hardware=own.hardware,
        config_digest=str(fields.get("config_digest") or ""),
        user_configs=own.user_configs,
        config_refs=tuple(ref_of(entry, f"the {kind} of {process.host}") for kind, entry in own.config_entries.items()),
        fields=fields,
    )
    if process.step is not None:
        ref = Ref(reason_ref.id, "run", process.last_event_ns, process.host, f"a metric of step {process.step:,}")
        known = replace(known, last_step=Fact(process.step, (ref,), process.last_event_ns))
    return known if life is None else _with_life(known, life)


def _of_life(life: Life, attempt: int) -> ProcessFacts:
    """Return a process that only companions, or `run`, recorded."""
    payload = _merged(life.ends)
    ended = [entry for entry in life.ends if entry.payload.get("kind") == "job_ended"]
    is_clean = payload.get("how") == "clean"
    state = State.ACTIVE if not ended else State.COMPLETED if is_clean else State.FAILED
    known = ProcessFacts(
        attempt=attempt,
        host=life.host,
        pid=natural_number(life.pid) or 0,
        index=life.index,
        started_ns=life.first_ns,
        last_event_ns=life.last_ns,
        state=state,
        end=_end_of(life),
        expected_processes=natural_number(life.labels.get("expected_processes")),
        end_refs=tuple(_refs_of_end(life)),
        end_message=str(payload.get("message") or ""),
    )
    return _with_life(known, life)


def _end_of(life: Life) -> ProcessEnd:
    """Return the end of a process by the entries of its companion and of `run`: both may know a part."""
    if not life.ends:
        return ProcessEnd(host=life.host)
    last, merged = life.ends[-1], _merged(life.ends)
    end = recorded_end(merged, last.timestamp_ns, life.host)
    is_over = any(entry.payload.get("kind") == "job_ended" for entry in life.ends)
    return end if is_over else end._replace(how="")


def _refs_of_end(life: Life) -> list[Ref]:
    """Return the entries on an end, that of the process before that of its block."""
    return [ref_of(entry) for entry in sorted(life.ends, key=lambda entry: entry.payload.get("kind") != "job_ended")]


def _merged(ends: Sequence[LogEntry]) -> dict[str, Any]:
    """Return the fields of all entries on one end; what the end of the process has is before that of its block."""
    merged: dict[str, Any] = {}
    for entry in sorted(ends, key=lambda entry: entry.payload.get("kind") == "job_ended"):
        merged.update({name: value for name, value in entry.payload.items() if value not in (None, "")})
    return merged


def _with_life(process: ProcessFacts, life: Life) -> ProcessFacts:
    """Return a process with what its companion recorded."""
    merged = _merged(life.ends)
    left = next((entry for entry in life.ends if entry.payload.get("kind") == "left_block"), None)
    exception = process.exception or _exception_of(merged)
    end = process.end
    hangs, console = tuple(life.hangs), tuple(life.console.values())
    ended_ns = end.ended_ns or life.ended_ns
    if end.how:
        is_stuck = any(0 <= (ended_ns or 0) - hang.time_ns <= STUCK_BEFORE_END_SECONDS * 1e9 for hang in hangs)
        # A cluster asks the others to end once one has failed: one that had failed before was not ended by that.
        failed_ns = ended_ns
        if left is not None and end.exception:
            failed_ns = min(left.timestamp_ns, ended_ns or left.timestamp_ns)
        was_asked = end.was_asked or _was_asked(life, failed_ns)
        end = end._replace(was_stuck=end.was_stuck or is_stuck, was_asked=was_asked)
    step = process.last_step
    if life.step is not None and (isinstance(step, Unknown) or life.step[0] >= step.value):
        number, entry = life.step
        step = Fact(number, (ref_of(entry, f"step {number:,}"),), entry.timestamp_ns)
    return replace(
        process,
        index=life.index if process.index is None else process.index,
        last_event_ns=max(process.last_event_ns, life.last_ns),
        end=end,
        last_step=step,
        coordinator=life.labels.get("coordinator", ""),
        last_phase=life.phase,
        exception=exception,
        file_systems=process.file_systems or tuple(mappings(merged.get("file_systems"))),
        left_block_ns=left.timestamp_ns if left is not None else None,
        hangs=hangs,
        stacks=life.stacks(),
        kernel_states=tuple(life.kernel_states),
        summaries=life.summaries,
        compiles=tuple(life.compiles),
        signals=tuple(life.signals),
        sigterm_handlers=tuple(life.sigterm_handlers),
        console=console,
        end_fields=merged,
        resource=_resource_of(life),
        held=life.held,
    )


def _resource_of(life: Life) -> dict[str, str]:
    labels = life.resource.get("labels")
    known = {str(name): str(value) for name, value in labels.items()} if isinstance(labels, Mapping) else {}
    kind = life.resource.get("type")
    return {**known, "type": kind} if isinstance(kind, str) and kind else {}


def _was_asked(life: Life, ended_ns: int | None) -> bool:
    """Return True if the process received SIGTERM before its end."""
    asked_ns = [signal.time_ns for signal in life.signals if signal.name == _SIGTERM]
    if asked_ns:
        return ended_ns is None or min(asked_ns) <= ended_ns
    return any(SIGTERM_CAUGHT in text.text for text in life.console.values())


def _exception_of(merged: Mapping[str, Any]) -> tuple[RaisedException, ...]:
    """Return the exception of an entry on an end as that of a run's entry."""
    kind = str(merged.get("exception") or "")
    if not kind:
        return ()
    text = str(merged.get("exception_text") or "")
    frames = merged.get("exception_frames")
    encoded = {
        "exception": f"{kind}: {text}" if text else kind,
        "frames": frames if isinstance(frames, list) else [],
        **{name: merged[name] for name in ("errno", "filename") if name in merged},
    }
    raised = raised_from_json(encoded)
    return () if raised is None else (raised,)


def _attempt(number: int, view: AttemptView | None, found: Iterable[ProcessFacts]) -> AttemptFacts:
    """Return an attempt with the roles of its processes."""
    processes = sorted(found, key=lambda process: (process.index is None, process.index or 0, process.started_ns))
    clocks = compare_clocks((process.host, process.summaries) for process in processes)
    ends = [
        process.end
        if process.end.ended_ns is None
        else process.end._replace(ended_ns=clocks.corrected(process.host, process.end.ended_ns))
        for process in processes
    ]
    hosts = Counter(process.host for process in processes)
    is_corrected = hosts.keys() <= clocks.offsets_ns.keys()
    uncertainty_ns = clocks.uncertainty_ns if is_corrected else 1_000_000_000
    story = story_of(ends, clocks_ns=uncertainty_ns)
    marked = tuple(
        replace(
            process,
            end=end,
            role=role,
            is_first_cause=position in story.first,
            shown_name=process.host if hosts[process.host] == 1 else "",
        )
        for position, (process, end, role) in enumerate(zip(processes, ends, story.roles, strict=True))
    )
    state, reason = (view.state, view.reason) if view is not None else (_state_of(marked), "")
    started = [process.started_ns for process in marked if process.started_ns]
    all_ended = bool(marked) and all(process.has_ended for process in marked)
    last_ns = max((process.end.ended_ns or process.last_event_ns for process in marked), default=None)
    return AttemptFacts(
        number=number,
        state=state,
        reason=reason,
        started_ns=view.started_ns if view is not None and view.started_ns else min(started, default=None),
        ended_ns=(view.ended_ns if view is not None else None) or (last_ns if all_ended else None),
        processes=marked,
        story=story,
        best_step=max((process.step for process in marked if process.step is not None), default=None),
        clock_uncertainty_ns=uncertainty_ns,
        clock_offsets_ns=clocks.offsets_ns,
    )


def _state_of(processes: Sequence[ProcessFacts]) -> State:
    states = {process.state for process in processes}
    for state in (State.FAILED, State.ACTIVE, State.STALE):
        if state in states:
            return state
    return State.COMPLETED if states else State.UNKNOWN
