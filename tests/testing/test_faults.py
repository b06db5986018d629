"""The base of the loopback servers: scripted faults, as a client observes them."""

import gzip
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from ml_diagnostics_testing.faults import (
    Delay,
    Drip,
    Fault,
    Faults,
    Hang,
    Oversize,
    Plan,
    Reset,
    Skew,
    Status,
    Truncate,
)
from ml_diagnostics_testing.http_server import ApiError, LoopbackServer, Request, Response, json_response

from ..waiting import LONG_SECONDS, wait_until


class Counter(LoopbackServer):
    """Counts its requests, to distinguish 'not done' from 'done, and the answer was dropped'."""

    done = 0

    def operation(self, method: str, path: str) -> str:
        return path.strip("/")

    def handle(self, request: Request) -> Response:
        if request.path == "/broken":
            raise RuntimeError("a bug")
        if request.path == "/refused":
            raise ApiError(404, "no such thing", details=[{"@type": "type.googleapis.com/google.rpc.Help"}])
        self.done += 1
        return json_response({"done": self.done, "body": request.body.decode(), "query": request.query})


@pytest.fixture
def server() -> Iterator[Counter]:
    with Counter(clock=lambda: 1_000_000_000.0) as server:
        yield server


def ask(server: Counter, path: str = "/add", body: bytes = b"", timeout: float = LONG_SECONDS) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=timeout)
    try:
        connection.request("POST", path, body)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_a_request_is_answered_and_logged(server: Counter) -> None:
    status, body = ask(server, "/add?a=1&b=x%20y", b"hello")
    assert status == 200
    assert json.loads(body) == {"done": 1, "body": "hello", "query": {"a": "1", "b": "x y"}}
    (record,) = server.requests
    assert (record.operation, record.method, record.path) == ("add", "POST", "/add?a=1&b=x%20y")
    assert (record.size_bytes, record.time, record.status, record.fault) == (5, 1e9, 200, None)


@pytest.mark.timing
def test_one_connection_carries_many_requests_without_waiting_for_nagle(server: Counter) -> None:
    def seconds(*connections: http.client.HTTPConnection) -> float:
        started = time.monotonic()
        for connection in connections:
            connection.request("POST", "/add", b"x" * 100)
            assert connection.getresponse().read()
        return time.monotonic() - started

    first, *others = [http.client.HTTPConnection("127.0.0.1", server.port) for _ in range(101)]
    by_one = seconds(*[first] * 100)
    assert by_one < 5 * seconds(*others)  # 40 ms each, where it waits; the first of a connection never does.
    assert len(server.requests) == 200
    for connection in (first, *others):
        connection.close()


def test_a_chunked_body_is_read_whole(server: Counter) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("POST", "/add", iter([b"hel", b"lo"]), encode_chunked=True)
    assert json.loads(connection.getresponse().read())["body"] == "hello"
    connection.close()


def test_a_client_that_waits_for_permission_to_send_gets_it(server: Counter) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=LONG_SECONDS) as connection:
        connection.sendall(b"POST /add HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
        assert connection.recv(1024).startswith(b"HTTP/1.1 100 ")
        connection.sendall(b"hi")
        assert connection.recv(1024).startswith(b"HTTP/1.1 200 ")


def test_an_api_error_becomes_googles_error_body(server: Counter) -> None:
    status, body = ask(server, "/refused")
    error = json.loads(body)["error"]
    assert status == 404
    assert (error["code"], error["status"], error["message"]) == (404, "NOT_FOUND", "no such thing")
    assert error["details"] == [{"@type": "type.googleapis.com/google.rpc.Help"}]


def test_a_bug_in_a_service_is_an_answer(server: Counter, caplog: pytest.LogCaptureFixture) -> None:
    assert ask(server, "/broken")[0] == 500
    assert "a bug" in caplog.text


@pytest.mark.parametrize("after_apply", [False, True])
def test_a_scripted_status_may_be_before_or_after_the_work(server: Counter, after_apply: bool) -> None:
    server.faults.script([Status(503, after_apply=after_apply)])
    assert ask(server)[0] == 503
    assert server.done == int(after_apply)
    assert ask(server)[0] == 200


def test_a_429_has_a_retry_after(server: Counter) -> None:
    server.faults.script([Status(429, retry_after=2)])
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("POST", "/add")
    response = connection.getresponse()
    assert (response.status, response.headers["Retry-After"]) == (429, "2")
    assert json.loads(response.read())["error"]["status"] == "RESOURCE_EXHAUSTED"
    connection.close()


@pytest.mark.parametrize("after_apply", [False, True])
def test_a_reset_breaks_the_connection(server: Counter, after_apply: bool) -> None:
    server.faults.script([Reset(after_apply=after_apply)])
    with pytest.raises(ConnectionResetError):
        ask(server)
    assert server.done == int(after_apply)
    assert server.requests[0].status is None


def test_a_truncated_answer_ends_early(server: Counter) -> None:
    server.faults.script([Truncate(keep_bytes=4)])
    with pytest.raises(http.client.IncompleteRead) as caught:
        ask(server)
    assert caught.value.partial == b'{"do'
    assert server.done == 1


def test_a_release_counts_for_a_request_that_waits_only_afterwards() -> None:
    faults = Faults()
    faults.script([Hang(), Hang()])
    plan = faults.plan("write")
    faults.release()
    faults.wait(None, plan=plan)
    held = faults.plan("write")
    assert not held.released.is_set()


def test_a_hang_lasts_until_it_is_released(server: Counter) -> None:
    server.faults.script([Hang(after_apply=True)])
    with pytest.raises(TimeoutError):
        ask(server, timeout=0.1)
    wait_until(lambda: server.done == 1)
    server.faults.release()
    assert ask(server)[0] == 200


def test_a_hang_ends_by_itself_after_its_time(server: Counter) -> None:
    server.faults.script([Hang(0.05)])
    with pytest.raises(ConnectionResetError):
        ask(server)
    assert server.done == 0


def test_a_delay_is_before_the_work(server: Counter) -> None:
    server.faults.script([Delay(0.1)])
    started = time.monotonic()
    assert ask(server)[0] == 200
    assert time.monotonic() - started >= 0.1


def test_skew_moves_the_servers_clock_only(server: Counter) -> None:
    server.faults.always(Skew(-3600))
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("POST", "/add")
    response = connection.getresponse()
    assert response.headers["Date"] == "Sun, 09 Sep 2001 00:46:40 GMT"
    assert server.requests[0].time == 1e9
    response.read()
    connection.close()


def test_closing_wakes_what_hangs_and_leaves_no_thread_and_no_socket() -> None:
    threads = set(threading.enumerate())
    server = Counter()
    idle = socket.create_connection(("127.0.0.1", server.port))
    server.faults.always(Hang())
    hanging = socket.create_connection(("127.0.0.1", server.port))
    hanging.sendall(b"GET /add HTTP/1.1\r\nHost: x\r\n\r\n")
    wait_until(lambda: server.requests)
    server.close()
    server.close()
    assert set(threading.enumerate()) <= threads
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port))
    idle.close()
    hanging.close()


def test_a_script_is_followed_in_order_and_then_over() -> None:
    faults = Faults()
    faults.script([Status(503), None, Reset()], on="write")
    planned = [faults.plan(operation).ending for operation in ("write", "list", "write", "write", "write")]
    assert planned == [Status(503), None, None, Reset(), None]
    assert faults.injected == [("write", Status(503)), ("write", Reset())]


def test_probability_hits_its_share_and_the_seed_fixes_which() -> None:
    def hits(seed: int) -> list[bool]:
        faults = Faults()
        faults.sometimes(Status(503), probability=0.5, seed=seed)
        return [faults.plan("write").ending is not None for _ in range(1000)]

    assert 400 < sum(hits(0)) < 600
    assert hits(0) == hits(0)
    assert hits(0) != hits(1)


def test_a_probability_is_a_share() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        Faults().sometimes(Reset(), probability=50)


def test_delays_and_skews_add_up_and_the_first_other_fault_ends_the_request() -> None:
    faults = Faults()
    rules: list[Fault] = [Delay(1), Skew(5), Delay(2), Reset(), Status(503)]
    for rule in rules:
        faults.always(rule)
    assert faults.plan("write") == Plan(delay_seconds=3, skew_seconds=5, ending=Reset())
    faults.clear()
    assert faults.plan("write") == Plan()


@pytest.mark.parametrize(
    ("ending", "applies"),
    [(None, True), (Status(), False), (Status(after_apply=True), True), (Hang(), False), (Truncate(), True)],
)
def test_some_endings_let_the_work_be_done(ending: Status | Hang | Truncate | None, applies: bool) -> None:
    assert Plan(ending=ending).applies is applies


@pytest.mark.parametrize("compressed", [False, True])
def test_an_oversized_answer_has_the_size_that_was_asked_for(server: Counter, compressed: bool) -> None:
    server.faults.script([Oversize(5_000_000, gzip=compressed)])
    status, body = ask(server)
    assert status == 200
    assert len(body) < 10_000 if compressed else len(body) == 5_000_000
    content = gzip.decompress(body) if compressed else body
    assert len(content) == 5_000_000
    assert list(json.loads(content)) == ["padding"]
    assert server.done == 1


@pytest.mark.parametrize("body_only", [False, True])
def test_a_dripping_answer_arrives_a_byte_at_a_time(
    server: Counter, body_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.faults.script([Drip(0.001, body_only=body_only)])
    status, body = ask(server)
    assert (status, json.loads(body)["done"]) == (200, 1)
    pauses_over = threading.Semaphore(0)
    monkeypatch.setattr(server.faults, "wait", lambda seconds: pauses_over.acquire(timeout=LONG_SECONDS))
    server.faults.script([Drip(0.2, body_only=body_only)])
    with socket.create_connection(("127.0.0.1", server.port), timeout=LONG_SECONDS) as connection:
        connection.sendall(b"POST /add HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        if not body_only:
            pauses_over.release()
        first = connection.recv(65536)
        assert first.endswith(b"\r\n\r\n") if body_only else first == b"H"
        pauses_over.release()
        assert len(connection.recv(65536)) == 1
    pauses_over.release(1_000)
