"""Runs are listed, and profiler sessions kept, by Google's control plane."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from google_cloud_mldiagnostics.control_plane import Resource
from google_cloud_mldiagnostics.control_plane.google import GoogleControlPlane
from google_cloud_mldiagnostics.exceptions import ControlPlaneError, RunNotFoundError
from ml_diagnostics_testing.faults import Drip, Fault, Oversize, Status
from ml_diagnostics_testing.http_server import Request, Response, json_response

from ..loopback.control_plane import ControlPlaneServer
from .asked_control_planes import LOST, NOT_DONE, RUN, Time, asked, connected, patience, session


def test_runs_are_listed_newest_first_in_pages_of_a_thousand(
    google: GoogleControlPlane, server: ControlPlaneServer
) -> None:
    for index in range(1001):
        server.put_run(f"run-{index:04}", {"runSet": "a"})
    names = [run["name"] for run in google.list_runs()]
    assert names == [f"run-{index:04}" for index in reversed(range(1001))]
    assert [record.entries for record in server.requests] == [1000, 1]


def test_a_page_is_requested_when_it_is_needed(google: GoogleControlPlane, server: ControlPlaneServer) -> None:
    for index in range(1001):
        server.put_run(f"run-{index:04}", {})
    assert next(google.list_runs())["name"] == "run-1000"
    assert len(server.requests) == 1


@pytest.mark.parametrize("group", ["sweep", 'a "quoted" \\ group', "実験", "a AND b", ""])
def test_a_group_of_any_name_is_listed(google: GoogleControlPlane, server: ControlPlaneServer, group: str) -> None:
    server.put_run("mine", {"runSet": group})
    server.put_run("other", {"runSet": "another"})
    assert [run["name"] for run in google.list_runs(group)] == ["mine"]
    assert "filter=run_set" in server.requests[0].path


def test_a_group_is_listed_alone_whatever_the_service_makes_of_the_filter(
    google: GoogleControlPlane, server: ControlPlaneServer
) -> None:
    server.handle = lambda request: json_response(
        {"machineLearningRuns": [{"name": "a", "runSet": "A"}, {"name": "b"}]}
    )
    assert [run["name"] for run in google.list_runs("A")] == ["a"]
    assert list(google.list_runs("a")) == []


@pytest.mark.parametrize(
    "page",
    [
        {"machineLearningRuns": [{"name": "a"}], "nextPageToken": "again"},
        {"nextPageToken": "page NUMBER"},
        {"machineLearningRuns": [{"name": "a"}], "nextPageToken": "page NUMBER"},
    ],
)
def test_a_list_that_never_ends_is_an_error(
    google: GoogleControlPlane, server: ControlPlaneServer, page: dict[str, Any]
) -> None:
    def handle(request: Request) -> Response:
        token = str(page["nextPageToken"]).replace("NUMBER", str(len(server.requests) % 2))
        return json_response({**page, "nextPageToken": token})

    server.handle = handle
    with pytest.raises(ControlPlaneError, match=r"repeats|100 pages in a row had nothing new") as caught:
        list(google.list_runs())
    assert caught.value.is_temporary
    assert len(server.requests) <= 102


@pytest.mark.parametrize("fault", [Oversize(3_000_000_000), Oversize(2 << 30, gzip=True), Drip(0.1)], ids=repr)
def test_an_answer_without_end_is_given_up(server: ControlPlaneServer, time: Time, fault: Fault) -> None:
    google = connected(server, time, request_seconds=0.5 if isinstance(fault, Drip) else 30.0)
    server.put_run("train-1", RUN)
    server.faults.script([fault] * 3)
    with pytest.raises(ControlPlaneError) as caught:
        google.get_run("train-1")
    assert caught.value.is_temporary
    assert google.get_run("train-1")["name"] == "train-1"
    google.close()


def test_a_session_is_created_then_changed(google: GoogleControlPlane, server: ControlPlaneServer) -> None:
    server.put_run("train-1", RUN)
    google.put_session("train-1", "s1", session("host-0"))
    google.put_session("train-1", "s1", session("host-0", "SUCCEEDED"))
    (kept,) = google.list_sessions("train-1")
    assert kept["name"] == "s1"
    assert kept["targetSessions"]["host-0"]["sessionPhase"] == "SUCCEEDED"
    assert asked(server)[:4] == ["session", "session", "get_session", "session"]
    assert "update_mask=target_sessions" in server.requests[3].path


def test_every_host_of_a_session_is_kept(google: GoogleControlPlane, server: ControlPlaneServer) -> None:
    server.put_run("train-1", RUN)
    hosts = [f"host-{index}" for index in range(4)]
    threads = [threading.Thread(target=google.put_session, args=("train-1", "s1", session(host))) for host in hosts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (kept,) = server.sessions("train-1")
    assert sorted(kept["targetSessions"]) == hosts


@pytest.mark.parametrize("fault", LOST + NOT_DONE, ids=repr)
def test_a_session_without_its_answer_is_created_once(server: ControlPlaneServer, time: Time, fault: Fault) -> None:
    google = connected(server, time, **patience(fault))
    server.put_run("train-1", RUN)
    server.faults.script([fault], on="session")
    google.put_session("train-1", "s1", session("host-0", "SUCCEEDED"))
    (kept,) = server.sessions("train-1")
    assert kept["targetSessions"]["host-0"]["sessionPhase"] == "SUCCEEDED"
    google.close()


def test_a_session_that_another_host_is_creating_is_waited_for(
    google: GoogleControlPlane, server: ControlPlaneServer
) -> None:
    server.put_run("train-1", RUN)
    google.put_session("train-1", "s1", session("host-0"))
    server.faults.script([Status(404), Status(404)], on="get_session")
    google.put_session("train-1", "s1", session("host-1"))
    (kept,) = server.sessions("train-1")
    assert sorted(kept["targetSessions"]) == ["host-0", "host-1"]


@pytest.mark.parametrize("kept", [{}, {"profilerTargets": None, "targetSessions": 7}, {"profilerTargets": [{}]}])
def test_a_malformed_session_of_the_service_does_not_stop_an_update(
    google: GoogleControlPlane, server: ControlPlaneServer, kept: Resource
) -> None:
    answers = iter([({}, 409), (kept, 200), ({}, 200)])
    server.handle = lambda request: json_response(*next(answers))
    google.put_session("train-1", "s1", session("host-0"))
    assert next(answers, None) is None


def test_sessions_are_listed_oldest_first(google: GoogleControlPlane, server: ControlPlaneServer) -> None:
    server.put_run("train-1", RUN)
    for name in ("c", "a", "b"):
        google.put_session("train-1", name, session("host-0"))
    assert [kept["name"] for kept in google.list_sessions("train-1")] == ["c", "a", "b"]


def test_a_session_without_its_run_is_refused(google: GoogleControlPlane) -> None:
    with pytest.raises(RunNotFoundError):
        google.put_session("train-1", "s1", session("host-0"))
    with pytest.raises(RunNotFoundError):
        list(google.list_sessions("train-1"))
