"""What is in a profile: enough to say that it is whole, and whether it shows a device, without XProf.

An xplane file is one XSpace message. Its field 1, repeated, is an XPlane, whose field 2 is its name and whose field 3,
repeated, is a line of events; its field 4, repeated, is the name of the host. Planes of devices are named
`/device:TPU:0`, those of the host `/host:CPU`.
Source of the format: https://github.com/openxla/xla/blob/main/third_party/tsl/tsl/profiler/protobuf/xplane.proto
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Xplane", "problem_of", "read_xplane", "summary_of"]

_PLANE_FIELD, _HOST_FIELD = 1, 4
_NAME_FIELD, _LINE_FIELD = 2, 3  # Of a plane.
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True)
class Xplane:
    """The outside of one host's profile.

    Attributes:
        size_bytes: Of the file.
        planes: The names of the planes that have events.
        is_whole: Whether the file ends where its last message ends.
        host: What the host calls itself; empty if it does not say.
    """

    size_bytes: int
    planes: tuple[str, ...]
    is_whole: bool
    host: str = ""

    @property
    def device_planes(self) -> tuple[str, ...]:
        """The planes of TPUs and GPUs."""
        return tuple(name for name in self.planes if name.startswith("/device:"))


def read_xplane(path: Path) -> Xplane:
    """Looks at a file; takes microseconds, whatever its size, because it steps over all events.

    Raises:
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        if not size:
            return Xplane(0, (), False)
        with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as data:
            return summary_of(data)


def summary_of(data: bytes | mmap.mmap) -> Xplane:
    """As `read_xplane`, of bytes."""
    planes: list[str] = []
    host = ""
    is_whole = True
    try:
        for field, start, end in _fields(data, 0, len(data)):
            if field == _PLANE_FIELD:
                name = _name_if_it_has_lines(data, start, end)
                if name is not None:
                    planes.append(name)
            elif field == _HOST_FIELD:
                host = bytes(data[start:end]).decode(errors="replace")
    except ValueError:
        is_whole = False
    return Xplane(len(data), tuple(planes), is_whole and len(data) > 0, host)


def problem_of(xplane: Xplane, *, has_accelerator: bool) -> str:
    """Says what is wrong with a profile; empty when nothing is.

    Args:
        xplane: The profile.
        has_accelerator: Whether the process has a TPU or a GPU, which then must be in it.
    """
    if not xplane.size_bytes:
        return "its file is empty"
    if not xplane.is_whole:
        return "its file is cut off, or is no profile"
    if not xplane.planes:
        return "it has no events; profile something that takes longer"
    if has_accelerator and not xplane.device_planes:
        return "it shows no device: nothing ran on one meanwhile, or another profiler holds it"
    return ""


def _name_if_it_has_lines(data: bytes | mmap.mmap, start: int, end: int) -> str | None:
    name: str | None = None
    for field, first, last in _fields(data, start, end):
        if field == _NAME_FIELD:
            name = bytes(data[first:last]).decode(errors="replace")
        elif field == _LINE_FIELD and first < last:
            return name or ""  # The name comes first, since writers keep the order of fields.
    return None


def _fields(data: bytes | mmap.mmap, position: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yields number, start and end of each field of a message.

    Raises:
        ValueError: It is no message, or not all of one.
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


def _varint(data: bytes | mmap.mmap, position: int, end: int) -> tuple[int, int]:
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
