"""Profiles for a bucket: a thread uploads them, and retries; until then they are on this machine."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from google_cloud_mldiagnostics._profiling import uploads
from google_cloud_mldiagnostics._profiling.captures import finish_profiles
from google_cloud_mldiagnostics.core.global_manager import ActiveRun
from google_cloud_mldiagnostics.core.xprof import Xprof
from ml_diagnostics_common import storage, worker
from ml_diagnostics_common.guard import LOSSES
from ml_diagnostics_common.xplane import summary_of
from ml_diagnostics_testing.cloud_storage import CloudStorageServer
from ml_diagnostics_testing.faults import Fault, Hang, Status

from ..waiting import wait_until
from .profiled_runs import profiled_run, reported_sessions, sessions_put, xplanes

jax = pytest.importorskip("jax")
pytest.importorskip("google.cloud.storage")

NAME = "folder/run-1/plugins/profile/one/host-a.xplane.pb"


def retry_after(pause_seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process's deliveries, none of which has started, wait for another time after a first failure."""
    deliveries = uploads.Deliveries(first_pause_seconds=pause_seconds)
    monkeypatch.setattr(uploads, "_deliveries", deliveries)


@pytest.fixture
def bucket(cloud_storage_server: CloudStorageServer, monkeypatch: pytest.MonkeyPatch) -> CloudStorageServer:
    for name, value in cloud_storage_server.environment().items():
        monkeypatch.setenv(name, value)
    retry_after(0.1, monkeypatch)
    cloud_storage_server.create_bucket("bucket")
    return cloud_storage_server


@pytest.fixture
def run() -> Iterator[ActiveRun]:
    with profiled_run("run-1", gcs_path="gs://bucket/folder", is_local=False) as active:
        yield active


def profile_once() -> None:
    with Xprof(session_id="one"):
        jax.numpy.ones(8).sum().block_until_ready()


def test_a_profile_is_uploaded_whole_and_leaves_no_local_file(bucket: CloudStorageServer, run: ActiveRun) -> None:
    profile_once()
    assert finish_profiles(20)
    assert bucket.names("bucket") == [NAME]
    assert summary_of(bucket.read("bucket", NAME)).is_whole
    assert not xplanes(run.folder)
    assert reported_sessions("run-1") == [("one", "ACTIVE"), ("one", "SUCCEEDED")]
    session = sessions_put(run)[-1][1]
    assert session["storageFolderUri"] == "gs://bucket/folder/run-1/plugins/profile/one"
    assert session["profilerTargets"] == ["host-a"]


@pytest.mark.timing
def test_training_never_waits_for_the_bucket(bucket: CloudStorageServer, run: ActiveRun) -> None:
    bucket.faults.always(Hang(), on="upload")
    profile_once()  # JAX's first takes longer.
    started = time.monotonic()
    with Xprof(session_id="two"):
        pass
    took = time.monotonic() - started
    started = time.monotonic()
    assert not finish_profiles(1.0)
    assert took < time.monotonic() - started
    assert len(xplanes(run.folder / "staged")) == 2
    bucket.faults.clear()
    bucket.faults.release()


def test_an_upload_is_retried_while_the_bucket_fails(
    bucket: CloudStorageServer, run: ActiveRun, in_production: None, caplog: pytest.LogCaptureFixture
) -> None:
    bucket.faults.script([Status(403)] * 3, on="upload")
    profile_once()
    wait_until(lambda: bucket.names("bucket"))
    assert finish_profiles(20)
    assert bucket.names("bucket") == [NAME]
    assert LOSSES["profile upload: StorageError"] == 3
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "roles/storage.objectUser" in warnings[0]
    assert str(run.folder / "staged") in warnings[0]
    assert reported_sessions("run-1") == [("one", "ACTIVE"), ("one", "SUCCEEDED")]


def test_a_profile_that_sync_has_uploaded_meanwhile_counts_as_delivered(
    bucket: CloudStorageServer, run: ActiveRun, in_production: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.faults.script([Status(403)], on="upload")
    retry_after(60.0, monkeypatch)  # The end tries once more, without waiting for that.
    profile_once()
    (staged,) = (run.folder / "staged").rglob("*.xplane.pb")
    wait_until(lambda: LOSSES.get("profile upload: StorageError"))
    storage.write(f"gs://bucket/{NAME}", staged.read_bytes())
    staged.unlink()
    assert finish_profiles(20)
    assert reported_sessions("run-1")[-1] == ("one", "SUCCEEDED")


def test_without_a_cloud_a_profile_is_staged_for_sync(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with profiled_run("run-1", gcs_path="gs://bucket/folder", is_local=True) as active:
        profile_once()
        assert finish_profiles(0)
        assert xplanes(active.folder / "staged") == ["plugins/profile/one/host-a.xplane.pb"]
        assert "mldiagnostics sync run-1" in caplog.text
        session = sessions_put(active)[-1][1]
        assert session["targetSessions"]["host-a"]["sessionPhase"] == "SUCCEEDED"
        assert session["storageFolderUri"] == str(active.folder / "staged/plugins/profile/one")
        assert reported_sessions("run-1") == [("one", "ACTIVE"), ("one", "SUCCEEDED")]


def test_of_too_many_that_wait_the_oldest_is_dropped_and_counted(tmp_path: Path) -> None:
    staging = tmp_path / "staged"
    for number in range(5):
        source = tmp_path / "source"
        source.write_bytes(b"x")
        os.utime(source, ns=(number, number))
        uploads.stage(source, staging / str(number) / "host.xplane.pb", staging, most_waiting=3)
    assert xplanes(staging) == [f"{number}/host.xplane.pb" for number in (2, 3, 4)]
    assert LOSSES["profile_dropped"] == 2


def test_a_file_that_is_uploaded_while_another_is_staged_costs_neither(tmp_path: Path) -> None:
    staging, source = tmp_path / "staged", tmp_path / "source"
    uploaded = staging / "0" / "host.xplane.pb"
    uploaded.parent.mkdir(parents=True)
    uploaded.symlink_to(tmp_path / "gone")  # Listed, and gone when it is read.
    source.write_bytes(b"x")
    uploads.stage(source, staging / "1" / "host.xplane.pb", staging)
    assert (staging / "1" / "host.xplane.pb").read_bytes() == b"x"


@pytest.mark.timing
def test_a_refusing_bucket_is_tried_once_more_at_the_end_and_then_not_waited_for(
    bucket: CloudStorageServer, run: ActiveRun, in_production: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    retry_after(60.0, monkeypatch)
    bucket.faults.always(Status(403), on="upload")
    profile_once()
    wait_until(lambda: LOSSES.get("profile upload: StorageError"))
    started = time.monotonic()
    assert not finish_profiles(30)
    assert time.monotonic() - started < 30 / 2
    assert len(bucket.requests_for("upload")) == 2
    assert xplanes(run.folder / "staged") == ["plugins/profile/one/host-a.xplane.pb"]


@pytest.mark.parametrize("faults", [[], [Status(503)]])
def test_profiles_are_uploaded_if_the_interpreter_starts_no_more_threads(
    bucket: CloudStorageServer,
    run: ActiveRun,
    in_production: None,
    faults: list[Fault],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Functions of atexit cannot start threads since Python 3.12."""
    bucket.faults.script(faults, on="upload")
    monkeypatch.setattr(worker, "start", lambda *_: None)
    profile_once()
    assert finish_profiles(20)
    assert bucket.names("bucket") == [NAME]
    assert reported_sessions("run-1")[-1] == ("one", "SUCCEEDED")
    assert sessions_put(run)[-1][1]["targetSessions"]["host-a"]["sessionPhase"] == "SUCCEEDED"


def test_a_job_that_was_added_just_before_the_thread_ended_is_done_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    deliveries, done = uploads.Deliveries(), []

    def put(self: worker.Worker, function: Callable[[], object]) -> bool:
        self._put(function)
        return True

    monkeypatch.setattr(worker, "start", lambda *_: None)
    monkeypatch.setattr(worker.Worker, "put", put)  # As while the thread, which ends, still appears to run.
    deliveries.add(lambda: done.append(1), is_awaited=True)
    assert deliveries.wait(1.0)
    assert done == [1]


@pytest.mark.timing
def test_without_threads_the_end_is_bounded_too(
    bucket: CloudStorageServer, run: ActiveRun, in_production: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.faults.always(Status(503), on="upload")
    monkeypatch.setattr(worker, "start", lambda *_: None)
    profile_once()
    started = time.monotonic()
    assert not finish_profiles(1.5)
    once = time.monotonic() - started
    assert not finish_profiles(0.0)
    assert time.monotonic() - started < 3 * once
    assert len(xplanes(run.folder / "staged")) == 1
    bucket.faults.clear()


def test_the_end_of_the_program_waits_for_uploads_and_ends_an_open_profile(bucket: CloudStorageServer) -> None:
    bucket.faults.script([Status(503), Status(503)], on="upload")
    program = """
        import os
        import jax
        from google_cloud_mldiagnostics._run_state.active_run import ActiveRun, set_active_run
        from google_cloud_mldiagnostics.mlrun_types import MLRun
        from google_cloud_mldiagnostics.core.xprof import Xprof
        from google_cloud_mldiagnostics._recording.run_log import RunLog
        from ml_diagnostics_common.environment import diagnostics_directory

        run = MLRun(name="run-1", gcs_path="gs://bucket/folder")
        log = RunLog("run-1", location="us-central1", project="", labels={}, is_shipped=False)
        folder = diagnostics_directory() / "runs" / "run-1"
        set_active_run(ActiveRun(run, log, folder, "host-a", 0, 1, os.getpid(), False))
        with Xprof(session_id="closed"):
            jax.numpy.ones(8).sum().block_until_ready()
        Xprof(session_id="open").start()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=60)
    profiles = "folder/run-1/plugins/profile"
    assert bucket.names("bucket") == [f"{profiles}/{session}/host-a.xplane.pb" for session in ("closed", "open")]
    assert reported_sessions("run-1")[-1] == ("open", "SUCCEEDED")
