"""The ProfilerService of a job on loopback, asked by the client that xprofiler and mldiagnostics ask with."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_diagnostics_common.failures import Kind
from ml_diagnostics_common.profiler_service import CaptureResult, ProfilerService, TracerLevels
from ml_diagnostics_testing._xspace import fields_of, message
from ml_diagnostics_testing.cloud_storage import CloudStorageServer
from ml_diagnostics_testing.faults import Delay, Hang, Reset, Skew, Status
from ml_diagnostics_testing.profiler_service import ProfilerServiceServer

from ..waiting import wait_until

CLIENT = ProfilerService(connect_seconds=30.0, extra_seconds=20.0)


def capture(server: ProfilerServiceServer, root: object, duration_ms: int = 100, **settings: Any) -> CaptureResult:
    return CLIENT.capture([server.address], str(root), "session", duration_ms, host_names=["host"], **settings)[0]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return the path of the profile."""
    return tmp_path / "session" / "host.xplane.pb"


# --- Profiles -------------------------------------------------------------------------------------------


def test_a_profile_is_written_where_and_as_it_was_asked_for(
    profiler_service_server: ProfilerServiceServer, tmp_path: Path, file: Path
) -> None:
    result = capture(profiler_service_server, tmp_path, levels=TracerLevels(host=3, device=0, python=0))
    assert result.is_captured
    assert result.seconds >= 0.1
    (profile,) = profiler_service_server.profiles
    assert (profile.path, profile.is_written) == (str(file), True)
    assert (profile.duration_ms, profile.levels, profile.start_ns) == (100, {2: 3, 3: 0, 4: 0}, 0)
    assert [request.status for request in profiler_service_server.requests_for("profile")] == [200]


def test_a_profile_is_a_real_one(profiler_service_server: ProfilerServiceServer, tmp_path: Path, file: Path) -> None:
    reader = pytest.importorskip("xprof.profile_data").ProfileData
    capture(profiler_service_server, tmp_path)
    profile = reader.from_file(str(file))  # its planes do not outlive it
    host, environment = profile.planes
    began_ns = profiler_service_server.profiles[0].began_ns
    assert (host.name, environment.name) == ("/host:CPU", "Task Environment")
    times = {name: int(value) for name, value in environment.stats}
    assert times == {"profile_start_time": began_ns, "profile_stop_time": began_ns + 100_000_000}
    (line,) = host.lines
    events = list(line.events)
    assert [(event.name, event.duration_ns) for event in events] == [("step", 9_000_000)] * 10
    assert [round((event.start_ns - began_ns) / 1e6) for event in events] == list(range(0, 100, 10))


def test_xprofs_own_converters_take_it(
    profiler_service_server: ProfilerServiceServer, tmp_path: Path, file: Path
) -> None:
    converters = pytest.importorskip("xprof.convert.raw_to_tool_data")
    capture(profiler_service_server, tmp_path)
    data, kind = converters.xspace_to_tool_data([str(file)], "trace_viewer", {})
    assert kind == "application/json"
    assert '"step"' in (data if isinstance(data, str) else data.decode())


def test_all_hosts_start_at_the_given_time(tmp_path: Path) -> None:
    with ExitStack() as stack:
        servers = [stack.enter_context(ProfilerServiceServer()) for _ in range(4)]
        client = ProfilerService(lead_seconds=1.0)
        results = client.capture([server.address for server in servers], str(tmp_path), "session", 50)
        assert all(result.is_captured for result in results)
        profiles = [server.profiles[0] for server in servers]
        assert len({profile.start_ns for profile in profiles}) == 1
        assert all(profile.began_ns >= profile.start_ns for profile in profiles)


def test_a_host_can_start_at_once_and_the_others_by_clocks_that_are_ahead(tmp_path: Path) -> None:
    messages: list[str] = []
    with ExitStack() as stack:
        servers = [stack.enter_context(ProfilerServiceServer()) for _ in range(3)]
        for server in servers:
            server.faults.always(Skew(30))
        client = ProfilerService(ahead_seconds=30, extra_seconds=20, lead_seconds=2.0, log=messages.append)
        addresses = [server.address for server in servers]
        results = client.capture(addresses, str(tmp_path), "session", 50, at_once=[False, True, False])
        assert all(result.is_captured for result in results)
        first, alone, last = (server.profiles[0] for server in servers)
    assert (first.start_ns, alone.start_ns) == (last.start_ns, 0)
    assert alone.began_ns < first.start_ns <= min(first.began_ns, last.began_ns)
    assert len(messages) == 6
    assert f"Profile request to {addresses[1]}: session/" in messages[1]
    assert messages[1].endswith("50 ms, at once")


def test_a_busy_host_and_a_late_one_are_distinguished(tmp_path: Path) -> None:
    client = ProfilerService(extra_seconds=2.0, lead_seconds=0.1)
    with ProfilerServiceServer() as behind, ProfilerServiceServer() as other:
        behind.faults.always(Skew(-60))
        addresses = [behind.address, other.address]
        late, well = client.capture(addresses, str(tmp_path), "session", 50)
        assert (late.failure, well.failure) == (Kind.TIMEOUT, None)
        assert well.seconds < late.seconds
        (busy,) = client.capture(addresses[:1], str(tmp_path), "session", 50)
        assert busy.failure is Kind.CONFLICT


def test_one_process_can_be_sixty_four_hosts(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ml_diagnostics_testing.profiler_service", "--count", "64"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        addresses = [process.stdout.readline().strip() for _ in range(64)]
        results = CLIENT.capture(addresses, str(tmp_path), "session", 100)
        process.terminate()
        assert process.wait(30) == 0
    assert [result.problem for result in results] == [""] * 64
    assert len(list(tmp_path.glob("session/*.xplane.pb"))) == 64


def test_a_bucket_is_written_to(cloud_storage_server: CloudStorageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with ProfilerServiceServer(storage_url=cloud_storage_server.url) as server:
        assert capture(server, "gs://test-bucket/my run/ü").is_captured
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", cloud_storage_server.url)
    with ProfilerServiceServer() as server:
        assert capture(server, "gs://test-bucket/other").is_captured
    names = cloud_storage_server.names("test-bucket")
    assert names == ["my run/ü/session/host.xplane.pb", "other/session/host.xplane.pb"]
    assert cloud_storage_server.read("test-bucket", names[0])


# --- Faults ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("root", "has_access", "problem"),
    [
        ("gs://no-such-bucket/run", True, "404"),
        ("gs://test-bucket/run", False, "403"),
        ("/proc/no-such-folder", True, "No such file"),
    ],
)
def test_a_path_that_cannot_be_written_is_reported(
    cloud_storage_server: CloudStorageServer, root: str, has_access: bool, problem: str
) -> None:
    with ProfilerServiceServer(storage_url=cloud_storage_server.url) as server:
        server.has_bucket_access = has_access
        result = capture(server, root)
        assert result.problem.startswith("INTERNAL: ")
        assert problem in result.problem
        assert not server.profiles[0].is_written


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        (Status(503), "UNAVAILABLE"),
        (Reset(), "UNAVAILABLE"),
        (Status(403), "PERMISSION_DENIED"),
        (Hang(0.1), "UNAVAIL"),
    ],
)
def test_a_fault_reaches_the_client_and_the_next_profile_is_well(
    profiler_service_server: ProfilerServiceServer, tmp_path: Path, file: Path, fault: Any, problem: str
) -> None:
    profiler_service_server.faults.script([fault])
    assert capture(profiler_service_server, tmp_path).problem.startswith(problem)
    assert not file.exists()
    assert capture(profiler_service_server, tmp_path).is_captured
    assert file.stat().st_size


def test_a_service_that_hangs_is_given_up(profiler_service_server: ProfilerServiceServer, tmp_path: Path) -> None:
    profiler_service_server.faults.script([Hang()])
    impatient = ProfilerService(extra_seconds=0.2, lead_seconds=0.0)
    (result,) = impatient.capture([profiler_service_server.address], str(tmp_path), "session", 10)
    assert result.problem.startswith("DEADLINE_EXCEEDED")


def test_an_answer_can_be_lost_when_the_file_is_there(
    profiler_service_server: ProfilerServiceServer, tmp_path: Path, file: Path
) -> None:
    profiler_service_server.faults.script([Status(503, after_apply=True)])
    assert not capture(profiler_service_server, tmp_path).is_captured
    assert file.exists()
    assert len(profiler_service_server.profiles) == 1


def test_a_slow_service_is_slow(profiler_service_server: ProfilerServiceServer, tmp_path: Path) -> None:
    profiler_service_server.faults.script([Delay(0.3)])
    profiler_service_server.write_seconds = 0.2
    assert capture(profiler_service_server, tmp_path, 10).seconds > 0.5


def test_it_may_report_success_although_it_failed(
    profiler_service_server: ProfilerServiceServer, tmp_path: Path, file: Path
) -> None:
    profiler_service_server.writes = "nothing"
    assert capture(profiler_service_server, tmp_path).is_captured
    assert not file.exists()
    profiler_service_server.writes = "empty"
    assert capture(profiler_service_server, tmp_path).is_captured
    assert file.read_bytes() == b""
    profiler_service_server.writes = "half"
    assert capture(profiler_service_server, tmp_path).is_captured
    with pytest.raises(ValueError, match="expected a varint or a length-delimited field"):
        list(fields_of(file.read_bytes()))


def test_a_job_can_die_in_mid_profile(
    profiler_service_server: ProfilerServiceServer, tmp_path: Path, file: Path
) -> None:
    profiler_service_server.dies_after_seconds = 0.1
    result = capture(profiler_service_server, tmp_path, 60_000)
    assert result.problem.startswith("UNAVAILABLE")
    assert "the process may have crashed" in result.problem
    assert len(profiler_service_server.profiles) == 1
    assert result.seconds < 20
    assert not file.exists()
    impatient = ProfilerService(connect_seconds=0.1)
    (after,) = impatient.capture([profiler_service_server.address], str(tmp_path), "session", 10)
    assert "no profiler's server answers" in after.problem


def test_one_profile_at_a_time_as_in_a_job(profiler_service_server: ProfilerServiceServer, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(capture, profiler_service_server, tmp_path, 2000)
        wait_until(lambda: profiler_service_server.profiles)
        assert "another profile runs there" in capture(profiler_service_server, tmp_path).problem
        assert first.result().is_captured


def test_what_is_under_way_when_it_closes_is_not_written(tmp_path: Path, file: Path) -> None:
    server = ProfilerServiceServer()
    with ThreadPoolExecutor(1) as threads:
        result = threads.submit(capture, server, tmp_path, 60_000)
        wait_until(lambda: server.profiles)
        server.close()
        assert not result.result().is_captured
    assert not file.exists()


# --- The wire -------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(1, 2**28), st.integers(0, 2**63) | st.binary())))
def test_what_is_written_is_read(fields: list[tuple[int, int | bytes]]) -> None:
    assert list(fields_of(message(*fields))) == fields


@given(st.binary())
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    def read() -> Iterator[tuple[int, int | bytes]]:
        try:
            yield from fields_of(data)
        except ValueError:
            return

    assert all(isinstance(value, int | bytes) for _, value in read())
