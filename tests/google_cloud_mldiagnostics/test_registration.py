"""Google's control plane receives a run in its state on this machine, and no failure there affects the job."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest
from google_cloud_mldiagnostics import __version__
from google_cloud_mldiagnostics._run import lifecycle
from google_cloud_mldiagnostics._run.lifecycle import Pauses
from google_cloud_mldiagnostics._run_state.registration import Registration
from google_cloud_mldiagnostics.control_plane import Resource, find_google
from google_cloud_mldiagnostics.control_plane.local import LocalControlPlane
from google_cloud_mldiagnostics.core.global_manager import active_run
from google_cloud_mldiagnostics.exceptions import ControlPlaneError
from ml_diagnostics_common.backoff import Backoff
from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_common.exceptions import ConfigurationError, CredentialsError
from ml_diagnostics_testing.cloud_logging import CloudLoggingServer
from ml_diagnostics_testing.faults import Fault, Hang, Reset, Status
from ml_diagnostics_testing.metadata import MetadataServer

from ..loopback.control_plane import ControlPlaneServer, SelfHostedServer
from ..waiting import wait_until
from . import run_programs as programs
from .kept_entries import kept_entries
from .run_programs import start_run

RUN = "train-w"


@pytest.fixture(autouse=True)
def server(cloud_of_a_run: ControlPlaneServer) -> ControlPlaneServer:
    return cloud_of_a_run


def kept_here() -> Resource:
    return LocalControlPlane(diagnostics_directory()).get_run(RUN)


def asked(server: ControlPlaneServer) -> list[str]:
    return [request.operation for request in server.requests]


def leave_the_cloud(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Remove the project and the credentials, as on a laptop."""
    for name in [name for name in os.environ if name.startswith(("CLOUDSDK_", "GOOGLE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(folder))
    monkeypatch.setenv("HOME", str(folder))


# --- Requests -----------------------------------------------------------------------------------------


def test_a_run_is_asked_for_created_polled_and_ended(server: ControlPlaneServer) -> None:
    server.operations.polls = 2
    start_run(strict=True).finish()
    sequence = asked(server)
    assert sequence[:4] == ["get", "create", "poll", "poll"]
    assert "update" in sequence[4:]
    assert server.run(RUN)["runPhase"] == "COMPLETED"


def test_the_control_plane_has_all_fields_of_the_folder_except_local_ones(
    server: ControlPlaneServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "_LAST_COLLECT_SECONDS", 30.0)
    start_run(strict=True, run_group="sweep", configs={"lr": 0.1}, gcs_path="gs://bucket//folder/").finish()
    sent, here = server.run(RUN), kept_here()
    for field in ("displayName", "runSet", "configs", "artifacts", "labels", "runPhase", "tools", "orchestrator"):
        assert sent[field] == here[field], field
    assert sent["artifacts"] == {"gcsPath": "gs://bucket/folder"}
    assert sent["configs"]["userConfigs"] == {"lr": "0.1"}
    assert sent["configs"]["softwareConfigs"]["framework"] == "JAX"
    assert not {"attempts", "metrics", "errorDetails"} & set(server.requests[1].body)


def test_the_labels_are_those_that_the_console_filters_by(server: ControlPlaneServer) -> None:
    start_run(strict=True, on_demand_xprof=False)
    labels = server.run(RUN)["labels"]
    assert labels["created_by"] == "diagon_sdk"
    assert labels["create-tool-mode"] == "regular"
    assert labels["diagon_sdk_version"] == re.sub("[.+]", "-", __version__)
    assert labels["on_demand_xprof"] == "disabled"
    assert labels["attempt"] == "1"


def test_the_run_knows_the_project_and_that_it_is_not_local(server: ControlPlaneServer) -> None:
    run = start_run(strict=True)
    assert run.project == server.project
    assert active_run().is_local is False


def test_a_changed_config_reaches_the_control_plane_and_the_log(server: ControlPlaneServer) -> None:
    run = start_run(strict=True, configs={"lr": 0.1})
    run.configs.update(batch_size=64)
    run.configs.lr = 0.2
    wait_until(lambda: server.run(RUN)["configs"]["userConfigs"] == {"batch_size": "64", "lr": "0.2"})
    assert kept_here()["configs"]["userConfigs"] == {"batch_size": "64", "lr": "0.2"}
    assert kept_entries("mlrun_configs")[-1].payload == {"userConfigs": {"batch_size": "64", "lr": "0.2"}}


def test_a_session_reaches_the_control_plane_and_the_folder(server: ControlPlaneServer) -> None:
    start_run(strict=True)
    active_run().registration.put_session("s1", {"kind": "KIND_PROGRAMMATIC", "storageFolderUri": "gs://b/s1"})
    wait_until(lambda: [s["storageFolderUri"] for s in server.sessions(RUN)] == ["gs://b/s1"])
    assert [s["name"] for s in LocalControlPlane(diagnostics_directory()).list_sessions(RUN)] == ["s1"]


def test_a_concurrent_change_of_another_client_is_kept(server: ControlPlaneServer) -> None:
    run = start_run(strict=True)
    server.change_run(RUN, labels={**server.run(RUN)["labels"], "team": "vision"})
    run.finish()
    assert server.run(RUN)["labels"]["team"] == "vision"
    assert server.run(RUN)["runPhase"] == "COMPLETED"


def test_a_profile_in_delivery_when_the_run_is_finished_is_reported(server: ControlPlaneServer) -> None:
    from google_cloud_mldiagnostics._profiling.uploads import deliveries_of_this_process

    run = start_run(strict=True)
    registration = active_run().registration

    def deliver() -> None:
        time.sleep(0.2)
        registration.put_session("s1", {"kind": "KIND_PROGRAMMATIC"})

    deliveries_of_this_process().add(deliver, is_awaited=True)
    run.finish()
    assert len(server.sessions(RUN)) == 1


def test_a_session_after_the_end_of_the_run_is_kept_on_this_machine(server: ControlPlaneServer) -> None:
    run = start_run(strict=True)
    registration = active_run().registration
    run.finish()
    registration.put_session("s1", {"kind": "KIND_PROGRAMMATIC"})
    wait_until(lambda: len(list(LocalControlPlane(diagnostics_directory()).list_sessions(RUN))) == 1)


def test_a_self_hosted_control_plane_is_used_instead_of_google(
    server: ControlPlaneServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SelfHostedServer() as own:
        run = start_run(base_url=own.url, cluster_id="c1", strict=True)
        assert active_run().is_local is True
        ((registered),) = own.runs.values()
        assert registered["displayName"] == "train"
        run.finish("FAILED")
        ((registered),) = own.runs.values()
        assert registered["workload"]["state"] == "STATE_FAILED"
    assert server.requests == []


def test_a_required_cloud_that_is_missing_raises_before_anything_is_created(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    leave_the_cloud(monkeypatch, tmp_path)
    monkeypatch.setenv("ML_DIAGNOSTICS_BACKEND", "cloud")
    with pytest.raises(CredentialsError):
        start_run()
    assert active_run() is None
    assert not programs.runs_folder().exists()


def test_an_unknown_backend_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ML_DIAGNOSTICS_BACKEND", "clod")
    with pytest.raises(ConfigurationError, match="ML_DIAGNOSTICS_BACKEND"):
        start_run()


def test_without_a_region_the_run_is_kept_where_the_machine_is(
    server: ControlPlaneServer, metadata_server: MetadataServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in metadata_server.environment().items():
        monkeypatch.setenv(name, text)
    run = start_run(region=None, strict=True)
    assert run.location == metadata_server.zone.rpartition("-")[0]
    assert f"/locations/{run.location}/" in server.requests[0].path


# --- Attempts -----------------------------------------------------------------------------------------


def test_a_restart_makes_a_failed_run_active_again_and_counts_on(server: ControlPlaneServer) -> None:
    assert programs.run(f"start_run({programs.PATIENT}); sys.exit(1)").code == 1
    assert server.run(RUN)["runPhase"] == "FAILED"
    run = start_run(strict=True)
    assert server.run(RUN)["runPhase"] == "ACTIVE"
    assert server.run(RUN)["labels"]["attempt"] == "2"
    run.finish()
    assert server.run(RUN)["runPhase"] == "COMPLETED"


def test_a_restart_on_a_new_machine_continues_the_attempt_numbers_of_the_control_plane(
    server: ControlPlaneServer,
) -> None:
    server.put_run(
        RUN, {"displayName": "train", "labels": {"attempt": "4"}, "runPhase": "COMPLETED", "tools": [{"xprof": {}}]}
    )
    run = start_run(strict=True)
    assert server.run(RUN)["runPhase"] == "ACTIVE"
    wait_until(lambda: run.attempt == 5)
    wait_until(lambda: [entry.payload["attempt"] for entry in kept_entries("mlrun_process")] == [5])
    run.finish()
    assert kept_here()["attempts"][-1]["number"] == 5
    assert server.run(RUN)["labels"]["attempt"] == "5"


def test_a_failing_worker_reports_its_failure_and_process_0_does_not_overwrite_it(server: ControlPlaneServer) -> None:
    job = {"TORCHELASTIC_RUN_ID": "t", "JAX_NUM_PROCESSES": "2"}
    body = f"start_run(strict=True, {programs.PATIENT}); ready(); sys.stdin.readline()"
    first = programs.start(body, JAX_PROCESS_ID="0", **job)
    programs.await_line(first, "ready")
    # In a folder of its own, like on another host: process 0 learns of it from the control plane.
    elsewhere = diagnostics_directory().parent / "elsewhere"
    environment = {**job, "JAX_PROCESS_ID": "1", "ML_DIAGNOSTICS_DIR": str(elsewhere)}
    assert programs.run(f"start_run({programs.PATIENT}); sys.exit(2)", **environment).code == 2
    assert server.run(RUN)["runPhase"] == "FAILED"
    assert programs.end(first, input_text="go on\n").code == 0
    assert server.run(RUN)["runPhase"] == "FAILED"
    assert kept_here()["runPhase"] == "FAILED"


def test_a_signal_ends_a_run_in_the_cloud_and_no_entry_is_dropped(
    server: ControlPlaneServer, cloud_logging_server: CloudLoggingServer
) -> None:
    program = f"start_run({programs.PATIENT}); metrics.record('loss', 0.5, step=7)"
    ended = programs.run_until_ready(program, programs.SIGTERM)
    assert ended.code == -programs.SIGTERM
    assert server.run(RUN)["runPhase"] == "FAILED"
    sent = {entry["resource"]["labels"]["namespace"]: entry["jsonPayload"] for entry in cloud_logging_server.entries()}
    assert sent["loss"]["step_index"] == 7
    assert (sent["mlrun_process"]["phase"], sent["mlrun_process"]["reason"]) == ("FAILED", "SIGTERM")


# --- What may go wrong --------------------------------------------------------------------------------


def test_a_missing_permission_costs_one_warning_with_the_account_and_the_role(
    server: ControlPlaneServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.is_permitted = False
    run = start_run()
    wait_until(lambda: "could not be reported" in caplog.text)
    run.finish()
    warnings = [record for record in caplog.records if "could not be reported" in record.getMessage()]
    assert len(warnings) == 1
    assert "roles/" in warnings[0].getMessage()
    assert server.project in warnings[0].getMessage()
    assert kept_here()["runPhase"] == "COMPLETED"


def test_a_strict_run_raises_the_error_of_the_control_plane_and_does_not_start(server: ControlPlaneServer) -> None:
    server.is_enabled = False
    with pytest.raises(ControlPlaneError, match="enable"):
        start_run(strict=True)
    assert active_run() is None
    assert kept_here()["runPhase"] == "FAILED"


def test_a_strict_run_without_a_cloud_raises(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    leave_the_cloud(monkeypatch, tmp_path)
    with pytest.raises(CredentialsError):
        start_run(strict=True)


@pytest.mark.parametrize("fault", [Status(503), Reset(), Status(503, after_apply=True), Reset(after_apply=True)])
def test_a_fault_that_passes_is_not_seen(server: ControlPlaneServer, fault: Fault) -> None:
    server.faults.script([fault], on="create")
    start_run(strict=True)
    assert server.run(RUN)["runPhase"] == "ACTIVE"
    assert len(server.runs()) == 1


@pytest.mark.timing
def test_nothing_waits_for_a_control_plane_that_never_answers(server: ControlPlaneServer) -> None:
    server.faults.always(Hang())
    started = time.monotonic()
    run = start_run(pauses=Pauses(end_seconds=1.0))
    created = time.monotonic()
    active_run().registration.put_session("s1", {"kind": "KIND_PROGRAMMATIC"})
    run.configs.update(lr=0.1)
    changed = time.monotonic()
    run.finish()
    ended = time.monotonic()
    assert changed - created < created - started < ended - changed
    assert asked(server) == ["get"]  # Everything happened before the first request timed out.
    assert kept_here()["runPhase"] == "COMPLETED"


def test_a_process_leaves_in_time_however_long_the_control_plane_is_silent(server: ControlPlaneServer) -> None:
    server.faults.always(Hang())
    ended = programs.run("""
        start_run(pauses=Pauses(end_seconds=1.0))
        sys.exit(3)
    """)
    assert ended.code == 3
    assert programs.kept_run()["runPhase"] == "FAILED"


def test_a_worker_that_is_forked_while_clients_are_loaded_can_load_them_too(server: ControlPlaneServer) -> None:
    ended = programs.run("""
        start_run()
        for pause in (0, 0.01, 0.02, 0.05, 0.1):
            time.sleep(pause)
            pid = os.fork()
            if pid == 0:
                signal.alarm(80)
                import requests, google.auth.transport.requests, google.oauth2.service_account
                os._exit(0)
            print(os.waitpid(pid, 0)[1], end=" ")
    """)
    assert (ended.code, ended.output) == (0, "0 0 0 0 0 "), ended.errors


def test_a_signal_ends_a_process_in_time_however_long_the_control_plane_is_silent(server: ControlPlaneServer) -> None:
    server.faults.always(Hang())
    ended = programs.run_until_ready(
        "start_run(pauses=Pauses(end_seconds=1.0))",
        programs.SIGTERM,
    )
    assert ended.code == -programs.SIGTERM
    assert programs.kept_run()["runPhase"] == "FAILED"


def test_a_registration_that_failed_is_repeated_later(
    server: ControlPlaneServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ML_DIAGNOSTICS_BACKEND", "local")
    start_run(configs={"lr": 0.1})
    server.is_permitted = False
    registration = Registration(
        RUN,
        LocalControlPlane(diagnostics_directory()),
        find_google(None, "us-central1", "prod"),
        is_owner=True,
        access_backoff=Backoff(0.1),
    )
    registration.start()
    wait_until(lambda: len(server.requests) >= 1)
    server.is_permitted = True
    wait_until(lambda: server.run(RUN)["configs"]["userConfigs"] == {"lr": "0.1"})
    deadline = time.monotonic() + 30.0
    registration.end("COMPLETED", deadline)
    assert registration.wait(deadline - time.monotonic())


def test_a_deleted_run_is_created_again(server: ControlPlaneServer) -> None:
    run = start_run(strict=True)
    server.clear()
    run.finish()
    assert server.run(RUN)["runPhase"] == "COMPLETED"


# --- People -------------------------------------------------------------------------------------------


def test_one_line_has_the_link_of_the_run(server: ControlPlaneServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="google_cloud_mldiagnostics")
    start_run(strict=True)
    lines = [record.getMessage() for record in caplog.records if record.name == "google_cloud_mldiagnostics"]
    assert len(lines) == 1
    assert f"cluster-director/diagnostics/details/us-central1/{RUN}?project={server.project}" in lines[0]
    assert f"mldiagnostics show {RUN}" in lines[0]
