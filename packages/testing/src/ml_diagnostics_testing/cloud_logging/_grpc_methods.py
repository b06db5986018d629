"""The gRPC API of the loopback Cloud Logging, with the messages of the Google client."""

from collections.abc import Callable, Mapping
from typing import Any

from google.cloud.logging_v2.types import ListLogEntriesRequest, LogEntry, WriteLogEntriesRequest
from google.protobuf import json_format  # type: ignore[import-untyped]

from ml_diagnostics_testing._grpc_server import Method
from ml_diagnostics_testing.cloud_logging._entries import Entry, parse_timestamp
from ml_diagnostics_testing.cloud_logging._store import MAX_REQUEST_BYTES, Page
from ml_diagnostics_testing.http_server import ApiError, RequestRecord

SERVICE = "google.logging.v2.LoggingServiceV2"
_NS = 1_000_000_000
_PLAIN_FIELDS = {
    *("logName", "resource", "timestamp", "receiveTimestamp", "severity", "insertId", "labels"),
    *("textPayload", "jsonPayload"),
}
_MESSAGES: Mapping[str, Any] = {"write": WriteLogEntriesRequest.pb(), "list": ListLogEntriesRequest.pb()}
_LogEntry: Any = LogEntry.pb()

# Handles a request in the form of REST's JSON, at a time in seconds; a listing returns its page.
Do = Callable[[dict[str, Any], RequestRecord, float], Page | None]


def methods(write: Do, list_: Do) -> dict[str, Method]:
    """Return WriteLogEntries and ListLogEntries.

    Args:
        write: Handles WriteLogEntries.
        list_: Handles ListLogEntries.
    """
    return {"WriteLogEntries": _method("write", write), "ListLogEntries": _method("list", list_)}


def _method(operation: str, do: Do) -> Method:
    def answer(raw: bytes, record: RequestRecord, now: float) -> bytes:
        page = do(_parse(operation, raw), record, now)
        return encode_page(page) if page else b""

    return Method(operation, answer)


def frame(entry: Entry) -> bytes:
    """Return the encoding of an entry in a `ListLogEntriesResponse`, computed once per entry."""
    if entry.frame is None:
        entry.frame = _delimited(1, _encode(entry))
    return entry.frame


def encode_page(page: Page) -> bytes:
    """Return a page as a serialised `ListLogEntriesResponse`."""
    return b"".join(map(frame, page.entries)) + _delimited(2, page.next_page_token.encode())


def _parse(operation: str, raw: bytes) -> dict[str, Any]:
    if len(raw) > MAX_REQUEST_BYTES:
        raise ApiError(400, f"Request payload size exceeds the limit: {MAX_REQUEST_BYTES} bytes.")
    try:
        body: dict[str, Any] = json_format.MessageToDict(_MESSAGES[operation].FromString(raw))
        return body
    except Exception as error:  # protobuf raises several types, for example for NaN and for an Any of unknown type
        raise ApiError(400, f"the request cannot be read: {error}") from None


def _encode(entry: Entry) -> bytes:
    """Serialise an entry.

    The common fields are set directly, because `json_format` takes five times as long.
    """
    fields = entry.fields
    message = _LogEntry(log_name=entry.log_name, insert_id=entry.insert_id, severity=entry.severity)
    message.timestamp.seconds, message.timestamp.nanos = divmod(entry.timestamp_ns, _NS)
    received_ns = parse_timestamp(fields["receiveTimestamp"])
    message.receive_timestamp.seconds, message.receive_timestamp.nanos = divmod(received_ns, _NS)
    message.resource.type = fields["resource"]["type"]
    message.resource.labels.update(fields["resource"]["labels"])
    message.labels.update(fields.get("labels", {}))
    if "textPayload" in fields:
        message.text_payload = fields["textPayload"]
    if "jsonPayload" in fields:
        _fill_struct(message.json_payload, fields["jsonPayload"])
    if rest := {name: value for name, value in fields.items() if name not in _PLAIN_FIELDS}:
        json_format.ParseDict(rest, message, ignore_unknown_fields=True)
    return bytes(message.SerializeToString())


def _fill_struct(struct: Any, value: Mapping[str, Any]) -> None:
    struct.SetInParent()
    for key, item in value.items():
        _fill_value(struct.fields[key], item)


def _fill_value(message: Any, value: Any) -> None:
    if isinstance(value, str):
        message.string_value = value
    elif isinstance(value, bool):
        message.bool_value = value
    elif isinstance(value, int | float):
        message.number_value = value
    elif isinstance(value, dict):
        _fill_struct(message.struct_value, value)
    elif isinstance(value, list):
        message.list_value.SetInParent()
        for item in value:
            _fill_value(message.list_value.values.add(), item)
    else:
        message.null_value = 0


def _delimited(field: int, value: bytes) -> bytes:
    """Encode one length-delimited field: tag, length as a varint, value. An empty value is omitted."""
    if not value:
        return b""
    length, head = len(value), bytearray([field << 3 | 2])
    while length > 0x7F:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head) + value
