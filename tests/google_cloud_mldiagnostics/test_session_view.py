"""A profile of an ended process is not shown as active, also if its last entry is."""

from __future__ import annotations

from typing import Any

import pytest
from google_cloud_mldiagnostics._cli.run_sync import arrived
from google_cloud_mldiagnostics._reading.run_history import RunHistory
from google_cloud_mldiagnostics._reading.run_view import view_run
from google_cloud_mldiagnostics._reading.session_view import SessionView
from ml_diagnostics_common.entry import LogEntry

from .sample_entries import at, process, resource, session


def sessions_of(
    kept: dict[str, Any], *entries: LogEntry, now: float = 30, resources: tuple[dict[str, Any], ...] = ()
) -> list[SessionView]:
    history = RunHistory()
    history.add(entries)
    return view_run(kept, history, resources, now_ns=at(now)).sessions


STARTED = (process("ACTIVE", 0), session("s1", "ACTIVE", 10))


def test_a_profile_of_a_living_process_is_active() -> None:
    (shown,) = sessions_of(resource(), *STARTED)
    assert shown.phase == "ACTIVE"


@pytest.mark.parametrize("phase", ["COMPLETED", "FAILED"])
def test_a_profile_of_an_ended_process_is_failed(phase: str) -> None:
    (shown,) = sessions_of(resource(), *STARTED, process(phase, 20))
    assert shown.phase == "FAILED"
    assert "its process ended before" in shown.hosts[0].problem


def test_a_delivered_profile_stays_delivered() -> None:
    (shown,) = sessions_of(resource("FAILED"), *STARTED, session("s1", "SUCCEEDED", 15), process("FAILED", 20))
    assert (shown.phase, shown.hosts[0].problem) == ("SUCCEEDED", "")


def test_one_of_two_processes_may_still_be_profiling() -> None:
    other = process("ACTIVE", 0, host="host-1", index=1, count=2), session("s1", "ACTIVE", 10, host="host-1", index=1)
    (shown,) = sessions_of(resource(), *STARTED, *other, process("FAILED", 20))
    assert [(host.host, host.phase) for host in shown.hosts] == [("host-0", "FAILED"), ("host-1", "ACTIVE")]


@pytest.mark.parametrize(("phase", "shown_as"), [("ACTIVE", "ACTIVE"), ("COMPLETED", "FAILED")])
def test_a_session_of_only_the_control_plane_ends_with_the_run(phase: str, shown_as: str) -> None:
    kept = {"name": "s1", "targetSessions": {"host-0": {"sessionPhase": "ACTIVE"}}}
    (shown,) = sessions_of(resource(phase), resources=(kept,))
    assert shown.phase == shown_as


@pytest.mark.parametrize(("kept_phase", "shown_as"), [("ACTIVE", "FAILED"), ("SUCCEEDED", "SUCCEEDED")])
def test_a_profile_that_was_delivered_afterwards_is_shown_as_delivered(kept_phase: str, shown_as: str) -> None:
    kept = {"name": "s1", "targetSessions": {"host-0": {"sessionPhase": kept_phase}}}
    (shown,) = sessions_of(resource("FAILED"), *STARTED, process("FAILED", 20), resources=(kept,))
    assert shown.phase == shown_as
    assert bool(shown.hosts[0].problem) == (shown_as == "FAILED")


def test_a_profile_that_sync_finds_at_its_target_is_delivered() -> None:
    targets = {host: {"sessionPhase": phase} for host, phase in (("a", "ACTIVE"), ("b", "FAILED"), ("c", "ACTIVE"))}
    kept = {"name": "s1", "updateTime": "2026-11-21T12:00:00Z", "targetSessions": targets}
    now = arrived(kept, ["a", "b"])["targetSessions"]
    assert now == {
        "a": {"sessionPhase": "SUCCEEDED", "endTime": "2026-11-21T12:00:00Z"},
        "b": {"sessionPhase": "FAILED"},
        "c": {"sessionPhase": "ACTIVE"},
    }
    assert arrived(kept, []) is kept
    assert arrived({"name": "s1"}, ["a"]) == {"name": "s1"}
