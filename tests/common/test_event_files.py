"""TensorBoard reads every event that is written, and one process at a time writes a folder, each point once."""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_diagnostics_common.event_files import EventFile, EventLog, Scalar, event_record, marker_record, points_folder
from ml_diagnostics_common.exceptions import ConfigurationError, StorageError
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

NOW_NS = 1_780_000_000_123_456_789


def events(path: Path) -> list[Any]:
    """Return the events of a file, of which TensorBoard checks the checksums."""
    return list(LegacyEventFileLoader(str(path)).Load())


def written(folder: Path, *records: bytes) -> list[Any]:
    file = EventFile(folder, time_ns=NOW_NS)
    file.append(b"".join(records))
    file.close()
    return events(file.path)


singles = st.floats(width=32, allow_nan=False)
scalars = st.builds(Scalar, st.text(max_size=300), singles, st.text(max_size=300))


@given(st.lists(scalars, min_size=1, max_size=5), st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**62))
def test_tensorboard_reads_what_is_written(
    tmp_path_factory: pytest.TempPathFactory, values: list[Scalar], step: int, time_ns: int
) -> None:
    record = event_record(values, step=step, time_ns=time_ns)
    first, event = written(tmp_path_factory.mktemp("events"), record)
    assert first.file_version == "brain.Event:2"
    assert first.wall_time == NOW_NS / 1e9
    assert (event.step, event.wall_time) == (step, time_ns / 10**9)  # Rounded once, unlike by 1e9.
    assert [(value.tag, value.simple_value) for value in event.summary.value] == [
        (each.tag, each.value) for each in values
    ]
    assert [value.metadata.display_name for value in event.summary.value] == [each.display_name for each in values]


def test_a_value_that_single_precision_lacks_is_infinite_and_a_text_that_utf8_lacks_is_replaced(tmp_path: Path) -> None:
    values = [Scalar("a", 1e300), Scalar("b", -1e300), Scalar("c", math.nan), Scalar("\ud800", 1.0)]
    _, event = written(tmp_path, event_record(values, step=1, time_ns=0))
    numbers = [value.simple_value for value in event.summary.value]
    assert numbers[:2] == [math.inf, -math.inf]
    assert math.isnan(numbers[2])
    assert event.summary.value[3].tag == "?"


def test_an_event_without_values_and_a_step_beyond_64_bits_are_nothing() -> None:
    assert event_record([], step=1, time_ns=0) == b""
    assert event_record([Scalar("a", 1.0)], step=2**63, time_ns=0) == b""


def test_a_marker_is_an_event_without_values(tmp_path: Path) -> None:
    _, event = written(tmp_path, marker_record(7, NOW_NS))
    assert event.step == 7
    assert event.WhichOneof("what") is None


def test_checksums_are_those_of_rfc_3720() -> None:
    """32 bytes of zeros have the CRC-32C 0x8A9136AA; a record masks it."""
    from ml_diagnostics_common.event_files._records import _masked_checksum

    crc = 0x8A9136AA
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    assert _masked_checksum(bytes(32)) == struct.pack("<I", masked)


# --- A log ----------------------------------------------------------------------------------------------


def log_of(tmp_path: Path) -> EventLog[dict[str, int]]:
    return EventLog(
        str(tmp_path / "points"), tmp_path / "state" / "log.json", encode=dict, decode=_decoded, empty={"until": 0}
    )


def _decoded(saved: Any) -> dict[str, int]:
    return {"until": int(saved["until"])}


def record(step: int) -> bytes:
    return event_record([Scalar("a", float(step))], step=step, time_ns=NOW_NS)


def steps(tmp_path: Path) -> list[int]:
    found = [event for path in sorted((tmp_path / "points").iterdir()) for event in events(path)]
    return [event.step for event in found if event.HasField("summary")]


def test_the_next_log_continues_with_the_progress_of_the_last(tmp_path: Path) -> None:
    for number in range(1, 4):
        log = log_of(tmp_path)
        assert log.take()
        assert log.progress == {"until": number - 1}
        log.append(record(number), {"until": number}, NOW_NS)
        log.close()
    assert steps(tmp_path) == [1, 2, 3]
    assert log_of(tmp_path).saved_progress() == {"until": 2}  # With what follows, if the file has its length.


def test_one_log_at_a_time_has_the_folder(tmp_path: Path) -> None:
    first, second = log_of(tmp_path), log_of(tmp_path)
    assert first.take()
    assert not second.take()
    first.close()
    assert second.take()
    second.close()


def test_a_forked_child_does_not_keep_the_folder(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    assert log.take()
    go, wait = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(wait)
        os.read(go, 1)  # Until the parent has closed its end.
        os._exit(0)
    log.close()
    other = log_of(tmp_path)
    try:
        assert other.take()
    finally:
        os.close(wait)
        os.waitpid(child, 0)
        os.close(go)
        other.close()


def test_a_removed_folder_is_noticed_once(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    log.take()
    log.append(record(1), {"until": 1}, NOW_NS)
    assert not log.restart_if_removed()
    next((tmp_path / "points").iterdir()).unlink()
    with pytest.raises(StorageError, match="was removed"):
        log._file.append(record(2))
    assert log.restart_if_removed()
    assert log.progress == {"until": 0}
    log.append(record(1), {"until": 1}, NOW_NS)
    assert steps(tmp_path) == [1]
    log.close()


def test_a_file_whose_descriptor_the_program_has_closed_is_not_written_to(tmp_path: Path) -> None:
    file = EventFile(tmp_path, time_ns=NOW_NS)
    number = file._descriptor._number
    os.close(number)
    own = os.open(tmp_path / "own", os.O_RDWR | os.O_CREAT)
    try:
        assert own == number
        with pytest.raises(StorageError, match="was closed by the program"):
            file.append(record(1))
        assert not file.is_usable()
        file.close()
        assert os.fstat(own).st_size == 0
    finally:
        os.close(own)


@pytest.mark.parametrize("directory", ["s3://bucket/x", "gs:/bucket/x", "gs://", "a\0b"])
def test_a_directory_that_cannot_be_one_is_refused(directory: str) -> None:
    with pytest.raises(ConfigurationError):
        points_folder(directory, "metrics")
