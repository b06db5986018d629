"""A small profile in the format of a job's profiler: an XSpace with the activity of one host.

Source of the format: https://github.com/openxla/xla/blob/main/third_party/tsl/tsl/profiler/protobuf/xplane.proto
"""

from collections.abc import Iterator, Sequence
from typing import Final

_STEP_MS: Final = 10
_EVENT_ID: Final = 1
_START_ID, _STOP_ID = 1, 2


def xspace(host_name: str, start_ns: int, duration_ms: int) -> bytes:
    """Return a serialised XSpace: a thread with a step every 10 ms, and the start and end of the profile.

    Args:
        host_name: The host.
        start_ns: The start of the profile, in nanoseconds since the epoch.
        duration_ms: Its duration.
    """
    return message((1, _host(start_ns, duration_ms)), (1, _task_environment(start_ns, duration_ms)), (4, host_name))


def message(*fields: tuple[int, int | str | bytes]) -> bytes:
    """Return a serialised protocol buffer of these fields; numbers are non-negative varints."""
    parts = bytearray()
    for number, value in fields:
        if isinstance(value, int):
            parts += _varint(number << 3) + _varint(value)
        else:
            encoded = value.encode() if isinstance(value, str) else value
            parts += _varint(number << 3 | 2) + _varint(len(encoded)) + encoded
    return bytes(parts)


def fields_of(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a serialised protocol buffer that has only varint and length-delimited fields.

    Raises:
        ValueError: The data is not such a protocol buffer.
    """
    position = 0
    while position < len(data):
        key, position = _read_varint(data, position)
        value, position = _read_varint(data, position)
        if key & 7 == 0:
            yield key >> 3, value
        elif key & 7 == 2 and position + value <= len(data):
            yield key >> 3, data[position : position + value]
            position += value
        else:
            raise ValueError(f"expected a varint or a length-delimited field, got key {key} before byte {position}")


def _host(start_ns: int, duration_ms: int) -> bytes:
    steps = range(max(1, duration_ms // _STEP_MS))
    events = [(4, message((1, _EVENT_ID), (2, step * _STEP_MS * 10**9), (3, (_STEP_MS - 1) * 10**9))) for step in steps]
    line = message((1, 1), (2, "python"), (3, start_ns), *events)
    return message((1, 1), (2, "/host:CPU"), (3, line), (4, _named(_EVENT_ID, "step")))


def _task_environment(start_ns: int, duration_ms: int) -> bytes:
    stop_ns = start_ns + duration_ms * 10**6
    return message(
        (1, 2),
        (2, "Task Environment"),
        (5, _named(_START_ID, "profile_start_time")),
        (5, _named(_STOP_ID, "profile_stop_time")),
        (6, message((1, _START_ID), (3, start_ns))),
        (6, message((1, _STOP_ID), (3, stop_ns))),
    )


def _named(number: int, name: str) -> bytes:
    """Return an entry of a map from numbers to metadata."""
    return message((1, number), (2, message((1, number), (2, name))))


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _read_varint(data: Sequence[int], position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(data):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, position
    raise ValueError("the protocol buffer ends in mid-number")
