"""The outline of a profile: if it is whole, what it shows and when it started, without XProf.

An xplane file is one XSpace message. Its field 1, repeated, is an XPlane: there, field 2 is the name, and field 3,
repeated, is a line of events. Its field 4, repeated, is the name of the host. Planes of devices are named
`/device:TPU:0`, those of the host `/host:CPU`; its start is a statistic of the plane `Task Environment`.
Source of the format: https://github.com/openxla/xla/blob/main/third_party/tsl/tsl/profiler/protobuf/xplane.proto
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

__all__ = ["Bytes", "Xplane", "read_xplane", "summary_of"]

_PLANE_FIELD, _HOST_FIELD = 1, 4
_NAME_FIELD, _LINE_FIELD = 2, 3  # Of a plane.
_STAT_NAMES_FIELD, _STATS_FIELD = 5, 6
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_TASK_ENVIRONMENT: Final = "Task Environment"
_START_TIME: Final = b"profile_start_time"


class Bytes(Protocol):
    """A file's content, read in parts: bytes, a map of a file, or an object that fetches parts of one."""

    def __len__(self) -> int:
        """Return its size in bytes."""
        ...

    def __getitem__(self, position: Any, /) -> Any:
        """Return one byte as a number, or those of a slice."""
        ...


@dataclass(frozen=True)
class Xplane:
    """The outline of one host's profile.

    Attributes:
        size_bytes: The size of the file.
        planes: The names of the planes that have events.
        is_whole: True if the file ends where its last message ends.
        host: The host's name; empty if the profile does not have it.
        start_ns: Its start, in nanoseconds since 1970; 0 if the profile does not have it.
    """

    size_bytes: int
    planes: tuple[str, ...]
    is_whole: bool
    host: str = ""
    start_ns: int = 0

    @property
    def device_planes(self) -> tuple[str, ...]:
        """The planes of TPUs and GPUs."""
        return tuple(name for name in self.planes if name.startswith("/device:"))


def read_xplane(path: Path) -> Xplane:
    """Read the outline of a file, in microseconds whatever its size, because it skips all events.

    Raises:
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        if not size:
            return Xplane(0, (), False)
        with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as data:
            return summary_of(data)


def summary_of(data: Bytes) -> Xplane:
    """Return the same as `read_xplane`, from bytes."""
    planes: list[str] = []
    host, start_ns = "", 0
    is_whole = True
    try:
        for field, start, end in _fields(data, 0, len(data)):
            if field == _PLANE_FIELD:
                name, has_lines = _name_and_has_lines(data, start, end)
                if has_lines:
                    planes.append(name)
                elif name == _TASK_ENVIRONMENT:
                    start_ns = _start_time(data, start, end)
            elif field == _HOST_FIELD:
                host = bytes(data[start:end]).decode(errors="replace")
    except ValueError:
        is_whole = False
    return Xplane(len(data), tuple(planes), is_whole and len(data) > 0, host, start_ns)


def _name_and_has_lines(data: Bytes, start: int, end: int) -> tuple[str, bool]:
    name = ""
    for field, first, last in _fields(data, start, end):
        if field == _NAME_FIELD:
            name = bytes(data[first:last]).decode(errors="replace")
        elif field > _LINE_FIELD:
            break  # Writers keep the order of fields: no line follows.
        elif field == _LINE_FIELD and first < last:
            return name, True
    return name, False


def _start_time(data: Bytes, start: int, end: int) -> int:
    """Return the start from the plane of the environment: a statistic is stored by the id of its name."""
    ids: set[int] = set()
    values: dict[int, int] = {}
    for field, first, last in _fields(data, start, end):
        if field == _STAT_NAMES_FIELD and bytes(data[first:last]).endswith(_START_TIME):
            ids.add(_numbers(data, first, last).get(1, 0))
        elif field == _STATS_FIELD:
            numbers = _numbers(data, first, last)
            values[numbers.get(1, 0)] = numbers.get(3, numbers.get(4, 0))
    return next((values[number] for number in ids if number in values), 0)


def _numbers(data: Bytes, start: int, end: int) -> dict[int, int]:
    """Return the fields of a message that are varints."""
    found = {}
    for field, first, last in _fields(data, start, end):
        value, after = _varint(data, first, last) if last - first <= 10 else (0, -1)
        if after == last:
            found[field] = value
    return found


def _fields(data: Bytes, position: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, start and end of each field of a message.

    Raises:
        ValueError: It is not a message, or a truncated one.
    """
    while position < end:
        tag, position = _varint(data, position, end)
        number, kind = tag >> 3, tag & 7
        start = position
        if kind == _LENGTH:
            length, start = _varint(data, position, end)
            position = start + length
        elif kind == _VARINT:
            _, position = _varint(data, position, end)
        elif kind in (_FIXED64, _FIXED32):
            position += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if position > end or not number:
            raise ValueError("a field ends behind its message")
        yield number, start, position


def _varint(data: Bytes, position: int, end: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= end:
            break
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("a number that does not end")
