"""The state of a run, from entries of its processes, its stored record, and the time without entries."""

from __future__ import annotations

import math
import random

import pytest
from google_cloud_mldiagnostics import _entries as entries
from google_cloud_mldiagnostics._reading.run_history import RunHistory
from google_cloud_mldiagnostics._reading.run_view import SILENT_SECONDS, State, view_run
from google_cloud_mldiagnostics._run_state.attempts import END_NOT_RECORDED
from hypothesis import given
from hypothesis import strategies as st
from ml_diagnostics_common.entry import LogEntry, ProcessEndings

from .sample_entries import (
    END_NOT_RECORDED_BEFORE,
    at,
    attempt,
    ending,
    entry,
    kept_process,
    metric,
    process,
    resource,
    rfc3339,
    session,
    view,
)


def test_a_run_with_a_recent_event_is_active() -> None:
    shown = view(resource(), process("ACTIVE", 0), process("ACTIVE", 60), now=61 + SILENT_SECONDS - 2)
    assert (shown.state, shown.reason, shown.ended_ns) == (State.ACTIVE, "", None)
    assert shown.last_event_ns == at(60)


def test_a_run_without_an_event_for_three_minutes_is_stale() -> None:
    shown = view(resource(), process("ACTIVE", 0), process("ACTIVE", 60), now=61 + SILENT_SECONDS)
    assert shown.state is State.STALE
    assert shown.reason == "no event of it for 3 min 1 s"
    assert shown.ended_ns is None


def test_any_entry_of_a_process_is_a_sign_of_life() -> None:
    shown = view(resource(), process("ACTIVE", 0), metric("loss", 500, 0.1), now=510)
    assert shown.state is State.ACTIVE
    assert view(resource(), process("ACTIVE", 0), metric("loss", 500, 0.1, pid=7), now=510).state is State.STALE


def test_values_that_another_part_has_read_count_by_their_last_one() -> None:
    log = [process("ACTIVE", 0), *(metric("loss", second, 1.0, step=second) for second in range(1, 200))]
    whole, short = RunHistory(), RunHistory()
    whole.add(log)
    short.add(log[:1])
    short.add_values("host-0", 100, at(150), 150)
    short.add_values("host-0", 100, at(199), 199)
    short.add_values("host-0", 100, at(20), 20)  # Late.
    short.add_values("host-0", 100, at(198))  # Without a step.
    (key,) = whole.processes
    assert view_run(resource(), short, now_ns=at(250)) == view_run(resource(), whole, now_ns=at(250))
    assert whole.last_step_ns("host-0", 100) == short.last_step_ns("host-0", 100) == at(199)
    assert (short.last_step(key), short.last_event_ns(key)) == (199, at(199))
    assert short.last_step_ns("host-1", 100) == 0


def test_runs_share_the_ends_that_companions_recorded() -> None:
    endings = ProcessEndings()
    first, second = RunHistory(endings), RunHistory(endings)
    first.add([process("ACTIVE", 0)])
    second.add([process("ACTIVE", 0, pid=101)])
    endings.add([ending("signal", 10)])
    assert view_run(resource(), first, now_ns=at(20)).state is State.FAILED
    assert view_run(resource(), second, now_ns=at(20)).state is State.ACTIVE


def test_the_outcome_that_the_companion_recorded_is_used() -> None:
    shown = view(resource(), process("ACTIVE", 0), ending("out_of_memory", 90), now=100)
    assert (shown.state, shown.reason, shown.ended_ns) == (State.FAILED, "The job: out_of_memory", at(90))


def test_a_clean_end_that_only_the_companion_saw_is_one() -> None:
    assert view(resource(), process("ACTIVE", 0), ending("clean", 90), now=100).state is State.COMPLETED


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(ending("signal", -50), id="an earlier process of the same pid"),
        pytest.param(ending("signal", 50, pid=101), id="another process"),
        pytest.param(ending("signal", 50, goes_on=True), id="a block that was left, as earlier versions wrote it"),
        pytest.param(ending("signal", 50, kind="left_block"), id="a block that was left by a job that continues"),
    ],
)
def test_the_end_of_another_process_or_block_is_not_the_runs(other: LogEntry) -> None:
    assert view(resource(), process("ACTIVE", 0), other, now=100).state is State.ACTIVE


def test_the_exit_reason_of_the_process_itself_has_priority_over_its_companion() -> None:
    log = [process("ACTIVE", 0), process("FAILED", 80, reason="ValueError: no data"), ending("exception", 81)]
    assert view(resource(), *log, now=100).reason == "ValueError: no data"


def gone(seconds: float) -> str:
    return f"no events since {rfc3339(seconds)[:19].replace('T', ' ')}Z (process gone)"


def test_a_process_that_is_gone_has_failed_at_once() -> None:
    kept = resource(attempts=[attempt(1, "ACTIVE", 0, kept_process())])
    shown = view(kept, process("ACTIVE", 0), now=5, is_gone=lambda known: known["started"] == "7")
    assert (shown.state, shown.reason) == (State.FAILED, gone(0))
    assert shown.ended_ns == at(0)
    assert view(kept, process("ACTIVE", 0), now=5).state is State.ACTIVE


def test_a_signal_before_the_end_of_a_process_is_part_of_the_reason() -> None:
    kept = resource(attempts=[attempt(1, "ACTIVE", 0, kept_process())])
    log = process("ACTIVE", 4, reason="SIGTERM was received")
    assert view(kept, log, now=5, is_gone=lambda _: True).reason == f"SIGTERM was received; {gone(4)}"
    # And dropped if the process continued.
    later = process("ACTIVE", 60)
    assert view(kept, log, later, now=65, is_gone=lambda _: True).reason == gone(60)


def test_a_recorded_outcome_is_not_changed() -> None:
    shown = view(resource("COMPLETED", endTime=rfc3339(50)), process("ACTIVE", 0), now=10_000)
    assert (shown.state, shown.ended_ns) == (State.COMPLETED, at(50))
    assert view(resource("FAILED", errorDetails="why"), process("ACTIVE", 0), now=9).reason == "why"


def test_a_failure_of_a_worker_is_not_covered_by_the_end_of_process_0() -> None:
    log = [
        process("COMPLETED", 50, count=2),
        process("FAILED", 55, host="host-1", index=1, count=2, reason="RuntimeError: lost"),
    ]
    shown = view(resource("COMPLETED"), *log, now=60)
    assert (shown.state, shown.reason) == (State.FAILED, "host-1 (process 1): RuntimeError: lost")


def test_the_first_failure_is_the_reason() -> None:
    log = [
        process("FAILED", 55, index=0, count=2, reason="barrier timed out"),
        process("FAILED", 50, host="host-1", index=1, count=2, reason="disk full"),
    ]
    assert view(resource(), *log, now=60).reason == "host-1 (process 1): disk full; 1 other failed because of it"


GLOO = "XlaRuntimeError: FAILED_PRECONDITION: Gloo all-reduce failed: Connection reset by peer [10.0.0.2]:41251"


def test_a_killed_process_is_the_reason_though_the_survivors_failed_before_it() -> None:
    survivors = [
        process("FAILED", 50 + index, host=f"host-{index}", pid=index, index=index, count=4, reason=GLOO)
        for index in (0, 2, 3)
    ]
    killed = [
        process("ACTIVE", 0, host="host-1", pid=1, index=1, count=4),
        ending("signal", 50.4, host="host-1", pid=1, signal="SIGKILL"),
    ]
    # Process 0 has written its own error to the run.
    kept = resource("FAILED", errorDetails=GLOO, attempts=[attempt(1, "FAILED", 0, kept_process(pid=0), reason=GLOO)])
    shown = view(kept, *survivors, *killed, now=60)
    assert shown.reason == "host-1 (process 1): The job: signal; 3 others failed because of it"
    assert shown.attempts[-1].reason == shown.reason
    assert [process.is_first_cause for process in shown.processes] == [False, True, False, False]
    assert {process.role.value for process in shown.processes} == {"own", "cascade"}


def test_a_process_that_recorded_its_failure_and_exits_with_0_is_the_reason() -> None:
    log = [
        process("FAILED", 50, host="host-0", pid=7, index=0, count=2, reason="ValueError: batch 12 is empty"),
        ending("clean", 51, host="host-0", pid=7, exit_code=0),
        process("FAILED", 49, host="host-1", pid=8, index=1, count=2, reason=GLOO),
    ]
    shown = view(resource(), *log, now=60)
    assert shown.reason == "host-0 (process 0): ValueError: batch 12 is empty; 1 other failed because of it"


def test_a_host_that_vanished_without_a_trace_is_only_suspected() -> None:
    log = [
        process("FAILED", 500, host="host-0", index=0, count=2, reason=GLOO),
        process("ACTIVE", 60, host="host-1", index=1, count=2),
    ]
    shown = view(resource("FAILED", errorDetails=GLOO), *log, now=510)
    assert shown.reason == GLOO
    expected = "host-1 (process 1): no event of it for 7 min 30 s; 1 other may have failed because of it"
    assert shown.attempts[-1].reason == expected


def test_a_missing_end_is_only_reported_where_no_companion_knows_better() -> None:
    ended = {**kept_process("FAILED"), "reason": END_NOT_RECORDED}
    kept = resource("FAILED", errorDetails=END_NOT_RECORDED)
    kept["attempts"] = [attempt(1, "FAILED", 0, ended, reason=END_NOT_RECORDED)]
    assert view(kept, process("ACTIVE", 0), now=90).reason == END_NOT_RECORDED
    shown = view(kept, process("ACTIVE", 0), ending("out_of_memory", 80), now=90)
    assert (shown.reason, shown.attempts[-1].reason) == ("The job: out_of_memory", "The job: out_of_memory")


def test_a_run_is_active_while_one_process_is_and_silent_processes_are_named() -> None:
    log = [process("ACTIVE", 400, count=3), process("ACTIVE", 10, host="host-1", index=1, count=3)]
    shown = view(resource(), *log, now=410)
    assert shown.state is State.ACTIVE
    assert shown.notes == [
        "host-1 (process 1): last event 6 min 40 s ago; other processes still run.",
        "1 of 3 processes have recorded nothing.",
    ]


def test_a_run_without_entries_of_processes_is_shown_as_recorded_with_a_note() -> None:
    shown = view(resource(), now=1e6)  # Like a run of the public package.
    assert shown.state is State.ACTIVE
    assert "not known" in shown.notes[0]


@pytest.mark.parametrize("reason", [END_NOT_RECORDED, END_NOT_RECORDED_BEFORE])
def test_an_attempt_without_a_recorded_end_lasted_until_its_last_event(reason: str) -> None:
    ended = kept_process() | {"phase": "FAILED", "endTime": rfc3339(300), "reason": reason}
    first = attempt(1, "FAILED", 0, ended) | {"endTime": rfc3339(300), "reason": reason}
    kept = resource(attempts=[first, attempt(2, "ACTIVE", 300, kept_process() | {"pid": 200})])
    shown = view(
        kept, process("ACTIVE", 0), metric("loss", 40, 0.1), process("ACTIVE", 300, pid=200, attempt=2), now=310
    )
    assert [one.ended_ns for one in shown.attempts] == [at(40), None]


def test_an_attempt_that_another_followed_has_failed() -> None:
    log = [process("ACTIVE", 0), process("ACTIVE", 300, pid=200, attempt=2)]
    shown = view(resource(), *log, now=310)
    assert [(one.number, one.state, one.reason) for one in shown.attempts] == [
        (1, State.FAILED, END_NOT_RECORDED),
        (2, State.ACTIVE, ""),
    ]
    assert (shown.state, [one.pid for one in shown.processes]) == (State.ACTIVE, [200])
    assert shown.attempts[0].ended_ns == at(0)


def test_the_stored_record_of_an_attempt_and_its_entries_are_merged() -> None:
    kept = resource(
        attempts=[
            attempt(1, "FAILED", 0, kept_process("FAILED"), reason="exit code 3", endTime=rfc3339(40)),
            attempt(2, "ACTIVE", 60, kept_process(pid=200)),
        ]
    )
    shown = view(kept, process("ACTIVE", 0), process("ACTIVE", 61, pid=200, attempt=2, profiler_port=9999), now=70)
    first, second = shown.attempts
    assert (first.state, first.reason, first.started_ns, first.ended_ns) == (State.FAILED, "exit code 3", at(0), at(40))
    assert [(one.pid, one.state, one.profiler_port) for one in second.processes] == [(200, State.ACTIVE, 9999)]


def test_an_attempt_that_the_control_plane_does_not_know_of_yet_counts() -> None:
    log = [process("COMPLETED", 10), process("ACTIVE", 20, pid=200, attempt=2)]
    assert view(resource("COMPLETED", labels={"attempt": "1"}), *log, now=25).state is State.ACTIVE
    assert view(resource("COMPLETED", labels={"attempt": "2"}), *log, now=25).state is State.COMPLETED


def test_one_process_may_make_several_attempts() -> None:
    log = [
        process("ACTIVE", 0),
        process("COMPLETED", 10),
        process("ACTIVE", 20, attempt=2),
        metric("loss", 30, 0.5),
    ]
    shown = view(resource(), *log, now=35)
    assert [(one.state, one.processes[0].last_event_ns) for one in shown.attempts] == [
        (State.COMPLETED, at(10)),
        (State.ACTIVE, at(30)),
    ]


def test_numbers_are_numbers_as_cloud_logging_gives_them_back() -> None:
    log = process("ACTIVE", 0, index=3, count=8, attempt=2, profiler_port=9999)
    log.payload = {name: float(value) if isinstance(value, int) else value for name, value in log.payload.items()}
    shown = view(resource(), log, now=5)
    only = shown.processes[0]
    assert (only.process_index, only.process_count, only.attempt, only.profiler_port) == (3, 8, 2, 9999)
    assert all(type(number) is int for number in (only.process_index, only.attempt, only.pid))


def test_googles_year_one_is_not_an_end_time() -> None:
    shown = view(resource(endTime="0001-01-01T00:00:00Z"), now=5)
    assert shown.ended_ns is None


def test_a_profile_merges_the_entries_of_its_hosts() -> None:
    log = [
        session("s1", "ACTIVE", 10),
        session("s1", "SUCCEEDED", 12, duration_seconds=1.5, size_bytes=1000, planes=["/host:CPU"]),
        session("s1", "FAILED", 13, host="host-1", index=1, problem="disk full"),
    ]
    (shown,) = view(resource(), *log, now=20).sessions
    assert (shown.phase, shown.started_ns, shown.duration_seconds) == ("FAILED", at(10), 1.5)
    assert [(host.host, host.phase, host.size_bytes, host.problem) for host in shown.hosts] == [
        ("host-0", "SUCCEEDED", 1000, ""),
        ("host-1", "FAILED", None, "disk full"),
    ]


def test_a_profile_that_only_the_control_plane_knows_is_shown_and_one_that_both_know_once() -> None:
    kept = [
        {
            "name": "projects/p/locations/l/machineLearningRuns/run-1/profilerSessions/s2",
            "kind": "KIND_SNAPSHOT",
            "storageFolderUri": "gs://b/run-1/plugins/profile/s2",
            "duration": "2.500s",
            "targetSessions": {"host-7": {"startTime": rfc3339(30), "sessionPhase": "SUCCEEDED"}},
        },
        {"name": "s1", "kind": "KIND_PROGRAMMATIC", "targetSessions": {"host-0": {"sessionPhase": "SUCCEEDED"}}},
    ]
    first, second = view(resource(), session("s1", "SUCCEEDED", 10), now=40, sessions=kept).sessions
    assert (first.session_id, first.kind, len(first.hosts)) == ("s1", "programmatic", 1)
    assert (second.kind, second.phase, second.duration_seconds, second.started_ns) == (
        "on_demand",
        "SUCCEEDED",
        2.5,
        at(30),
    )


def test_a_profile_that_was_uploaded_is_shown_in_its_bucket() -> None:
    kept = {"name": "s1", "storageFolderUri": "gs://b/run-1/plugins/profile/s1"}
    waiting = session("s1", "SUCCEEDED", 10, folder="/runs/run-1/staged/plugins/profile/s1")
    (shown,) = view(resource(), waiting, now=20, sessions=[kept]).sessions
    assert shown.folder == "gs://b/run-1/plugins/profile/s1"


ENTRIES = [
    process("ACTIVE", 0, count=2, address="10.0.0.1", profiler_port=9999),
    process("ACTIVE", 60, count=2),
    process("ACTIVE", 1, host="host-1", index=1, count=2),
    process("ACTIVE", 300, pid=200, attempt=2, count=2),
    process("FAILED", 320, pid=200, attempt=2, count=2, reason="no more data"),
    metric("loss", 90, 0.3, step=1),
    session("s1", "ACTIVE", 10),
    session("s1", "SUCCEEDED", 12, size_bytes=10),
    ending("signal", 100),
]


def test_the_order_of_entries_changes_nothing() -> None:
    expected = view(resource(), *ENTRIES, now=400)
    for seed in range(30):
        shuffled = random.Random(seed).sample(ENTRIES, len(ENTRIES))
        assert view(resource(), *shuffled, now=400) == expected


json_values = st.sampled_from(  # type: ignore[var-annotated]
    [
        None,
        True,
        0,
        -1,
        10**400,
        2.5,
        math.nan,
        math.inf,
        "",
        "ACTIVE",
        "1e999",
        "\ud800",
        [],
        [None, [1]],
        {},
        {"a": [{}]},
    ]
)
process_keys = st.sampled_from(
    [
        "phase",
        "attempt",
        "hostname",
        "process_index",
        "process_count",
        "pid",
        "reason",
        "profiler_port",
        "session_id",
        "folder",
        "kind",
        "duration_seconds",
        "size_bytes",
        "planes",
        "problem",
    ]
)


@given(
    payloads=st.lists(st.dictionaries(process_keys, json_values), max_size=4),
    namespace=st.sampled_from([entries.PROCESS, entries.SESSION]),
)
def test_a_run_with_any_entry_can_be_shown(payloads: list[dict[str, object]], namespace: str) -> None:
    log = [entry(namespace, second, payload) for second, payload in enumerate(payloads)]
    assert view(resource(), *log, now=100).run_id == "run-1"


@given(
    st.dictionaries(st.sampled_from(["runPhase", "labels", "configs", "artifacts", "endTime", "attempts"]), json_values)
)
def test_a_run_with_any_resource_of_a_control_plane_can_be_shown(kept: dict[str, object]) -> None:
    assert view_run({"name": "run-1", **kept}, RunHistory(), now_ns=at(1)).run_id == "run-1"
