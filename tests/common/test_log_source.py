"""A log is one thing, wherever its entries are: in the journal, in Cloud Logging, or in both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ml_diagnostics_common.entry import LogEntry, ProcessEndings, encode_cloud
from ml_diagnostics_common.exceptions import ConfigurationError, NoCloudError
from ml_diagnostics_common.journal import Journal
from ml_diagnostics_common.log_source import Cloud, LogSource, Query, notes_of
from ml_diagnostics_testing.cloud_logging import CloudLoggingServer
from ml_diagnostics_testing.faults import Hang, Status

from ..damaged_cloud_logging import DamagedCloudLogging
from .journals import LOG, read_all


@pytest.fixture
def server(cloud_logging_server: CloudLoggingServer, monkeypatch: pytest.MonkeyPatch) -> CloudLoggingServer:
    use(cloud_logging_server, monkeypatch)
    return cloud_logging_server


def use(server: CloudLoggingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)


def write(root: Path, first: int, last: int, run: str = "a") -> None:
    """Write entries with the numbers from `first` up to `last` to the journal."""
    resource = {"type": "global", "labels": {"node_id": run}}
    with_labels = Journal(LOG, root=root, labels={"job": run, "host": "host-0", "pid": "7"}, resource=resource)
    for number in range(first, last):
        with_labels.append({"job_name": run, "n": number}, resource_labels={"namespace": f"m{number % 2}"})
    with_labels.close()


def ship(server: CloudLoggingServer, entries: list[LogEntry]) -> None:
    server.write([encode_cloud(entry) for entry in entries], log_id=LOG)


def read(source: LogSource, **options: Any) -> list[Any]:
    return [entry.payload["n"] for batch in source.read_new(**options) for entry in batch]


def lists(server: CloudLoggingServer) -> int:
    return sum(request.operation == "list" for request in server.requests)


def test_a_log_in_two_stores_is_read_once_and_in_order(server: CloudLoggingServer, tmp_path: Path) -> None:
    write(tmp_path, 0, 10)
    write(tmp_path / "elsewhere", 10, 20)
    ship(server, read_all(tmp_path)[:7] + read_all(tmp_path / "elsewhere"))
    source = LogSource(LOG, root=tmp_path, cloud=Cloud())
    assert read(source) == list(range(20))
    write(tmp_path, 20, 22)
    assert read(source) == [20, 21]


def test_another_source_continues_from_a_position(server: CloudLoggingServer, tmp_path: Path) -> None:
    write(tmp_path, 0, 10)
    ship(server, read_all(tmp_path)[:5])
    first = LogSource(LOG, root=tmp_path, cloud=Cloud())
    assert read(first) == list(range(10))
    position = json.loads(json.dumps(first.position()))
    ship(server, read_all(tmp_path))
    write(tmp_path, 10, 12)
    second = LogSource(LOG, root=tmp_path, cloud=Cloud())
    second.resume(position)
    assert read(second) == [10, 11]


def test_a_position_in_the_middle_of_a_read_loses_and_repeats_nothing(
    server: CloudLoggingServer, tmp_path: Path
) -> None:
    for start in range(0, 9, 3):
        write(tmp_path / "elsewhere", start, start + 3)
    ship(server, read_all(tmp_path / "elsewhere"))
    write(tmp_path, 9, 12)
    first = LogSource(LOG, root=tmp_path, cloud=Cloud())
    begun = [entry.payload["n"] for entry in next(first.read_new())]
    second = LogSource(LOG, root=tmp_path, cloud=Cloud())
    second.resume(json.loads(json.dumps(first.position())))
    assert sorted(begun + read(second)) == list(range(12))


@pytest.mark.parametrize("fault", [Status(403), Status(503), Hang()], ids=repr)
def test_a_cloud_that_fails_costs_no_entry_and_is_not_asked_again_at_once(
    server: CloudLoggingServer, tmp_path: Path, fault: Any
) -> None:
    write(tmp_path, 0, 10)
    server.faults.always(fault, on="list")
    cloud = Cloud(patience_seconds=0.2)
    sources = [LogSource(LOG, root=tmp_path, cloud=cloud) for _ in range(2)]
    assert [read(source) for source in sources] == [list(range(10))] * 2
    assert notes_of(sources) == [f"Cloud Logging could not be read to the end: {cloud.failure}"]
    requests = lists(server)
    assert read(sources[0]) == []
    assert lists(server) == requests


def test_after_the_pause_what_the_cloud_did_not_send_is_read(
    server: CloudLoggingServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, 0, 10)
    write(tmp_path / "elsewhere", 10, 12)
    ship(server, read_all(tmp_path / "elsewhere"))
    server.faults.always(Status(503), on="list")
    cloud = Cloud(patience_seconds=0.2)
    cloud.pause_seconds = 0.0
    source = LogSource(LOG, root=tmp_path, cloud=cloud)
    assert (read(source), len(notes_of([source]))) == (list(range(10)), 1)
    assert read(source) == []
    assert len(caplog.records) == 1  # A warning at the first failure, and none while reads keep failing.
    server.faults.clear()
    assert (read(source), notes_of([source])) == ([10, 11], [])


def test_a_local_read_requests_nothing(server: CloudLoggingServer, tmp_path: Path) -> None:
    write(tmp_path, 0, 10)
    ship(server, read_all(tmp_path))
    source = LogSource(LOG, root=tmp_path, cloud=Cloud())
    assert read(source, local_only=True) == list(range(10))
    assert lists(server) == 0
    assert read(source) == []


def test_a_local_read_searches_for_no_cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 0, 10)
    monkeypatch.setattr(Cloud, "connect", lambda _: pytest.fail("searched for a cloud"))
    assert read(LogSource(LOG, root=tmp_path, cloud=Cloud()), local_only=True) == list(range(10))


def test_a_label_selects_any_of_some_values_in_both_stores(server: CloudLoggingServer, tmp_path: Path) -> None:
    for number, run in enumerate("abc"):
        write(tmp_path, number, number + 1, run)
        write(tmp_path / "elsewhere", 10 + number, 11 + number, run)
    ship(server, read_all(tmp_path / "elsewhere"))
    labels = {"node_id": {"a", "c"}}
    assert read(LogSource(LOG, root=tmp_path, resource_labels=labels)) == [0, 2]
    assert sorted(read(LogSource(LOG, root=tmp_path, cloud=Cloud(), resource_labels=labels))) == [0, 2, 10, 12]


def test_queries_that_overlap_yield_each_entry_once_and_in_order(server: CloudLoggingServer, tmp_path: Path) -> None:
    write(tmp_path, 0, 20)
    ship(server, read_all(tmp_path))
    of_one = [Query('resource.labels.namespace="m1"'), Query("jsonPayload.n>=15")]
    source = LogSource(LOG, root=tmp_path / "elsewhere", cloud=Cloud(), queries=of_one)
    assert read(source) == [1, 3, 5, 7, 9, 11, 13, 15, 16, 17, 18, 19]


def test_the_newest_pages_of_a_query_are_in_order_and_the_cut_is_reported(
    server: CloudLoggingServer, tmp_path: Path
) -> None:
    write(tmp_path, 0, 2_500)  # Three pages.
    ship(server, read_all(tmp_path))
    for pages, expected, notes in ((2, range(500, 2_500), ["only some"]), (3, range(2_500), [])):
        newest = [Query("jsonPayload.n>=0", newest_pages=pages, note_if_cut="only some")]
        source = LogSource(LOG, root=tmp_path / "elsewhere", cloud=Cloud(), queries=newest)
        assert (read(source), notes_of([source])) == (list(expected), notes)


def test_the_newest_pages_before_a_failure_are_yielded(server: CloudLoggingServer, tmp_path: Path) -> None:
    write(tmp_path, 0, 2_500)  # Three pages.
    ship(server, read_all(tmp_path))
    server.faults.script([None, None, Status(403)], on="list")
    cloud = Cloud()
    newest = [Query("jsonPayload.n>=0", newest_pages=4, note_if_cut="only some")]
    source = LogSource(LOG, root=tmp_path / "elsewhere", cloud=cloud, queries=newest)
    assert read(source) == list(range(500, 2_500))
    assert notes_of([source]) == [f"Cloud Logging could not be read to the end: {cloud.failure}"]


def test_a_cut_costs_no_request(server: CloudLoggingServer, tmp_path: Path) -> None:
    write(tmp_path, 0, 2_500)
    ship(server, read_all(tmp_path))
    newest = [Query("jsonPayload.n>=0", newest_pages=2, note_if_cut="only some")]
    source = LogSource(LOG, root=tmp_path / "elsewhere", cloud=Cloud(), queries=newest)
    assert read(source) == list(range(500, 2_500))
    assert (notes_of([source]), lists(server)) == (["only some"], 2)


def test_entries_that_cannot_be_decoded_are_counted_once_in_one_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, 0, 4)
    with DamagedCloudLogging() as server:
        use(server, monkeypatch)
        ship(server, read_all(tmp_path))
        (segment,) = tmp_path.glob("journal/*/*.jsonl")
        with segment.open("a") as file:
            file.write('\n{"x": 1}\n')
        cloud = Cloud()
        sources = [
            LogSource(LOG, root=tmp_path, cloud=cloud, queries=[Query("jsonPayload.n>=0"), Query("jsonPayload.n<9")]),
            LogSource("another log", root=tmp_path, cloud=cloud),
        ]
        assert [read(source) for source in sources] == [[0, 1, 2, 3], []]
    assert notes_of(sources) == ["2 entries could not be read"]


@pytest.fixture
def _no_cloud(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A laptop: no project, no credentials, no metadata server."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
    monkeypatch.setenv("NO_GCE_CHECK", "true")


@pytest.mark.usefixtures("_no_cloud")
def test_without_a_cloud_the_journal_is_read_without_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ML_DIAGNOSTICS_BACKEND", "auto")
    write(tmp_path, 0, 3)
    cloud = Cloud.configured()
    source = LogSource(LOG, root=tmp_path, cloud=cloud)
    assert cloud is not None
    assert (read(source), notes_of([source])) == ([0, 1, 2], [])
    assert isinstance(cloud.absence, NoCloudError)
    searched = source.searched()
    assert "; not Cloud Logging, because this machine has no Google Cloud project and no credentials" in searched
    assert "ML_DIAGNOSTICS_BACKEND=cloud" in searched
    assert len(searched) < len(str(tmp_path)) + 180


@pytest.mark.usefixtures("_no_cloud")
def test_a_cloud_that_is_found_later_repeats_nothing(
    cloud_logging_server: CloudLoggingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, 0, 3)
    write(tmp_path / "elsewhere", 3, 5)
    ship(cloud_logging_server, read_all(tmp_path) + read_all(tmp_path / "elsewhere"))
    cloud = Cloud()
    cloud.pause_seconds = 0.0
    source = LogSource(LOG, root=tmp_path, cloud=cloud)
    assert (read(source), lists(cloud_logging_server)) == ([0, 1, 2], 0)
    use(cloud_logging_server, monkeypatch)
    assert read(source) == [3, 4]


def test_the_backend_decides_whether_there_is_a_cloud(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ML_DIAGNOSTICS_BACKEND", "local")
    assert Cloud.configured() is None
    monkeypatch.setenv("ML_DIAGNOSTICS_BACKEND", "clod")
    with pytest.raises(ConfigurationError, match="ML_DIAGNOSTICS_BACKEND"):
        Cloud.configured()


def test_the_end_of_a_process_is_distinguished_from_those_with_its_id_before(tmp_path: Path) -> None:
    journal = Journal(LOG, root=tmp_path, labels={"host": "host-0", "pid": "7"}, about_pid=7)
    payloads: list[dict[str, Any]] = [{"goes_on": True}, {"message": "first"}, {"message": "second"}]
    for number, payload in enumerate(payloads):
        journal.append({"kind": "job_ended", **payload}, timestamp_ns=number)
    journal.append({"kind": "snapshot"}, timestamp_ns=9)
    journal.close()
    endings = ProcessEndings()
    endings.add(reversed(read_all(tmp_path)))

    def messages(*arguments: Any, **options: Any) -> list[Any]:
        return [entry.payload.get("message") for entry in endings.after(*arguments, **options)]

    assert messages("host-0", 7, 0) == ["first", "second"]
    assert messages("host-0", "7", 2) == ["second"]
    assert messages("host-0", 7, 0, with_blocks=True) == [None, "first", "second"]
    assert messages("host-1", 7, 0) == []
