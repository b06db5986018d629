"""Records of an event file: an event of TensorBoard, with its length and its checksums.

They are encoded here: the code of TensorFlow, and that of tensorboardX, which imports numpy, take a third of a second
to load in the process of a job.

Formats: https://www.tensorflow.org/tutorials/load_data/tfrecord and, of the event in a record,
https://github.com/tensorflow/tensorboard/blob/master/tensorboard/compat/proto/event.proto and `summary.proto`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

__all__ = ["STEPS", "Scalar", "TaggedValue", "event_record", "header_record", "marker_record"]

STEPS: Final = range(-(2**63), 2**63)
"""The steps that an event can have."""

_SECOND_NS = 1_000_000_000
_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
_MOMENT = struct.Struct("<cd")
_VALUE = struct.Struct("<cf")
_MASK = 0xFFFFFFFF
_MASK_DELTA = 0xA282EAD8
_POLYNOMIAL = 0x82F63B78  # CRC-32C (Castagnoli), reversed.

# Keys of protobuf: the number of the field, and its type in the last three bits.
_EVENT_MOMENT, _EVENT_STEP, _EVENT_VERSION, _EVENT_SUMMARY = b"\x09", b"\x10", b"\x1a", b"\x2a"
_SUMMARY_VALUE = b"\x0a"
_VALUE_TAG, _VALUE_NUMBER, _VALUE_METADATA = b"\x0a", b"\x15", b"\x4a"
_METADATA_PLUGIN, _METADATA_DISPLAY_NAME = b"\x0a", b"\x12"
_PLUGIN_NAME = b"\x0a"


class TaggedValue(Protocol):
    """A value of an event, such as a `Scalar`."""

    @property
    def tag(self) -> str:
        """The name of the line."""
        ...

    @property
    def value(self) -> float:
        """A number; one that is too large for single precision becomes infinite."""
        ...

    @property
    def display_name(self) -> str:
        """The name for people; empty for the tag."""
        ...


class Scalar(NamedTuple):
    """One value of a tag: see `TaggedValue`."""

    tag: str
    value: float
    display_name: str = ""


def event_record(scalars: Iterable[TaggedValue], *, step: int, time_ns: int) -> bytes:
    """Return one event with values at one step; empty without values, and for a step beyond 64 bits."""
    summary = b"".join([_field(_SUMMARY_VALUE, _value(scalar)) for scalar in scalars])
    if not summary or step not in STEPS:
        return b""
    return _record(_start(step, time_ns) + _field(_EVENT_SUMMARY, summary))


def header_record(time_ns: int, version: int) -> bytes:
    """Return the first event of a file.

    Args:
        time_ns: Now.
        version: The version of the format. In a file of version 1, a value replaces those of its tag at the same step
            and later ones, if the event before it has a later step; in one of version 2, readers keep all of them.
    """
    return _record(_moment(time_ns) + _field(_EVENT_VERSION, f"brain.Event:{version}".encode()))


def marker_record(step: int, time_ns: int) -> bytes:
    """Return an event without values: in a file of version 1, values at an earlier step then replace others."""
    return _record(_start(step, time_ns))


def _value(scalar: TaggedValue) -> bytes:
    try:
        number = _VALUE.pack(_VALUE_NUMBER, scalar.value)
    except OverflowError:
        number = _VALUE.pack(_VALUE_NUMBER, math.copysign(math.inf, scalar.value))
    return _field(_VALUE_TAG, _encoded(scalar.tag)) + number + _metadata(scalar.display_name)


def _metadata(display_name: str) -> bytes:
    if not display_name:
        return b""  # Readers take a single number for a scalar.
    return _field(_VALUE_METADATA, _SCALARS_PLUGIN + _field(_METADATA_DISPLAY_NAME, _encoded(display_name)))


def _start(step: int, time_ns: int) -> bytes:
    return _moment(time_ns) + _EVENT_STEP + _varint(step & 0xFFFFFFFFFFFFFFFF)


def _moment(time_ns: int) -> bytes:
    return _MOMENT.pack(_EVENT_MOMENT, time_ns / _SECOND_NS)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _field(key: bytes, content: bytes) -> bytes:
    return key + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    if number < 0x80:
        return bytes((number,))
    groups = bytearray()
    while number >= 0x80:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)


_SCALARS_PLUGIN = _field(_METADATA_PLUGIN, _field(_PLUGIN_NAME, b"scalars"))


def _record(event: bytes) -> bytes:
    length = _LENGTH.pack(len(event))
    return length + _masked_checksum(length) + event + _masked_checksum(event)


def _masked_checksum(data: bytes) -> bytes:
    checksum = _MASK
    for byte in data:
        checksum = _TABLE[(checksum ^ byte) & 0xFF] ^ (checksum >> 8)
    checksum ^= _MASK
    return _CHECKSUM.pack(((checksum >> 15 | checksum << 17) + _MASK_DELTA) & _MASK)


def _entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE = [_entry(byte) for byte in range(256)]
