"""`xprofiler serve` hosts the real XProf on loopback, writes nothing beside the profiles, and ends cleanly."""

from __future__ import annotations

import contextlib
import gzip
import html
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from ml_diagnostics_common.command.console import Console
from ml_diagnostics_common.exceptions import MissingExtraError
from ml_diagnostics_testing.cloud_storage import CloudStorageServer
from xprofiler.serve.server import Server

from ..waiting import bound_port, wait_until
from .made_profiles import SESSION, cpu_session, tpu_session
from .typed_commands import typed
from .xspaces import tpu_host

pytest.importorskip("xprof")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_PATIENCE_SECONDS = 30.0
_XPROF = "/data/plugin/profile"
_NAME = f"tensorboard/{SESSION}"


class _Serving:
    """A running `xprofiler serve`."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.url = url

    def read(self, path: str) -> bytes:
        with urllib.request.urlopen(self.url + path, timeout=_PATIENCE_SECONDS) as answer:
            body: bytes = answer.read()
        return gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body

    def json(self, path: str) -> Any:
        return json.loads(self.read(path))

    def end(self, number: int = signal.SIGINT) -> tuple[int, str]:
        """Send a signal, and return the exit code and standard error."""
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=_PATIENCE_SECONDS)
        return self.process.returncode, errors

    def family(self) -> list[psutil.Process]:
        own = psutil.Process(self.process.pid)
        return [own, *own.children(recursive=True)]


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder in which `serve` keeps its copies."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@contextlib.contextmanager
def _serving(target: Path | str, *arguments: str) -> Iterator[_Serving]:
    command = [sys.executable, "-m", "xprofiler", "serve", "-l", str(target), *(arguments or ("--port", "0"))]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        if not url:
            pytest.fail(process.communicate()[1])
        yield _Serving(process, url)
    finally:
        family = _children(process.pid)
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE_SECONDS)
        for each in [process.pid, *(child.pid for child in family)] if process.returncode is None else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        process.communicate()


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _status(url: str, **headers: str) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_PATIENCE_SECONDS) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_the_summary_and_the_real_xprof_are_on_one_listener_of_loopback(tmp_path: Path, temporary: Path) -> None:
    folder = tpu_session(tmp_path / "logs")
    before = sorted(file.name for file in folder.iterdir())
    with _serving(tmp_path / "logs") as serving:
        assert SESSION in serving.read("/").decode()
        assert serving.json("/summary.json")["device_count"] == 8
        assert serving.json(f"{_XPROF}/runs") == [_NAME]
        assert "trace_viewer@" in serving.json(f"{_XPROF}/run_tools?run={_NAME}")
        hosts = serving.json(f"{_XPROF}/hosts?run={_NAME}&tag=trace_viewer@")
        assert [each["hostname"] for each in hosts] == ["host-a", "host-b"]
        trace = serving.json(f"{_XPROF}/data?run={_NAME}&tag=trace_viewer@&hosts=host-a,host-b")
        assert {"host-a", "host-b"} <= {
            event["args"]["name"].split()[0] for event in trace["traceEvents"] if event.get("name") == "process_name"
        }
        assert b"<html" in serving.read(f"{_XPROF}/")
        assert b"2.24" in serving.read(f"{_XPROF}/version")
        assert _status(f"{serving.url}/", Host="evil.example") == 403
        assert _status(f"{serving.url}/", Host="[::1].evil.example") == 403
        assert _status(f"{serving.url}/", Host="[::1]:80") == 200
        assert _status(f"{serving.url}{_XPROF}/hosts?tag=trace_viewer") == 400
        assert _status(f"{serving.url}{_XPROF}/capture_profile?service_addr=localhost:1&duration=1") == 403
        assert serving.json(f"{_XPROF}/config")["hideCaptureProfileButton"] is True
        listeners = {
            (connection.laddr.ip, connection.laddr.port)
            for each in serving.family()
            for connection in each.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        }
        assert listeners == {("127.0.0.1", int(serving.url.rpartition(":")[2]))}
        assert os.listdir(temporary) != []  # noqa: PTH208
    assert sorted(file.name for file in folder.iterdir()) == before


def test_all_hosts_are_shown_after_a_single_one(tmp_path: Path, temporary: Path) -> None:
    tpu_session(tmp_path / "logs")
    with _serving(tmp_path / "logs") as serving:
        one = serving.json(f"{_XPROF}/data?run={_NAME}&tag=hlo_stats&host=host-b")
        every = serving.json(f"{_XPROF}/data?run={_NAME}&tag=hlo_stats&host=ALL_HOSTS")
        again = serving.json(f"{_XPROF}/data?run={_NAME}&tag=hlo_stats&host=host-b")
        overview = serving.json(f"{_XPROF}/data?run={_NAME}&tag=overview_page&host=ALL_HOSTS")
    runs = [ids["id"] for ids in one["cols"]].index("occurrences")
    assert [sum(row["c"][runs]["v"] for row in each["rows"]) for each in (one, every, again)] == [288, 576, 288]
    assert [table["p"]["host_count"] for table in overview if "host_count" in table.get("p", {})] == ["2"]


def test_profiles_in_a_bucket_are_served_and_the_bucket_stays_as_it_is(
    tmp_path: Path, temporary: Path, cloud_storage_server: CloudStorageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in cloud_storage_server.environment().items():
        monkeypatch.setenv(name, value)
    for file in tpu_session(tmp_path).iterdir():
        cloud_storage_server.write("test-bucket", f"run/{file.relative_to(tmp_path)}", file.read_bytes())
    before = cloud_storage_server.names("test-bucket")
    with _serving("gs://test-bucket/run/") as serving:
        assert serving.json("/summary.json")["device_count"] == 8
        overview = serving.json(f"{_XPROF}/data?run={_NAME}&tag=overview_page")
        assert any("device_duty_cycle_percent" in table.get("p", {}) for table in overview)
    assert cloud_storage_server.names("test-bucket") == before


def test_names_of_any_letters_are_served(tmp_path: Path, temporary: Path) -> None:
    name = "séance 'a\" <b>&%2F+#?;*[x]$(y)"
    host = "h<1>&'%41 +*"
    folder = tmp_path / "logs ü&" / "plugins" / "profile" / name
    folder.mkdir(parents=True)
    for each in (host, "other"):
        (folder / f"{each}.xplane.pb").write_bytes(tpu_host(host=each))
    with _serving(tmp_path / "logs ü&") as serving:
        run, one = urllib.parse.quote(name), urllib.parse.quote(host)
        assert serving.json(f"/summary.json?session={run}")["session"] == name
        assert f"?session={html.escape(run)}" in serving.read("/").decode()
        assert serving.json(f"{_XPROF}/runs") == [name]
        hosts = serving.json(f"{_XPROF}/hosts?run={run}&tag=trace_viewer@")
        assert [each["hostname"] for each in hosts] == sorted([host, "other"])
        stats = serving.json(f"{_XPROF}/data?run={run}&tag=hlo_stats&host={one}")
        assert len(stats["rows"]) == 6
        trace = serving.json(f"{_XPROF}/data?run={run}&tag=trace_viewer@&host={one}")
        assert trace["traceEvents"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_ends_on_a_signal_and_removes_its_files(number: int, tmp_path: Path, temporary: Path) -> None:
    tpu_session(tmp_path / "logs")
    with _serving(tmp_path / "logs") as serving:
        serving.read("/")
        family = serving.family()
        code, errors = serving.end(number)
    assert code == 0
    assert errors == f"Found 1 session(s) in {tmp_path / 'logs'}, the newest {_NAME}.\nPress Ctrl-C to end it.\n\n"
    assert not any(each.is_running() for each in family)
    assert list(temporary.iterdir()) == []


def test_a_server_that_cannot_start_reports_the_reason(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "modules" / "cheroot"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('this cheroot is broken')\n")
    monkeypatch.setenv("PYTHONPATH", str(broken.parent))
    ended = typed("serve", "-l", str(tmp_path))
    assert (ended.code, ended.output) == (1, "")
    assert "the server did not start (exit code 1)" in ended.errors
    assert "this cheroot is broken" in ended.errors
    assert list(temporary.iterdir()) == []


def test_the_server_of_a_killed_command_also_ends(tmp_path: Path, temporary: Path) -> None:
    tpu_session(tmp_path / "logs")
    with _serving(tmp_path / "logs") as serving:
        serving.read("/")
        _, child = serving.family()
        serving.process.kill()
        child.wait(_PATIENCE_SECONDS)
        wait_until(lambda: list(temporary.iterdir()) == [])


def test_a_server_that_dies_is_an_error_with_its_exit_code(tmp_path: Path, temporary: Path) -> None:
    with _serving(tmp_path) as serving:
        _, child = serving.family()
        child.kill()
        _, errors = serving.process.communicate(timeout=_PATIENCE_SECONDS)
        assert serving.process.returncode == 1
    assert "the server ended by itself (exit code -9)" in errors
    assert list(temporary.iterdir()) == []


def test_if_the_port_is_in_use_the_next_is_used_and_printed(tmp_path: Path, temporary: Path) -> None:
    with bound_port(listening=True) as port, _serving(tmp_path, "--port", str(port)) as serving:
        used = int(serving.url.rpartition(":")[2])
        assert used > port
        _, errors = serving.end()
    assert f"Port {port} is in use; using {used}." in errors


def test_a_later_profile_is_shown(tmp_path: Path, temporary: Path) -> None:
    with _serving(tmp_path) as serving:
        assert "No profile yet" in serving.read("/").decode()
        tpu_session(tmp_path)
        wait_until(lambda: SESSION in serving.read("/").decode())
        assert serving.json("/summary.json")["session"] == _NAME
        _, errors = serving.end()
    assert f"{tmp_path} has no profile yet" in errors


def test_a_path_that_cannot_be_served_has_its_exit_code(tmp_path: Path, temporary: Path) -> None:
    missing = typed("serve", "-l", str(tmp_path / "nowhere"))
    assert (missing.code, missing.output) == (3, "")
    assert "does not exist" in missing.errors
    assert typed("serve", "-l", "s3://bucket/logs").code == 2
    assert typed("serve", "-l", str(tmp_path), "--port", "70000").code == 2
    assert typed("serve").code == 2
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(("arguments", "opened"), [((), True), (("--no-browser",), False)])
def test_a_browser_is_opened_unless_none_is_wanted(
    arguments: tuple[str, ...], opened: bool, tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    visited = tmp_path / "visited"
    browser = tmp_path / "browser"
    browser.write_text(f"#!/bin/sh\nprintf %s \"$1\" > '{visited}'\n")
    browser.chmod(0o700)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    with _serving(tmp_path, "--port", "0", *arguments) as serving:
        if opened:
            wait_until(lambda: visited.exists() and visited.read_text() == serving.url)
        code, _ = serving.end()
    assert code == 0
    assert visited.exists() == opened


def test_without_xprof_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"cloud-diagnostics-xprof\[serve\]"):
        Server(str(tmp_path), 0, Console()).__enter__()


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
def test_a_browser_shows_a_real_profile_in_xprof_and_in_our_page(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    assert CHROMIUM is not None
    session = cpu_session(tmp_path / "logs", "laptop").name
    browser = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'browser'}"]
    browser += ["--window-size=1400,1000", "--virtual-time-budget=20000", "--dump-dom"]

    def shown(url: str) -> str:
        return subprocess.run([*browser, url], capture_output=True, text=True, timeout=90, check=True).stdout

    with _serving(tmp_path / "logs") as serving:
        ours = shown(f"{serving.url}/")
        assert session in ours
        assert "Hosts busy" in ours
        trace = f"{serving.url}{_XPROF}/?run={session}&tag=trace_viewer@"
        assert f"/?run={session}&amp;tag=trace_viewer@" in ours, "the link that is followed now"
        wait_until(lambda: "Trace Viewer" in shown(trace))


def test_a_truncated_profile_does_not_affect_other_hosts_of_its_session(tmp_path: Path, temporary: Path) -> None:
    folder = tpu_session(tmp_path / "logs")
    whole = (folder / "host-a.xplane.pb").read_bytes()
    (folder / "cut.xplane.pb").write_bytes(whole[: len(whole) // 2])
    with _serving(tmp_path / "logs") as serving:
        run = urllib.parse.quote(_NAME)
        tables = serving.json(f"{_XPROF}/data?run={run}&tag=overview_page")
        assert any(
            "device_core_count" in table.get("p", {}) and table["p"]["device_core_count"] == "8" for table in tables
        )
        found = serving.json("/summary.json")
        assert [host["name"] for host in found["hosts"]] == ["cut", "host-a", "host-b"]
        assert found["notes"][0] == "cut: its profile is empty or truncated, and is left out"
