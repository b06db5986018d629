"""The server of the page: a real process on loopback, and real requests, of friends and of others."""

from __future__ import annotations

import gzip
import http.client
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from google_cloud_mldiagnostics import machinelearning_run, metrics
from ml_diagnostics_common.command.errors import CommandError
from ml_diagnostics_console._cli.ui import require_web
from ml_diagnostics_console._web.guard import SECURITY_HEADERS

from tests.console.web.made_runs import MadeAttempt, MadeRun
from tests.console.web.served import COMMAND, Served, Stream, served
from tests.waiting import LONG_SECONDS, free_port

_START_NS = 1_795_000_000_000_000_000


def _make(root: Path, name: str = "digits-1", started_ns: int = _START_NS) -> None:
    MadeRun(name, started_ns, [MadeAttempt(0, 20)], step_seconds=1.0).write(root)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    _make(folder)
    return folder


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[Served]:
    with served(root) as running:
        yield running


def _reader(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "ML_DIAGNOSTICS_DIR": str(root), "ML_DIAGNOSTICS_BACKEND": "local"}
    argv = [*COMMAND, "ui", "--no-browser", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, env=environ)


def test_the_first_line_is_a_url_that_answers(server: Served) -> None:
    assert server.url == f"http://127.0.0.1:{urlsplit(server.url).port}/"
    reply = server.get("/")
    assert reply.status == 200
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    rows = server.json("/api/runs")["rows"]
    assert [row["id"] for row in rows] == ["digits-1"]


def test_the_run_of_the_command_line_is_in_the_url(root: Path) -> None:
    with served(root, "last") as running:
        assert urlsplit(running.url).path == "/runs/digits-1"
        assert running.get("/runs/digits-1").status == 200


@pytest.mark.parametrize(
    "path", ["/", "/runs/digits-1", "/nothing", "/static/js/main.js", "/static/nothing", "/api/runs", "/api/nothing"]
)
def test_every_answer_has_the_headers_of_safety(server: Served, path: str) -> None:
    reply = server.get(path)
    assert {name: reply.headers.get(name) for name in SECURITY_HEADERS} == dict(SECURITY_HEADERS)
    assert "server" not in reply.headers
    refused = server.get(path, headers={"Host": "evil.example"})
    assert refused.status == 403
    assert {name: refused.headers.get(name) for name in SECURITY_HEADERS} == dict(SECURITY_HEADERS)


@pytest.mark.parametrize("path", ["/", "/api/runs", "/static/vendor/vendor.json", "/api/events", "/nothing"])
@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_requests_of_other_pages_are_refused_before_routing(server: Served, path: str, headers: dict[str, str]) -> None:
    reply = server.get(path, headers=headers)
    assert reply.status == 403
    assert "error" in reply.json()
    assert "access-control-allow-origin" not in reply.headers


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_no_method_but_get_and_head_is_answered(server: Served, method: str) -> None:
    assert server.get("/api/runs", method=method).status == 403


def test_a_forwarded_port_is_answered(server: Served) -> None:
    assert server.get("/api/runs", headers={"Host": "localhost:9999", "Origin": "http://localhost:9999"}).status == 200


def test_head_has_the_headers_alone(server: Served) -> None:
    whole, head = server.get("/static/vendor/vendor.json"), server.get("/static/vendor/vendor.json", method="HEAD")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-length"] == whole.headers["content-length"]
    assert server.get("/api/events", method="HEAD").headers["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2fapp.py",
        "/static/%2e%2e%2fapp.py",
        "/static/js/../../guard.py",
        "/static/..\\app.py",
        "/static//etc/passwd",
        "/static/%2fetc%2fpasswd",
        "/static/js%00.js",
        "/static/",
        "/static/js",
        "/static/js/",
        "/static/%c0%ae%c0%ae/app.py",
        "/static/" + "a" * 10_000,
    ],
)
def test_no_path_leads_out_of_the_static_files(server: Served, path: str) -> None:
    reply = server.get(path)
    assert reply.status == 404
    assert b"Starlette" not in reply.body
    assert b"root:" not in reply.body


@pytest.mark.parametrize(
    "path",
    [
        "/api/runs/..%2f..%2fetc",
        "/api/runs/%2e%2e",
        "/api/runs/nothing",
        "/api/runs/digits-1/points?metric=../../x",
        "/api/runs/digits-1/profiles/..%2f..%2f..%2fetc%2fpasswd",
        "/api/runs/digits-1/case.html/x",
        "/api/runs/nothing/case.html",
        "/runs/a/b/c/d",
        "/api/",
    ],
)
def test_unknown_paths_are_a_sentence(server: Served, path: str) -> None:
    reply = server.get(path)
    assert reply.status == 404
    assert b"Traceback" not in reply.body
    if path.startswith("/api/"):
        assert reply.json()["error"]


@pytest.mark.parametrize(
    "query",
    [
        "width=0",
        "width=4001",
        "width=x",
        "from=2&to=1",
        "from=nan",
        "from=-1e308&to=1e308",
        "x=nothing",
        "series=-1",
        "series=999",
    ],
)
def test_bad_parameters_are_a_sentence(server: Served, query: str) -> None:
    reply = server.get(f"/api/runs/digits-1/points?metric=loss&{query}")
    assert reply.status in (400, 404)
    assert b"Traceback" not in reply.body
    assert len(reply.json()["error"]) > 10


def test_static_files_are_compressed_and_asked_for_once(server: Served) -> None:
    path = "/static/vendor/uplot/uPlot.iife.min.js"
    plain, zipped = server.get(path), server.get(path, headers={"Accept-Encoding": "br, gzip;q=0.8"})
    assert zipped.headers["content-encoding"] == "gzip"
    assert gzip.decompress(zipped.body) == plain.body
    assert len(zipped.body) < len(plain.body) / 2
    again = server.get(path, headers={"If-None-Match": plain.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    assert server.get(path, headers={"If-None-Match": '"other"'}).status == 200
    assert server.get(path, headers={"Accept-Encoding": "gzip;q=0"}).headers.get("content-encoding") is None


def test_the_code_of_the_page_is_one_script_that_a_browser_keeps(server: Served) -> None:
    shell = server.get("/runs/digits-1/metrics")
    assert shell.headers["cache-control"] == "no-cache"
    paths = re.findall(r'(?:src|href)="([^"#]+)"', shell.body.decode())
    assert {path.rpartition("/")[2] for path in paths} >= {"page.js", "page.css", "uPlot.iife.min.js"}
    for path in paths:
        reply = server.get(path)
        assert (reply.status, reply.headers["cache-control"]) == (200, "public, max-age=31536000, immutable"), path
    [script] = [path for path in paths if path.endswith("/page.js")]
    assert gzip.decompress(server.get(script, headers={"Accept-Encoding": "gzip"}).body) == server.get(script).body
    # The script of an older installation is not there any more: its page gets the one that is, and may not keep it.
    other = server.get("/static/v/0123456789abcdef0123/page.js")
    assert (other.body, other.headers["cache-control"]) == (server.get(script).body, "no-cache")
    for path in ("/static/v/page.js", "/static/v//page.js", "/static/v/0/v/0/page.js", "/static/v/0/../page.js"):
        assert server.get(path).status == 404, path


def test_answers_are_never_cached(server: Served) -> None:
    assert server.get("/api/runs").headers["cache-control"] == "no-store"


def test_last_is_a_redirect(server: Served) -> None:
    reply = server.get("/runs/last/logs?tail=1")
    assert (reply.status, reply.headers["location"]) == (302, "/runs/digits-1/logs?tail=1")


def test_speedscope_has_a_policy_of_its_own(server: Served) -> None:
    policy = server.get("/static/vendor/speedscope/index.html").headers["content-security-policy"]
    assert "style-src 'self' 'unsafe-inline'" in policy
    assert "script-src 'self' 'wasm-unsafe-eval';" in policy


def test_with_a_token_nothing_is_answered_without_it(root: Path) -> None:
    with served(root, "--token") as running:
        parts = urlsplit(running.url)
        token = parts.fragment.removeprefix("token=")
        assert len(token) == 43
        assert running.get("/api/runs").status == 401
        assert running.get("/api/events").status == 401
        assert running.get("/api/runs/digits-1/case.html").status == 401
        for path in (
            "/api/token/../runs",
            "/api/token%2f..%2fruns",
            "/api/tokens",
            "/static/../api/runs",
            "//api/runs",
        ):
            reply = running.get(path)
            assert reply.status in (401, 404), path
            assert b"digits-1" not in reply.body
        locked = running.get("/runs/digits-1")
        assert locked.status == 401
        assert b"token.js" in locked.body
        assert running.get("/api/token").status == 401
        assert running.get("/api/token", headers={"Authorization": "Bearer " + "x" * 43}).status == 401
        reply = running.get("/api/token", headers={"Authorization": f"Bearer {token}"})
        assert reply.status == 204
        cookie = reply.headers["set-cookie"]
        assert "HttpOnly; SameSite=Strict" in cookie
        pair = cookie.split(";")[0]
        assert running.get("/api/runs", headers={"Cookie": pair}).status == 200
        assert running.get("/", headers={"Cookie": pair}).status == 200
        assert running.get("/api/runs", headers={"Cookie": pair[:-1]}).status == 401
        assert running.get("/api/runs", headers={"Cookie": pair, "Host": "evil.example"}).status == 403


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8")
def test_another_address_needs_a_token(root: Path) -> None:
    with served(root, "--host", "127.0.0.2") as running:
        assert running.host.startswith("127.0.0.2:")
        assert urlsplit(running.url).fragment.startswith("token=")
        assert running.get("/api/runs").status == 401
        assert running.get("/api/runs", headers={"Host": "evil.example"}).status == 403


def test_without_a_host_nothing_but_loopback_is_reached(server: Served) -> None:
    port = urlsplit(server.url).port
    assert port is not None
    for address in {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), port, type=socket.SOCK_STREAM)}:
        if str(address).startswith("127.") or address == "::1":
            continue
        with pytest.raises(ConnectionRefusedError), socket.create_connection((str(address), port), timeout=2):
            pass


def test_an_address_of_another_machine_is_an_error(root: Path) -> None:
    for host in ("192.0.2.1", "no-such-host.invalid", "not an address"):
        done = _reader(root, "--host", host)
        assert (done.returncode, done.stdout) == (2, "")
        assert "--host" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_port_in_use_is_an_error(root: Path, server: Served) -> None:
    port = urlsplit(server.url).port
    done = _reader(root, "--port", str(port))
    assert (done.returncode, done.stdout) == (1, "")
    assert f"port {port} of 127.0.0.1 is in use; give another --port" in done.stderr


_FULL = """
ip link set lo up && echo 40000 40003 > /proc/sys/net/ipv4/ip_local_port_range && exec "$0" -c '
import socket, subprocess, sys
kept = [socket.socket() for _ in range(4)]
for port, each in enumerate(kept, 40000):
    each.bind(("127.0.0.1", port)); each.listen()
done = subprocess.run(sys.argv[1:], capture_output=True, text=True, timeout=50)
print(done.returncode, done.stdout, done.stderr)
' "$@"
"""


def test_a_full_range_of_ports_is_an_error(root: Path) -> None:
    if not shutil.which("unshare"):
        pytest.skip("unshare is not installed")
    environ = {**os.environ, "ML_DIAGNOSTICS_DIR": str(root), "ML_DIAGNOSTICS_BACKEND": "local"}
    argv = ["unshare", "--net", "--map-root-user", "sh", "-c", _FULL, sys.executable, *COMMAND, "ui", "--no-browser"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, env=environ)
    if done.returncode != 0:
        pytest.skip(f"a network of its own is not allowed here: {done.stderr[-200:]}")
    assert "no port of 127.0.0.1 is free" in done.stdout
    assert done.stdout.startswith("1 ")
    assert "Traceback" not in done.stdout


def test_a_project_needs_a_login(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"NO_GCE_CHECK": "true", "CLOUDSDK_CONFIG": "none", "HOME": "none", "PATH": ""}.items():
        monkeypatch.setenv(name, value)
    done = _reader(root, "--read-from", "test-project")
    assert (done.returncode, done.stdout) == (4, ""), done.stderr
    assert "Traceback" not in done.stderr
    done = _reader(root, "--region", "us-central1")
    assert (done.returncode, "--region needs --read-from" in done.stderr) == (2, True)


def test_a_run_that_does_not_exist_is_an_error(root: Path) -> None:
    done = _reader(root, "nothing")
    assert (done.returncode, done.stdout) == (3, "")
    assert "nothing" in done.stderr


@pytest.mark.timing
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_signal_ends_it_cleanly_while_a_page_is_open(root: Path, name: str) -> None:
    with served(root) as running:
        stream = Stream(running)
        assert stream.next()[0] == "hello"
        code, errors, seconds = running.end(getattr(signal, name))
        stream.close()
    assert code == 0
    assert "Traceback" not in errors
    assert errors.strip() in ("", "Press Ctrl-C to end it.")
    assert seconds < 5


def test_after_kill_9_the_same_port_is_served_again(root: Path) -> None:
    port = str(free_port())
    with served(root, "--port", port) as running:
        running.get("/")
        running.process.kill()
        running.process.wait(LONG_SECONDS)
    with served(root, "--port", port) as again:
        assert again.json("/api/runs")["rows"]


def test_a_reader_that_takes_only_the_first_line_does_not_end_it(root: Path) -> None:
    with served(root) as running:
        assert running.process.stdout is not None
        running.process.stdout.close()
        assert running.get("/").status == 200


def test_an_ignored_hangup_stays_ignored(root: Path) -> None:
    if not shutil.which("nohup"):
        pytest.skip("nohup is not installed")
    running = Served(root, "--no-browser", prefix=["nohup"])
    try:
        running.process.send_signal(signal.SIGHUP)
        time.sleep(0.5)
        assert running.get("/").status == 200
        assert running.end()[0] == 0
    finally:
        if running.process.poll() is None:
            running.process.kill()


def test_events_follow_a_run_and_go_on_where_they_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ML_DIAGNOSTICS_DIR", str(tmp_path))
    with served(tmp_path) as running:
        cursor = running.json("/api/runs")["cursor"]
        stream = Stream(running, f"/api/events?cursor={cursor}")
        assert stream.next()[:1] == ("hello",)
        run = machinelearning_run(name="live", run_group="g", gcs_path=str(tmp_path / "profiles"))
        metrics.record("loss", 0.5, 1)
        name, data, identity = stream.next()
        while name != "changed":
            name, data, identity = stream.next()
        assert data["rows"][0]["id"] == run.name
        last = identity
        while not last:
            _, _, last = stream.next()
        stream.close()
        metrics.record("loss", 0.25, 2)
        time.sleep(2.5)
        again = Stream(running, headers={"Last-Event-ID": last})
        seen = [again.next()[0] for _ in range(2)]
        assert seen[0] == "hello"
        assert seen[1] in ("changed", "metrics", "log")
        again.close()
        for unknown in ("nonsense", "00000000-7", f"{last}9999", "x" * 5000):
            lost = Stream(running, headers={"Last-Event-ID": unknown})
            assert [lost.next()[0], lost.next()[0]] == ["hello", "reset"]
            lost.close()
        run.finish()


def test_events_are_compressed_for_a_browser(root: Path) -> None:
    with served(root) as running:
        stream = Stream(running, headers={"Accept-Encoding": "gzip"})
        assert stream.answer.getheader("content-encoding") == "gzip"
        unzip = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        assert unzip.decompress(stream.answer.read1(65536)).startswith(b"id: ")
        stream.close()


def test_at_most_64_pages_are_open(root: Path) -> None:
    with served(root) as running:
        streams = [Stream(running) for _ in range(64)]
        try:
            assert {stream.next()[0] for stream in streams} == {"hello"}
            refused = running.get("/api/events")
            assert refused.status == 503
            assert "too many pages" in refused.json()["error"]
            streams.pop().close()
            deadline = time.monotonic() + LONG_SECONDS
            while (again := Stream(running)).status != 200:
                assert time.monotonic() < deadline
                again.close()
                time.sleep(0.1)
            streams.append(again)
        finally:
            for stream in streams:
                stream.close()


def test_a_slow_and_a_broken_client_do_not_stop_others(root: Path) -> None:
    with served(root) as running:
        host, port = running.host.split(":")
        with socket.create_connection((host, int(port))) as slow, socket.create_connection((host, int(port))) as broken:
            slow.sendall(b"GET / HTTP/1.1\r\nHost: ")
            broken.sendall(b"\x16\x03\x01\x00garbage\r\n\r\n")
            with socket.create_connection((host, int(port))) as large:
                large.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100_000)
                assert running.json("/api/runs")["rows"]


def test_a_deleted_run_and_a_vanished_folder_leave_the_page_standing(tmp_path: Path) -> None:
    root = tmp_path / "folder"
    _make(root, "one")
    _make(root, "two", _START_NS + 10**12)
    with served(root) as running:
        stream = Stream(running)
        stream.next()
        shutil.rmtree(root / "runs" / "one")
        deadline = time.monotonic() + LONG_SECONDS
        while len(running.json("/api/runs")["rows"]) != 1:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert running.get("/api/runs/one").status == 404
        shutil.rmtree(root)
        time.sleep(2.5)
        reply = running.get("/api/runs")
        assert reply.status == 200
        assert b"Traceback" not in reply.body
        assert running.get("/").status == 200
        stream.close()
        code, errors, _ = running.end()
    assert (code, "Traceback" in errors) == (0, False)


def test_an_empty_folder_is_a_page_without_runs(tmp_path: Path) -> None:
    with served(tmp_path / "nothing") as running:
        assert running.json("/api/runs")["rows"] == []
        assert running.get("/").status == 200
        assert running.get("/runs/last").status == 404


def test_a_connection_is_kept(server: Served) -> None:
    connection = http.client.HTTPConnection(server.host, timeout=LONG_SECONDS)
    for _ in range(20):
        connection.request("GET", "/api/runs")
        assert connection.getresponse().read()
    connection.close()


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "uvicorn" else object())
    with pytest.raises(
        CommandError, match=r"needs uvicorn; install it with: pip install 'ml-diagnostics-console\[web\]'"
    ):
        require_web("mldiagnostics ui")


def test_importing_the_package_loads_nothing_of_the_page() -> None:
    code = (
        "import sys, ml_diagnostics_console, ml_diagnostics_console._cli.ui, ml_diagnostics_console._cli.export;"
        "heavy = ('numpy', 'starlette', 'uvicorn', 'anyio', 'rcssmin', 'rjsmin');"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
