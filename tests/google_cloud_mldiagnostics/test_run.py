"""machinelearning_run: its arguments, the run that it returns, and its effects on the job."""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
import os
import pickle
import re
import socket
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google_cloud_mldiagnostics import machinelearning_run, metrics
from google_cloud_mldiagnostics._run.arguments import checked_region
from google_cloud_mldiagnostics._run.lifecycle import Pauses
from google_cloud_mldiagnostics.control_plane import Resource
from google_cloud_mldiagnostics.control_plane.local import LocalControlPlane
from google_cloud_mldiagnostics.core.global_manager import active_run
from google_cloud_mldiagnostics.custom_types.exceptions import MLRunConfigurationError
from google_cloud_mldiagnostics.custom_types.mlrun_types import Framework, Orchestrator, RunPhase
from google_cloud_mldiagnostics.mlrun_types import MLRun
from google_cloud_mldiagnostics.utils import normalize_gcs_path
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ml_diagnostics_common.environment import diagnostics_directory

from ..waiting import free_port, wait_until
from . import run_programs as programs
from .kept_entries import kept_entries
from .run_programs import start_run


@pytest.fixture(autouse=True)
def no_run_is_left() -> Iterator[None]:
    yield
    active = active_run()
    if active is not None:
        active.run.finish()


def kept(run: MLRun) -> Resource:
    return LocalControlPlane(diagnostics_directory()).get_run(run.name)


# --- Arguments ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        {"name": ""},
        {"name": "  "},
        {"name": None},
        {"name": 7},
        {"name": "x" * 5000},
        {"run_group": 1},
        {"configs": "lr=0.1"},
        {"configs": 3},
        {"gcs_path": "gs://"},
        {"gcs_path": "s3://bucket/profiles"},
        {"gcs_path": "GS://bucket/profiles"},
        {"gcs_path": Path("gs://bucket/profiles")},
        {"gcs_path": Path("s3://bucket/profiles")},
        {"gcs_path": 5},
        {"gcs_path": "a\0b"},
        {"project": 5},
        {"region": "a/b"},
        {"region": 5},
        {"environment": "production"},
        {"environment": None},
        {"environment": []},
        {"metrics_record_interval_sec": 0},
        {"metrics_record_interval_sec": -1},
        {"metrics_record_interval_sec": float("nan")},
        {"metrics_record_interval_sec": "10"},
        {"on_demand_xprof_port": 70_000},
        {"on_demand_xprof_port": True},
        {"framework": "TENSORFLOW"},
        {"framework": None},
        {"serving_engine": 3},
        {"application_framework": "my own"},
        {"rl_orchestrator": "VERL"},
        {"rl_orchestrator": 3},
        {"base_url": "ftp://x"},
        {"run_workload_id": 3},
    ],
)
def test_an_argument_that_cannot_be_used_raises_before_anything_is_created(arguments: dict[str, Any]) -> None:
    with pytest.raises(MLRunConfigurationError) as caught:
        machinelearning_run(**{"name": "train", **arguments})
    assert next(iter(arguments)) in str(caught.value)
    assert active_run() is None
    assert not programs.runs_folder().exists()


def test_bad_arguments_do_not_end_the_active_run() -> None:
    run = start_run()
    with pytest.raises(MLRunConfigurationError):
        start_run("")
    assert active_run().run is run


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(
        st.sampled_from(["run_group", "gcs_path", "project", "region", "environment", "framework", "run_workload_id"]),
        st.one_of(
            st.none(), st.text(), st.binary(), st.integers(), st.floats(), st.lists(st.text()), st.just(object())
        ),
    )
)
def test_any_argument_is_accepted_or_a_configuration_error(arguments: dict[str, Any]) -> None:
    try:
        run = start_run(**arguments)
    except MLRunConfigurationError:
        return
    run.finish()
    assert kept(run)["runPhase"] == "COMPLETED"


def test_the_arguments_of_the_public_package_are_accepted_in_its_order() -> None:
    run = machinelearning_run("n", "g", {"a": 1}, "gs://b//c/", "p", "us-east1", 5.0, False, "staging")
    assert (run.run_group, run.gcs_path, run.project, run.location) == ("g", "gs://b/c", "p", "us-east1")
    assert (run.environment, run.display_name) == ("staging", "n")


def test_a_secret_in_the_name_or_the_group_of_a_run_is_redacted() -> None:
    run = start_run("train --token hunter2", run_group="https://hunter3@host/sweep")
    assert kept(run)["displayName"] == run.display_name == "train --token [REDACTED]"
    assert kept(run)["runSet"] == run.run_group == "https://[REDACTED]@host/sweep"
    folder = diagnostics_directory()
    written = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert b"hunter" not in written


@pytest.mark.parametrize(
    ("given_path", "kept_path"),
    [
        (None, None),
        ("", None),
        ("gs://bucket", "gs://bucket"),
        ("gs://bucket//a///b/", "gs://bucket/a/b"),
        ("/data//profiles/", "/data/profiles"),
        ("/", "/"),
        (Path("/data"), "/data"),
    ],
)
def test_a_path_for_profiles_has_no_doubled_slashes(given_path: str | Path | None, kept_path: str | None) -> None:
    assert normalize_gcs_path(given_path) == kept_path


@pytest.mark.parametrize(
    ("given_region", "region"),
    [
        ("us-central1", "us-central1"),
        ("us-central1-a", "us-central1"),
        ("europe_west4-a", "europe-west4"),
        ("global", "global"),
        ("<some_zone>", "<some_zone>"),
        (None, None),
        ("", None),
    ],
)
def test_a_region_may_be_given_by_a_zone(given_region: str | None, region: str | None) -> None:
    assert checked_region(given_region) == region


def test_an_invalid_region_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    checked_region("<some_zone>")
    assert "does not look like one" in caplog.text


def test_the_environment_of_the_documented_example_is_prod_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert start_run(environment="env").environment == "prod"
    start_run(environment="env")
    assert caplog.text.count("is taken for 'prod'") == 1


def test_enumerations_are_taken_by_their_text_too() -> None:
    run = start_run(framework="pytorch", application_framework="maxtext", rl_orchestrator="tunix")
    assert run.framework is Framework.PYTORCH
    assert kept(run)["labels"]["application_framework"] == "maxtext"
    assert kept(run)["labels"]["rl_orchestrator"] == "tunix"


# --- The run ------------------------------------------------------------------------------------------


def test_a_run_is_kept_in_a_folder_of_its_own_from_the_start() -> None:
    run = start_run("My Run 1", run_group="sweep", configs={"lr": 0.1, "model": {"layers": 2}})
    assert active_run().folder == diagnostics_directory() / "runs" / run.name
    here = kept(run)
    assert here["displayName"] == "My Run 1"
    assert here["runPhase"] == "ACTIVE"
    assert here["configs"]["userConfigs"] == {"lr": "0.1", "model": '{"layers": 2}'}
    assert run.name.startswith("my-run-1-")


def test_entries_have_labels_of_their_process() -> None:
    run = start_run("My Run 1")
    metrics.record("loss", 0.5, step=1)
    (entry,) = kept_entries("loss")
    assert entry.resource_label("node_id") == run.name
    assert entry.resource_label("location") == "us-central1"
    labels = entry.context.labels
    assert (labels["run"], labels["attempt"], labels["process_index"]) == (run.name, "1", "0")


def test_the_users_mapping_is_not_changed_and_later_changes_do_not_reach_process_0() -> None:
    configs = {"lr": 0.1, "nested": {"a": 1}}
    before = copy.deepcopy(configs)
    run = start_run(configs=configs)
    run.configs["batch_size"] = 64
    wait_until(lambda: "batch_size" in kept(run)["configs"]["userConfigs"])
    assert configs == before
    assert run.configs.lr == 0.1  # Also on process 0.


def test_configs_may_be_changed_like_a_dict_and_like_an_object() -> None:
    run = start_run(configs={"a": 1, "b": 2, "c": 3, "d": 4})
    run.configs.update({"e": 5})
    run.configs.f = 6
    run.configs |= {"g": 7}
    run.configs.pop("a")
    del run.configs["b"]
    del run.configs.c
    run.configs.setdefault("h", 8)
    wanted = {"d": "4", "e": "5", "f": "6", "g": "7", "h": "8"}
    wait_until(lambda: kept(run)["configs"]["userConfigs"] == wanted)
    with pytest.raises(AttributeError, match="no config 'zzz'"):
        _ = run.configs.zzz
    with pytest.raises(AttributeError):
        del run.configs.zzz


def test_a_change_just_before_the_end_is_kept() -> None:
    run = start_run()
    run.configs.update(final_loss=0.25)
    run.finish()
    assert kept(run)["configs"]["userConfigs"] == {"final_loss": "0.25"}


def test_secrets_in_configs_stay_home() -> None:
    run = start_run(configs={"api_key": "AIza-hunter2", "nested": {"password": "hunter2"}})
    run.configs.token = "hunter2"
    run.finish()
    everything = "".join(path.read_text() for path in diagnostics_directory().rglob("*.json*"))
    assert "hunter2" not in everything


def test_hardware_is_collected_automatically() -> None:
    run = start_run()
    wait_until(lambda: run.configs.get("hardwareConfigs"))
    assert run.configs.softwareConfigs["framework"] == "JAX"
    assert "cpu_count" in run.configs.hardwareConfigs
    wait_until(lambda: kept(run)["configs"]["softwareConfigs"])


def test_averages_of_the_metrics_are_kept_with_the_run() -> None:
    run = start_run()
    for loss in (1.0, 2.0, 6.0):
        metrics.record("loss", loss)
    run.finish()
    assert kept(run)["metrics"]["loss"] == {"count": 3, "mean": 3.0, "min": 1.0, "max": 6.0, "last": 6.0}


def test_a_run_can_be_copied_pickled_and_shown() -> None:
    run = start_run(configs={"lr": 0.1})
    others = [copy.copy(run), copy.deepcopy(run), pickle.loads(pickle.dumps(run))]
    assert all(other == run for other in others)
    for other in others:
        other.finish("FAILED")
    others[1].configs["lr"] = others[2].configs["lr"] = 0.2
    assert run.configs.lr == 0.1
    assert dataclasses.asdict(run)["name"] == run.name
    assert run.run_phase is RunPhase.PHASE_ACTIVE
    assert "_finish" not in repr(run)


def test_finish_accepts_only_completed_and_failed() -> None:
    run = start_run()
    for wrong in ("DONE", "", None, "ACTIVE", 3):
        with pytest.raises(MLRunConfigurationError):
            run.finish(wrong)  # type: ignore[arg-type]
    run.finish(RunPhase.PHASE_FAILED)
    assert kept(run)["runPhase"] == "FAILED"
    run.finish("completed")
    assert kept(run)["runPhase"] == "FAILED"


def test_a_heartbeat_records_that_the_process_is_alive() -> None:
    start_run(pauses=Pauses(heartbeat_seconds=0.05))
    wait_until(lambda: programs.phases().count("ACTIVE") >= 4)


# --- People -------------------------------------------------------------------------------------------


def test_one_info_record_has_the_path_of_the_run(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    run = start_run()
    (line,) = [record.getMessage() for record in caplog.records if record.name.startswith("google_cloud_mldiag")]
    assert str(active_run().folder) in line
    assert f"mldiagnostics show {run.name}" in line


def test_the_documented_debug_record_has_the_details(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    run = start_run(gcs_path="gs://bucket/profiles")
    records = [r for r in caplog.records if r.name == "google_cloud_mldiagnostics.core.global_manager"]
    (text,) = [record.getMessage() for record in records]
    assert text.startswith("current run details: {'name': '")
    assert run.name in text
    assert "'gcs_path': 'gs://bucket/profiles'" in text


def test_a_metric_is_not_a_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    start_run()
    caplog.clear()
    metrics.record("loss", 0.5)
    assert caplog.records == []


# --- Failures do not stop the job ---------------------------------------------------------------------


def test_a_folder_that_cannot_be_written_does_not_stop_the_job(
    in_production: None, caplog: pytest.LogCaptureFixture
) -> None:
    (diagnostics_directory() / "runs").write_text("not a folder")
    run = start_run()
    metrics.record("loss", 0.5)
    run.finish()
    assert caplog.text.count("could not be updated in its folder") == 1
    assert [entry.payload["values"] for entry in kept_entries("loss")] == [[0.5]]
    assert programs.phases() == ["ACTIVE", "COMPLETED"]


@pytest.mark.parametrize("part", ["identify", "to_wire", "RunLog", "Lifecycle", "SystemMetrics", "resource_of"])
def test_a_bug_of_ours_costs_the_run_and_never_the_job(
    part: str, in_production: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(f"google_cloud_mldiagnostics._run.start.{part}", lambda *_, **__: 1 / 0)
    with machinelearning_run("train", configs={"lr": 0.1}) as run:
        run.configs.update(batch_size=64)
        metrics.record("loss", 0.5)
    assert run.display_name == "train"
    assert "ZeroDivisionError" in caplog.text


def test_a_damaged_run_file_does_not_stop_the_job(in_production: None, caplog: pytest.LogCaptureFixture) -> None:
    programs.run("start_run()", RUN_WORKLOAD_ID="w")
    path = programs.runs_folder() / "train-w" / "run.json"
    for spoilt in ('{"attempts": "none"}', "[]", "", '{"attempts": [{"processes": 5, "phase": []}]}', '{"labels": 3}'):
        path.write_text(spoilt)
        ended = programs.run("start_run(); metrics.record('loss', 1.0)", RUN_WORKLOAD_ID="w")
        assert ended.code == 0, ended.errors


def test_nothing_is_initialised_or_imported_that_the_job_did_not() -> None:
    ended = programs.run("""
        start_run()
        metrics.record("loss", 0.5, step=1)
        time.sleep(0.3)
        print(sorted({"jax", "numpy", "google.auth", "google.cloud.logging", "grpc", "requests"} & set(sys.modules)))
    """)
    assert ended.output == "[]\n", ended.errors


def test_jax_is_not_initialised_before_the_job_does_and_its_devices_are_known_then() -> None:
    ended = programs.run(
        """
        import jax
        from jax._src import xla_bridge
        run = start_run(pauses=Pauses(hardware_seconds=0.05))
        time.sleep(0.2)
        assert not xla_bridge.backends_are_initialized()
        jax.devices()
        deadline = time.monotonic() + 20
        while "device_type" not in run.configs.get("hardwareConfigs", {}) and time.monotonic() < deadline:
            time.sleep(0.05)
    """,
        JAX_PLATFORMS="cpu",
    )
    assert ended.code == 0, ended.errors
    assert programs.kept_run()["configs"]["hardwareConfigs"]["device_type"] == "cpu"


def test_a_thread_that_changes_configs_all_the_time_costs_bounded_memory() -> None:
    run = start_run()
    for number in range(100_000):
        run.configs["step"] = number
    assert run.__dict__["_finish"].__self__._worker.pending_count() < 10
    run.finish()
    assert kept(run)["configs"]["userConfigs"] == {"step": "99999"}


def test_a_run_starts_and_ends_before_an_unanswered_request_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        nowhere = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        ended = programs.run(
            """
            import inspect
            from google_cloud_mldiagnostics.control_plane.google import GoogleControlPlane
            patience = inspect.signature(GoogleControlPlane).parameters["request_seconds"].default
            started = time.monotonic()
            run = start_run(pauses=Pauses(end_seconds=1.0))
            created_at = time.monotonic()
            metrics.record("loss", 1.0)
            run.finish()
            print(created_at - started < patience, time.monotonic() - created_at < patience)
            """,
            ML_DIAGNOSTICS_BACKEND="auto",
            CLOUDSDK_AUTH_DISABLE_CREDENTIALS="1",
            GOOGLE_CLOUD_PROJECT="p",
            CLOUDSDK_API_ENDPOINT_OVERRIDES_HYPERCOMPUTECLUSTER=nowhere,
            CLOUDSDK_API_ENDPOINT_OVERRIDES_LOGGING=nowhere,
        )
    assert ended.output == "True True\n", ended.errors
    assert programs.kept_run()["runPhase"] == "COMPLETED"


# --- Several processes --------------------------------------------------------------------------------


def test_two_processes_of_jax_share_a_run_though_their_clocks_differ() -> None:
    port = free_port()
    program = """
        import jax
        jax.distributed.initialize("127.0.0.1:{port}", num_processes=2, process_id={index})
        time_of_day = time.time
        time.time = lambda: time_of_day() + {index} * 7200
        run = start_run("pair")
        metrics.record("loss", 0.5, record_on_all_hosts=True)
        print(run.name, run.attempt, flush=True)
        jax.distributed.shutdown()
    """
    processes = [programs.start(program.format(port=port, index=index), JAX_PLATFORMS="cpu") for index in (0, 1)]
    ended = [programs.end(process, timeout_seconds=60) for process in processes]
    assert [process.code for process in ended] == [0, 0], ended
    assert ended[0].output == ended[1].output
    run = programs.kept_run()
    assert run["runPhase"] == "COMPLETED"
    assert [process["process_index"] for process in run["attempts"][0]["processes"]] in ([0, 1], [1, 0])
    assert {entry.payload["process_index"] for entry in kept_entries("loss")} == {"0", "1"}
    assert {entry.payload["process_count"] for entry in kept_entries("mlrun_process")} == {2}


def test_a_run_that_started_before_its_processes_could_agree_warns() -> None:
    ended = programs.run(
        """
        import types
        from ml_diagnostics_common import guard
        start_run(pauses=Pauses(hardware_seconds=0.05))
        import jax._src.distributed as distributed
        state = distributed.global_state
        state.client, state.process_id, state.num_processes = object(), 1, 2
        while not guard._logged_in_this_process:
            time.sleep(0.01)
        state.client = None
        """
    )
    assert "before jax.distributed.initialize" in ended.errors


def test_of_runs_that_threads_start_at_once_one_is_recorded_to_and_all_end_with_the_program() -> None:
    ended = programs.run("""
        threads = [threading.Thread(target=start_run, args=(f"run-{number}",)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        metrics.record("loss", 1.0)
    """)
    assert ended.code == 0, ended.errors
    assert [run["runPhase"] for run in programs.kept_runs()] == ["COMPLETED"] * 4
    assert len(kept_entries("loss")) == 1


def test_on_gke_the_run_is_the_workloads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    identifier = {"metadata.name": "s5", "metadata.kind": "JobSet", "clustername": "c1", "namespace": "ml"}
    monkeypatch.setenv("GKE_DIAGON_IDENTIFIER", json.dumps(identifier))
    monkeypatch.setenv("GKE_DIAGON_METADATA", json.dumps({"creation-timestamp": "2026-03-10T01:02:03Z"}))
    run = start_run("gke-train")
    assert re.fullmatch("gke-train-c1-ml-jobset-s5-20260310-010203-[0-9a-f]{8}", run.name)
    assert run.orchestrator is Orchestrator.GKE
    assert kept(run)["orchestrator"] == "GKE"
    assert kept(run)["workloadDetails"]["gke"]["id"] == "s5"


def test_a_namespace_of_arguments_is_configs_too() -> None:
    assert kept(start_run(configs=types.SimpleNamespace(lr=0.1)))["configs"]["userConfigs"] == {"lr": "0.1"}


@pytest.mark.parametrize("content", ["a named pipe", '{"name": "train-types", "attempts": [7], "labels": 3}'])
def test_an_invalid_run_file_is_one_clear_warning_and_the_job_continues(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    monkeypatch.setattr("google_cloud_mldiagnostics._run.start._occasions_of_this_process", {})
    workload = "pipe" if content == "a named pipe" else "types"
    path = programs.runs_folder() / f"train-{workload}" / "run.json"
    path.parent.mkdir(parents=True)
    if content == "a named pipe":
        os.mkfifo(path)
    else:
        path.write_text(content)
    run = start_run(run_workload_id=workload)
    metrics.record("loss", 0.5)
    run.finish()
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert warning.startswith(f"The run train-{workload} could not be updated in its folder: {path} ")
    assert (
        "is not a regular file" if content == "a named pipe" else "labels is a number, expected an object"
    ) in warning
    assert [entry.payload["values"] for entry in kept_entries("loss")] == [[0.5]]
    command = [sys.executable, "-m", "google_cloud_mldiagnostics.cli", "show", f"train-{workload}"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert shown.returncode != 0
    assert str(path) in shown.stderr
    assert "Traceback" not in shown.stderr
