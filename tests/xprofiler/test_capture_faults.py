"""Captures of failing hosts: all available profiles are collected in a bounded time, and missing ones are named."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from ml_diagnostics_common.command.console import Console
from ml_diagnostics_common.profiler_service import ProfilerService
from ml_diagnostics_common.storage import LocalStorage
from ml_diagnostics_testing.faults import Delay, Hang, Skew, Status
from ml_diagnostics_testing.profiler_service import ProfilerServiceServer
from xprofiler.capture.capturing import Capture
from xprofiler.capture.outcomes import Outcome, report
from xprofiler.capture.session import Session
from xprofiler.capture.targets import addresses

from ..waiting import wait_until
from .captures import SlowTunnel, capture_command

pytest.importorskip("grpc")

_MS = 200
_SERVICE = ProfilerService(connect_seconds=30, extra_seconds=20)
"""For hosts that answer, or refuse: a loaded machine is no fault."""
_IMPATIENT = replace(_SERVICE, extra_seconds=2)
"""For hosts that do not answer in time."""


@pytest.fixture
def jobs() -> Iterator[list[ProfilerServiceServer]]:
    servers = [ProfilerServiceServer() for _ in range(3)]
    yield servers
    for server in servers:
        server.close()


def capture(
    jobs: list[ProfilerServiceServer], folder: Path, duration_ms: int = _MS, service: ProfilerService = _SERVICE
) -> list[Outcome]:
    found = addresses([job.address for job in jobs], 0)
    session = Session(str(folder), "session")
    return Capture(session, duration_ms, LocalStorage(), Console(), service).run(found.targets)


def asked(job: ProfilerServiceServer) -> int:
    return len(job.profiles)


@pytest.mark.parametrize("writes", ["empty", "half", "nothing"])
def test_a_host_without_a_file_is_captured_again_and_then_reported(
    jobs: list[ProfilerServiceServer], tmp_path: Path, writes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs[1].writes = writes  # type: ignore[assignment]
    outcomes = capture(jobs, tmp_path)
    assert [outcome.is_captured for outcome in outcomes] == [True, False, True]
    assert {"empty": "its file is empty", "half": "truncated", "nothing": "does not exist"}[writes] in outcomes[
        1
    ].problem
    assert [asked(job) for job in jobs] == [1, 2, 1]
    assert len(list((tmp_path / "session").iterdir())) == 2, "a file that is not whole is removed"
    assert f"No profile of {jobs[1].address}: capturing again." in capsys.readouterr().err


def test_a_host_that_fails_once_is_captured_the_second_time(jobs: list[ProfilerServiceServer], tmp_path: Path) -> None:
    jobs[2].faults.script([Status(503)])
    outcomes = capture(jobs, tmp_path)
    assert all(outcome.is_captured for outcome in outcomes)
    assert outcomes[2].start_ns - outcomes[0].start_ns > _MS * 1e6


def test_a_file_counts_even_if_its_answer_was_dropped(jobs: list[ProfilerServiceServer], tmp_path: Path) -> None:
    jobs[0].faults.script([Status(503, after_apply=True)])
    outcomes = capture(jobs, tmp_path)
    assert all(outcome.is_captured for outcome in outcomes)
    assert asked(jobs[0]) == 1


@pytest.mark.timing
def test_a_host_that_never_answers_is_given_up(jobs: list[ProfilerServiceServer], tmp_path: Path) -> None:
    jobs[0].faults.always(Hang())
    started = time.monotonic()
    outcomes = capture(jobs, tmp_path, service=_IMPATIENT)
    assert time.monotonic() - started < 10 * (_MS / 1000 + _IMPATIENT.extra_seconds)
    assert [outcome.is_captured for outcome in outcomes] == [False, True, True]
    assert "DEADLINE_EXCEEDED" in outcomes[0].problem


def test_a_host_that_dies_during_the_capture_is_reported(jobs: list[ProfilerServiceServer], tmp_path: Path) -> None:
    jobs[1].dies_after_seconds = _MS / 2000
    outcomes = capture(jobs, tmp_path)
    assert [outcome.is_captured for outcome in outcomes] == [True, False, True]
    assert "UNAVAILABLE" in outcomes[1].problem


def test_a_host_that_is_slow_to_start_is_waited_for(jobs: list[ProfilerServiceServer], tmp_path: Path) -> None:
    jobs[1].faults.script([Delay(0.5)])
    assert all(outcome.is_captured for outcome in capture(jobs, tmp_path))
    assert asked(jobs[1]) == 1


def test_a_busy_host_is_captured_afterwards(jobs: list[ProfilerServiceServer], tmp_path: Path) -> None:
    others = threading.Thread(
        target=_SERVICE.capture, args=([jobs[0].address], str(tmp_path / "other"), "session", _MS)
    )
    others.start()
    wait_until(lambda: asked(jobs[0]))
    outcomes = capture(jobs, tmp_path / "ours", 2 * _MS)
    others.join()
    assert all(outcome.is_captured for outcome in outcomes)


# --- Clocks, and slow tunnels -------------------------------------------------------------------------


def test_a_host_with_a_late_clock_gets_its_profile_after_the_others(
    jobs: list[ProfilerServiceServer], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It starts at the requested time by its clock, after the request has timed out, and is busy until then."""
    jobs[1].faults.always(Skew(-6))
    outcomes = capture(jobs, tmp_path, service=_IMPATIENT)
    assert [outcome.problem for outcome in outcomes] == ["", "", ""]
    assert [asked(job) for job in (jobs[0], jobs[2])] == [1, 1]
    assert asked(jobs[1]) > 2
    assert jobs[1].profiles[-1].start_ns == 0
    errors = capsys.readouterr().err
    assert errors.count(f"{jobs[1].address}: busy with the profile that was requested first; ") == 1


def test_a_clock_that_is_far_behind_is_named_as_the_likely_cause(
    jobs: list[ProfilerServiceServer], tmp_path: Path
) -> None:
    jobs[1].faults.always(Skew(-1000))
    targets = addresses([job.address for job in jobs], 0).targets
    session = Session(str(tmp_path), "session")
    outcomes = Capture(session, _MS, LocalStorage(), Console(), _IMPATIENT, busy_seconds=0).run(targets)
    assert [outcome.is_captured for outcome in outcomes] == [True, False, True]
    assert "because its clock is behind" in outcomes[1].problem


def test_a_host_with_a_fast_clock_is_captured_with_a_note_on_the_effect(
    jobs: list[ProfilerServiceServer], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs[1].faults.always(Skew(5))
    outcomes = capture(jobs, tmp_path)
    assert all(outcome.is_captured for outcome in outcomes)
    capsys.readouterr()
    report(outcomes, Session(str(tmp_path), "session"), str(tmp_path), "table", Console())
    errors = capsys.readouterr().err
    assert f"Note: by the hosts' own clocks {jobs[1].address} started" in errors
    assert "compare `date`" in errors


@pytest.mark.timing
def test_hosts_that_start_together_need_no_note(
    jobs: list[ProfilerServiceServer], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes = [replace(outcome, start_ns=10**9 + number) for number, outcome in enumerate(capture(jobs, tmp_path))]
    report(outcomes, Session(str(tmp_path), "session"), str(tmp_path), "table", Console())
    assert "Note" not in capsys.readouterr().err


@pytest.mark.timing
def test_a_host_behind_a_slow_tunnel_gets_its_request_before_all_start(
    jobs: list[ProfilerServiceServer], tmp_path: Path
) -> None:
    with SlowTunnel(jobs[1].port, _SERVICE.lead_seconds * 2) as tunnel:
        targets = addresses([jobs[0].address, tunnel.address, jobs[2].address], 0).targets
        outcomes = Capture(Session(str(tmp_path), "session"), _MS, LocalStorage(), Console(), _SERVICE).run(targets)
    assert all(outcome.is_captured for outcome in outcomes)
    (start_ns,) = {job.profiles[0].start_ns for job in jobs}
    assert all(job.requests[0].time < start_ns / 1e9 for job in jobs)


def test_verbose_prints_every_call_of_a_job(
    jobs: list[ProfilerServiceServer], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs[1].writes = "nothing"
    hosts = [job.address for job in jobs[:2]]
    ran = capture_command(capsys)("-v", "-o", "local", "-n", *hosts, "-l", tmp_path, "-d", _MS)
    (session,) = {profile.session_id for job in jobs for profile in job.profiles}
    root = f"{tmp_path}/tensorboard/plugins/profile"
    for job in jobs[:2]:
        name = job.profiles[0].host_name
        what = f"Profile request to {job.address}: {session}/{name}.xplane.pb in {root}, {_MS} ms, from "
        assert f"{what}{job.profiles[0].start_ns} ns on\n" in ran.errors
        answer = re.escape(f"Response of {job.address} after ") + r"\d+\.\d{3} s: OK\n"
        assert len(re.findall(answer, ran.errors)) == len(job.profiles)
    again = f"Profile request to {jobs[1].address}: "
    assert ran.errors.count(again) == 2
    assert "at once\n" in ran.errors.rpartition(again)[2]


@pytest.mark.timing
def test_64_hosts_take_no_longer_than_their_profile_and_start_together(tmp_path: Path) -> None:
    jobs = [ProfilerServiceServer() for _ in range(64)]
    try:
        started = time.monotonic()
        outcomes = capture(jobs, tmp_path, 2000)
        seconds = time.monotonic() - started
    finally:
        for job in jobs:
            job.close()
    assert all(outcome.is_captured for outcome in outcomes)
    assert seconds < 2 * 2.0  # One after the other they take 128 s.
    assert len({job.profiles[0].start_ns for job in jobs}) == 1
    assert len(list((tmp_path / "session").iterdir())) == 64
