"""Entries of one writer may differ in labels of their monitored resource, and have a time of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_diagnostics_common.cloud_logging import CloudLoggingReader, LoggingTransport, PageReader, connect
from ml_diagnostics_common.entry import LogEntry
from ml_diagnostics_common.guard import Counters
from ml_diagnostics_common.journal import Journal, encode_own_fields
from ml_diagnostics_common.reader import EntryReader, JournalReader, UnionReader
from ml_diagnostics_common.shipper._delivery import Delivery
from ml_diagnostics_testing.cloud_logging import CloudLoggingServer

LOG = "metrics"
WRITTEN = [
    ({"values": [0.5]}, {"namespace": "loss"}),
    ({"values": [7]}, {"namespace": "step_time", "zone": "a"}),
    ({"values": [0.25]}, {"namespace": "loss"}),
    ({"values": [1]}, None),
]


def new_journal(root: Path, run: str = "run-7", **options: Any) -> Journal:
    resource = {"type": "generic_node", "labels": {"location": "here", "namespace": "others", "node_id": run}}
    return Journal(LOG, root=root, labels={"job": run}, resource=resource, **options)


def write(journal: Journal) -> None:
    for payload, labels in WRITTEN:
        journal.append(payload, resource_labels=labels)  # type: ignore[arg-type]


@pytest.fixture(params=["rest", "grpc"])
def transport(request: pytest.FixtureRequest, cloud_logging_server: CloudLoggingServer) -> Iterator[LoggingTransport]:
    environ = {**cloud_logging_server.environment(), "ML_DIAGNOSTICS_LOGGING_TRANSPORT": request.param}
    transport = connect(environ=environ)
    yield transport
    transport.close()


def ship(root: Path, transport: LoggingTransport) -> dict[str, int]:
    counters = Counters()
    delivery = Delivery(root, LOG, transport, counters)
    delivery.run_round()
    delivery.close()
    return counters.as_dict()


def read(reader: EntryReader) -> list[LogEntry]:
    return [entry for batch in reader.read_new() for entry in batch]


def shown(entries: list[LogEntry]) -> list[tuple[str, dict[str, Any], dict[str, str]]]:
    """Return the fields of an entry that do not depend on its source, without the project that the shipper adds."""
    labels = [{**entry.resource["labels"]} for entry in entries]
    for label in labels:
        label.pop("project_id", None)
    return [(entry.insert_id, entry.payload, label) for entry, label in zip(entries, labels, strict=True)]


def test_the_journal_and_cloud_logging_give_the_same_labels(tmp_path: Path, transport: LoggingTransport) -> None:
    write(new_journal(tmp_path))
    ship(tmp_path, transport)
    here = read(JournalReader(LOG, root=tmp_path))
    there = read(CloudLoggingReader(PageReader(transport), LOG, resource_labels={"node_id": {"run-7"}}))
    assert shown(here) == shown(there)
    assert [entry.resource_label("namespace") for entry in there] == ["loss", "step_time", "loss", "others"]
    assert [entry.resource_label("zone") for entry in here] == ["", "a", "", ""]
    assert {entry.resource["labels"]["project_id"] for entry in there} == {transport.project}


def test_an_entry_that_was_read_may_be_sent_again_unchanged(tmp_path: Path, transport: LoggingTransport) -> None:
    from ml_diagnostics_common.entry import decode_cloud, encode_cloud

    write(new_journal(tmp_path))
    for entry in read(JournalReader(LOG, root=tmp_path)):
        assert decode_cloud(encode_cloud(entry), LOG).resource == entry.resource


def test_an_entry_has_the_time_that_it_is_given(tmp_path: Path, transport: LoggingTransport) -> None:
    journal = new_journal(tmp_path)
    write(journal)
    journal.append({"late": 1}, timestamp_ns=1_763_710_310_123_456_789)
    journal.append({"late": 2})
    ship(tmp_path, transport)
    readers: list[EntryReader] = [
        JournalReader(LOG, root=tmp_path),
        CloudLoggingReader(PageReader(transport), LOG, resource_labels={"node_id": {"run-7"}}),
    ]
    for reader in readers:
        entries = read(reader)
        assert entries[0].payload == {"late": 1}
        assert entries[0].timestamp_ns == 1_763_710_310_123_456_789
        assert entries[-1].payload == {"late": 2}
        assert len(entries) == len(WRITTEN) + 2


def test_an_entry_of_long_ago_is_found_by_a_reader_that_was_there_before(
    tmp_path: Path, transport: LoggingTransport
) -> None:
    journal = new_journal(tmp_path)
    write(journal)
    ship(tmp_path, transport)
    readers: list[EntryReader] = [
        JournalReader(LOG, root=tmp_path),
        CloudLoggingReader(PageReader(transport), LOG, resource_labels={"node_id": {"run-7"}}),
    ]
    for reader in readers:
        assert len(read(reader)) == len(WRITTEN)
    journal.append({"late": 1}, timestamp_ns=1_763_710_310_000_000_000)
    journal.append({"late": 2})
    ship(tmp_path, transport)
    for reader in readers:
        assert sorted(entry.payload["late"] for entry in read(reader)) == [1, 2]


def test_the_fast_path_stays_fast_after_an_entry_of_another_time(tmp_path: Path) -> None:
    """Its time is not the clock's: the file need not be checked again."""
    journal = new_journal(tmp_path)
    journal.append({"n": 0})
    until = journal._fast_until
    journal.append({"n": 1}, timestamp_ns=5)
    assert journal._fast_until == until
    assert [entry.timestamp_ns == 5 for entry in read(JournalReader(LOG, root=tmp_path))].count(True) == 1


@pytest.mark.parametrize("where", ["journal", "cloud"])
def test_a_reader_of_one_run_gets_no_other(
    tmp_path: Path, cloud_logging_server: CloudLoggingServer, where: str
) -> None:
    transport = connect(environ=cloud_logging_server.environment())
    journals = {run: new_journal(tmp_path, run) for run in ("run-7", "RUN-7", "run-8")}
    for run, journal in journals.items():
        journal.append({"of": run}, resource_labels={"namespace": "loss"}, severity="ERROR")
    ship(tmp_path, transport)
    of_run = {"node_id": {"run-7"}}
    reader: EntryReader = (
        JournalReader(LOG, root=tmp_path, resource_labels=of_run)
        if where == "journal"
        else CloudLoggingReader(PageReader(transport), LOG, resource_labels=of_run)
    )
    assert [entry.payload["of"] for entry in read(reader)] == ["run-7"]
    journals["run-8"].append({"of": "run-8"})
    journals["run-7"].append({"of": "run-7 again"})
    ship(tmp_path, transport)
    assert [entry.payload["of"] for entry in read(reader)] == ["run-7 again"]
    transport.close()


def test_of_other_runs_the_journal_reads_the_header_alone(tmp_path: Path) -> None:
    write(new_journal(tmp_path, "run-8"))
    reader = JournalReader(LOG, root=tmp_path, resource_labels={"node_id": {"run-7"}})
    assert read(reader) == []
    assert not reader.skipped
    [stream] = reader._writers.values()
    assert [segment.offset for segment in stream.segments.values()] == [0]


def test_the_union_of_both_has_each_entry_once(tmp_path: Path, cloud_logging_server: CloudLoggingServer) -> None:
    transport = connect(environ=cloud_logging_server.environment())
    journal = new_journal(tmp_path)
    write(journal)
    ship(tmp_path, transport)
    journal.append({"values": [2]}, resource_labels={"namespace": "loss"})
    of_run = {"node_id": {"run-7"}}
    union = UnionReader(
        [
            JournalReader(LOG, root=tmp_path, resource_labels=of_run),
            CloudLoggingReader(PageReader(transport), LOG, resource_labels=of_run),
        ]
    )
    entries = read(union)
    assert [entry.payload["values"] for entry in entries] == [[0.5], [7], [0.25], [1], [2]]
    assert [entry.resource_label("namespace") for entry in entries] == ["loss", "step_time", "loss", "others", "loss"]
    transport.close()


def test_without_a_resource_there_are_no_labels_of_it_to_send(tmp_path: Path, transport: LoggingTransport) -> None:
    journal = Journal(LOG, root=tmp_path, labels={})
    journal.append({"n": 1}, resource_labels={"namespace": "loss"})
    ship(tmp_path, transport)
    [entry] = read(CloudLoggingReader(PageReader(transport), LOG))
    assert entry.resource == {"type": "global", "labels": {"project_id": transport.project}}


def test_entries_for_another_project_are_left_to_the_shipper_of_that_project(
    tmp_path: Path, cloud_logging_server: CloudLoggingServer
) -> None:
    environ = cloud_logging_server.environment()
    ours = connect(environ=environ)
    write(new_journal(tmp_path, "run-7", project=ours.project))
    write(new_journal(tmp_path, "run-8", project="another-project"))
    write(new_journal(tmp_path, "run-9"))
    assert ship(tmp_path, ours)["shipped"] == 2 * len(WRITTEN)
    assert ship(tmp_path, ours).get("shipped", 0) == 0
    arrived = {entry["resource"]["labels"]["node_id"] for entry in cloud_logging_server.entries()}
    assert arrived == {"run-7", "run-9"}
    theirs = connect("another-project", environ=environ)
    assert ship(tmp_path, theirs)["shipped"] == len(WRITTEN)
    for transport in (ours, theirs):
        transport.close()


@given(st.dictionaries(st.text(), st.text(), min_size=1), st.none() | st.text())
def test_any_labels_make_a_line_that_can_be_read(labels: dict[str, str], severity: str | None) -> None:
    import json

    line = json.loads(f'{{"p":{{}}{encode_own_fields(severity, labels)}}}')
    printable = lambda text: text.encode("utf-8", "backslashreplace").decode()  # noqa: E731
    assert line["r"] == {printable(name): printable(label) for name, label in labels.items()}  # type: ignore[no-untyped-call]
    assert line.get("severity") == (None if severity is None else printable(severity))  # type: ignore[no-untyped-call]


def test_a_line_with_invalid_labels_is_still_an_entry(tmp_path: Path) -> None:
    journal = new_journal(tmp_path)
    journal.append({"n": 0})
    [path] = journal.folder.glob("*.jsonl")
    with path.open("ab") as file:
        file.write(b'\n{"t":1,"s":100000000001,"p":{"n":1},"r":{"namespace":7}}\n{"t":2,"s":100000000002,"p":{},"r":5}')
    entries = read(JournalReader(LOG, root=tmp_path))
    assert [entry.resource_label("namespace") for entry in entries] == ["7", "others", "others"]
