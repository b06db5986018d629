"""Both transports: their requests and responses, and the result of each kind of failure."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import google.auth.exceptions
import pytest
from google.auth.credentials import AnonymousCredentials, Credentials
from hypothesis import given
from hypothesis import strategies as st
from ml_diagnostics_common.cloud_logging import (
    LoggingTransport,
    TransportError,
    connect,
    full_log_name,
    make_transport,
    quoted,
)
from ml_diagnostics_common.cloud_logging._decoding import TimestampParser
from ml_diagnostics_common.cloud_logging._filters import log_filter
from ml_diagnostics_common.credentials import CloudEnvironment
from ml_diagnostics_common.entry import format_timestamp, parse_timestamp
from ml_diagnostics_testing.certificates import CertificateAuthority
from ml_diagnostics_testing.cloud_logging import CloudLoggingServer
from ml_diagnostics_testing.faults import Delay, Hang, Reset, Status, Truncate
from ml_diagnostics_testing.http_server import LoopbackServer, Request, Response

SECOND = 1_000_000_000


@pytest.fixture
def cloud_logging_server(certificate_authority: CertificateAuthority) -> Iterator[CloudLoggingServer]:
    """With TLS, as in production."""
    with CloudLoggingServer(tls=certificate_authority) as server:
        yield server


@pytest.fixture(params=["rest", "grpc"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def transport(protocol: str, cloud_logging_server: CloudLoggingServer) -> Iterator[LoggingTransport]:
    environ = {**cloud_logging_server.environment(), "ML_DIAGNOSTICS_LOGGING_TRANSPORT": protocol}
    transport = connect(environ=environ)
    yield transport
    transport.close()


def entry(number: int, payload: Any = None, **fields: Any) -> dict[str, Any]:
    return {
        "logName": "projects/test-project/logs/run",
        "resource": {"type": "global", "labels": {}},
        "severity": "INFO",
        "timestamp": f"2026-11-21T05:36:{number:02d}.123456789Z",
        "insertId": f"host-1-2-0.{100_000_000_000 + number}",
        "labels": {"job": "run", "writer": "host-1-2-0", "seq": str(100_000_000_000 + number)},
        "jsonPayload": {"job_name": "run", "step_count": number} if payload is None else payload,
        **fields,
    }


def read(transport: LoggingTransport, filter_: str = "", **arguments: Any) -> Any:
    arguments = {"order_by": "timestamp asc", "page_size": 1000, "timeout_seconds": 5, **arguments}
    return transport.list_page(filter_, **arguments)


def failure(transport: LoggingTransport, timeout_seconds: float = 5.0) -> TransportError:
    with pytest.raises(TransportError) as caught:
        transport.write([entry(1)], timeout_seconds=timeout_seconds)
    return caught.value


def test_what_is_written_is_read_back_to_the_nanosecond(transport: LoggingTransport) -> None:
    payload = {"job_name": "run", "text": 'ü"\\', "list": [1, None, True, {"deep": 1.5}], "none": None}
    transport.write([entry(1, payload)], timeout_seconds=5)
    page = read(transport)
    [found] = page.entries
    assert found.timestamp_ns % (60 * SECOND) == 1_123_456_789
    assert found.payload == payload
    assert found.insert_id == "host-1-2-0.100000000001"
    assert (found.context.writer, found.sequence) == ("host-1-2-0", 100_000_000_001)
    assert found.context.labels == {"job": "run"}
    assert (found.context.log_id, found.severity) == ("run", "INFO")
    assert found.context.resource["type"] == "global"
    assert page.next_page_token == ""
    assert abs(page.received_ns(0) - time.time_ns()) < 60 * SECOND


def test_entries_of_other_writers_are_read_whatever_their_labels(
    transport: LoggingTransport, cloud_logging_server: CloudLoggingServer
) -> None:
    reference = {"jsonPayload": {"job_name": "run"}, "severity": "INFO", "labels": {"python_logger": "x"}}
    similar_to_ours = entry(2, insertId="another.123456789012", labels={})
    cloud_logging_server.write([reference, entry(1), similar_to_ours, entry(3, severity="WARNING")], log_id="run")
    entries = {found.insert_id: found for found in read(transport).entries}
    assert [found.context.writer for found in entries.values()].count("host-1-2-0") == 2
    assert entries["another.123456789012"].context.writer is None
    assert entries["host-1-2-0.100000000003"].severity == "WARNING"
    [server_made] = [found for insert_id, found in entries.items() if insert_id.startswith("server-")]
    assert server_made.context.labels == {"python_logger": "x"}


def test_pages_follow_each_other(transport: LoggingTransport) -> None:
    transport.write([entry(number) for number in range(5)], timeout_seconds=5)
    first = read(transport, page_size=3)
    second = read(transport, page_size=3, page_token=first.next_page_token)
    assert [found.payload["step_count"] for found in first.entries + second.entries] == list(range(5))
    assert second.next_page_token == ""


@pytest.mark.parametrize(
    ("status", "code", "is_temporary", "access"),
    [
        (503, "UNAVAILABLE", True, False),
        (429, "RESOURCE_EXHAUSTED", True, False),
        (500, "INTERNAL", True, False),
        (504, "DEADLINE_EXCEEDED", True, False),
        (403, "PERMISSION_DENIED", False, True),
        (401, "UNAUTHENTICATED", False, True),
        (404, "NOT_FOUND", False, True),
        (400, "INVALID_ARGUMENT", False, False),
    ],
)
def test_every_answer_is_one_kind_of_error(
    transport: LoggingTransport,
    cloud_logging_server: CloudLoggingServer,
    status: int,
    code: str,
    is_temporary: bool,
    access: bool,
) -> None:
    cloud_logging_server.faults.always(Status(status))
    error = failure(transport)
    assert (error.code, error.is_temporary, error.access) == (code, is_temporary, access)
    assert code in str(error)


def test_the_delay_that_the_server_requests_is_returned(
    transport: LoggingTransport, cloud_logging_server: CloudLoggingServer
) -> None:
    cloud_logging_server.faults.script([Status(429, retry_after=7)])
    assert failure(transport).retry_after_seconds == 7


@pytest.mark.parametrize("fault", [Status(503), Status(429), Status(500), Reset(), Truncate(1)])
def test_a_call_is_made_once(transport: LoggingTransport, cloud_logging_server: CloudLoggingServer, fault: Any) -> None:
    """No library below us retries: retries are decided in one function, with a budget."""
    cloud_logging_server.faults.always(fault)
    assert failure(transport).is_temporary
    with pytest.raises(TransportError):
        read(transport)
    assert [request.operation for request in cloud_logging_server.requests] == ["write", "list"]


@pytest.mark.timing
@pytest.mark.parametrize("fault", [Hang(), Delay(5)])
def test_a_silent_server_is_given_up_at_the_deadline(
    transport: LoggingTransport, cloud_logging_server: CloudLoggingServer, fault: Any
) -> None:
    cloud_logging_server.faults.always(fault)
    started = time.monotonic()
    error = failure(transport, timeout_seconds=0.3)
    assert time.monotonic() - started < 2
    assert error.code == "DEADLINE_EXCEEDED"
    cloud_logging_server.faults.clear()


def test_a_server_that_is_not_there_is_unavailable(protocol: str) -> None:
    cloud = CloudEnvironment("p", AnonymousCredentials(), None, "test")
    address = {"CLOUDSDK_API_ENDPOINT_OVERRIDES_LOGGING": "https://127.0.0.1:9/"}
    transport = make_transport(cloud, {**address, "ML_DIAGNOSTICS_LOGGING_TRANSPORT": protocol})
    assert failure(transport).code == "UNAVAILABLE"
    transport.close()


def test_grpc_sends_no_credentials_without_tls() -> None:
    class Token(Credentials):
        def refresh(self, request: Any) -> None:
            self.token = "secret-token"

    cloud = CloudEnvironment("test-project", Token(), None, "test")  # type: ignore[no-untyped-call]
    with CloudLoggingServer() as server:
        transport = make_transport(cloud, {**server.environment(), "ML_DIAGNOSTICS_LOGGING_TRANSPORT": "grpc"})
        transport.write([entry(1)], timeout_seconds=5)
        transport.close()
        assert "authorization" not in server.requests[0].headers


def test_a_token_that_is_refused_is_renewed_within_the_call(cloud_logging_server: CloudLoggingServer) -> None:
    class Renewing(Credentials):
        renewals = 0

        def refresh(self, request: Any) -> None:
            self.renewals += 1
            self.token = f"token-{self.renewals}"

    credentials = Renewing()  # type: ignore[no-untyped-call]
    cloud = CloudEnvironment("test-project", credentials, None, "test")
    transport = make_transport(cloud, cloud_logging_server.environment())
    cloud_logging_server.faults.script([Status(401)])
    transport.write([entry(1)], timeout_seconds=5)
    transport.close()
    assert (credentials.renewals, len(cloud_logging_server.entries())) == (2, 1)


def test_a_token_service_that_cannot_be_reached_is_asked_again_soon(cloud_logging_server: CloudLoggingServer) -> None:
    class OutOfReach(Credentials):
        def refresh(self, request: Any) -> None:
            raise google.auth.exceptions.TransportError("no route to the token service")

    cloud = CloudEnvironment("test-project", OutOfReach(), None, "test")  # type: ignore[no-untyped-call]
    transport = make_transport(cloud, cloud_logging_server.environment())
    error = failure(transport)
    transport.close()
    assert (error.code, error.is_temporary, error.access) == ("UNAVAILABLE", True, False)


def test_a_poisoned_entry_is_named_and_the_rest_is_written(
    transport: LoggingTransport, cloud_logging_server: CloudLoggingServer
) -> None:
    with pytest.raises(TransportError) as caught:
        transport.write([entry(1), entry(2, {"text": "x" * 300_000}), entry(3)], timeout_seconds=5)
    assert list(caught.value.entry_errors) == [1]
    assert caught.value.entry_errors[1].code == "INVALID_ARGUMENT"
    assert len(cloud_logging_server.entries()) == 2


ODD_BODIES: list[bytes] = [
    b"",
    b"null",
    b'"no"',
    b"[]",
    b'[{"error": {"message": "no", "status": "INVALID_ARGUMENT"}}]',
    b"<html>Forbidden</html>",
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"error": null}',
    b'{"error": "invalid_request"}',
    b'{"error": ["no"]}',
    b'{"error": {"message": null, "status": "INVALID_ARGUMENT"}}',
]


@pytest.mark.parametrize("status", [400, 403, 404, 409, 500, 503])
def test_an_error_that_is_not_cloud_loggings_refuses_nothing_for_good(status: int) -> None:
    with Proxy(Response()) as proxy:
        transport = through(proxy.url)
        for body in ODD_BODIES:
            proxy.response = Response(status, body)
            error = failure(transport)
            assert (error.is_temporary, error.entry_errors) == (True, {}), body
        transport.close()


@pytest.mark.parametrize(
    ("details", "refused"),
    [
        (None, {}),
        ("no", {}),
        ({"logEntryErrors": {"0": {"code": 3}}}, {}),
        ([None, 1, "no", {"logEntryErrors": None}, {"logEntryErrors": ["no"]}], {}),
        ([{"logEntryErrors": {"0": None, "1": {"code": "3", "message": 7}}}], {0: "UNKNOWN", 1: "UNKNOWN"}),
        ([{"logEntryErrors": {"x": {"code": 3}}}], {-1: "INVALID_ARGUMENT"}),
        ([{"logEntryErrors": {"9" * 5000: {"code": 3}}}], {-1: "INVALID_ARGUMENT"}),
        ([{"retryDelay": "nans"}, {"retryDelay": 7}], {}),
    ],
)
def test_details_of_an_error_may_have_any_shape(details: Any, refused: dict[int, str]) -> None:
    body = json.dumps({"error": {"message": "no", "status": "INVALID_ARGUMENT", "details": details}}).encode()
    with Proxy(Response(400, body)) as proxy:
        transport = through(proxy.url)
        error = failure(transport)
        transport.close()
    assert error.code == "INVALID_ARGUMENT"
    assert {index: entry_error.code for index, entry_error in error.entry_errors.items()} == refused


ODD_ENTRIES: list[Any] = [
    {**entry(9), "jsonPayload": None},
    {**entry(9), "jsonPayload": [1]},
    {**entry(9), "timestamp": "yesterday"},
    {**entry(9), "timestamp": "2026-13-41T05:36:00Z"},
    {**entry(9), "timestamp": 5},
    {**entry(9), "insertId": 7},
    {**entry(9), "insertId": "another-1.100000000001", "labels": None},
    {**entry(9), "insertId": "another-1.100000000001", "resource": "global"},
    {**entry(9), "severity": {}},
    None,
    "entry",
]


@pytest.mark.parametrize("odd", ODD_ENTRIES, ids=str)
def test_an_entry_that_cannot_be_decoded_costs_the_page_no_other(odd: Any) -> None:
    body = json.dumps({"entries": [entry(1), odd, {**entry(2), "receiveTimestamp": "soon"}], "nextPageToken": "next"})
    with Proxy(Response(200, body.encode())) as proxy:
        transport = through(proxy.url)
        page = read(transport)
        again = read(transport)
        transport.close()
    assert [found.payload["step_count"] for found in page.entries] == [1, 2]
    assert page.next_page_token == "next"
    assert page.received_ns(1) == page.entries[1].timestamp_ns
    assert len(page.unreadable) == 1
    assert page.unreadable == again.unreadable


def test_an_entry_with_broken_text_costs_the_page_no_other() -> None:
    body = json.dumps({"entries": [entry(1), entry(2, {"text": "BROKEN"})]}).encode()
    with Proxy(Response(200, body.replace(b"BROKEN", b"\xff\xfe"))) as proxy:
        transport = through(proxy.url)
        page = read(transport)
        transport.close()
    assert (len(page.entries), len(page.unreadable)) == (1, 1)


class Proxy(LoopbackServer):
    """Something in between that answers in Cloud Logging's stead, always the same."""

    def __init__(self, response: Response) -> None:
        super().__init__()
        self.response = response

    def handle(self, request: Request) -> Response:
        return self.response if request.method == "POST" else Response(200, b"<html>Log in</html>")


def through(proxy_url: str) -> LoggingTransport:
    environ = {"CLOUDSDK_API_ENDPOINT_OVERRIDES_LOGGING": proxy_url}
    return make_transport(CloudEnvironment("p", AnonymousCredentials(), None, "test"), environ)


@pytest.mark.parametrize(
    ("response", "code"),
    [
        (Response(302, b"", headers={"Location": "/login"}), "UNIMPLEMENTED"),
        (Response(307, b"", headers={"Location": "/login"}), "UNIMPLEMENTED"),
        (Response(405, b"no"), "UNIMPLEMENTED"),
        (Response(451, b"no"), "UNIMPLEMENTED"),
        (Response(200, b"<html>Log in</html>"), "UNAVAILABLE"),
        (Response(200, b"[]"), "UNAVAILABLE"),
        (Response(200, b""), "UNAVAILABLE"),
    ],
)
def test_what_stands_between_neither_takes_entries_nor_refuses_them(response: Response, code: str) -> None:
    with Proxy(response) as proxy:
        transport = through(proxy.url)
        assert failure(transport).code == code
        assert [request.method for request in proxy.requests] == ["POST"]
        transport.close()


@pytest.mark.timing
@pytest.mark.parametrize(
    ("length", "piece"), [(b"Transfer-Encoding: chunked", b"1\r\n \r\n"), (b"Content-Length: 1000", b" ")]
)
def test_a_server_that_drips_is_left_at_the_deadline(length: bytes, piece: bytes) -> None:
    """Each byte arrives in time, the whole never does."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip() -> None:
            connection, _ = listening.accept()
            with connection, contextlib.suppress(OSError):
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.1 200 OK\r\n" + length + b"\r\n\r\n")
                for _ in range(100):
                    connection.sendall(piece)
                    time.sleep(0.05)

        thread = threading.Thread(target=drip)
        thread.start()
        transport = through(f"http://127.0.0.1:{listening.getsockname()[1]}")
        started = time.monotonic()
        error = failure(transport, timeout_seconds=0.3)
        assert time.monotonic() - started < 1.5
        assert error.code == "DEADLINE_EXCEEDED"
        transport.close()
        thread.join()


@pytest.mark.parametrize("name", ['j"b', "back\\slash", "new\nline", "日本", "a/b c", "x OR severity=ERROR"])
def test_a_job_of_any_name_is_found_and_no_other(
    transport: LoggingTransport, cloud_logging_server: CloudLoggingServer, name: str
) -> None:
    log_id = "run/é %"
    payloads = [{"job_name": name}, {"job_name": "other"}]
    cloud_logging_server.write([{"jsonPayload": payload, "severity": "INFO"} for payload in payloads], log_id=log_id)
    found = read(transport, log_filter("test-project", log_id, name)).entries
    assert [entry.payload["job_name"] for entry in found] == [name]
    assert found[0].context.log_id == log_id


def test_a_job_name_that_no_filter_can_hold_is_left_out_of_it() -> None:
    assert log_filter("p", "l", '"' * 10_000) == log_filter("p", "l", None)


def test_the_filter_is_the_references() -> None:
    assert log_filter("p", "l", 'j"') == 'logName="projects/p/logs/l" AND severity=INFO AND jsonPayload.job_name="j\\""'
    assert full_log_name("p", "a/b") == "projects/p/logs/a%2Fb"
    assert quoted('a\\"') == '"a\\\\\\""'


@given(st.integers(0, 4_000_000_000 * 10**9), st.integers(0, 9))
def test_a_timestamp_is_read_alike_the_first_time_and_later(timestamp_ns: int, digits: int) -> None:
    parse = TimestampParser()
    text = format_timestamp(timestamp_ns)
    text = (text[: 20 + digits] if digits else text[:19]) + "Z"
    assert parse(text) == parse(text) == parse_timestamp(text)


@pytest.mark.parametrize(
    "text", ["", "2023-11-14T22:", "2023-11-14T22:13:2Z", "2023-11-14T22:13:20.Z", "2023-11-14T22:1x:20Z"]
)
def test_an_invalid_timestamp_is_refused_also_in_a_known_hour(text: str) -> None:
    parse = TimestampParser()
    parse("2023-11-14T22:13:20Z")
    with pytest.raises(ValueError, match=r"RFC 3339|invalid literal"):
        parse(text)
