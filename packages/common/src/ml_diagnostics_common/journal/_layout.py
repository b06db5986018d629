"""The paths of a journal on disk, and its format.

    $ML_DIAGNOSTICS_DIR/journal/<log>/<writer>.<n>.jsonl        public, versioned by SCHEMA
    $ML_DIAGNOSTICS_DIR/state/readers/<log>/<name>.json         private: what a reader has read and saved
    $ML_DIAGNOSTICS_DIR/state/shipper/<log>/<writer>.json       private: {"segment": n, "offset": bytes} shipped
    $ML_DIAGNOSTICS_DIR/state/mirror/<log>/<writer>.json        private: the same, and more, of the mirror

The first line of a segment is its header, with all that its entries share:

    {"schema":1,"log":"goodput_run7","writer":"host-812-1763710310123456789","labels":{"job":"run7",...},
     "resource":{},"severity":"INFO","ship":true}

Each further line is an entry: ns since 1970, sequence number, payload, and where it differs from the header its
severity and labels of its resource:

    {"t":1763710310123456789,"s":100000000000,"p":{"job_name":"run7","step_count":0,...}}
    {"t":1763710310223456789,"s":100000000001,"p":{"values":[0.1]},"severity":"ERROR","r":{"namespace":"loss"}}

A line starts with its newline (the header, first in its file, has none): if a writer is killed, the rest of its last
line ends where the next line starts, and damages no other. So the last line has no newline after it; it is whole
exactly if it parses, since no first part of a JSON object is JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from ml_diagnostics_common.files import open_regular, read_at, read_state
from ml_diagnostics_common.payload import encode_payload, encode_text, printable

__all__ = [
    "FIRST_SEQUENCE",
    "SCHEMA",
    "SEGMENT_SUFFIX",
    "Header",
    "JournalPosition",
    "Segment",
    "decode_header",
    "encode_header",
    "encode_own_fields",
    "first_bytes",
    "first_line",
    "is_damaged_header",
    "list_segments",
    "log_directory",
    "opened_segment",
    "read_header",
    "read_reader_positions",
    "reader_position_path",
    "segment_name",
    "shipped_offset_path",
    "shipped_position",
    "sibling_header",
    "split_first_line",
]

SCHEMA = 1
FIRST_SEQUENCE = 10**11  # All sequence numbers have twelve digits, so that insertIds sort as they do.
_LONGEST_HEADER_BYTES = 2**20  # No more is read in search of a header: the file may be another program's.
SEGMENT_SUFFIX = ".jsonl"
_LONGEST_FOLDER_NAME = 100
_COMPANION_LOG_ID = "tpu.googleapis.com/runtime_monitor"  # As in `entry`, which loads msgspec.


class Header(NamedTuple):
    """The first line of a segment: what its entries share."""

    log_id: str
    writer: str
    labels: Mapping[str, str] = {}
    resource: Mapping[str, Any] = {}
    severity: str = "INFO"
    ship: bool = True
    """False: a shipper never sends these entries."""
    project: str = ""
    """The one project that these entries may be sent to; empty is whichever is found."""
    mirror: bool = True
    """False: these entries stay on this machine, and are not written to a mirror either."""


class JournalPosition(NamedTuple):
    """A byte in a writer's journal; everything before it was shipped or skipped."""

    segment: int
    offset: int


class Segment(NamedTuple):
    """One file of a journal."""

    writer: str
    number: int
    path: str
    size: int
    """The size in bytes when it was listed."""


def log_folder_name(log_id: str) -> str:
    """Return the name of a log's folder, in `journal` and in `state`: percent-encoded, and hashed if it is too long."""
    encoded = quote(printable(log_id), safe="")
    if encoded.startswith("."):
        encoded = "%2E" + encoded[1:]
    if len(encoded) <= _LONGEST_FOLDER_NAME:
        return encoded
    import hashlib  # Only here: it loads OpenSSL.

    # "%-" occurs in no percent-encoded name, so a hashed name is never another log's plain one.
    return f"{encoded[:60]}%-{hashlib.sha256(encoded.encode()).hexdigest()[:32]}"


def log_directory(root: Path, log_id: str) -> Path:
    """Return the folder of the log's segments; it may not exist yet."""
    return root / "journal" / log_folder_name(log_id)


def segment_name(writer: str, number: int) -> str:
    """Return the file name of a writer's segment."""
    return f"{writer}.{number}{SEGMENT_SUFFIX}"


def list_segments(folder: Path, writers: Set[str] | None = None) -> list[Segment]:
    """Return the segments in a log's folder by writer and number, without other files; a missing folder is empty.

    Args:
        folder: The folder.
        writers: Returns only the segments of these; None for all.
    """
    segments = []
    try:
        with os.scandir(folder) as files:
            for file in files:
                writer, _, digits = file.name.removesuffix(SEGMENT_SUFFIX).rpartition(".")
                if not file.name.endswith(SEGMENT_SUFFIX) or not writer or not digits.isdecimal():
                    continue
                if writers is not None and writer not in writers:
                    continue
                with contextlib.suppress(FileNotFoundError):  # Dropped by the cap since it was listed.
                    size = file.stat(follow_symlinks=False).st_size
                    segments.append(Segment(writer, int(digits), file.path, size))
    except (FileNotFoundError, NotADirectoryError):
        return []
    segments.sort()
    return segments


@contextlib.contextmanager
def opened_segment(path: str) -> Iterator[int]:
    """Yield a descriptor to read a segment from; raises OSError for anything but a regular file, links too."""
    descriptor = open_regular(path, follow_links=False)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def first_line(descriptor: int) -> tuple[bytes, bool]:
    """Return a segment's first line, up to the limit of a header, and True if the file ends with it: it may grow."""
    return split_first_line(*first_bytes(descriptor))


def first_bytes(descriptor: int) -> tuple[bytes, bool]:
    """Return a segment's first bytes, with its first line if that is not too long, and True if they are all."""
    size = 4096
    while True:
        data = read_at(descriptor, size, 0)
        if len(data) < size:
            return data, True
        if b"\n" in data or size >= _LONGEST_HEADER_BYTES:
            return data, False
        size *= 4


def split_first_line(data: bytes, is_whole: bool) -> tuple[bytes, bool]:
    """Return the same as `first_line`, from the result of `first_bytes`."""
    end = data.find(b"\n")
    return (data[:end], False) if end >= 0 else (data, is_whole)


def read_header(segment: Segment) -> Header | None:
    """Return the header of a segment; None if it has none of ours. Raises OSError."""
    with opened_segment(segment.path) as descriptor:
        return decode_header(first_line(descriptor)[0])


def is_damaged_header(line: bytes) -> bool:
    """Return True for the first line of a segment that had a header: not for one of another schema."""
    if len(line) >= _LONGEST_HEADER_BYTES:
        return False
    try:
        decoded = json.loads(line)
    except (ValueError, RecursionError):
        return True
    return not isinstance(decoded, dict) or decoded.get("schema", SCHEMA) == SCHEMA


def sibling_header(segment: Segment) -> Header | None:
    """Return the header of another segment of the same writer, which is the same; None if there is none."""
    for sibling in list_segments(Path(segment.path).parent):
        if sibling.writer == segment.writer and sibling.number != segment.number:
            with contextlib.suppress(OSError):
                header = read_header(sibling)
                if header is not None and header.writer == segment.writer:
                    return header
    return None


def encode_header(header: Header) -> bytes:
    """Return a segment's first line, without a newline."""
    fields: dict[str, Any] = {
        "schema": SCHEMA,
        "log": printable(header.log_id),
        "writer": header.writer,
        "labels": {key: printable(value) for key, value in header.labels.items()},
        "resource": dict(header.resource),
        "severity": header.severity,
        "ship": header.ship,
    }
    if header.project:
        fields["project"] = printable(header.project)
    if not header.mirror:
        fields["mirror"] = False
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_header(line: bytes) -> Header | None:
    """Return the header in a segment's first line; None if it is not ours, or of a later schema."""
    try:
        decoded = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(decoded, dict) or decoded.get("schema") != SCHEMA:
        return None
    log_id, writer = decoded.get("log"), decoded.get("writer")
    labels, resource = decoded.get("labels", {}), decoded.get("resource", {})
    if not (isinstance(log_id, str) and isinstance(writer, str)):
        return None
    if not (isinstance(labels, dict) and isinstance(resource, dict)):
        return None
    ship = decoded.get("ship") is not False
    return Header(
        log_id=log_id,
        writer=writer,
        labels={key: str(value) for key, value in labels.items()},
        resource=resource,
        severity=str(decoded.get("severity", "INFO")),
        ship=ship,
        project=str(decoded.get("project") or ""),
        # Before there were mirrors, companions marked what a job prints only as not to be shipped.
        mirror=decoded.get("mirror", ship or log_id != _COMPANION_LOG_ID) is not False,
    )


def encode_own_fields(severity: str | None = None, resource_labels: Mapping[str, str] | None = None) -> str:
    """Return the text after the payload, in the line of an entry that differs from its header; else an empty text.

    Args:
        severity: The entry's own.
        resource_labels: The entry's own, of the monitored resource.
    """
    fields = f',"severity":{encode_text(severity)}' if severity is not None else ""
    if resource_labels:
        labels = {str(name): str(value) for name, value in resource_labels.items()}
        fields += f',"r":{encode_payload(labels)}'
    return fields


def reader_position_path(root: Path, log_id: str, name: str) -> Path:
    """Return the path where a reader of that name saves its `EntryReader.position()`."""
    return root / "state" / "readers" / log_folder_name(log_id) / f"{log_folder_name(name)}.json"


def shipped_offset_path(root: Path, log_id: str, writer: str) -> Path:
    """Return the path where a shipper saves how much of a writer's entries it has shipped."""
    return root / "state" / "shipper" / log_folder_name(log_id) / f"{writer}.json"


def shipped_position(root: Path, log_id: str, writer: str) -> JournalPosition:
    """Return the position up to which a writer's entries are shipped, by any process."""
    state = read_state(shipped_offset_path(root, log_id, writer)) or {}
    return JournalPosition(_natural(state.get("segment")), _natural(state.get("offset")))


def _natural(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def read_reader_positions(folder: Path) -> list[dict[str, Any]]:
    """Return all saved positions in a log's folder of `state/readers`; a damaged one counts as nothing read."""
    try:
        files = sorted(folder.glob("*.json"))
    except OSError:
        return []
    return [read_state(file) or {} for file in files]
