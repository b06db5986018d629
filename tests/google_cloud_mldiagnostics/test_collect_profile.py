"""collect_profile and the ProfilerService's client: all hosts at once, by grpcio alone, and failures are reported."""

from __future__ import annotations

import http.server
import itertools
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from google_cloud_mldiagnostics.commands.collect_profile import main
from ml_diagnostics_common import profiler_service
from ml_diagnostics_common.exceptions import ConfigurationError
from ml_diagnostics_common.profiler_service import ProfilerService, TracerLevels, profile_request
from ml_diagnostics_common.xplane import read_xplane
from ml_diagnostics_testing.profiler_service import ProfilerServiceServer

from ..jax_jobs import jax_jobs
from ..waiting import bound_port, wait_until
from .profiled_runs import xplanes

pytest.importorskip("jax")
pytest.importorskip("grpc")

SERVICE = ProfilerService(connect_seconds=30.0)
IMPATIENT = ProfilerService(connect_seconds=1.0)


@pytest.fixture(scope="module")
def ports() -> Iterator[list[int]]:
    with jax_jobs(2) as ports:
        yield ports


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("google_cloud_mldiagnostics.commands.collect_profile.ProfilerService", lambda: SERVICE)


def collect(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def started_ns(path: Path) -> int:
    profile_data = pytest.importorskip("xprof.profile_data")
    profile = profile_data.ProfileData.from_file(str(path))  # Its planes do not outlive it.
    (environment,) = [plane for plane in profile.planes if plane.name == "Task Environment"]
    return int(dict(environment.stats)["profile_start_time"])


# --- The client ---------------------------------------------------------------------------------------


@pytest.mark.timing
def test_two_hosts_are_profiled_over_the_same_stretch_of_time(ports: list[int], tmp_path: Path) -> None:
    addresses = [f"localhost:{port}" for port in ports]
    results = SERVICE.capture(addresses, str(tmp_path), "both", 200, host_names=["a", "b"])
    assert [(result.address, result.problem) for result in results] == [(address, "") for address in addresses]
    files = [tmp_path / "both" / f"{name}.xplane.pb" for name in "ab"]
    assert all(read_xplane(file).is_whole for file in files)
    apart_ns = abs(started_ns(files[0]) - started_ns(files[1]))
    assert apart_ns < 200e6 / 4


def test_several_hosts_start_at_one_future_time_and_a_single_host_at_once(
    ports: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    real = profiler_service.profile_request
    monkeypatch.setattr(profiler_service, "profile_request", lambda *given: asked.append(given[-1]) or real(*given))
    before_ns = time.time_ns()
    SERVICE.capture([f"localhost:{port}" for port in ports], str(tmp_path), "both", 50)
    assert len(set(asked)) == 1
    assert asked[0] > before_ns
    SERVICE.capture([f"localhost:{ports[0]}"], str(tmp_path), "alone", 50)
    assert asked[2:] == [0]


def test_an_unreachable_host_does_not_stop_captures_of_the_others(ports: list[int], tmp_path: Path) -> None:
    service = ProfilerService(connect_seconds=5.0)
    with bound_port() as closed:
        addresses = [f"localhost:{closed}", f"localhost:{ports[0]}"]
        results = service.capture(addresses, str(tmp_path), "one", 100)
    assert [result.is_captured for result in results] == [False, True]
    assert "is the job running, with jax.profiler.start_server(port)" in results[0].problem
    assert xplanes(tmp_path) == [f"one/localhost_{ports[0]}.xplane.pb"]


def test_a_host_that_never_answers_is_given_up(tmp_path: Path) -> None:
    with bound_port(listening=True) as silent:
        started = time.monotonic()
        (result,) = IMPATIENT.capture([f"127.0.0.1:{silent}"], str(tmp_path), "never", 100)
        assert not result.is_captured
        assert time.monotonic() - started < IMPATIENT.connect_seconds + IMPATIENT.extra_seconds


def test_an_interrupt_while_a_request_is_being_started_ends_the_capture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from grpc import _channel  # type: ignore[import-untyped]

    start, number = _channel._run_channel_spin_thread, signal.SIGINT

    def start_after_an_interrupt(state: object) -> None:
        signal.raise_signal(number)
        start(state)

    with ProfilerServiceServer() as job:
        monkeypatch.setattr(_channel, "_run_channel_spin_thread", start_after_an_interrupt)
        before = signal.signal(number, signal.default_int_handler)
        try:
            with pytest.raises(KeyboardInterrupt):  # Else the channel waits for a thread that gRPC has not started.
                SERVICE.capture([job.address], str(tmp_path), "interrupted", 60_000)
        finally:
            signal.signal(number, before)


def test_a_host_that_is_being_profiled_is_reported(ports: list[int], tmp_path: Path) -> None:
    address, root = [f"localhost:{ports[0]}"], str(tmp_path)
    is_refused, numbers = threading.Event(), itertools.count()

    def profile_until_another_is_refused() -> None:
        while not is_refused.is_set():
            SERVICE.capture(address, root, "first", 1000)

    def refused() -> str:
        name = f"second-{next(numbers)}"
        (result,) = SERVICE.capture(address, root, name, 10)
        return name if "another profile runs there" in result.problem else ""

    first = threading.Thread(target=profile_until_another_is_refused)
    first.start()
    try:
        second = wait_until(refused)
    finally:
        is_refused.set()
        first.join()
    sessions = {file.split("/")[0] for file in xplanes(tmp_path)}
    assert "first" in sessions
    assert second not in sessions


@pytest.mark.parametrize(
    ("addresses", "root", "duration_ms", "names"),
    [
        ([], "/tmp", 100, None),
        (["host"], "/tmp", 100, None),
        (["host:1"], "here", 100, None),
        (["host:1"], "/tmp", 0, None),
        (["host:1", "other:1"], "/tmp", 100, ["one"]),
        (["host:1", "other:1"], "/tmp", 100, ["same", "same"]),
        (["host:1"], "/tmp", 100, ["../up"]),
    ],
)
def test_invalid_arguments_raise_before_any_request(
    addresses: list[str], root: str, duration_ms: int, names: list[str] | None
) -> None:
    with pytest.raises(ConfigurationError):
        SERVICE.capture(addresses, root, "s", duration_ms, host_names=names)


def test_the_request_is_the_message_that_the_service_knows() -> None:
    """Against the message's definition, decoded field by field."""
    request = profile_request("/root", "session", 1500, "host", TracerLevels(3, 0, 1), start_ns=7)
    fields = dict(decoded(request))
    assert {number: fields[number] for number in (1, 5, 6, 7)} == {1: 1500, 5: b"/root", 6: b"session", 7: b"host"}
    assert dict(decoded(fields[4])) == {2: 3, 3: 0, 4: 1, 5: 1, 7: 1, 8: 7, 9: 1500}


def decoded(message: bytes) -> Iterator[tuple[int, Any]]:
    position = 0

    def varint() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = message[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while position < len(message):
        tag = varint()
        value = varint()
        if tag & 7 == 2:
            position += value
            yield tag >> 3, message[position - value : position]
        else:
            yield tag >> 3, value


def test_without_grpcio_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    assert collect("--hosts", "h", "--port", 1, "--duration_in_ms", 100, "--log_dir", tmp_path) == 2
    assert "ml-diagnostics-common[profile]" in capsys.readouterr().err


# --- The command --------------------------------------------------------------------------------------


def test_the_command_writes_what_xprof_opens(
    ports: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = collect(
        *("--hosts", "localhost", "--port", ports[0], "--duration_in_ms", 100, "--log_dir", f"{tmp_path}/"),
        *("--session_name", "mine"),
    )
    assert status == 0
    assert xplanes(tmp_path) == [f"plugins/profile/mine/localhost_{ports[0]}.xplane.pb"]
    assert capsys.readouterr().out == (
        f"Dumped profiling information of 1 of 1 hosts in: {tmp_path}/plugins/profile/mine\n"
    )


def test_hosts_get_the_names_that_they_are_given(ports: list[int], tmp_path: Path) -> None:
    status = collect(
        *("--hosts", "localhost,127.0.0.1", "--port", ports[0], "--duration_in_ms", 2000, "--log_dir", tmp_path),
        *("--session_name", "s", "--override_hostnames", "one,two"),
    )
    assert status == 1  # Both addresses are one process, which can be profiled once at a time.
    assert len(xplanes(tmp_path)) == 1
    assert xplanes(tmp_path)[0].rpartition("/")[2] in ("one.xplane.pb", "two.xplane.pb")


def test_hosts_are_named_by_their_system_hostname(ports: list[int], tmp_path: Path) -> None:
    status = collect(
        *("--hosts", "localhost", "--port", ports[0], "--duration_in_ms", 100, "--log_dir", tmp_path),
        *("--session_name", "s", "--use_system_hostname"),
    )
    assert status == 0
    assert xplanes(tmp_path) == [f"plugins/profile/s/{socket.gethostname()}.xplane.pb"]


def test_without_a_name_the_session_is_the_time(ports: list[int], tmp_path: Path) -> None:
    assert collect("--hosts", "localhost", "--port", ports[0], "--duration_in_ms", 50, "--log_dir", tmp_path) == 0
    ((session),) = [file.split("/")[2] for file in xplanes(tmp_path)]
    time.strptime(session, "%Y_%m_%d_%H_%M_%S")


class ProfilingOverHttp(http.server.BaseHTTPRequestHandler):
    status = 200
    asked: ClassVar[list[tuple[str, Any]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.asked.append((self.path, json.loads(body)))
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def over_http(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    quick = ProfilerService(connect_seconds=0.2)
    monkeypatch.setattr("google_cloud_mldiagnostics.commands.collect_profile.ProfilerService", lambda: quick)
    monkeypatch.setattr(ProfilingOverHttp, "asked", [])
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), ProfilingOverHttp)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


def test_a_host_without_the_service_is_asked_over_http(
    over_http: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = collect("--hosts", "127.0.0.1", "--port", over_http, "--duration_in_ms", 100, "--log_dir", tmp_path)
    assert status == 0
    assert ProfilingOverHttp.asked == [("/profiling", {"duration_ms": 100, "repository_path": str(tmp_path)})]
    assert "1 of 1 hosts" in capsys.readouterr().out


def test_a_failure_over_http_too_is_printed_and_fails_the_command(
    over_http: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProfilingOverHttp, "status", 500)
    status = collect("--hosts", "127.0.0.1", "--port", over_http, "--duration_in_ms", 100, "--log_dir", tmp_path)
    printed = capsys.readouterr()
    assert status == 1
    assert not printed.out
    assert "no profiler's server answers there" in printed.err
    assert "over HTTP: HTTP 500" in printed.err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--override_hostnames", "one,two"], "as many names"),
        (["--override_hostnames", "a:b"], "without spaces, colons"),
        (["--override_hostnames", "a", "--use_system_hostname"], "not allowed with"),
        (["--session_name", "../up"], "--session_name"),
        (["--duration_in_ms", "0"], "more than 0"),
        (["--hosts", ","], "names no host"),
        (["--host_tracer_level", "-1"], "'-1' is not a whole number"),
        (["--log_dir", "s3://bucket/logs"], "s3:// is not supported"),
    ],
)
def test_an_invalid_argument_is_printed(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        collect(
            *("--hosts", "h", "--port", 1, "--duration_in_ms", 100, "--log_dir", "/tmp"),
            *arguments,
        )
    assert ended.value.code == 2
    assert complaint in capsys.readouterr().err


def test_the_help_needs_no_framework() -> None:
    program = (
        "import sys, runpy\n"
        "sys.argv = ['collect_profile', '--help']\n"
        "try: runpy.run_module('google_cloud_mldiagnostics.commands.collect_profile', run_name='__main__')\n"
        "except SystemExit as end: assert end.code == 0\n"
        "assert not {'jax', 'grpc', 'xprof', 'numpy'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True)
    assert "--use_system_hostname" in done.stdout


def test_a_relative_folder_is_resolved_before_it_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ports: list[int]
) -> None:
    """The profiled process writes the files, and its working directory is another one."""
    monkeypatch.chdir(tmp_path)
    arguments = ("--hosts", "localhost", "--port", ports[0], "--duration_in_ms", 50, "--session_name", "s")
    assert collect(*arguments, "--log_dir", "logs") == 0
    assert len(xplanes(tmp_path / "logs")) == 1


def test_the_defaults_are_those_of_the_public_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []
    monkeypatch.setattr(
        profiler_service.ProfilerService, "capture", lambda self, *given, **named: asked.append((given, named)) or []
    )
    collect("--hosts", "h1, h2", "--port", 9999, "--duration_in_ms", 100, "--log_dir", "gs://b/f/")
    ((addresses, root, _, duration_ms), named) = asked[0]
    assert (addresses, root, duration_ms) == (["h1:9999", "h2:9999"], "gs://b/f/plugins/profile", 100)
    assert (named["levels"], named["host_names"]) == (TracerLevels(2, 1, 1), None)
