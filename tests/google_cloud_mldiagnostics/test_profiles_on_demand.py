"""Profiles that other processes take of a job: the server does not disturb it, and they are sessions of its run."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from typing import Any

import pytest
from google_cloud_mldiagnostics._profiling import on_demand
from google_cloud_mldiagnostics._profiling.locations import location_of
from google_cloud_mldiagnostics._profiling.on_demand import CaptureWatch
from google_cloud_mldiagnostics._profiling.server_port import ServerPort
from google_cloud_mldiagnostics.core.xprof import Xprof, start_on_demand_xprof, stop_on_demand_xprof
from google_cloud_mldiagnostics.exceptions import ProfilingError
from ml_diagnostics_common.profiler_service import ProfilerService
from ml_diagnostics_common.xplane import summary_of
from ml_diagnostics_testing.cloud_storage import CloudStorageServer

from ..waiting import Child, wait_until
from .profiled_runs import profiled_run, reported_processes, reported_sessions, sessions_put, xplanes

jax = pytest.importorskip("jax")
pytest.importorskip("grpc")


@pytest.fixture(autouse=True)
def _devices() -> None:
    """Initialise the devices: the server can start at once."""
    jax.devices()


def start_polling() -> None:
    """Start the server like `start_on_demand_xprof(0)`, and poll often for profiles that others took."""
    on_demand._start(0, poll_seconds=0.05)


def served(run_id: str) -> dict[str, Any]:
    """Return the last record of the run's process with a port to profile it at."""
    return wait_until(lambda: [process for process in reported_processes(run_id) if "profiler_port" in process])[-1]


def capture(process: Mapping[str, Any], session_id: str, host: str = "localhost") -> None:
    address = f"{host}:{process['profiler_port']}"
    folder, name = process["capture_folder"], process["capture_name"]
    (result,) = ProfilerService().capture([address], folder, session_id, 100, host_names=[name])
    assert result.is_captured, result.problem


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_profile_taken_from_outside_is_a_session_of_the_run() -> None:
    with profiled_run("run-1") as active:
        start_polling()
        process = served("run-1")
        assert active.profiler_port == process["profiler_port"]
        capture(process, "asked", host=process["address"])
        wait_until(lambda: sessions_put(active))
        assert xplanes(active.folder / "profiles") == ["plugins/profile/asked/host-a.xplane.pb"]
        assert reported_sessions("run-1") == [("asked", "SUCCEEDED")]
        ((session_id, session),) = sessions_put(active)
        assert session_id == "asked"
        assert session["kind"] == "KIND_SNAPSHOT"
        assert session["targetSessions"]["host-a"]["sessionPhase"] == "SUCCEEDED"


def test_a_profile_for_a_bucket_is_staged_on_this_machine(
    cloud_storage_server: CloudStorageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("google.cloud.storage")
    for name, value in cloud_storage_server.environment().items():
        monkeypatch.setenv(name, value)
    cloud_storage_server.create_bucket("bucket")
    with profiled_run("run-1", gcs_path="gs://bucket", is_local=False) as active:
        start_polling()
        capture(served("run-1"), "asked")
        wait_until(lambda: sessions_put(active))
        name = "run-1/plugins/profile/asked/host-a.xplane.pb"
        assert cloud_storage_server.names("bucket") == [name]
        assert summary_of(cloud_storage_server.read("bucket", name)).is_whole
        assert not xplanes(active.folder)


def test_the_programs_own_profiles_are_not_taken_for_others() -> None:
    with profiled_run("run-1") as active:
        start_polling()
        process = served("run-1")
        with Xprof(session_id="own"):
            pass
        capture(process, "asked")
        wait_until(lambda: ("asked", "SUCCEEDED") in reported_sessions("run-1"))
        assert reported_sessions("run-1") == [("own", "ACTIVE"), ("own", "SUCCEEDED"), ("asked", "SUCCEEDED")]
        assert len(xplanes(active.folder / "profiles")) == 2


def test_profiles_of_earlier_attempts_are_not_reported_again() -> None:
    with profiled_run("run-1") as active:
        earlier = active.folder / "profiles/plugins/profile/earlier"
        earlier.mkdir(parents=True)
        (earlier / "host-a.xplane.pb").write_bytes(b"")
        start_polling()
        capture(served("run-1"), "asked")
        wait_until(lambda: reported_sessions("run-1"))
        assert reported_sessions("run-1") == [("asked", "SUCCEEDED")]


def test_a_profile_is_not_reported_before_it_is_complete() -> None:
    with profiled_run("run-1") as active:
        watch = CaptureWatch(active, location_of(active), "host-a", 0, lambda: False)
        session = active.folder / "profiles/plugins/profile/growing"
        session.mkdir(parents=True)
        with Xprof(session_id="a-real-one"):
            jax.numpy.ones(8).sum().block_until_ready()
        whole = (session.parent / "a-real-one" / "host-a.xplane.pb").read_bytes()
        for part in (None, whole[:0], whole[: len(whole) // 2]):
            if part is not None:
                (session / "host-a.xplane.pb").write_bytes(part)
            assert watch() is not None
            assert ("growing", "SUCCEEDED") not in reported_sessions("run-1")
        (session / "host-a.xplane.pb").write_bytes(whole)
        for _ in range(3):
            watch()
        assert reported_sessions("run-1").count(("growing", "SUCCEEDED")) == 1


def test_a_port_in_use_is_logged_once_and_another_one_registered(caplog: pytest.LogCaptureFixture) -> None:
    """JAX itself would share it: each process would get some of the requests."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("", 0))
        other.listen()
        taken = other.getsockname()[1]
        with profiled_run("run-1"):
            start_on_demand_xprof(taken)
            process = served("run-1")
            assert process["profiler_port"] != taken
            capture(process, "asked")
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert f"Port {taken} is taken" in warnings[0]
    assert str(process["profiler_port"]) in warnings[0]


def test_processes_that_start_at_once_do_not_share_a_port() -> None:
    """Another process may check whether the port is free before this one serves at it."""
    program = f"from {ServerPort.__module__} import ServerPort\nport = ServerPort(0)\nprint(port.number)\ninput()"
    other = Child([sys.executable, "-c", program])
    reserved = int(other.line())
    assert not is_listening(reserved)
    with profiled_run("run-1"):
        start_on_demand_xprof(reserved)
        assert served("run-1")["profiler_port"] != reserved
    other.kill()
    with profiled_run("run-2"):
        start_on_demand_xprof(reserved)
        assert served("run-2")["profiler_port"] == reserved


def test_the_server_ends_with_the_run_and_can_start_again() -> None:
    for name in ("run-1", "run-2"):
        with profiled_run(name) as active:
            start_on_demand_xprof(0)
            port = served(name)["profiler_port"]
            assert is_listening(port)
            stop_on_demand_xprof()
            assert active.profiler_port is None
        wait_until(lambda port=port: not is_listening(port))  # type: ignore[misc]


def test_a_second_start_is_a_warning_and_a_second_stop_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with profiled_run("run-1"):
        start_on_demand_xprof(0)
        start_on_demand_xprof(0)
        assert "runs already" in caplog.text
        stop_on_demand_xprof()
        stop_on_demand_xprof()


@pytest.mark.parametrize("port", [-1, 65536, "9999", None])
def test_an_invalid_port_is_an_error(port: Any) -> None:
    with pytest.raises(ProfilingError, match="expected a port"):
        start_on_demand_xprof(port)


def test_a_server_that_cannot_start_costs_no_more_than_itself(
    in_production: None, caplog: pytest.LogCaptureFixture
) -> None:
    jax.profiler.start_server(0)  # JAX has one server at most, and this one is the user's.
    try:
        with profiled_run("run-1") as active:
            start_on_demand_xprof(0)
            wait_until(lambda: "could not be started" in caplog.text)
            assert active.profiler_port is None
            stop_on_demand_xprof()
    finally:
        jax.profiler.stop_server()


def test_the_server_waits_for_the_jobs_devices_and_initialises_none() -> None:
    program = """
        import atexit, os, sys, time
        from google_cloud_mldiagnostics._run_state.active_run import ActiveRun, set_active_run
        from google_cloud_mldiagnostics.mlrun_types import MLRun
        from google_cloud_mldiagnostics.core.xprof import start_on_demand_xprof
        from google_cloud_mldiagnostics._recording.run_log import RunLog
        from ml_diagnostics_common.environment import diagnostics_directory

        log = RunLog("run-1", location="us-central1", project="", labels={}, is_shipped=False)
        folder = diagnostics_directory() / "runs" / "run-1"
        active = ActiveRun(MLRun(name="run-1"), log, folder, "host-a", 0, 1, os.getpid(), True)
        set_active_run(active)
        start_on_demand_xprof(0)
        time.sleep(0.7)
        assert "jax" not in sys.modules
        import jax
        time.sleep(0.7)
        from jax._src import xla_bridge
        assert not xla_bridge.backends_are_initialized()
        assert active.profiler_port is None
        jax.devices()
        while active.profiler_port is None:
            time.sleep(0.05)
        if os.fork() == 0:  # A child does not end its parent's server.
            atexit._run_exitfuncs()
            os._exit(0)  # Like multiprocessing: JAX of 2024 crashes in a normal exit of a child.
        os.wait()
        import socket
        assert socket.socket().connect_ex(("127.0.0.1", active.profiler_port)) == 0
        print("served")
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "served\n"
    assert len(reported_processes("run-1")) == 1
