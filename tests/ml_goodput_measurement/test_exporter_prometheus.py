"""A real scrape of `goodput export prometheus`: prometheus_client parses it, and promtool checks it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from ml_diagnostics_testing.cloud_storage import CloudStorageServer
from ml_diagnostics_testing.faults import Hang
from ml_goodput_measurement import cli
from ml_goodput_measurement._query.job_state import JobFollower
from ml_goodput_measurement.exporters.board import Board, Shown
from ml_goodput_measurement.goodput import GoodputRecorder
from ml_goodput_measurement.partition import Bucket

from ..waiting import LONG_SECONDS, free_port, wait_until
from .simulated import JOB, record

parser = pytest.importorskip("prometheus_client.parser", reason="the extra [prometheus] is not installed")

from ml_goodput_measurement.exporters import prometheus  # noqa: E402
from ml_goodput_measurement.exporters.prometheus import PrometheusEndpoint  # noqa: E402

Samples = dict[str, dict[tuple[tuple[str, str], ...], float]]


def scraped(text: str) -> Samples:
    """Return the samples of an exposition by name and labels; each must be a gauge without a timestamp."""
    found: Samples = {}
    for family in parser.text_string_to_metric_families(text):
        assert family.type == "gauge", family
        for sample in family.samples:
            assert sample.timestamp is None
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def get(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=LONG_SECONDS) as response:
        assert response.headers["Content-Type"].startswith("text/plain")
        return str(response.read().decode())


@pytest.fixture
def board() -> Board:
    """Two jobs that run: one has failed ten times, and the other has a name that must be escaped."""
    now = time.time()
    record(JOB, "run-7", ends_at=now, is_ended=False)
    recorder = GoodputRecorder('a "b\\c"', "goodput_odd", logging_enabled=True)
    recorder.record_job_start_time(now - 10)
    recorder.record_step_start_time(0, now - 5)
    recorder.record_step_start_time(1, now - 1)
    board = Board(lambda: [("run-7", "goodput_run-7"), ('a "b\\c"', "goodput_odd")])
    board.refresh()
    return board


@pytest.fixture
def port(board: Board) -> Iterator[int]:
    endpoint = PrometheusEndpoint(board)
    yield endpoint.start("127.0.0.1", 0)
    endpoint.stop()


def test_a_scrape_has_all_gauges_of_the_last_states(board: Board, port: int) -> None:
    samples = scraped(get(port))
    state = JobFollower("run-7", "goodput_run-7").read()
    job = (("job", "run-7"),)
    assert samples["ml_job_step"][job] == state.last_step
    assert samples["ml_job_attempts"][job] == state.attempts
    assert samples["ml_job_disruptions"][job] == 10
    assert samples["ml_job_goodput_ratio"][job] == pytest.approx(state.goodput_percent / 100, abs=0.01)
    assert samples["ml_job_last_event_timestamp_seconds"][job] == pytest.approx(state.last_event_ns / 1e9)
    times = {labels: value for labels, value in samples["ml_job_time_seconds"].items() if ("job", "run-7") in labels}
    assert sum(times.values()) == pytest.approx(samples["ml_job_wall_time_seconds"][job])
    assert samples["ml_job_hidden"] == {(): 0.0}
    assert samples["ml_diagnostics_entries_lost"][(("log", "goodput_run-7"),)] == 0
    info = [dict(labels) for labels in samples["ml_job_info"] if ("job", "run-7") in labels]
    assert info == [{"job": "run-7", "team": "", "accelerator": "", "zone": "", "attempt": "11"}]
    assert "ml_diagnostics_mirror_lag_seconds" not in samples  # There is no mirror.


def test_buckets_that_are_zero_for_every_job_are_left_out(port: int) -> None:
    buckets = {dict(labels)["bucket"] for labels in scraped(get(port))["ml_job_time_seconds"]}
    assert {"productive", "wasted_progress", "checkpoint_save"} <= buckets
    assert buckets <= {bucket.name.lower() for bucket in Bucket}
    assert not buckets & {"elastic_slice_down", "excluded", "custom"}


def test_names_are_escaped(port: int) -> None:
    assert (("job", 'a "b\\c"'),) in scraped(get(port))["ml_job_step"]


def test_labels_of_hostile_jobs_are_valid_and_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Line breaks, quotes, escape sequences and what has no UTF-8, in the name and in labels."""
    record(JOB, "run-7", ends_at=time.time(), is_ended=False)
    state = JobFollower("run-7", "goodput_run-7").read()
    name, team = 'a\nml_job_step{job="b"} 1\n# "\\', "\x1b[31m\ud800"
    hostile = dataclasses.replace(state, job_name=name, labels={"team": team, "zone": "\u2028"})
    board = Board(list)
    monkeypatch.setattr(board, "shown", lambda: Shown([hostile], 0))
    endpoint = PrometheusEndpoint(board)
    port = endpoint.start("127.0.0.1", 0)
    try:
        text = get(port)
    finally:
        endpoint.stop()
    samples = scraped(text)
    assert set(samples["ml_job_step"]) == {(("job", name),)}
    (info,) = map(dict, samples["ml_job_info"])
    assert info["team"] == "\x1b[31m\\ud800"
    promtool = shutil.which("promtool")
    if promtool is not None:
        done = subprocess.run([promtool, "check", "metrics"], input=text.encode(), capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")


def test_a_request_can_select_gauges(port: int) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics?name[]=ml_job_step", timeout=10) as response:
        assert set(scraped(response.read().decode())) == {"ml_job_step"}


# --- Clients that are no scrapers -----------------------------------------------------------------------------------


def threads_of_clients() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if "process_request_thread" in thread.name}


def test_clients_that_send_nothing_do_not_keep_a_scrape_waiting(port: int) -> None:
    others = threads_of_clients()  # Of servers of other tests.
    with contextlib.ExitStack() as clients:
        silent = [
            clients.enter_context(socket.create_connection(("127.0.0.1", port)))
            for _ in range(3 * prometheus._MOST_CLIENTS)
        ]
        for client in silent:
            with contextlib.suppress(OSError):  # It was closed for a later one.
                client.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
        assert "ml_job_step" in get(port)
        # The thread of a client that was closed ends a moment later.
        wait_until(lambda: len(threads_of_clients() - others) <= prometheus._MOST_CLIENTS + 5)
        silent[0].settimeout(LONG_SECONDS)
        with contextlib.suppress(ConnectionError):
            assert silent[0].recv(1) == b""  # The oldest is closed.


def test_a_client_that_sends_nothing_is_closed(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus._Handler, "timeout", 0.2)
    endpoint = PrometheusEndpoint(board)
    port = endpoint.start("127.0.0.1", 0)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
            client.sendall(b"GET /metr")
            assert client.recv(1) == b""
    finally:
        endpoint.stop()


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", b"405"),
        (b"GET /metrics HTTP/1.1\r\n" + b"X: " + 70_000 * b"x" + b"\r\n\r\n", b"431"),
        (b"GET /" + 70_000 * b"x" + b" HTTP/1.1\r\n\r\n", b"414"),
        (b"GET /metrics HTTP/1.1\r\n" + 200 * b"X: y\r\n" + b"\r\n", b"431"),
        (b"\x16\x03\x01 nonsense\r\n\r\n", b"400"),
    ],
)
def test_requests_that_are_no_scrapes_are_refused_and_nothing_is_printed(
    request_: bytes, status: bytes, port: int, capfd: pytest.CaptureFixture[str]
) -> None:
    answer = b""
    # The server may reset the connection of a request that it did not read to the end.
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client, contextlib.suppress(ConnectionError):
        client.sendall(request_)
        client.shutdown(socket.SHUT_WR)
        answer = client.recv(1000)
    assert status in answer.partition(b"\r\n")[0] or answer == b""
    assert "ml_job_step" in get(port)
    assert capfd.readouterr() == ("", "")


def test_a_client_that_goes_away_is_not_reported(port: int, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(5):
        client = socket.create_connection(("127.0.0.1", port))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # A reset, not an end.
        client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        client.close()
    assert "ml_job_step" in get(port)
    assert capfd.readouterr() == ("", "")


def test_no_step_and_no_pid_is_a_label(port: int) -> None:
    names = {name for samples in scraped(get(port)).values() for labels in samples for name, _ in labels}
    assert names == {"job", "bucket", "log", "team", "accelerator", "zone", "attempt"}


def test_promtool_finds_nothing_to_improve(port: int) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: it is in Debian's package prometheus")
    done = subprocess.run(
        [promtool, "check", "metrics"], input=get(port), capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_job_that_is_stale_is_gone_from_the_next_scrape() -> None:
    now = time.time()
    recorder = GoodputRecorder("run-7", "goodput_run-7", logging_enabled=True)
    recorder.record_job_start_time(now - 10)
    recorder.record_job_end_time(now)
    moments = [now + 5]
    board = Board(lambda: [("run-7", "goodput_run-7")], clock_ns=lambda: int(moments[-1] * 1e9))
    board.refresh()
    endpoint = PrometheusEndpoint(board)
    port = endpoint.start("127.0.0.1", 0)
    try:
        assert "ml_job_step" in scraped(get(port))
        moments.append(now + 700)
        assert set(scraped(get(port))) == {"ml_job_hidden"}
    finally:
        endpoint.stop()


def test_the_command_serves_until_it_is_stopped() -> None:
    record(JOB, "run-7", ends_at=time.time(), is_ended=False)
    with serving_command(os.environ) as (process, port):
        wait_until(lambda: "ml_job_step" in get(port), running=process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LONG_SECONDS) == 0
        assert process.stderr.read() == ""


@pytest.mark.timing
def test_a_scrape_and_the_end_never_wait_for_a_bucket() -> None:
    record(JOB, "run-7", ends_at=time.time(), is_ended=False)
    with CloudStorageServer(buckets=["bucket"]) as server:
        server.faults.always(Hang())
        environ = {**os.environ, **server.environment(), "ML_DIAGNOSTICS_MIRROR": "gs://bucket/team"}
        with serving_command(environ) as (process, port):
            wait_until(lambda: server.requests, running=process)
            started = time.monotonic()
            assert set(scraped(get(port))) == {"ml_job_hidden"}  # It has read nothing yet.
            assert time.monotonic() - started < 5
            process.send_signal(signal.SIGTERM)
            assert process.wait(LONG_SECONDS) == 0
            server.faults.release()


@contextlib.contextmanager
def serving_command(environ: Mapping[str, str]) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run the command until it is killed; yield its process, which serves, and its port.

    Before it listens on a port that was free, another process may: then it runs with the next one.
    """
    command, first = str(Path(sys.executable).parent / "goodput"), "choose another --port"
    while "choose another --port" in first:
        argv = [command, "export", "prometheus", "run-7", "--port", str(free_port())]
        with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, env=environ) as process:
            try:
                assert process.stderr is not None
                first = process.stderr.readline()
                if serving := re.fullmatch(r"serving http://127\.0\.0\.1:(\d+)/metrics\n", first):
                    yield process, int(serving[1])
            finally:
                process.kill()
    assert serving, first


def test_it_listens_on_this_machine_alone_unless_it_is_configured(board: Board, port: int) -> None:
    address = next(
        (found[4][0] for found in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)), "127.0.0.1"
    )
    if str(address).startswith("127."):
        pytest.skip("this machine has no other address")
    with socket.socket() as client:
        client.settimeout(2)
        assert client.connect_ex((str(address), port)) != 0


def test_a_port_that_is_taken_is_an_error(port: int, capsys: pytest.CaptureFixture[str]) -> None:
    record(JOB, "run-7", ends_at=time.time())
    assert cli.main(["export", "prometheus", "run-7", "--port", str(port)]) == 1
    error = capsys.readouterr().err
    assert f"cannot listen on 127.0.0.1:{port}: " in error
    assert "choose another --port" in error


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert cli.main(["export", "prometheus"]) == 1
    assert "ml-goodput-measurement[prometheus]" in capsys.readouterr().err


def test_the_command_imports_no_client_before_it_is_used() -> None:
    program = (
        "import sys, ml_goodput_measurement.cli; "
        "print([name for name in ('prometheus_client', 'opentelemetry') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout == "[]\n"
