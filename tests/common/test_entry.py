from __future__ import annotations

import datetime
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_diagnostics_common.entry import (
    EntryContext,
    LogEntry,
    SeenSequences,
    decode_cloud,
    encode_cloud,
    format_timestamp,
    make_insert_id,
    parse_timestamp,
    split_insert_id,
)

CONTEXT = EntryContext(
    log_id="goodput/run 7",
    log_name="projects/p/logs/goodput%2Frun%207",
    resource={"type": "global", "labels": {"project_id": "p"}},
    labels={"job": "run 7", "host": "h"},
    writer="h-1-2",
)


def test_a_line_of_the_journal_is_an_entry() -> None:
    [entry] = msgspec.json.Decoder(LogEntry).decode_lines(b'\n{"t":5,"s":100000000007,"p":{"a":1},"severity":"ERROR"}')
    entry.context = CONTEXT
    assert (entry.timestamp_ns, entry.insert_id, entry.payload) == (5, "h-1-2.100000000007", {"a": 1})
    assert entry.severity == "ERROR"
    assert LogEntry(5, 1, {}, CONTEXT).severity == "INFO"


def test_an_entry_is_unchanged_by_the_cloud() -> None:
    entry = LogEntry(1763710310123456789, 100000000007, {"step_count": 3}, CONTEXT)
    sent = encode_cloud(entry)
    assert sent["labels"] == {"job": "run 7", "host": "h", "writer": "h-1-2", "seq": "100000000007"}
    assert sent["timestamp"] == "2025-11-21T07:31:50.123456789Z"
    assert decode_cloud(sent) == entry
    assert decode_cloud({**sent, "logName": ""}, "goodput/run 7").context.log_id == "goodput/run 7"


def test_an_entry_of_the_public_library_keeps_the_id_that_the_server_gave_it() -> None:
    entry = decode_cloud(
        {
            "timestamp": "2025-11-21T07:31:50Z",
            "insertId": "1x2y3z",
            "jsonPayload": {"job_name": "j"},
            "labels": {"a": "b"},
        }
    )
    assert entry.insert_id == "1x2y3z"
    assert entry.context.writer is None
    assert entry.context.labels == {"a": "b"}


def test_an_id_that_is_not_of_its_writer_is_kept_as_it_is() -> None:
    assert LogEntry.make(1, "other.100000000001", {}, CONTEXT).insert_id == "other.100000000001"


def test_insert_ids_sort_as_their_sequence_numbers_do() -> None:
    ids = [make_insert_id("h-1-2", 10**11 + n) for n in (0, 1, 9, 10, 99_999, 10**9)]
    assert ids == sorted(ids)
    assert split_insert_id(ids[3]) == ("h-1-2", 10**11 + 10)


@pytest.mark.parametrize("other", ["", "abc", "1.2", ".100000000001", "w.10000000000x", "w.\u0661" + "\u0660" * 11])
def test_other_ids_are_not_split(other: str) -> None:
    assert split_insert_id(other) is None


@given(st.integers(0, 4_000_000_000 * 10**9))
def test_a_timestamp_survives_being_text_to_the_nanosecond(timestamp_ns: int) -> None:
    text = format_timestamp(timestamp_ns)
    assert parse_timestamp(text) == timestamp_ns
    assert int(datetime.datetime.fromisoformat(text[:19] + "+00:00").timestamp()) == timestamp_ns // 10**9


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("1970-01-01T00:00:01Z", 1_000_000_000),
        ("1970-01-01T00:00:01.5Z", 1_500_000_000),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1969-12-31T23:00:00.000000001-01:00", 1),
        ("1970-01-01 00:00:00+0000", 0),
    ],
)
def test_every_form_of_rfc_3339_is_read(text: str, nanoseconds: int) -> None:
    assert parse_timestamp(text) == nanoseconds


@given(st.text(max_size=40) | st.from_regex(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9:.]{0,12}(Z|[+-][0-9]{2}:?[0-9]{2})?"))
def test_an_invalid_timestamp_is_refused_cleanly(text: str) -> None:
    try:
        nanoseconds = parse_timestamp(text)
    except ValueError:
        return
    assert parse_timestamp(format_timestamp(nanoseconds)) == nanoseconds


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 30))))
def test_an_entry_is_new_once_in_any_order_of_arrival(entries: list[tuple[str, int]]) -> None:
    seen, expected = SeenSequences(), set()
    for writer, sequence in entries:
        assert ((writer, sequence) in seen) == ((writer, sequence) in expected)
        assert seen.add(writer, sequence) == ((writer, sequence) not in expected)
        expected.add((writer, sequence))
    restored = SeenSequences.from_json(json.loads(json.dumps(seen.to_json())))
    for each in (seen, restored):
        missing = {
            (writer, number)
            for writer, gaps in each.gaps().items()
            for first, last in gaps
            for number in range(first, last + 1)
        }
        for writer in "ab":
            numbers = [number for name, number in expected if name == writer]
            if numbers:
                between = {(writer, number) for number in range(min(numbers), max(numbers))}
                assert {entry for entry in missing if entry[0] == writer} == between - expected
    assert restored.to_json() == seen.to_json()


def test_memory_does_not_grow_with_the_number_of_entries() -> None:
    seen = SeenSequences()
    for number in range(10_000):
        seen.add("w", number ^ 1)  # Neighbours swapped, as threads do.
    assert seen.to_json() == {"w": [[0, 9_999]]}
    assert seen.gaps() == {}
