"""Cloud Logging written over gRPC by google-cloud-logging's client, without its retries and wrapper objects."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ml_diagnostics_common.cloud_logging._transport import LoggingTransport, Page, TransportError, entry_error
from ml_diagnostics_common.credentials import CloudEnvironment
from ml_diagnostics_common.entry import parse_timestamp
from ml_diagnostics_common.exceptions import MissingExtraError
from ml_diagnostics_common.failures import classify
from ml_diagnostics_common.grpc_clients import import_grpc_modules, open_client
from ml_diagnostics_common.process_hooks import at_fork

__all__ = ["GrpcTransport"]

_MODULES = (
    "grpc._interceptor",  # The client imports it when it makes a channel.
    "google.auth.transport.grpc",
    "google.cloud.logging_v2.services.logging_service_v2",
    "google.cloud.logging_v2.services.logging_service_v2.transports",
    "google.cloud.logging_v2.types",
    "google.rpc.error_details_pb2",
)


_parent_uses_grpc = False  # State of the process: True if it was forked from one that has imported grpc.


def _note_fork() -> None:
    global _parent_uses_grpc
    _parent_uses_grpc = _parent_uses_grpc or "grpc" in sys.modules


at_fork(_note_fork)


class GrpcTransport:
    """A `LoggingTransport` that writes over gRPC. It reads over REST, which takes less time.

    grpc is imported by the first write, in the thread that writes. A process that is forked after grpc was
    imported writes over REST: gRPC's threads are not in it, and a call would hang or abort it.

    Args:
        cloud: The project and credentials.
        rest: The same project over REST.
        url: See `RestTransport`.
    """

    def __init__(self, cloud: CloudEnvironment, rest: LoggingTransport, *, url: str | None = None) -> None:
        self.project, self.principal = cloud.project, cloud.principal
        self._cloud, self._rest, self._url = cloud, rest, url
        self._client: Any = None

    def write(self, entries: Sequence[Mapping[str, Any]], *, timeout_seconds: float) -> None:
        """See `LoggingTransport.write`."""
        if _parent_uses_grpc:
            self._rest.write(entries, timeout_seconds=timeout_seconds)
            return
        client = self._client or self._open_client()
        from google.cloud.logging_v2.types import WriteLogEntriesRequest

        request = WriteLogEntriesRequest(partial_success=True)
        add = WriteLogEntriesRequest.pb(request).entries.add
        try:
            for entry in entries:
                _fill_entry(add(), entry)
        except (TypeError, ValueError, KeyError) as error:
            raise TransportError("INVALID_ARGUMENT", f"protobuf cannot encode an entry ({error})") from error
        with _call_errors():
            client.write_log_entries(request=request, retry=None, timeout=timeout_seconds)

    def list_page(
        self, filter_: str, *, order_by: str, page_size: int, page_token: str = "", timeout_seconds: float
    ) -> Page:
        """See `LoggingTransport.list_page`."""
        return self._rest.list_page(
            filter_, order_by=order_by, page_size=page_size, page_token=page_token, timeout_seconds=timeout_seconds
        )

    def close(self) -> None:
        """See `LoggingTransport.close`."""
        self._rest.close()
        if self._client is not None:
            self._client.transport.close()

    def _open_client(self) -> Any:
        import_grpc_modules(*_MODULES)
        try:
            from google.cloud.logging_v2.services.logging_service_v2 import LoggingServiceV2Client
            from google.cloud.logging_v2.services.logging_service_v2.transports import LoggingServiceV2GrpcTransport
        except ImportError as error:
            raise MissingExtraError("ML_DIAGNOSTICS_LOGGING_TRANSPORT=grpc", "ml-diagnostics-common", "grpc") from error

        self._client = open_client(
            LoggingServiceV2Client,
            LoggingServiceV2GrpcTransport,
            write="google.logging.v2.LoggingServiceV2/WriteLogEntries",
            url=self._url,
            credentials=self._cloud.credentials,
        )
        return self._client


# --- To protobuf: seven times faster than json_format, and the CPU time is the trainer's ------------------

_DEEPEST = 30  # A level of JSON is three of protobuf, and its decoders accept a hundred.
_FIELDS = frozenset({"logName", "resource", "severity", "timestamp", "insertId", "labels", "jsonPayload"})
_SEVERITIES = "DEFAULT", "DEBUG", "INFO", "NOTICE", "WARNING", "ERROR", "CRITICAL", "ALERT", "EMERGENCY"
_SEVERITY_NUMBERS = {name: 100 * index for index, name in enumerate(_SEVERITIES)}
_SECOND = 1_000_000_000


def _fill_entry(message: Any, entry: Mapping[str, Any]) -> None:
    unknown = entry.keys() - _FIELDS
    if unknown:
        raise ValueError(f"unexpected field {min(unknown)!r}")
    message.log_name = entry.get("logName", "")
    message.insert_id = entry.get("insertId", "")
    message.severity = _SEVERITY_NUMBERS[entry.get("severity", "DEFAULT")]
    message.labels.update(entry.get("labels", {}))
    resource = entry.get("resource", {})
    message.resource.type = resource.get("type", "")
    message.resource.labels.update(resource.get("labels", {}))
    if "timestamp" in entry:
        message.timestamp.seconds, message.timestamp.nanos = divmod(parse_timestamp(entry["timestamp"]), _SECOND)
    _fill_struct(message.json_payload, entry.get("jsonPayload", {}), 0)


def _fill_struct(struct: Any, values: Mapping[str, Any], depth: int) -> None:
    if depth > _DEEPEST:
        raise ValueError(f"nested more than {_DEEPEST} levels deep")
    struct.SetInParent()
    fields = struct.fields
    for name, value in values.items():
        _fill_value(fields[name], value, depth)


def _fill_value(message: Any, value: Any, depth: int) -> None:
    if isinstance(value, str):
        message.string_value = value
    elif isinstance(value, bool):
        message.bool_value = value
    elif isinstance(value, (int, float)):
        message.number_value = value
    elif value is None:
        message.null_value = 0
    elif isinstance(value, Mapping):
        _fill_struct(message.struct_value, value, depth + 1)
    elif depth >= _DEEPEST:
        raise ValueError(f"nested more than {_DEEPEST} levels deep")
    else:
        message.list_value.SetInParent()
        for item in value:
            _fill_value(message.list_value.values.add(), item, depth + 1)


# --- Errors -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _call_errors() -> Iterator[None]:
    """Raise what a call raises as `TransportError`."""
    from google.api_core.exceptions import GoogleAPICallError
    from google.auth.exceptions import GoogleAuthError

    try:
        yield
    except (GoogleAPICallError, GoogleAuthError) as error:
        failure = TransportError.of(classify(error))
        failure.entry_errors = _entry_errors(getattr(error, "details", ()), failure.retry_after_seconds)
        raise failure from error


def _entry_errors(details: Iterable[Any], retry_after_seconds: float | None) -> dict[int, TransportError]:
    """Decode the errors of single entries."""
    from google.cloud.logging_v2.types import WriteLogEntriesPartialErrors

    refused = {}
    for detail in details:
        if getattr(detail, "type_url", "").endswith("google.logging.v2.WriteLogEntriesPartialErrors"):
            errors = WriteLogEntriesPartialErrors.pb(WriteLogEntriesPartialErrors.deserialize(detail.value))
            for index, status in errors.log_entry_errors.items():
                refused[index] = entry_error(status.code, status.message, retry_after_seconds)
    return refused
