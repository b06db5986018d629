"""The shipper: everything journalled arrives once, whatever the server does, and the job never waits."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import google.cloud.logging
import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud.logging.handlers import CloudLoggingHandler
from google.cloud.logging_v2.handlers.transports import SyncTransport
from ml_diagnostics_common import guard
from ml_diagnostics_common.backoff import Backoff
from ml_diagnostics_common.cloud_logging import CloudLoggingReader, LoggingTransport, PageReader, connect, cut_to_fit
from ml_diagnostics_common.cloud_logging._transport import CUT_KEY, payload_bytes
from ml_diagnostics_common.entry import LogEntry
from ml_diagnostics_common.exceptions import CredentialsError, NoCloudError
from ml_diagnostics_common.files import read_state
from ml_diagnostics_common.journal import Journal, host_name, list_segments, log_directory
from ml_diagnostics_common.journal._layout import shipped_offset_path
from ml_diagnostics_common.shipper import Shipper
from ml_diagnostics_common.shipper._own_records import kept_from_cloud_logging
from ml_diagnostics_testing.certificates import CertificateAuthority
from ml_diagnostics_testing.cloud_logging import CloudLoggingServer
from ml_diagnostics_testing.faults import Hang, Reset, Status, Truncate
from ml_diagnostics_testing.http_server import ApiError, Request, Response

from ..waiting import wait_until

LOG = "goodput_run"
GIVES_UP_SOON = {"search_interval_seconds": 0.02, "search_seconds": 0.1}


@pytest.fixture
def cloud_logging_server(certificate_authority: CertificateAuthority) -> Iterator[CloudLoggingServer]:
    """With TLS, as in production."""
    with CloudLoggingServer(tls=certificate_authority) as server:
        yield server


both_protocols = pytest.mark.parametrize("connecting", ["rest", "grpc"], indirect=True)


@pytest.fixture
def connecting(
    request: pytest.FixtureRequest, cloud_logging_server: CloudLoggingServer
) -> Callable[[], LoggingTransport]:
    protocol = getattr(request, "param", "rest")
    environ = {**cloud_logging_server.environment(), "ML_DIAGNOSTICS_LOGGING_TRANSPORT": protocol}
    return lambda: connect(environ=environ)


@pytest.fixture
def shippers() -> Iterator[list[Shipper]]:
    shippers: list[Shipper] = []
    yield shippers
    for shipper in shippers:
        shipper.close(0.0)


@pytest.fixture
def start(
    tmp_path: Path, connecting: Callable[[], LoggingTransport], shippers: list[Shipper]
) -> Callable[..., Shipper]:
    def start(**arguments: Any) -> Shipper:
        settings: dict[str, Any] = {
            "connect": connecting,
            "max_latency_seconds": 0.02,
            "backoff": Backoff(first_seconds=0.01, longest_seconds=2.0),
            "access_backoff": Backoff(first_seconds=0.05, longest_seconds=0.2),
            **arguments,
        }
        shipper = Shipper(LOG, root=tmp_path, **settings)
        shippers.append(shipper)
        shipper.start()
        return shipper

    return start


@pytest.fixture(autouse=True)
def nothing_logged_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_logged_in_this_process", set())


def journal(root: Path, count: int = 0, **arguments: Any) -> Journal:
    journal = Journal(LOG, root=root, labels={"job": "run", "host": "here"}, **arguments)
    record(journal, range(count))
    return journal


def record(journal: Journal, numbers: range) -> None:
    for number in numbers:
        journal.append({"job_name": "run", "step_count": number})


def arrived(server: CloudLoggingServer) -> list[int]:
    return [entry["jsonPayload"]["step_count"] for entry in server.entries()]


def writes(server: CloudLoggingServer) -> int:
    return sum(request.operation == "write" for request in server.requests)


@both_protocols
def test_all_that_was_journalled_arrives_with_its_labels(
    tmp_path: Path, start: Callable[..., Shipper], cloud_logging_server: CloudLoggingServer
) -> None:
    written = journal(tmp_path, 250)
    shipper = start()
    assert shipper.flush(30)
    record(written, range(250, 300))
    written.append({"job_name": "run", "step_count": 300}, severity="WARNING")
    assert shipper.close(10)
    assert arrived(cloud_logging_server) == list(range(301))
    last = cloud_logging_server.entries()[-1]
    assert last["insertId"] == f"{written.writer}.{10**11 + 300}"
    assert last["labels"] == {"job": "run", "host": "here", "writer": written.writer, "seq": str(10**11 + 300)}
    assert last["severity"] == "WARNING"
    assert last["resource"]["type"] == "global"
    assert last["logName"] == f"projects/test-project/logs/{LOG}"
    assert shipper.statistics().counts["shipped"] == 301
    assert writes(cloud_logging_server) <= 6


def test_entries_are_shipped_without_being_asked(
    tmp_path: Path, start: Callable[..., Shipper], cloud_logging_server: CloudLoggingServer
) -> None:
    start()
    journal(tmp_path, 3)
    wait_until(lambda: len(arrived(cloud_logging_server)) == 3)


def test_the_google_clients_own_reading_finds_what_we_wrote(
    tmp_path: Path, start: Callable[..., Shipper], cloud_logging_server: CloudLoggingServer
) -> None:
    import google.cloud.logging
    from google.auth.credentials import AnonymousCredentials

    written = journal(tmp_path, 10)
    assert start().flush(30)
    client = google.cloud.logging.Client(
        project="test-project",
        credentials=AnonymousCredentials(),
        _use_grpc=False,
        client_options={"api_endpoint": cloud_logging_server.rest_url},
    )
    filter_ = 'severity=INFO AND jsonPayload.job_name="run"'
    entries = list(client.logger(LOG).list_entries(filter_=filter_, order_by="timestamp asc"))
    client.close()
    assert [entry.payload["step_count"] for entry in entries] == list(range(10))
    assert entries[3].insert_id == f"{written.writer}.{10**11 + 3}"
    assert entries[3].labels["seq"] == str(10**11 + 3)


@both_protocols
@pytest.mark.parametrize(
    "fault",
    [Status(503), Status(503, after_apply=True), Status(500), Reset(), Reset(after_apply=True), Truncate(1)],
)
def test_a_server_that_fails_half_of_the_time_loses_and_doubles_nothing(
    tmp_path: Path, start: Callable[..., Shipper], cloud_logging_server: CloudLoggingServer, fault: Any
) -> None:
    cloud_logging_server.faults.sometimes(fault, probability=0.5, on="write", seed=1)
    journal(tmp_path, 2000)
    shipper = start(backoff=Backoff(first_seconds=0.01, longest_seconds=0.1))
    wait_until(lambda: shipper.flush(1), 20)
    assert arrived(cloud_logging_server) == list(range(2000))
    assert writes(cloud_logging_server) <= 40
    counts = shipper.statistics().counts
    assert counts["shipped"] == 2000
    assert sum(count for name, count in counts.items() if name.startswith("failed_")) > 0


@both_protocols
def test_retry_after_is_honoured(
    tmp_path: Path, start: Callable[..., Shipper], cloud_logging_server: CloudLoggingServer
) -> None:
    cloud_logging_server.faults.script([Status(429, retry_after=1)], on="write")
    journal(tmp_path, 1)
    shipper = start()
    wait_until(lambda: arrived(cloud_logging_server) == [0])
    first, second = (request.time for request in cloud_logging_server.requests)
    assert second - first >= 1
    assert shipper.statistics().counts["failed_RESOURCE_EXHAUSTED"] == 1


def test_no_retry_storm(
    tmp_path: Path, start: Callable[..., Shipper], cloud_logging_server: CloudLoggingServer
) -> None:
    cloud_logging_server.faults.always(Status(503), on="write")
    written = journal(tmp_path, 100)
    shipper = start(backoff=Backoff(first_seconds=0.1, longest_seconds=60.0))
    for number in range(100):
        record(written, range(number, number + 1))
        shipper.flush(0.01)
    wait_until(lambda: shipper.statistics().state == "waiting")
    assert writes(cloud_logging_server) <= 12


@pytest.mark.timing
def test_a_hanging_server_costs_the_trainer_nothing_and_the_exit_its_grace(
    tmp_path: Path, start: Callable[..., Shipper], cloud_logging_server: CloudLoggingServer
) -> None:
    cloud_logging_server.faults.always(Hang(), on="write")
    written = journal(tmp_path, 1)
    shipper = start(request_seconds=30, grace_period_seconds=0.3)
    wait_until(lambda: writes(cloud_logging_server) == 1)
    slowest = 0.0
    for number in range(300):
        started = time.perf_counter()
        record(written, range(number, number + 1))
        slowest = max(slowest, time.perf_counter() - started)
    assert slowest < 0.2
    started = time.monotonic()
    assert not shipper.close()
    assert 0.2 < time.monotonic() - started < 1.0
    cloud_logging_server.faults.clear()


@both_protocols
def test_a_hanging_request_is_left_at_its_deadline_and_tried_again(
    tmp_path: Path, start: Callable[..., Shipper], cloud_logging_server: CloudLoggingServer
) -> None:
    cloud_logging_server.faults.script([Hang(after_apply=True)], on="write")
    journal(tmp_path, 5)
    # So long that no other request reaches its deadline on a machine with other work.
    shipper = start(request_seconds=1.5)
    wait_until(lambda: shipper.flush(1))
    assert arrived(cloud_logging_server) == list(range(5))
    assert cloud_logging_server.duplicates == 5
    cloud_logging_server.faults.clear()


@pytest.mark.timing
def test_exit_does_not_wait_for_a_server_that_is_known_to_fail(
    tmp_path: Path, start: Callable[..., Shipper], cloud_logging_server: CloudLoggingServer
) -> None:
    cloud_logging_server.faults.always(Status(429, retry_after=60), on="write")
    journal(tmp_path, 1)
    shipper = start(backoff=Backoff(longest_seconds=60))
    wait_until(lambda: shipper.statistics().state == "waiting")
    started = time.monotonic()
    assert not shipper.flush(5)
    assert not shipper.close(5)
    assert time.monotonic() - started < 1
    assert writes(cloud_logging_server) == 1


def test_the_end_tries_once_more(
    tmp_path: Path, start: Callable[..., Shipper], cloud_logging_server: CloudLoggingServer
) -> None:
    """A wait of our own choosing is cut short by the end; what it was for may be over."""
    cloud_logging_server.faults.script([Status(503)], on="write")
    journal(tmp_path, 1)
    shipper = start(backoff=Backoff(first_seconds=60))
    wait_until(lambda: shipper.statistics().state == "waiting")
    assert shipper.close(5)
    assert arrived(cloud_logging_server) == [0]


@both_protocols
def test_a_huge_entry_is_cut_with_a_note(
    tmp_path: Path, start: Callable[..., Shipper], cloud_logging_server: CloudLoggingServer
) -> None:
    written = journal(tmp_path)
    written.append({"job_name": "run", "step_count": 0, "text": "é" * 300_000, "small": "kept"})
    written.append({"job_name": "run", "step_count": 1, "numbers": list(range(70_000)), "map": {"a": "x" * 90_000}})
    written.append({"job_name": "run", "step_count": 2, **{f"key{n}": "y" * 20 for n in range(20_000)}})
    record(written, range(3, 5))
    shipper = start()
    assert shipper.flush(30)
    entries = [entry["jsonPayload"] for entry in cloud_logging_server.entries()]
    assert [entry.get("step_count") for entry in entries] == [0, 1, None, 3, 4]
    assert entries[0]["small"] == "kept"
    assert entries[0]["text"].startswith("é" * 100)
    assert entries[0][CUT_KEY]["keys"] == "text"
    assert "numbers" in entries[1][CUT_KEY]["keys"]
    assert entries[2]["job_name"] == "run"
    counts = shipper.statistics().counts
    assert (counts["cut_to_fit"], counts["shipped"], "refused_by_server" in counts) == (3, 5, False)


@pytest.mark.parametrize(
    "value", ["x" * 500_000, [1] * 100_000, {"k" * 2000: {"deep": ["z" * 300_000]}}, "\x00" * 99_999]
)
def test_whatever_is_cut_fits(value: Any) -> None:
    entry = LogEntry(1, 1, {"job_name": "j" * 5000, "value": value, "k" * 300_000: 1})
    assert cut_to_fit(entry)
    assert payload_bytes(entry.payload) < 210_000
    assert entry.payload["job_name"].startswith("jjj")
    assert cut_to_fit(entry) == []


@both_protocols
def test_one_poisoned_entry_does_not_block_the_rest(
    tmp_path: Path,
    start: Callable[..., Shipper],
    cloud_logging_server: CloudLoggingServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Refused permanently by the server (nested too deep): counted, logged once, and kept by the journal."""
    written = journal(tmp_path, 50)
    deep: Any = "core"
    for _ in range(120):
        deep = [deep]
    written.append_text(str(time.time_ns()), f'{{"job_name":"run","deep":{deep!r}}}'.replace("'", '"'))
    record(written, range(50, 100))
    shipper = start()
    wait_until(lambda: shipper.flush(1))
    assert arrived(cloud_logging_server) == list(range(100))
    counts = shipper.statistics().counts
    assert (counts["shipped"], counts["refused_by_server"]) == (100, 1)
    assert writes(cloud_logging_server) <= 20
    assert [record.levelname for record in caplog.records].count("WARNING") == 1


@both_protocols
def test_a_server_that_accepts_nothing_at_all_refuses_no_entry(
    tmp_path: Path,
    start: Callable[..., Shipper],
    cloud_logging_server: CloudLoggingServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A typing error in the project id causes this: INVALID_ARGUMENT to everything."""
    cloud_logging_server.faults.always(Status(400), on="write")
    journal(tmp_path, 3)
    shipper = start()
    wait_until(lambda: shipper.statistics().counts.get("failed_INVALID_ARGUMENT", 0) >= 2)
    assert "refused_by_server" not in shipper.statistics().counts
    [warning] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "INVALID_ARGUMENT" in warning
    cloud_logging_server.faults.clear()
    wait_until(lambda: shipper.flush(1))
    assert arrived(cloud_logging_server) == [0, 1, 2]


@pytest.mark.parametrize("index", ["100", "-1", "a"])
def test_a_refusal_of_entries_that_were_not_sent_ticks_nothing_off(
    tmp_path: Path,
    start: Callable[..., Shipper],
    cloud_logging_server: CloudLoggingServer,
    monkeypatch: pytest.MonkeyPatch,
    index: str,
) -> None:
    handle = cloud_logging_server.handle
    details = [{"logEntryErrors": {"0": {"code": 3, "message": "no"}, index: {"code": 3, "message": "no"}}}]

    def refuse(request: Request) -> Response:
        if len(cloud_logging_server.requests_for("write")) <= 2:
            raise ApiError(400, "partial", details=details)
        return handle(request)

    monkeypatch.setattr(cloud_logging_server, "handle", refuse)
    journal(tmp_path, 3)
    shipper = start()
    wait_until(lambda: shipper.flush(1))
    assert arrived(cloud_logging_server) == [0, 1, 2]
    counts = shipper.statistics().counts
    assert (counts["shipped"], counts["failed_UNAVAILABLE"]) == (3, 2)
    assert "refused_by_server" not in counts


def test_a_log_that_starts_with_a_poisoned_entry_is_shipped_once_another_follows(
    tmp_path: Path, start: Callable[..., Shipper], cloud_logging_server: CloudLoggingServer
) -> None:
    written = journal(tmp_path)
    written.append_text(str(time.time_ns()), '{"job_name":"run","deep":' + "[" * 120 + "]" * 120 + "}")
    shipper = start()
    wait_until(lambda: shipper.statistics().state == "waiting")
    record(written, range(2))
    wait_until(lambda: shipper.flush(1))
    assert arrived(cloud_logging_server) == [0, 1]
    assert shipper.statistics().counts["refused_by_server"] == 1


def test_damaged_lines_are_passed_over_and_counted(
    tmp_path: Path, start: Callable[..., Shipper], cloud_logging_server: CloudLoggingServer
) -> None:
    written = journal(tmp_path, 5)
    [segment] = list_segments(written.folder)
    with Path(segment.path).open("ab") as file:
        file.write(b'\n{"t":1,"s":2,"p":{"job_na\nforeign line\n[1]\n{"t":"x"}\n\xff\xfe')
    record(written, range(5, 10))
    shipper = start()
    assert shipper.flush(30)
    assert arrived(cloud_logging_server) == list(range(10))
    assert shipper.statistics().counts["damaged_line"] == 5


def test_segments_follow_each_other(
    tmp_path: Path, start: Callable[..., Shipper], cloud_logging_server: CloudLoggingServer
) -> None:
    written = journal(tmp_path, 300, segment_bytes=4000)
    segments = list_segments(written.folder)
    assert len(segments) > 3
    assert start().flush(30)
    assert arrived(cloud_logging_server) == list(range(300))
    state = read_state(shipped_offset_path(tmp_path, LOG, written.writer))
    assert state == {"segment": segments[-1].number, "offset": segments[-1].size}


@pytest.mark.parametrize("log_id", ['run/é "x"; $(id)', "日本" * 10, "a" * 200, ".hidden"])
def test_a_log_of_any_name_is_shipped_and_read(
    tmp_path: Path,
    connecting: Callable[[], LoggingTransport],
    cloud_logging_server: CloudLoggingServer,
    shippers: list[Shipper],
    log_id: str,
) -> None:
    journal = Journal(log_id, root=tmp_path, labels={"job": log_id})
    journal.append({"job_name": log_id})
    shippers.append(Shipper(log_id, root=tmp_path, connect=connecting))
    shippers[0].start()
    assert shippers[0].flush(10)
    transport = connecting()
    [[entry]] = CloudLoggingReader(PageReader(transport), log_id, job_name=log_id).read_new()
    transport.close()
    assert (entry.payload, entry.context.log_id, entry.context.labels) == (
        {"job_name": log_id},
        log_id,
        {"job": log_id},
    )


def test_what_must_not_be_shipped_is_not(
    tmp_path: Path, start: Callable[..., Shipper], cloud_logging_server: CloudLoggingServer
) -> None:
    journal(tmp_path, 5, shippable=False)
    shipper = start()
    assert shipper.flush(30)
    assert writes(cloud_logging_server) == 0


def test_a_backlog_leaves_memory_flat(
    tmp_path: Path, start: Callable[..., Shipper], cloud_logging_server: CloudLoggingServer
) -> None:
    """A sink that takes nothing: 100,000 entries wait on disk, not in memory."""
    import tracemalloc

    cloud_logging_server.faults.always(Status(503), on="write")
    written = journal(tmp_path, 1000)
    shipper = start(backoff=Backoff(first_seconds=0.001, longest_seconds=0.01))
    wait_until(lambda: writes(cloud_logging_server) > 5)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(100_000):
            written.append_text("1795000000000000000", f'{{"job_name":"run","step_count":{number}}}')
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    # The server's memory of its requests is in here too; the lines are 8 MB.
    assert grown < 2_000_000
    assert shipper.statistics().counts["failed_UNAVAILABLE"] > 5


@both_protocols
@pytest.mark.parametrize(("status", "code"), [(403, "PERMISSION_DENIED"), (401, "UNAUTHENTICATED"), (404, "NOT_FOUND")])
def test_a_refusal_is_explained_once_and_nothing_is_lost(
    tmp_path: Path,
    start: Callable[..., Shipper],
    cloud_logging_server: CloudLoggingServer,
    caplog: pytest.LogCaptureFixture,
    status: int,
    code: str,
) -> None:
    cloud_logging_server.faults.always(Status(status), on="write")
    journal(tmp_path, 10)
    shipper = start()
    wait_until(lambda: shipper.statistics().counts.get(f"failed_{code}", 0) >= 3)
    [warning] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "roles/logging.logWriter" in warning
    assert "test-project" in warning
    assert str(log_directory(tmp_path, LOG)) in warning
    cloud_logging_server.faults.clear()
    wait_until(lambda: shipper.flush(1))
    assert arrived(cloud_logging_server) == list(range(10))


def test_refusals_are_tried_every_ten_minutes_in_the_end() -> None:
    backoff = Backoff(first_seconds=60.0, longest_seconds=600.0)
    waits = [backoff.failed() for _ in range(12)]
    assert 30 <= waits[0] <= 60
    assert all(300 <= wait <= 600 for wait in waits[5:])
    assert Backoff(longest_seconds=600.0).failed(1e9) < 660


def test_processes_that_failed_together_do_not_retry_together() -> None:
    waits = {Backoff(first_seconds=1.0).failed() for _ in range(50)}
    assert len(waits) > 40
    assert max(waits) - min(waits) > 0.2
    asked = {Backoff().failed(7.0) for _ in range(50)}
    assert len(asked) > 40
    assert min(asked) >= 7


@pytest.mark.timing
def test_a_missing_cloud_is_logged_once_with_the_path_of_the_data(
    tmp_path: Path, start: Callable[..., Shipper], caplog: pytest.LogCaptureFixture
) -> None:
    def no_cloud() -> LoggingTransport:
        raise CredentialsError("no project was found (GOOGLE_CLOUD_PROJECT is not set)")

    shipper = start(connect=no_cloud, **GIVES_UP_SOON)
    wait_until(lambda: shipper.statistics().state == "no cloud")
    [warning] = [record.getMessage() for record in caplog.records]
    assert "GOOGLE_CLOUD_PROJECT is not set" in warning
    assert str(log_directory(tmp_path, LOG)) in warning
    started = time.monotonic()
    assert not shipper.flush(5)
    assert not shipper.close(5)
    assert time.monotonic() - started < 1


def test_a_cloud_that_is_found_late_gets_the_first_entry_too(
    tmp_path: Path,
    start: Callable[..., Shipper],
    connecting: Callable[[], LoggingTransport],
    cloud_logging_server: CloudLoggingServer,
) -> None:
    attempts = []

    def late() -> LoggingTransport:
        attempts.append(1)
        if len(attempts) < 3:
            raise CredentialsError("not yet")
        return connecting()

    written = journal(tmp_path, 3)
    shipper = start(connect=late, search_interval_seconds=0.05)
    record(written, range(3, 5))
    wait_until(lambda: shipper.flush(1))
    assert arrived(cloud_logging_server) == list(range(5))


@pytest.mark.timing
def test_starting_never_waits_for_a_cloud(tmp_path: Path, shippers: list[Shipper]) -> None:
    found = threading.Event()

    def slow() -> LoggingTransport:
        found.wait(10)
        raise CredentialsError("none")

    started = time.monotonic()
    shipper = Shipper(LOG, root=tmp_path, connect=slow, search_seconds=0)
    shipper.start()
    assert time.monotonic() - started < 0.5
    assert not shipper.flush(0.05)
    found.set()
    shipper.close(5)


def test_a_log_handler_that_records_to_the_journal_does_not_loop(
    tmp_path: Path, start: Callable[..., Shipper], cloud_logging_server: CloudLoggingServer
) -> None:
    """Messages of shipping itself must not cause ever more entries to ship."""
    written = journal(tmp_path)

    class Recording(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            written.append({"job_name": "run", "step_count": -1, "text": record.getMessage()})

    handler = Recording()
    logging.getLogger("ml_diagnostics").addHandler(handler)
    try:
        cloud_logging_server.faults.script([Status(403), Status(403), Status(503)], on="write")
        record(written, range(1))
        shipper = start()
        wait_until(lambda: shipper.flush(1))
        settled = writes(cloud_logging_server)
        time.sleep(0.2)
        assert writes(cloud_logging_server) == settled
        assert arrived(cloud_logging_server) == [0, -1]
    finally:
        logging.getLogger("ml_diagnostics").removeHandler(handler)


def test_an_unwritable_state_folder_stops_nothing_but_shipping(
    tmp_path: Path, start: Callable[..., Shipper], cloud_logging_server: CloudLoggingServer
) -> None:
    (tmp_path / "state").write_text("a file that blocks the path")
    written = journal(tmp_path, 5)
    shipper = start()
    wait_until(lambda: shipper.statistics().state == "waiting")
    (tmp_path / "state").unlink()
    record(written, range(5, 6))
    wait_until(lambda: shipper.flush(1))
    assert arrived(cloud_logging_server) == list(range(6))


def test_unreadable_files_of_another_process_stop_no_other(
    tmp_path: Path, start: Callable[..., Shipper], cloud_logging_server: CloudLoggingServer
) -> None:
    """A foreign link among the segments, and one at the path of a lock."""
    written = journal(tmp_path, 3)
    (written.folder / "host-9-9-0.0.jsonl").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_bytes(b"x" * 100)
    for writer in (f"{host_name()}-4194999-1-0", f"{host_name()}-4194999-2-0", f"{host_name()}-4194999-3-0"):
        path = written.folder / f"{writer}.0.jsonl"
        path.write_text(f'{{"schema":1,"log":"{LOG}","writer":"{writer}"}}\n{{"t":1,"s":1,"p":{{"step_count":7}}}}')
    lock = shipped_offset_path(tmp_path, LOG, f"{host_name()}-4194999-1-0").with_suffix(".lock")
    lock.parent.mkdir(parents=True)
    lock.symlink_to(tmp_path / "elsewhere")
    segment = written.folder / f"{host_name()}-4194999-2-0.0.jsonl"
    segment.unlink()
    segment.symlink_to(tmp_path / "elsewhere")
    shipper = start()
    assert shipper.flush(30)
    wait_until(lambda: arrived(cloud_logging_server) == [7, 0, 1, 2])
    for _ in range(5):  # Rounds that do not retry files that could not be opened.
        assert shipper.flush(30)
    assert shipper.statistics().counts["unreadable_writer"] == 2


@pytest.mark.timing
def test_an_idle_shipper_costs_next_to_nothing(
    tmp_path: Path, start: Callable[..., Shipper], cloud_logging_server: CloudLoggingServer
) -> None:
    journal(tmp_path, 5)
    shipper = start()
    assert shipper.flush(30)
    before, started = time.process_time(), writes(cloud_logging_server)
    time.sleep(0.5)
    # 25 checks, a hundred times as many as by default: 2 s between them.
    assert time.process_time() - before < 0.1
    assert writes(cloud_logging_server) == started


@both_protocols
def test_reading_back_gives_the_same_entries_as_the_journal(
    tmp_path: Path, start: Callable[..., Shipper], connecting: Callable[[], LoggingTransport]
) -> None:
    from ml_diagnostics_common.reader import JournalReader

    journal(tmp_path, 500)
    journal(tmp_path, 500)
    assert start().flush(30)
    transport = connecting()
    cloud = CloudLoggingReader(PageReader(transport), LOG)
    by_cloud = {entry.insert_id: entry for batch in cloud.read_new() for entry in batch}
    by_journal = {entry.insert_id: entry for batch in JournalReader(LOG, root=tmp_path).read_new() for entry in batch}
    transport.close()
    assert len(by_cloud) == 1000
    assert {key: (entry.timestamp_ns, entry.payload) for key, entry in by_cloud.items()} == {
        key: (entry.timestamp_ns, entry.payload) for key, entry in by_journal.items()
    }


def test_a_new_writer_is_seen_at_once_however_coarse_the_file_systems_clock(
    tmp_path: Path, start: Callable[..., Shipper], cloud_logging_server: CloudLoggingServer
) -> None:
    shipper = start()
    for count in range(1, 30):
        journal(tmp_path, 1)
        assert shipper.flush(30)
        assert len(arrived(cloud_logging_server)) == count


@pytest.mark.timing
def test_closing_while_there_is_no_cloud_asks_no_more(tmp_path: Path, start: Callable[..., Shipper]) -> None:
    asked = []

    def no_cloud() -> LoggingTransport:
        asked.append(1)
        raise CredentialsError("none")

    shipper = start(connect=no_cloud)
    wait_until(lambda: shipper.statistics().last_error == "none")
    started = time.monotonic()
    assert not shipper.close(5)
    assert time.monotonic() - started < 1
    assert len(asked) == 1


def test_heavy_labels_keep_a_request_below_its_limit(
    tmp_path: Path, start: Callable[..., Shipper], cloud_logging_server: CloudLoggingServer
) -> None:
    written = Journal(LOG, root=tmp_path, labels={"job": "x" * 60_000})
    record(written, range(400))
    shipper = start(batch_entries=1000)
    assert shipper.flush(20)
    assert arrived(cloud_logging_server) == list(range(400))
    assert max(request.size_bytes for request in cloud_logging_server.requests) < 10_000_000


def test_what_a_shipping_thread_logs_reaches_every_handler_but_those_of_cloud_logging(
    cloud_logging_server: CloudLoggingServer, caplog: pytest.LogCaptureFixture
) -> None:
    client = google.cloud.logging.Client(
        project=cloud_logging_server.project,
        credentials=AnonymousCredentials(),
        client_options={"api_endpoint": cloud_logging_server.rest_url},
        _use_grpc=False,
    )
    logger, handler = logging.getLogger("urllib3.connectionpool"), CloudLoggingHandler(client, transport=SyncTransport)
    logger.addHandler(handler)
    try:
        with kept_from_cloud_logging():
            logger.warning("from a shipper")
        logger.warning("from the job")
    finally:
        logger.removeHandler(handler)
        client.close()
    assert [record.getMessage() for record in caplog.records] == ["from a shipper", "from the job"]
    sent = str(cloud_logging_server.entries())
    assert ("from the job" in sent, "from a shipper" in sent) == (True, False)


def test_where_no_thread_can_start_the_next_process_ships(
    tmp_path: Path, start: Callable[..., Shipper], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ml_diagnostics_common.shipper.start", lambda *_: None)
    assert start().statistics().state == "stopped"
    assert guard.LOSSES["shipper_thread_refused"] == 1


def test_without_a_cloud_on_the_machine_only_the_path_of_the_data_is_logged(
    tmp_path: Path, start: Callable[..., Shipper], caplog: pytest.LogCaptureFixture
) -> None:
    def find_nothing() -> LoggingTransport:
        raise NoCloudError("there is none")

    caplog.set_level(logging.INFO)
    shipper = start(connect=find_nothing, **GIVES_UP_SOON)
    wait_until(lambda: shipper.statistics().state == "no cloud")
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert f"Recording to {tmp_path / 'journal'}" in caplog.text
