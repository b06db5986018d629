"""gRPC on loopback, with the faults and the request log of a service; and servers that answer REST as well."""

from collections.abc import Callable, Mapping
from concurrent import futures
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc  # type: ignore[import-untyped]
from google.protobuf import json_format  # type: ignore[import-untyped]
from google.rpc import code_pb2, error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status  # type: ignore[import-untyped]

from ml_diagnostics_testing.faults import Drip, Hang, Oversize, Plan, Reset, Status, Truncate
from ml_diagnostics_testing.http_server import STATUS_NAMES, ApiError, LoopbackServer, RequestRecord, Service

_WORKERS = 32  # a hanging call occupies one until it ends
_RETRY_INFO = f"type.googleapis.com/{error_details_pb2.RetryInfo.DESCRIPTOR.full_name}"


@dataclass(frozen=True)
class Method:
    """One unary method.

    Attributes:
        operation: Its name in `faults` and `requests`.
        do: Handles a call. It receives the serialised request, its record, and the time by the server's clock with
            its `Skew`, and returns the serialised response. An `ApiError` ends the call with that error.
    """

    operation: str
    do: Callable[[bytes, RequestRecord, float], bytes]


class GrpcServer:
    """Serve one gRPC service, without TLS, on a port of 127.0.0.1, from construction until `close`.

    Args:
        service: Provides the faults, the log of requests and the clock.
        name: The full name of the gRPC service.
        methods: Its methods, by name.
        port: The port to listen on; 0 selects a free one.

    Attributes:
        is_serving: True while the server accepts calls.
    """

    def __init__(self, service: Service, name: str, methods: Mapping[str, Method], *, port: int = 0) -> None:
        self._service = service
        self._executor = futures.ThreadPoolExecutor(_WORKERS, thread_name_prefix="loopback-grpc")
        self._server = grpc.server(
            self._executor, options=[("grpc.max_receive_message_length", -1), ("grpc.so_reuseport", 0)]
        )
        handlers = {
            short: grpc.unary_unary_rpc_method_handler(self._handler(f"/{name}/{short}", method))
            for short, method in methods.items()
        }
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(name, handlers)])
        self.port: int = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self._server.start()
        self.is_serving = True

    def stop(self) -> None:
        """End every call and accept no more. Call `close` afterwards."""
        self.is_serving = False
        self._server.stop(None)

    def close(self) -> None:
        """End every call and stop serving."""
        self.is_serving = False
        self._server.stop(None).wait()
        self._executor.shutdown()

    def _handler(self, path: str, method: Method) -> Callable[[bytes, Any], bytes]:
        def handle(raw: bytes, context: Any) -> bytes:
            plan, record = self._service.start_request(
                method.operation, "gRPC", path, len(raw), context.invocation_metadata()
            )
            answer, error = b"", None
            if plan.applies:
                try:
                    answer = method.do(raw, record, record.time + plan.skew_seconds)
                except ApiError as refusal:
                    error = refusal
            if isinstance(plan.ending, Oversize):
                return _large_message(plan.ending, context)
            if plan.ending is not None:
                error = self._break(plan, context)
            if not isinstance(plan.ending, Reset | Hang | Truncate | Drip):
                record.status = error.code if error else 200
            if error is not None:
                _abort(context, error)
            return answer

        return handle

    def _break(self, plan: Plan, context: Any) -> ApiError:
        """Return the error with which a fault ends a call, or the closest one in gRPC; wait first if it is a hang."""
        fault = plan.ending
        if isinstance(fault, Status):
            wait = [] if fault.retry_after is None else [_retry_info(fault.retry_after)]
            return ApiError(fault.code, "a scripted fault", details=wait)
        if isinstance(fault, Truncate):
            return ApiError(500, "the answer ended in mid-message (a scripted fault)")
        if isinstance(fault, Hang | Drip):
            seconds = fault.seconds if isinstance(fault, Hang) else None
            self._service.faults.wait(seconds, while_=context.is_active, plan=plan)
        return ApiError(503, "recvmsg: Connection reset by peer (a scripted fault)")


class RestAndGrpcServer(LoopbackServer):
    """Serve one API over REST and gRPC at one port, as Google Cloud does.

    Args:
        project: The project in `environment`.
        gcloud_name: The API's name in the settings of gcloud: "LOGGING".
        grpc_name: The full name of the gRPC service.
        methods: The methods of the gRPC service, by name.
        **options: See `LoopbackServer`.
    """

    def __init__(
        self, project: str, gcloud_name: str, grpc_name: str, methods: Mapping[str, Method], **options: Any
    ) -> None:
        super().__init__(**options)
        self.project = project
        self._gcloud_name = gcloud_name
        self._grpc = GrpcServer(self, grpc_name, methods)
        self.serve_http2_by(self._grpc.port)

    @property
    def rest_url(self) -> str:
        """The API endpoint, `http://127.0.0.1:PORT`, with TLS `https://...`. It serves REST, and gRPC as well."""
        return self.url

    @property
    def grpc_target(self) -> str:
        """The API endpoint for gRPC without TLS: `127.0.0.1:PORT`."""
        return f"127.0.0.1:{self._grpc.port}"

    def environment(self) -> dict[str, str]:
        """Return the variables that redirect gcloud and the ML diagnostics libraries to this server."""
        return {
            **super().environment(),
            f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{self._gcloud_name}": f"{self.url}/",
            "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "1",
            "CLOUDSDK_CORE_PROJECT": self.project,
            "GOOGLE_CLOUD_PROJECT": self.project,
        }

    def close(self) -> None:
        """Stop serving. Safe to call twice."""
        self.faults.close()
        self._grpc.close()
        super().close()


def _large_message(fault: Oversize, context: Any) -> bytes:
    """Return a message of this size: one field with a number that no service uses."""
    if fault.gzip:
        context.set_compression(grpc.Compression.Gzip)
    length, head = fault.size_bytes, bytearray([15 << 3 | 2])
    while length > 0x7F:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes(head) + bytes([length]) + bytes(fault.size_bytes)


def _retry_info(seconds: float) -> dict[str, Any]:
    return {"@type": _RETRY_INFO, "retryDelay": f"{seconds:.3f}s"}


def _abort(context: Any, error: ApiError) -> NoReturn:
    """End a call with an error and its details, in the format of Google's services."""
    name = STATUS_NAMES.get(error.code, "UNKNOWN")
    status = {"code": code_pb2.Code.Value(name), "message": error.message, "details": list(error.details)}
    context.abort_with_status(rpc_status.to_status(json_format.ParseDict(status, status_pb2.Status())))
    raise AssertionError("abort_with_status returned")
