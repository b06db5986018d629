"""A small HTTP server on loopback: the base class of every service in this package.

A service subclasses `LoopbackServer` and implements the responses. This module handles connections, faults and the log
of requests.
"""

import json
import logging
import select
import socket
import ssl
import struct
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from email.message import Message
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase
from typing import Any, TypeVar, cast

from ml_diagnostics_testing.certificates import CertificateAuthority
from ml_diagnostics_testing.faults import Drip, Fault, Faults, Hang, Oversize, Plan, Reset, Status, Truncate

_log = logging.getLogger("ml_diagnostics_testing")
_Server = TypeVar("_Server", bound="LoopbackServer")

# The names of HTTP statuses in Google's APIs: https://github.com/googleapis/googleapis/blob/master/google/rpc/code.proto
STATUS_NAMES: Mapping[int, str] = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    412: "FAILED_PRECONDITION",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


class ApiError(Exception):
    """The error with which a service rejects a request, as the real service would.

    Args:
        code: The HTTP status.
        message: The error message for the client.
        details: `google.rpc` details as JSON objects, each with its "@type".
        name: The error's name in `google.rpc.Code`; by default the usual one for the status.
        reason: The reason in the older error format, such as "notFound"; by default the name in lower case.
    """

    def __init__(
        self,
        code: int,
        message: str,
        *,
        details: Iterable[Mapping[str, Any]] = (),
        name: str = "",
        reason: str = "",
    ) -> None:
        super().__init__(message)
        self.code = code
        self.name = name or STATUS_NAMES.get(code, "UNKNOWN")
        self.reason = reason or self.name.lower()
        self.message = message
        self.details = tuple(details)


@dataclass(frozen=True)
class Request:
    """One HTTP request.

    Attributes:
        method: GET, POST, ...
        target: The path and query, as sent.
        headers: The headers; names are case-insensitive.
        body: The complete body.
        time: The time of arrival in seconds since the epoch, by the server's clock with its `Skew`.
        record: The record of this request in the server's `requests`; a service may fill in more fields.
    """

    method: str
    target: str
    headers: Message
    body: bytes
    time: float
    record: "RequestRecord"

    @property
    def path(self) -> str:
        """The path, still percent-encoded, without the query."""
        return self.target.partition("?")[0]

    @property
    def query(self) -> dict[str, str]:
        """The decoded query parameters; the last value of a repeated one."""
        return dict(urllib.parse.parse_qsl(self.target.partition("?")[2], keep_blank_values=True))

    def json(self) -> Any:
        """Parse the body as JSON; an empty body is an empty object."""
        try:
            return json.loads(self.body or b"{}", parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise ApiError(400, f"the request's body is not JSON: {error}") from None


@dataclass(frozen=True)
class Response:
    """One HTTP response. The server adds Content-Length and Date.

    Attributes:
        status: The HTTP status.
        body: The body.
        headers: More headers.
        takes_over: Called after the headers are sent, to continue with a stream or another protocol. It receives a
            reader of the client's data and the connection. The server closes the connection when it returns.
    """

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    takes_over: Callable[[BufferedIOBase, socket.socket], None] | None = None


@dataclass
class RequestRecord:
    """The record of one request, for assertions.

    Attributes:
        operation: The requested operation, by the service's name for it: "write", "list", ...
        method: The HTTP method, or "gRPC".
        path: The path with its query, or gRPC's full method name.
        size_bytes: The size of the body.
        time: The time of arrival in seconds since the epoch, by the server's clock without `Skew`.
        entries: The number of entries or objects in the request or the response; None where not applicable.
        status: The HTTP status of the response (over gRPC the equivalent one); None if no complete response was sent.
        fault: The fault that ended the request, if any.
        body: The JSON body, for services that document that they keep it.
        headers: The HTTP headers, or gRPC's metadata, by name in lower case.
    """

    operation: str
    method: str
    path: str
    size_bytes: int
    time: float
    entries: int | None = None
    status: int | None = None
    fault: Fault | None = None
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")  # json.loads accepts NaN and Infinity by default


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON response."""
    body = json.dumps(value).encode()
    return Response(status, body, {"Content-Type": "application/json; charset=UTF-8", **(headers or {})})


def error_response(error: ApiError, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error response in the format of Google's JSON APIs."""
    body: dict[str, Any] = {
        "code": error.code,
        "message": error.message,
        "status": error.name,
        "errors": [{"message": error.message, "domain": "global", "reason": error.reason}],
    }
    if error.details:
        body["details"] = list(error.details)
    return json_response({"error": body}, error.code, headers)


class Service:
    """The base of every loopback service: its faults and its log of requests.

    Args:
        clock: Returns the time in seconds since the epoch.

    Attributes:
        faults: The faults to inject.
        requests: Every request received, oldest first, including those that a fault ended.
    """

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self.faults = Faults()
        self.requests: list[RequestRecord] = []

    def requests_for(self, operation: str) -> list[RequestRecord]:
        """Return the requests for one operation, oldest first."""
        return [record for record in self.requests if record.operation == operation]

    def start_request(
        self, operation: str, method: str, path: str, size_bytes: int, headers: Iterable[tuple[str, str]] = ()
    ) -> tuple[Plan, RequestRecord]:
        """Choose the faults of a request, add it to `requests` and wait for its delay."""
        plan = self.faults.plan(operation)
        record = RequestRecord(operation, method, path, size_bytes, self.clock(), fault=plan.ending)
        record.headers = {name.lower(): value for name, value in headers}
        self.requests.append(record)
        if plan.delay_seconds:
            self.faults.wait(plan.delay_seconds, plan=plan)
        return plan, record


class LoopbackServer(Service):
    """Serve one API on a free port of 127.0.0.1, from construction until `close`; a context manager.

    Subclasses implement `handle`, and `operation` to give faults and the log a name for each kind of request.

    Args:
        clock: Returns the time in seconds since the epoch.
        tls: Serves with TLS, with a certificate of this authority; None serves without.
        require_client_certificate: With TLS, refuse clients that present no certificate of the authority (mTLS).
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.time,
        tls: CertificateAuthority | None = None,
        require_client_certificate: bool = False,
    ) -> None:
        super().__init__(clock=clock)
        self._tls = tls
        context = tls.server_context(require_client_certificate=require_client_certificate) if tls else None
        self._http = _HttpServer(self, context)
        self._thread = threading.Thread(
            target=self._http.serve_forever,
            kwargs={"poll_interval": 0.05},
            name=type(self).__name__,
            daemon=True,
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """The TCP port of the HTTP server."""
        return int(self._http.server_address[1])

    @property
    def url(self) -> str:
        """The base URL without a trailing slash: `http://127.0.0.1:PORT`, with TLS `https://...`."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def handle(self, request: Request) -> Response:
        """Handle a request and return the response. Raise an `ApiError` to send an error response."""
        raise NotImplementedError

    def operation(self, method: str, path: str) -> str:
        """Return the operation of a request, as `faults` and `requests` name it."""
        return method

    def refusal(self, error: ApiError, headers: Mapping[str, str] | None = None) -> Response:
        """Return an error response in the service's format."""
        return error_response(error, headers)

    def environment(self) -> dict[str, str]:
        """Return the environment variables that redirect clients to this server, and with TLS make them trust it."""
        return self._tls.environment() if self._tls else {}

    def serve_http2_by(self, port: int) -> None:
        """Pass connections with HTTP/2, as gRPC's are, to a server without TLS on a port of 127.0.0.1."""
        self._http.http2_port = port

    def close(self) -> None:
        """Stop serving: break the open connections and end hanging requests. Safe to call twice."""
        self.faults.close()
        self._http.shutdown()
        self._http.server_close()
        self._http.join()
        self._thread.join()

    def __enter__(self: _Server) -> _Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _HttpServer(ThreadingHTTPServer):
    """Track connections, so that closing the server leaves no thread and no socket behind."""

    request_queue_size = 128

    def __init__(self, service: LoopbackServer, tls: ssl.SSLContext | None) -> None:
        self.service = service
        self.http2_port: int | None = None
        self._tls = tls
        self._connections: dict[threading.Thread, socket.socket] = {}
        super().__init__(("127.0.0.1", 0), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        thread = threading.Thread(target=self.process_request_thread, args=(request, client_address), daemon=True)
        self._connections[thread] = request
        thread.start()

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        connection = request
        try:
            if self._tls is not None:
                connection = self._tls.wrap_socket(request, server_side=True)
                self._connections[threading.current_thread()] = connection
            if self.http2_port is not None and _speaks_http2(connection):
                with connection, socket.create_connection(("127.0.0.1", self.http2_port)) as server:
                    _join(connection, server)
            else:
                super().process_request_thread(connection, client_address)
        except OSError:  # also ssl.SSLError: a client that does not trust the certificate, or has none
            self.handle_error(request, client_address)
            connection.close()
        finally:
            del self._connections[threading.current_thread()]

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("client %s disconnected during a request", client_address, exc_info=True)

    def join(self) -> None:
        """Break the open connections, and wait for their threads."""
        for thread, connection in list(self._connections.items()):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:  # the client or the thread has closed it meanwhile
                pass
            thread.join(5)


def _speaks_http2(connection: socket.socket) -> bool:
    if isinstance(connection, ssl.SSLSocket):
        return connection.selected_alpn_protocol() == "h2"
    return connection.recv(3, socket.MSG_PEEK) == b"PRI"  # the first bytes of HTTP/2: RFC 9113, section 3.4


def _join(client: socket.socket, server: socket.socket) -> None:
    """Copy bytes in both directions until one side closes."""
    other = {client: server, server: client}
    while True:
        is_buffered = isinstance(client, ssl.SSLSocket) and client.pending()  # select does not see these bytes
        for source in [client] if is_buffered else select.select([client, server], [], [])[0]:
            data = source.recv(1 << 16)
            if not data:
                return
            other[source].sendall(data)


class _DrippingFile:
    """Buffer written data, and send it one byte at a time on flush."""

    def __init__(self, file: BufferedIOBase, faults: Faults, fault: Drip) -> None:
        self._file = file
        self._faults = faults
        self._fault = fault
        self._unsent = bytearray()

    def write(self, data: bytes) -> None:
        self._unsent += data

    def flush(self) -> None:
        unsent, self._unsent = bytes(self._unsent), bytearray()
        at_once = unsent.find(b"\r\n\r\n") + 4 if self._fault.body_only else 0
        self._file.write(unsent[:at_once])
        for position in range(at_once, len(unsent)):
            self._file.flush()
            self._faults.wait(self._fault.seconds)
            self._file.write(unsent[position : position + 1])
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    @property
    def closed(self) -> bool:
        return self._file.closed


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # One write per response. Separate writes of headers and body cost 40 ms (Nagle's algorithm and delayed ACK).
    wbufsize = -1
    disable_nagle_algorithm = True
    server: _HttpServer

    def handle_one_request(self) -> None:
        self.raw_requestline = self.rfile.readline(65537)
        if not self.raw_requestline or not self.parse_request():
            self.close_connection = True
            return
        body = self._read_body()
        service = self.server.service
        operation = service.operation(self.command, self.path.partition("?")[0])
        plan, record = service.start_request(operation, self.command, self.path, len(body), self.headers.items())
        time = record.time + plan.skew_seconds
        request = Request(self.command, self.path, self.headers, body, time, record)
        response = self._handle(request) if plan.applies else Response()
        self._end(request, response, plan)

    def handle_expect_100(self) -> bool:
        answered = super().handle_expect_100()
        self.wfile.flush()  # the client waits for this line before it sends the body
        return answered

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        chunks = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():  # trailers
            pass
        return b"".join(chunks)

    def _handle(self, request: Request) -> Response:
        try:
            return self.server.service.handle(request)
        except ApiError as error:
            return self.server.service.refusal(error)
        except Exception as error:
            _log.exception("the loopback server failed at %s %s", request.method, request.target)
            return self.server.service.refusal(ApiError(500, f"the loopback server failed: {error!r}"))

    def _end(self, request: Request, response: Response, plan: Plan) -> None:
        """Send the response, or apply the request's fault."""
        fault = request.record.fault
        if isinstance(fault, Status):
            wait = {} if fault.retry_after is None else {"Retry-After": f"{fault.retry_after:g}"}
            response = self.server.service.refusal(ApiError(fault.code, "a scripted fault", reason=fault.reason), wait)
        elif isinstance(fault, Hang):
            self.server.service.faults.wait(fault.seconds, plan=plan)
        if isinstance(fault, Reset | Hang):
            self._reset()
            return
        if isinstance(fault, Oversize):
            self._send_large(fault)
            return
        if isinstance(fault, Drip):
            self.wfile = cast(BufferedIOBase, _DrippingFile(self.wfile, self.server.service.faults, fault))
            self.close_connection = True
        if not isinstance(fault, Truncate):
            request.record.status = response.status
        self._send(request, response, keep_bytes=fault.keep_bytes if isinstance(fault, Truncate) else None)

    def _send(self, request: Request, response: Response, keep_bytes: int | None) -> None:
        body = b"" if request.method == "HEAD" else response.body
        self.send_response_only(response.status)
        self.send_header("Date", formatdate(request.time, usegmt=True))
        for name, value in response.headers.items():
            self.send_header(name, value)
        has_length = "Content-Length" in response.headers or response.takes_over is not None
        if response.status >= 200 and response.status != 204 and not has_length:
            self.send_header("Content-Length", str(len(response.body)))
        self.end_headers()
        self.wfile.write(body[:keep_bytes])
        self.wfile.flush()
        self.close_connection |= keep_bytes is not None or response.takes_over is not None
        if response.takes_over is not None and keep_bytes is None:
            response.takes_over(self.rfile, self.connection)

    def _send_large(self, fault: Oversize) -> None:
        self.send_response_only(200)
        self.send_header("Content-Type", "application/json; charset=UTF-8")
        self.send_header("Transfer-Encoding", "chunked")
        if fault.gzip:
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        for piece in fault.body():
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug(format, *args)

    def _reset(self) -> None:
        # With a linger time of zero, close() sends RST instead of FIN.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True
