"""Log entries: validation, defaults and serialisation.

Names and rules: https://cloud.google.com/logging/docs/reference/v2/rest/v2/LogEntry
"""

import functools
import json
import math
import re
from calendar import timegm
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ml_diagnostics_testing.http_server import ApiError

MAX_ENTRY_BYTES = 256 * 1024
_MAX_DEPTH = 100  # the limit of protobuf

SEVERITIES: Mapping[str, int] = {
    "DEFAULT": 0,
    "DEBUG": 100,
    "INFO": 200,
    "NOTICE": 300,
    "WARNING": 400,
    "ERROR": 500,
    "CRITICAL": 600,
    "ALERT": 700,
    "EMERGENCY": 800,
}
_SEVERITY_NAMES = {number: name for name, number in SEVERITIES.items()}

PAYLOADS = ("jsonPayload", "textPayload", "protoPayload")
_OTHER_FIELDS = """
    logName resource timestamp receiveTimestamp severity insertId httpRequest labels metadata operation trace spanId
    traceSampled sourceLocation split errorGroups apphub
"""
FIELDS = frozenset([*PAYLOADS, *_OTHER_FIELDS.split()])

_LOG_NAME = re.compile(r"(projects|organizations|billingAccounts|folders)/[^/]+/logs/[A-Za-z0-9_.%-]{1,511}")
_TIMESTAMP = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:[Tt ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9})\d*)?)?)?([Zz]|[+-]\d\d:?\d\d)?"
)
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


class Entry:
    """A stored entry.

    Attributes:
        fields: The entry in the form of REST's JSON, including the fields added by the server.
        key: Its sort key in a listing: (timestamp in ns since the epoch, insertId, logName).
        severity: The severity's number.
        json: `fields`, serialised.
        frame: The protobuf encoding of the entry in a `ListLogEntriesResponse`; computed when first needed.
    """

    __slots__ = ("fields", "frame", "insert_id", "json", "key", "log_name", "severity", "timestamp_ns")

    def __init__(self, fields: dict[str, Any], timestamp_ns: int, serialised: bytes) -> None:
        self.fields = fields
        self.timestamp_ns = timestamp_ns
        self.insert_id: str = fields["insertId"]
        self.log_name: str = fields["logName"]
        self.severity = SEVERITIES[fields.get("severity", "DEFAULT")]
        self.key = (timestamp_ns, self.insert_id, self.log_name)
        self.json = serialised
        self.frame: bytes | None = None


def make_entry(
    fields: Any, defaults: Mapping[str, Any], now_ns: int, new_insert_id: str, *, offset_ns: int = 0
) -> Entry:
    """Validate one entry of a write request and add the missing fields.

    Args:
        fields: The entry in the form of REST's JSON.
        defaults: The request. Its logName, resource and labels are the defaults of the entry's.
        now_ns: The server's time: the receiveTimestamp, and the default timestamp.
        new_insert_id: The default insertId.
        offset_ns: Added to the default timestamp, so that a request's entries keep their order.

    Raises:
        ApiError: INVALID_ARGUMENT, with the reason.
    """
    if not isinstance(fields, dict):
        raise ApiError(400, f"expected a log entry as a JSON object, got {type(fields).__name__}")
    fields = camel_case(fields)
    refuse_unknown(fields, FIELDS, "a log entry")
    fields["logName"] = _check_log_name(fields.get("logName") or defaults.get("logName"))
    fields["resource"] = _check_resource(fields.get("resource") or defaults.get("resource"))
    if labels := {**(defaults.get("labels") or {}), **(fields.get("labels") or {})}:
        fields["labels"] = _check_labels(labels)
    if (severity := fields.get("severity")) is not None:
        fields["severity"] = _SEVERITY_NAMES[parse_severity(severity)]
    if (payload := fields.get("jsonPayload")) is not None:
        if not isinstance(payload, dict):
            raise ApiError(400, "jsonPayload must be a JSON object")
        fields["jsonPayload"] = _as_struct(payload)
    if sum(name in fields for name in PAYLOADS) > 1:
        raise ApiError(400, f"expected at most one payload of {', '.join(PAYLOADS)}")
    timestamp_ns = parse_timestamp(fields["timestamp"]) if fields.get("timestamp") else now_ns + offset_ns
    fields["timestamp"] = format_timestamp(timestamp_ns)
    fields["receiveTimestamp"] = format_timestamp(now_ns)
    fields["insertId"] = _check_text("insertId", fields.get("insertId") or new_insert_id)
    return Entry(fields, timestamp_ns, _serialise(fields))


def parse_severity(value: Any) -> int:
    """Parse a severity: a name in any case, or a number."""
    text = str(value).upper()
    if text in SEVERITIES:
        return SEVERITIES[text]
    if text.isdecimal() and int(text) in _SEVERITY_NAMES:
        return int(text)
    raise ApiError(400, f"{value!r} is not a severity; expected one of {', '.join(SEVERITIES)}")


def parse_timestamp(text: Any) -> int:
    """Parse an RFC 3339 timestamp or a date, and return nanoseconds since the epoch.

    An offset without a colon is accepted, too: the Google client writes `+0000`.
    """
    match = _TIMESTAMP.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ApiError(400, f"{text!r} is not a timestamp in RFC 3339 format")
    *moment, fraction, zone = match.groups("0")
    try:
        seconds = _to_seconds(*moment)
    except ValueError as error:
        raise ApiError(400, f"{text!r} is not a timestamp: {error}") from None
    if zone not in "0Zz":
        offset = int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
        seconds -= offset if zone[0] == "+" else -offset
    return seconds * 1_000_000_000 + int(fraction.ljust(9, "0"))


def format_timestamp(timestamp_ns: int) -> str:
    """Format nanoseconds since the epoch like Google's JSON: UTC, with 0, 3, 6 or 9 digits."""
    seconds, fraction = divmod(timestamp_ns, 1_000_000_000)
    try:
        text = _from_seconds(seconds)
    except (ValueError, OverflowError):
        raise ApiError(400, f"{timestamp_ns} ns is not in the years 1 to 9999") from None
    digits = f"{fraction:09}"
    while digits.endswith("000"):
        digits = digits[:-3]
    return f"{text}.{digits}Z" if digits else f"{text}Z"


@functools.lru_cache(maxsize=4096)  # consecutive entries are often in the same second
def _to_seconds(*moment: str) -> int:
    return timegm(datetime(*map(int, moment)).timetuple())  # type: ignore[arg-type]


@functools.lru_cache(maxsize=4096)
def _from_seconds(seconds: int) -> str:
    days, rest = divmod(seconds, 86_400)
    date = datetime.fromordinal(datetime(1970, 1, 1).toordinal() + days)
    return f"{date.year:04}-{date:%m-%d}T{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"


def camel_case(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Convert field names to camelCase; protobuf's JSON accepts snake_case, too."""
    return {_camel(name) if "_" in name else name: value for name, value in fields.items()}


def _camel(name: str) -> str:
    return re.sub("_(.)", lambda match: match[1].upper(), name)


def refuse_unknown(fields: Mapping[str, Any], known: frozenset[str], what: str) -> None:
    """Raise `ApiError` if an object has a field that the API does not define."""
    if unknown := fields.keys() - known:
        raise ApiError(400, f'Invalid JSON payload received. Unknown name "{min(unknown)}" at {what}')


def _check_log_name(name: Any) -> str:
    if not name:
        raise ApiError(400, "Log entry has no log name, and the request has none to fill in")
    if not isinstance(name, str) or not _LOG_NAME.fullmatch(name):
        raise ApiError(
            400,
            f"log_name {name!r} is not [projects|organizations|billingAccounts|folders]/ID/logs/LOG_ID with a "
            "LOG_ID that is URL-encoded and has fewer than 512 letters, digits and /_-.",
        )
    return name


def _check_resource(resource: Any) -> dict[str, Any]:
    if not resource:
        raise ApiError(400, "A monitored resource must be specified for each log entry.")
    if not isinstance(resource, dict) or not isinstance(resource.get("type"), str):
        raise ApiError(400, "expected a monitored resource as an object with a type and labels")
    return {**resource, "labels": _check_labels(resource.get("labels") or {})}


def _check_labels(labels: Any) -> dict[str, str]:
    if not isinstance(labels, dict):
        raise ApiError(400, f"expected labels as a JSON object of strings, got {type(labels).__name__}")
    for key, value in labels.items():
        _check_text(f"labels.{key}", value)
    return labels


def _check_text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ApiError(400, f"{name} must be a string, not {type(value).__name__}")
    return value


def _as_struct(value: Any, depth: int = 0) -> Any:
    """Convert a payload's value as `google.protobuf.Struct` does: every number becomes a double."""
    if value is None or isinstance(value, str | bool):
        return value
    if depth == _MAX_DEPTH:
        raise ApiError(400, f"the payload is nested more than {_MAX_DEPTH} levels deep")
    if isinstance(value, dict):
        return {key: _as_struct(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_as_struct(item, depth + 1) for item in value]
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ApiError(400, "a payload cannot hold NaN, infinity or numbers beyond the range of a double")
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def _serialise(fields: dict[str, Any]) -> bytes:
    try:
        serialised = _ENCODER.encode(fields).encode()
    except UnicodeEncodeError as error:
        raise ApiError(400, f"a string of the entry is not valid UTF-8: {error.reason}") from None
    if len(serialised) > MAX_ENTRY_BYTES:
        size = f"{len(serialised) / 1024:.1f}K"
        raise ApiError(400, f"Log entry with size {size} exceeds maximum size of 256.0K")
    return serialised
