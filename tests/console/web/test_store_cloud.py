"""The store over Google Cloud: runs and entries that this machine has nothing of, and a cloud that fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from google_cloud_mldiagnostics.reading import CloudSource
from ml_diagnostics_console._web import wire
from ml_diagnostics_console._web.assets import Assets
from ml_diagnostics_console._web.case_file import case_answer
from ml_diagnostics_console._web.routes import handle
from ml_diagnostics_console._web.store import Store
from ml_diagnostics_testing.cloud_logging import CloudLoggingServer
from ml_diagnostics_testing.faults import Status

from ...loopback.control_plane import ControlPlaneServer

SECOND_NS = 1_000_000_000
PROGRAM = """
from google_cloud_mldiagnostics import machinelearning_run, metrics
with machinelearning_run(name="cloudy", run_group="g", configs={"lr": 0.1}):
    for step in range(20):
        metrics.record("loss", 5.0 - step / 10, step=step)
"""


@pytest.fixture
def recorded(
    control_plane_server: ControlPlaneServer,
    cloud_logging_server: CloudLoggingServer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> str:
    for server in (control_plane_server, cloud_logging_server):
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
    environ = {**os.environ, "ML_DIAGNOSTICS_DIR": str(tmp_path / "there"), "ML_DIAGNOSTICS_BACKEND": "auto"}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    (run,) = control_plane_server.runs()
    return str(run["name"]).rpartition("/")[2]


def test_a_run_of_a_cloud_is_shown_and_no_request_comes_from_a_page(
    recorded: str, cloud_logging_server: CloudLoggingServer, control_plane_server: ControlPlaneServer
) -> None:
    now_ns = [2_000_000_000 * SECOND_NS]
    source = CloudSource("test-project", None, pytest.fail, lambda _: None)
    store = Store(source, clock_ns=lambda: now_ns[0])
    store.refresh()
    (row,) = json.loads(handle(store, "/api/runs", {}).body)["rows"]
    assert (row["id"], row["state"], row["step"], row["group"]) == (recorded, "completed", 19, "g")
    assert row["config"] == {"lr": "0.1"}
    assert store.place == "the project test-project (us-central1)"
    assert store.notes == []
    column = store.run(recorded).columns.of("loss")[0]
    assert column.step.tolist() == list(range(20))

    cloud_logging_server.faults.always(Status(403))
    control_plane_server.faults.always(Status(500))
    answer = handle(store, f"/api/runs/{recorded}/points", {"metric": "loss"})
    assert wire.decode(answer.body)[1]["y"].tolist() == [5.0 - step / 10 for step in range(20)]
    store.refresh()  # Too soon after the last one: nothing is requested.
    assert store.notes == []

    now_ns[0] += 40 * SECOND_NS
    store.refresh()
    assert any("The runs could not be read" in note for note in store.notes), store.notes
    assert [run.id for run in store.runs()] == [recorded]
    assert len(store.run(recorded).columns.of("loss")[0]) == 20


def test_entries_of_a_cloud_are_counted_once(recorded: str, control_plane_server: ControlPlaneServer) -> None:
    now_ns = [2_000_000_000 * SECOND_NS]
    store = Store(CloudSource("test-project", None, pytest.fail, lambda _: None), clock_ns=lambda: now_ns[0])
    for _ in range(3):
        store.refresh()
        now_ns[0] += 40 * SECOND_NS
    assert store.run(recorded).columns.points("loss") == 20


@pytest.mark.timing
def test_a_cloud_that_does_not_answer_keeps_no_request_waiting_for_long(
    recorded: str, control_plane_server: ControlPlaneServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = CloudSource("test-project", None, pytest.fail, lambda _: None)
    store = Store(source)
    asked, answers = threading.Event(), threading.Event()
    list_runs = source.control_plane.list_runs

    def list_late() -> Any:
        asked.set()
        assert answers.wait(60)
        return list_runs()

    monkeypatch.setattr(source.control_plane, "list_runs", list_late)
    refreshing = threading.Thread(target=store.refresh)
    refreshing.start()
    assert asked.wait(60)
    started = time.monotonic()
    for _ in range(10):
        found = json.loads(handle(store, "/api/runs", {}).body)
    assert time.monotonic() - started < 10
    assert (found["rows"], found["notes"]) == ([], [f"There is no answer on {store.place} yet."])
    answers.set()
    refreshing.join(60)
    found = json.loads(handle(store, "/api/runs", {}).body)
    assert ([row["id"] for row in found["rows"]], found["notes"]) == ([recorded], [])


def test_what_of_a_run_is_only_in_the_cloud_is_named_with_the_command_that_shows_it(
    recorded: str, cloud_logging_server: CloudLoggingServer
) -> None:
    store = Store(CloudSource("test-project", None, pytest.fail, lambda _: None))
    store.refresh()
    cloud_logging_server.faults.always(Status(403))
    base = f"/api/runs/{recorded}"
    logs, stacks, run, verdict = (
        json.loads(handle(store, base + path, {}).body) for path in ("/logs", "/stacks", "", "/verdict")
    )
    where = f"{recorded} --project test-project --region us-central1"
    assert logs["help"].startswith("The output of this run is not on this machine, and the page does not read it")
    assert logs["help"].endswith(f"with: mldiagnostics logs {where}")
    assert stacks["help"].endswith(f"GOOGLE_CLOUD_PROJECT=test-project tpu-stacks show --job {recorded} --since 7d")
    assert run["ledger_help"].endswith("GOOGLE_CLOUD_PROJECT=test-project goodput report cloudy")
    assert verdict["next"][0]["command"] == f"mldiagnostics doctor {where}"
    case = case_answer(store, recorded, Assets())
    assert case.status == 409
    command = f"mldiagnostics export {recorded} case.html --read-from test-project --region us-central1"
    assert json.loads(case.body)["error"].endswith(f"Make the file with: {command}")
    _, ledger = wire.decode(handle(store, base + "/ledger", {}).body)
    assert all(len(column) == 0 for column in ledger.values())
