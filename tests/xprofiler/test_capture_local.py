"""`xprofiler capture -o local`: real JAX programs of this machine, captured at the same moment, without any cloud."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ml_diagnostics_testing.cloud_storage import CloudStorageServer

from ..jax_jobs import jax_jobs
from ..waiting import bound_port
from .captures import Command, capture_command, files_below, opened_by_xprof, records, session_of

pytest.importorskip("jax")
pytest.importorskip("grpc")

_MS = 300


@pytest.fixture(scope="module")
def ports() -> Iterator[list[int]]:
    with jax_jobs(3) as ports:
        yield ports


@pytest.fixture
def capture(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "no-gcloud"))
    return capture_command(capsys)


@pytest.fixture
def bucket(cloud_storage_server: CloudStorageServer, monkeypatch: pytest.MonkeyPatch) -> CloudStorageServer:
    for name, value in cloud_storage_server.environment().items():
        monkeypatch.setenv(name, value)
    cloud_storage_server.create_bucket("bucket")
    return cloud_storage_server


@pytest.mark.timing
def test_all_hosts_start_together_and_are_in_one_session_that_xprof_opens(
    capture: Command, ports: list[int], tmp_path: Path
) -> None:
    hosts = [f"localhost:{port}" for port in ports]
    ran = capture("-o", "local", "-n", *hosts, "-l", tmp_path / "logs", "-d", _MS, "--format", "json")
    assert ran.code == 0, ran.errors
    found = records(ran)
    assert [(one["host"], one["status"], one["problem"]) for one in found] == [(h, "captured", None) for h in hosts]
    paths = [Path(one["path"]) for one in found]
    assert [path.stat().st_size for path in paths] == [one["size_bytes"] for one in found]
    (session,) = {path.parent for path in paths}
    assert session.parent == tmp_path / "logs/tensorboard/plugins/profile"
    assert re.fullmatch(r"session_\d{4}(_\d\d){5}", session.name)
    starts = [one["start_ns"] for one in found]
    assert max(starts) - min(starts) < _MS * 1e6 / 4
    seen = opened_by_xprof(paths, tmp_path / "copies")
    assert seen["tasks"].startswith("3 ")
    assert seen["device"] == "CPU"
    assert any("Execute" in event for event in seen["events"]), seen["events"]
    assert files_below(session) == sorted(path.name for path in paths)


def test_messages_are_those_of_the_readme(capture: Command, ports: list[int], tmp_path: Path) -> None:
    host = f"localhost:{ports[0]}"
    ran = capture("-o", "local", "-n", host, "-l", tmp_path / "logs", "-d", _MS)
    assert ran.code == 0
    saved = f"Profile saved to {tmp_path}/logs/tensorboard and session id is {session_of(ran)}."
    lines = ran.output.splitlines()
    assert lines[:2] == [saved, ""]
    assert lines[2].split() == ["Host", "Status", "Size", "Start"]
    assert re.fullmatch(rf"{host}  captured  [\d.]+ kB  \+0 s", lines[4])
    assert f"Starting profile capture on host {host}.\n" in ran.errors
    assert f"xprofiler serve -l {tmp_path}/logs" in ran.errors


def test_a_log_directory_that_ends_in_tensorboard_gets_no_second_one(
    capture: Command, ports: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = capture("-o", "local", "-n", f"localhost:{ports[0]}", "-l", "runs/a/tensorboard/", "-d", _MS)
    assert ran.code == 0
    name = f"localhost_{ports[0]}.xplane.pb"
    assert files_below(tmp_path / "runs") == [f"a/tensorboard/plugins/profile/{session_of(ran)}/{name}"]


def test_the_home_of_an_unknown_user_is_a_folder_of_that_name(
    capture: Command, ports: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = capture("-o", "local", "-n", f"localhost:{ports[0]}", "-l", "~no-such-user/x", "-d", _MS)
    assert ran.code == 0, ran.errors
    assert files_below(tmp_path / "~no-such-user/x/tensorboard")


def test_the_port_of_an_address_takes_precedence_over_the_option(
    capture: Command, ports: list[int], tmp_path: Path
) -> None:
    ran = capture("-o", "local", "-n", "localhost", f"127.0.0.1:{ports[1]}", "-p", ports[0], "-l", tmp_path, "-d", _MS)
    assert ran.code == 0, ran.errors
    names = [f"127.0.0.1_{ports[1]}.xplane.pb", f"localhost_{ports[0]}.xplane.pb"]
    assert [Path(file).name for file in files_below(tmp_path / "tensorboard")] == names


def test_a_host_with_a_closed_port_is_reported_and_the_others_are_captured(
    capture: Command, ports: list[int], tmp_path: Path
) -> None:
    with bound_port() as closed:
        closed_address = f"127.0.0.1:{closed}"
        ran = capture("-o", "local", "-n", closed_address, f"localhost:{ports[0]}", "-l", tmp_path, "-d", _MS)
    assert ran.code == 1
    assert f"Failed to profile host {closed_address} with error: nothing listens at {closed_address}." in ran.errors
    assert "jax.profiler.start_server" in ran.errors
    assert [line.split()[1] for line in ran.output.splitlines()[-2:]] == ["failed", "captured"]
    assert len(files_below(tmp_path / "tensorboard")) == 1


def test_without_a_profile_the_session_is_removed(capture: Command, tmp_path: Path) -> None:
    with bound_port() as closed:
        ran = capture("-o", "local", "-n", f"127.0.0.1:{closed}", "-l", tmp_path, "-d", _MS)
    assert ran.code == 1
    assert not list((tmp_path / "tensorboard/plugins/profile").iterdir())


def test_a_port_without_a_profiler_server_is_reported(capture: Command, tmp_path: Path) -> None:
    with CloudStorageServer() as web_server:
        ran = capture("-o", "local", "-n", web_server.url.removeprefix("http://"), "-l", tmp_path, "-d", _MS)
    assert ran.code == 1
    assert "is not a profiler server" in ran.errors


def test_the_file_for_a_bucket_passes_through_this_machine(
    capture: Command, ports: list[int], bucket: CloudStorageServer, tmp_path: Path
) -> None:
    ran = capture("-o", "local", "-n", f"localhost:{ports[0]}", "-l", "gs://bucket/run", "-d", _MS)
    assert ran.code == 0, ran.errors
    assert f"Profile saved to gs://bucket/run/tensorboard and session id is {session_of(ran)}." in ran.output
    name = f"run/tensorboard/plugins/profile/{session_of(ran)}/localhost_{ports[0]}.xplane.pb"
    assert bucket.names("bucket") == [name]
    copy = tmp_path / "copy.xplane.pb"
    copy.write_bytes(bucket.read("bucket", name))
    assert opened_by_xprof([copy], tmp_path / "copies")["tasks"].startswith("1 ")


def test_a_job_that_cannot_reach_the_bucket_does_not_delay_a_capture(tmp_path: Path) -> None:
    """JAX can write to gs:// by itself. If its connections are refused, it retries for minutes."""
    from ml_diagnostics_common.profiler_service import ProfilerService

    with jax_jobs(1, {"https_proxy": "http://127.0.0.1:9", "NO_GCE_CHECK": "true"}) as (port,):
        address = [f"localhost:{port}"]
        started = time.monotonic()
        (refused,) = ProfilerService(extra_seconds=2).capture(address, "gs://bucket/run", "session", 100)
        assert time.monotonic() - started < 20
        assert refused.problem
        (result,) = ProfilerService(extra_seconds=20).capture(address, str(tmp_path), "session", 100)
        assert not result.problem


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("-n", "localhost:0"), "is not an address"),
        (("-n", "localhost:99999"), "is not an address"),
        (("-n", "a b:1"), "is not an address"),
        (("-n", "localhost:1", "-d", "0"), "is not a whole number"),
        (("-n", "localhost:1", "-d", "soon"), "is not a whole number"),
        (("-n", "localhost:1", "-p", "70000"), "is not a whole number"),
        (("-n", "localhost:1", "--image-family=debian-12"), "gcloud is not used with -o local"),
        (("-n", "localhost:1", "--durations", "5"), "did you mean --duration"),
    ],
)
def test_invalid_arguments_are_refused_before_any_request(
    capture: Command, tmp_path: Path, arguments: tuple[str, ...], problem: str
) -> None:
    ran = capture("-o", "local", "-l", tmp_path, *arguments)
    assert ran.code == 2
    assert problem in ran.errors
    assert not files_below(tmp_path)
