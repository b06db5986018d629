"""A server may send anything: its responses cost a job a bounded time and memory."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from google.auth.credentials import AnonymousCredentials, Credentials
from ml_diagnostics_common.authorized_requests import open_session
from ml_diagnostics_common.backoff import EndlessListError, PageTokens, RequestBudget
from ml_diagnostics_common.cloud_logging import LoggingTransport, Page, PageReader, TransportError, connect
from ml_diagnostics_common.credentials.instance_metadata import metadata_value
from ml_diagnostics_common.entry import LogEntry
from ml_diagnostics_common.failures import Kind, RemoteError
from ml_diagnostics_testing.cloud_logging import CloudLoggingServer
from ml_diagnostics_testing.faults import Drip, Fault, Oversize
from ml_diagnostics_testing.http_server import LoopbackServer, Request, Response

from ..waiting import wait_until

MIB = 1 << 20

LARGE = pytest.mark.parametrize(
    "fault", [Oversize(3_000_000_000), Oversize(2 << 30, gzip=True)], ids=["3 GB", "2 MB of gzip for 2 GiB"]
)

TRAINER = """
import sys, time
from pathlib import Path
from ml_diagnostics_common.cloud_logging import connect
from ml_diagnostics_common.journal import Journal
from ml_diagnostics_common.shipper import Shipper

def peak_kib():
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])

journal = Journal("goodput_run", root=Path(sys.argv[1]), labels={"job": "run", "pid": "0"})
shipper = Shipper("goodput_run", root=Path(sys.argv[1]), connect=connect, max_latency_seconds=0.02)
shipper.start()
for number in range(100):
    journal.append({"job_name": "run", "step_count": number})
print("recorded", flush=True)
sys.stdin.readline()
before = peak_kib()
journal.append({"job_name": "run", "step_count": 100})
print("recorded", flush=True)
sys.stdin.readline()
print(peak_kib() - before, flush=True)
shipper.close(10)
"""


@LARGE
def test_a_response_of_any_size_costs_a_trainer_no_memory_and_no_entry(
    tmp_path: Path, cloud_logging_server: CloudLoggingServer, fault: Fault
) -> None:
    environ = {**os.environ, **cloud_logging_server.environment()}
    command = [sys.executable, "-c", TRAINER, str(tmp_path)]
    with subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdin
        assert trainer.stdout
        assert trainer.stdout.readline() == "recorded\n"
        wait_until(lambda: len(cloud_logging_server.entries()) == 100)
        cloud_logging_server.faults.script([fault, fault], on="write")
        trainer.stdin.write("\n")
        trainer.stdin.flush()
        assert trainer.stdout.readline() == "recorded\n"
        wait_until(lambda: len(cloud_logging_server.requests_for("write")) >= 4)  # The second one was refused, too.
        grown_kib = int(trainer.communicate("\n", timeout=60)[0])
    assert grown_kib < 20_000
    numbers = sorted(entry["jsonPayload"]["step_count"] for entry in cloud_logging_server.entries())
    assert numbers == list(range(101))  # Sent again, with the same insertId.


both_protocols = pytest.mark.parametrize("transport", ["rest", "grpc"], indirect=True)


@pytest.fixture
def transport(request: pytest.FixtureRequest, cloud_logging_server: CloudLoggingServer) -> Iterator[LoggingTransport]:
    environ = {
        **cloud_logging_server.environment(),
        "ML_DIAGNOSTICS_LOGGING_TRANSPORT": getattr(request, "param", "rest"),
    }
    transport = connect(environ=environ)
    yield transport
    transport.close()


@both_protocols
@pytest.mark.parametrize("compressed", [False, True])
def test_the_response_to_a_write_has_4_mib_at_most(
    transport: LoggingTransport, cloud_logging_server: CloudLoggingServer, compressed: bool
) -> None:
    cloud_logging_server.faults.script(
        [Oversize(4 * MIB - 100, gzip=compressed), Oversize(4 * MIB + 100, gzip=compressed)]
    )
    transport.write([], timeout_seconds=20)
    with pytest.raises(TransportError) as caught:
        transport.write([], timeout_seconds=20)
    assert caught.value.code == "UNAVAILABLE"


@pytest.mark.parametrize("compressed", [False, True])
def test_a_page_has_64_mib_at_most(
    transport: LoggingTransport, cloud_logging_server: CloudLoggingServer, compressed: bool
) -> None:
    cloud_logging_server.faults.script(
        [Oversize(64 * MIB - 100, gzip=compressed), Oversize(64 * MIB + 100, gzip=compressed)]
    )
    arguments: dict[str, Any] = {"order_by": "timestamp asc", "page_size": 10, "timeout_seconds": 30}
    assert transport.list_page("", **arguments).entries == []
    with pytest.raises(TransportError) as caught:
        transport.list_page("", **arguments)
    assert caught.value.code == "UNAVAILABLE"
    assert transport.list_page("", **arguments).entries == []


@both_protocols
@pytest.mark.parametrize("body_only", [False, True])
def test_a_server_that_drips_is_given_up_at_the_deadline(
    transport: LoggingTransport, cloud_logging_server: CloudLoggingServer, body_only: bool
) -> None:
    cloud_logging_server.faults.script([Drip(0.4, body_only=body_only)])
    started = time.monotonic()
    with pytest.raises(TransportError) as caught:
        transport.write([], timeout_seconds=0.5)
    assert caught.value.code == "DEADLINE_EXCEEDED"
    assert time.monotonic() - started < 25
    transport.write([], timeout_seconds=20)


class Server(LoopbackServer):
    """Answers each request with one prepared response, and remembers the clients' headers."""

    response = Response(200, b"{}")

    def handle(self, request: Request) -> Response:
        self.headers = dict(request.headers)
        return self.response


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


def ask(server: LoopbackServer, credentials: Any = None, **arguments: Any) -> Any:
    session = open_session(credentials or AnonymousCredentials(), "a test")
    arguments = {"headers": {}, "timeout_seconds": 20.0, **arguments}
    try:
        return session.send("GET", server.url, **arguments)
    finally:
        session.close()


class TokenOf(Credentials):
    """Credentials with a token from a server, such as those of a service account."""

    def __init__(self, url: str, timeout: float | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._url = url
        self._limits = {} if timeout is None else {"timeout": timeout}

    def refresh(self, request: Any) -> None:
        response = request(self._url, method="POST", **self._limits)
        self.token = str(len(response.data))


@LARGE
def test_the_response_of_a_token_service_is_bounded(server: Server, fault: Fault) -> None:
    with Server() as tokens:
        assert ask(server, TokenOf(tokens.url)).status == 200
        assert server.headers["authorization"] == "Bearer 2"
        tokens.faults.always(fault)
        with pytest.raises(RemoteError, match=r"no access token: .*larger than 4 MiB") as caught:
            ask(server, TokenOf(tokens.url))
    assert caught.value.kind is Kind.UNREACHABLE


@pytest.mark.parametrize("own_timeout", [None, 0.5])
def test_a_token_service_that_drips_is_given_up(server: Server, own_timeout: float | None) -> None:
    with Server() as tokens:
        tokens.faults.always(Drip(0.5))
        started = time.monotonic()
        with pytest.raises(RemoteError, match="no access token: "):
            ask(server, TokenOf(tokens.url, own_timeout), timeout_seconds=0.5 if own_timeout is None else 60)
    assert time.monotonic() - started < 25


def test_a_401_is_bounded_and_its_connection_serves_the_second_try(server: Server) -> None:
    server.response = Response(401, b"x" * 1000)
    with Server() as tokens:
        with pytest.raises(RemoteError, match="xxx") as caught:
            ask(server, TokenOf(tokens.url))
        assert caught.value.status == 401
        assert (len(server.requests), len(tokens.requests)) == (2, 2)
        with pytest.raises(RemoteError, match="larger than"):
            ask(server, TokenOf(tokens.url), most_bytes=999)


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", b"not gzip"),
        ("br", b"\x0b\x02\x80{}\x03"),
        ("gzip, gzip", b"{}"),
        ("gzip", b"\x1f\x8b\x08\0\0\0\0\0\0\xff"),
    ],
)
def test_a_body_that_cannot_be_decompressed_is_an_error(server: Server, encoding: str, body: bytes) -> None:
    server.response = Response(200, body, {"Content-Encoding": encoding})
    with pytest.raises(RemoteError) as caught:
        ask(server)
    assert caught.value.kind is Kind.UNREACHABLE


def test_a_body_in_several_gzip_members_is_read_whole(server: Server) -> None:
    server.response = Response(
        200, gzip.compress(b"one ") + gzip.compress(b"two " * 10**6), {"Content-Encoding": "gzip"}
    )
    assert ask(server).body == b"one " + b"two " * 10**6
    assert server.headers["Accept-Encoding"] == "gzip"


def test_a_netrc_does_not_replace_the_token(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login user password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    with Server() as tokens:
        ask(server, TokenOf(tokens.url))
    assert server.headers["authorization"] == "Bearer 2"


def test_a_metadata_server_that_drips_or_floods_is_given_up(server: Server) -> None:
    server.response = Response(200, b"value", {"Metadata-Flavor": "Google"})
    environ = {"GCE_METADATA_HOST": f"127.0.0.1:{server.port}"}

    def value(seconds: float = 20.0) -> tuple[int, str]:
        return metadata_value("instance/zone", timeout_seconds=seconds, environ=environ)

    assert value() == (200, "value")
    started = time.monotonic()
    server.faults.script([Drip(0.5), Oversize(3_000_000_000)])
    assert value(0.5) == (0, "")
    assert value()[0] == 0
    assert time.monotonic() - started < 25


def test_a_list_that_repeats_its_token_ends() -> None:
    tokens = PageTokens()
    assert tokens.next("a", has_news=True) == "a"
    assert tokens.next("b", has_news=True) == "b"
    with pytest.raises(EndlessListError, match="'b' repeats"):
        tokens.next("b", has_news=True)


@pytest.mark.parametrize("last", ["", "more"])
def test_a_list_without_news_ends_after_a_hundred_pages(last: str) -> None:
    tokens = PageTokens()
    tokens.next("start", has_news=True)
    for number in range(99):
        tokens.next(str(number), has_news=False)
    if last:
        with pytest.raises(EndlessListError, match="100 pages"):
            tokens.next(last, has_news=False)
    else:
        assert tokens.next(last, has_news=False) == ""


class Pages:
    """A connection to Cloud Logging that returns made pages."""

    project = "test-project"

    def __init__(self, page: Callable[[int], Page]) -> None:
        self._page = page

    def list_page(self, filter_: str, *, page_token: str, **_: Any) -> Page:
        return self._page(int(page_token or 0))


def read(page: Callable[[int], Page]) -> list[Page]:
    reader = PageReader(cast("LoggingTransport", Pages(page)), budget=RequestBudget(10**6), patience_seconds=0)
    return list(reader.pages(""))


@pytest.mark.parametrize("step_ns", [1, -1])
def test_pages_in_either_order_of_time_are_followed_to_their_end(step_ns: int) -> None:
    def page(number: int) -> Page:
        entry = LogEntry(1_000_000 + number * step_ns, 0, {})
        return Page([entry], str(number + 1) if number < 300 else "", lambda index: 0)

    assert len(read(page)) == 301


def test_pages_that_only_repeat_earlier_entries_end_as_unavailable() -> None:
    def page(number: int) -> Page:
        return Page([LogEntry(1_000_000 + number % 7, 0, {})], str(number + 1), lambda index: 0)

    with pytest.raises(TransportError, match="100 pages in a row") as caught:
        read(page)
    assert caught.value.code == "UNAVAILABLE"
