"""Shipping across processes: kills, forks, exits, and two at once."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ml_diagnostics_common.cloud_logging import connect
from ml_diagnostics_common.cloud_logging._rest import RestTransport
from ml_diagnostics_common.files import write_state
from ml_diagnostics_common.guard import Counters
from ml_diagnostics_common.journal import Journal, host_name, list_segments, log_directory
from ml_diagnostics_common.journal import _journal as journal_module
from ml_diagnostics_common.journal import _own_journals as own_journals
from ml_diagnostics_common.journal._layout import shipped_offset_path
from ml_diagnostics_common.process_hooks import LiveObjects
from ml_diagnostics_common.shipper import Shipper
from ml_diagnostics_common.shipper import _outbox as outbox_module
from ml_diagnostics_common.shipper._delivery import Delivery
from ml_diagnostics_common.shipper._outbox import Outbox, OutboxLock, Owner, owner
from ml_diagnostics_testing.certificates import CertificateAuthority
from ml_diagnostics_testing.cloud_logging import CloudLoggingServer
from ml_diagnostics_testing.faults import Hang, Status

from ..waiting import wait_until

LOG = "goodput_run"

PROGRAM = """
import os, sys, time, threading, signal
from pathlib import Path
from ml_diagnostics_common.cloud_logging import connect
from ml_diagnostics_common.journal import Journal
from ml_diagnostics_common.shipper import Shipper

root, first, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
journal = Journal("goodput_run", root=root, labels={"job": "run", "pid": "0"})
shipper = Shipper("goodput_run", root=root, connect=connect, max_latency_seconds=0.02, grace_period_seconds=30)

def record(first, count):
    for number in range(first, first + count):
        journal.append({"job_name": "run", "step_count": number})
"""


@pytest.fixture
def cloud_logging_server(certificate_authority: CertificateAuthority) -> Iterator[CloudLoggingServer]:
    """With TLS, as in production."""
    with CloudLoggingServer(tls=certificate_authority) as server:
        yield server


@pytest.fixture(params=["rest", "grpc"])
def protocol(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the protocol by which the programs of a test write."""
    monkeypatch.setenv("ML_DIAGNOSTICS_LOGGING_TRANSPORT", request.param)


def run(
    body: str, root: Path, server: CloudLoggingServer, first: int = 0, count: int = 100, **arguments: Any
) -> subprocess.Popen[bytes]:
    environ = {**os.environ, **server.environment()}
    # From Python 3.12 on a fork beside threads warns, and these programs fork on purpose. On the oldest Python
    # google.api_core warns that it will drop support for it.
    ignored = ["-W", "ignore:This process:DeprecationWarning", "-W", "ignore:You are using a:FutureWarning"]
    command = [sys.executable, *ignored, "-c", PROGRAM + body]
    command += [str(root), str(first), str(count)]
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **arguments)


def finish(process: subprocess.Popen[bytes], code: int = 0) -> bytes:
    output, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors.decode()
    assert not errors, errors.decode()
    return output


def arrived(server: CloudLoggingServer) -> list[int]:
    return sorted(entry["jsonPayload"]["step_count"] for entry in server.entries())


def ship_here(root: Path, server: CloudLoggingServer, **arguments: Any) -> dict[str, int]:
    """Ship as a later process would, without a thread; return the counts."""
    counters = Counters()
    transport = connect(environ=server.environment())
    delivery = Delivery(root, LOG, transport, counters, **arguments)
    try:
        delivery.run_round()
    finally:
        delivery.close()
        transport.close()
    return counters.as_dict()


@contextlib.contextmanager
def delivering(root: Path, server: CloudLoggingServer, **arguments: Any) -> Iterator[Delivery]:
    transport = connect(environ=server.environment())
    delivery = Delivery(root, LOG, transport, Counters(), **arguments)
    yield delivery
    delivery.close()
    transport.close()


def test_a_process_that_records_and_returns_has_shipped(
    tmp_path: Path, cloud_logging_server: CloudLoggingServer
) -> None:
    finish(run("shipper.start(); record(first, count)", tmp_path, cloud_logging_server))
    assert arrived(cloud_logging_server) == list(range(100))


@pytest.mark.usefixtures("protocol")
@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("sys.exit(3)", 3),
        ("os._exit(4)", 4),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
    ],
)
def test_however_a_process_ends_all_of_it_is_shipped_in_the_end(
    tmp_path: Path, cloud_logging_server: CloudLoggingServer, end: str, code: int
) -> None:
    finish(run(f"shipper.start(); record(first, count); {end}", tmp_path, cloud_logging_server), code)
    ship_here(tmp_path, cloud_logging_server)
    assert arrived(cloud_logging_server) == list(range(100))


def test_killed_before_anything_was_shipped_a_later_process_ships_it_all(
    tmp_path: Path, cloud_logging_server: CloudLoggingServer
) -> None:
    cloud_logging_server.faults.always(Status(503), on="write")
    body = "shipper.start(); record(first, count); print('done', flush=True); time.sleep(60)"
    process = run(body, tmp_path, cloud_logging_server, count=1000)
    assert process.stdout is not None
    process.stdout.readline()
    process.kill()
    process.communicate()
    assert arrived(cloud_logging_server) == []
    cloud_logging_server.faults.clear()
    finish(run("shipper.start(); record(first, count); shipper.flush(30)", tmp_path, cloud_logging_server, 1000, 10))
    assert arrived(cloud_logging_server) == list(range(1010))
    assert cloud_logging_server.duplicates == 0


def test_killed_at_any_moment_nothing_is_lost_and_nothing_is_there_twice(
    tmp_path: Path, cloud_logging_server: CloudLoggingServer
) -> None:
    """Kills land before, between and after sending and noting; insertIds make what is sent twice one."""
    for attempt in range(4):
        body = "shipper.start()\nfor n in range(first, first + count): record(n, 1); time.sleep(0.0002)\ntime.sleep(60)"
        process = run(body, tmp_path, cloud_logging_server, attempt * 10_000, 10_000)
        before = len(cloud_logging_server.requests)
        wait_until(lambda before=before: len(cloud_logging_server.requests) >= before + 3)  # type: ignore[misc]
        time.sleep(0.013 * attempt)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    ship_here(tmp_path, cloud_logging_server)
    recorded = sum(
        Path(segment.path).read_bytes().count(b'"step_count"')
        for segment in list_segments(log_directory(tmp_path, LOG))
    )
    numbers = arrived(cloud_logging_server)
    assert len(numbers) == len(set(numbers))
    assert recorded - 4 <= len(numbers) <= recorded  # The last line of each may be torn.


def test_killed_between_sending_and_noting_is_sent_again_under_the_same_ids(
    tmp_path: Path, cloud_logging_server: CloudLoggingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(LOG, root=tmp_path, labels={})
    for number in range(10):
        journal.append({"step_count": number})

    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Outbox, "acknowledge", killed)
        with pytest.raises(Killed):
            ship_here(tmp_path, cloud_logging_server)
    ship_here(tmp_path, cloud_logging_server)
    assert arrived(cloud_logging_server) == list(range(10))
    assert cloud_logging_server.duplicates == 10


def test_two_processes_of_one_log_ship_each_entry_once(
    tmp_path: Path, cloud_logging_server: CloudLoggingServer
) -> None:
    body = "shipper.start()\nfor n in range(first, first + count): record(n, 1); time.sleep(0.0005)"
    processes = [run(body, tmp_path, cloud_logging_server, n * 1000, 500) for n in range(2)]
    for process in processes:
        finish(process)
    assert arrived(cloud_logging_server) == [*range(500), *range(1000, 1500)]
    assert cloud_logging_server.duplicates == 0


def test_a_writer_is_shipped_by_one_process_at_a_time(tmp_path: Path, cloud_logging_server: CloudLoggingServer) -> None:
    journal = Journal(LOG, root=tmp_path, labels={})
    journal.append({"step_count": 0})
    lock = OutboxLock.take(shipped_offset_path(tmp_path, LOG, journal.writer).with_suffix(".lock"))
    assert lock is not None
    assert ship_here(tmp_path, cloud_logging_server) == {}
    lock.abandon()
    assert ship_here(tmp_path, cloud_logging_server)["shipped"] == 1


@pytest.mark.timing
@pytest.mark.usefixtures("protocol")
def test_exit_is_held_up_no_longer_than_the_grace_period(
    tmp_path: Path, cloud_logging_server: CloudLoggingServer
) -> None:
    cloud_logging_server.faults.always(Hang(), on="write")
    body = "shipper.start(); record(first, count); shipper.flush(0.3); print(time.time())"
    body = body.replace("shipper.", "shipper._grace_period_seconds = 0.5; shipper.", 1)
    ended = float(finish(run(body, tmp_path, cloud_logging_server)))
    assert time.time() - ended < 3
    cloud_logging_server.faults.clear()
    ship_here(tmp_path, cloud_logging_server)
    assert arrived(cloud_logging_server) == list(range(100))


@pytest.mark.usefixtures("protocol")
def test_a_forked_child_starts_clean(tmp_path: Path, cloud_logging_server: CloudLoggingServer) -> None:
    """No thread, no lock, nothing of the parent's again; its entries are shipped once its process is gone."""
    body = """
import warnings; warnings.simplefilter("ignore")
shipper.start(); record(first, count); assert shipper.flush(20)
child = os.fork()
if child == 0:
    assert shipper.statistics().counts == {} and shipper.statistics().state == "idle"
    assert not shipper.flush(0.1)
    record(first + count, count)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
record(first + 2 * count, count)
deadline = time.monotonic() + 20
while shipper.statistics().counts["shipped"] < 3 * count and time.monotonic() < deadline:
    time.sleep(0.01)
"""
    finish(run(body, tmp_path, cloud_logging_server))
    assert arrived(cloud_logging_server) == list(range(300))
    assert cloud_logging_server.duplicates == 0


@pytest.mark.usefixtures("protocol")
def test_a_forked_child_may_start_a_shipper_of_its_own(
    tmp_path: Path, cloud_logging_server: CloudLoggingServer
) -> None:
    body = """
shipper.start(); record(first, count); assert shipper.flush(20)
child = os.fork()
if child == 0:
    record(first + count, count)
    shipper.start()
    os._exit(0 if shipper.flush(20) else 1)
assert os.waitpid(child, 0)[1] == 0
"""
    finish(run(body, tmp_path, cloud_logging_server))
    assert arrived(cloud_logging_server) == list(range(200))


@pytest.mark.usefixtures("protocol")
@pytest.mark.parametrize("count", [16, pytest.param(100, marks=pytest.mark.slow)])
def test_workers_forked_while_entries_are_shipped_neither_hang_nor_print(
    tmp_path: Path, cloud_logging_server: CloudLoggingServer, count: int
) -> None:
    """Workers of data loaders are forked like this, while the shipper makes requests."""
    body = """
import multiprocessing
shipper.start(); record(first, 1); assert shipper.flush(20)
for number in range(1, count):
    record(number, 1)
    child = os.fork()
    if child == 0:
        sys.exit(0) if number % 2 else os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(abs, range(100)) == list(range(100))
assert shipper.flush(20)
"""
    finish(run(body, tmp_path, cloud_logging_server, count=count))
    assert arrived(cloud_logging_server) == list(range(count))


def test_the_job_keeps_its_settings_of_logging_and_forks(
    tmp_path: Path, cloud_logging_server: CloudLoggingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """google-api-core would stop the loggers below "google" from reaching the job's handlers."""
    monkeypatch.setenv("ML_DIAGNOSTICS_LOGGING_TRANSPORT", "grpc")
    body = """
import logging
shipper.start(); record(first, count); assert shipper.flush(20)
assert "grpc" in sys.modules
assert logging.getLogger("google").propagate
assert "GRPC_ENABLE_FORK_SUPPORT" not in os.environ
"""
    finish(run(body, tmp_path, cloud_logging_server))


def test_debug_records_of_googles_client_are_not_sent_by_the_jobs_own_handler(
    tmp_path: Path, cloud_logging_server: CloudLoggingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would be an entry that the shipper's request causes: a loop."""
    monkeypatch.setenv("ML_DIAGNOSTICS_LOGGING_TRANSPORT", "grpc")
    body = """
import logging
import google.cloud.logging
from google.auth.credentials import AnonymousCredentials
from google.cloud.logging.handlers import CloudLoggingHandler
from google.cloud.logging.handlers.transports import SyncTransport

address = {"api_endpoint": os.environ["CLOUDSDK_API_ENDPOINT_OVERRIDES_LOGGING"].rstrip("/")}
client = google.cloud.logging.Client(
    project="test-project", credentials=AnonymousCredentials(), _use_grpc=False, client_options=address
)
kept = []
printed = logging.Handler()
printed.emit = kept.append
googles = logging.getLogger("google.cloud.logging_v2.services")
googles.setLevel(logging.DEBUG)
googles.addHandler(CloudLoggingHandler(client, name="job", transport=SyncTransport))
googles.addHandler(printed)
shipper.start()
for number in range(3):
    record(number, 1)
    assert shipper.flush(20)
googles.info("the job's own")
assert any(record.name.endswith("transports.grpc") for record in kept), kept
"""
    finish(run(body, tmp_path, cloud_logging_server))
    sent = [entry for entry in cloud_logging_server.entries() if entry["logName"].endswith("/job")]
    assert [entry.get("textPayload") for entry in sent if "instrumentation" not in str(entry)] == ["the job's own"]


@pytest.mark.timing
@pytest.mark.usefixtures("protocol")
def test_an_address_without_a_server_holds_up_the_exit_for_the_grace_period(
    tmp_path: Path, cloud_logging_server: CloudLoggingServer
) -> None:
    body = """
os.environ["CLOUDSDK_API_ENDPOINT_OVERRIDES_LOGGING"] = "https://127.0.0.1:9/"
shipper._grace_period_seconds = 0.5
shipper.start(); record(first, count); assert not shipper.flush(1); print(time.time())
"""
    ended = float(finish(run(body, tmp_path, cloud_logging_server)))
    assert time.time() - ended < 3
    ship_here(tmp_path, cloud_logging_server)
    assert arrived(cloud_logging_server) == list(range(100))


def test_our_own_entries_go_before_what_others_left(
    tmp_path: Path, cloud_logging_server: CloudLoggingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    write = RestTransport.write

    def noted(self: RestTransport, entries: Any, **arguments: Any) -> None:
        sent.extend(entry["jsonPayload"]["step_count"] for entry in entries)
        write(self, entries, **arguments)

    journal = Journal(LOG, root=tmp_path, labels={})
    journal.append({"step_count": 1})
    lines = next(journal.folder.glob("*.jsonl")).read_text().replace('"step_count":1', '"step_count":2')
    for pid in ("0", "4194999"):  # Of processes that are gone, one on either side of ours by name.
        writer = f"{host_name()}-{pid}-1-0"
        (journal.folder / f"{writer}.0.jsonl").write_text(lines.replace(journal.writer, writer))
    monkeypatch.setattr(RestTransport, "write", noted)
    ship_here(tmp_path, cloud_logging_server)
    assert sent == [1, 2, 2]


@pytest.mark.timing
def test_the_trainer_has_the_interpreter_between_the_requests_of_a_backlog(
    tmp_path: Path, cloud_logging_server: CloudLoggingServer
) -> None:
    journal = Journal(LOG, root=tmp_path, labels={})
    for number in range(100):
        journal.append({"step_count": number})
    pauses: list[float] = []
    with delivering(tmp_path, cloud_logging_server, batch_entries=4) as delivery:
        delivery.run_round(pause=pauses.append)
    assert len(cloud_logging_server.requests) == 6
    assert len(pauses) == 5
    shipper = Shipper(LOG, root=tmp_path, connect=lambda: connect(environ={}))
    started = time.monotonic()
    shipper._rest(0.1)
    assert 0.29 < time.monotonic() - started < 1
    shipper._request_stop(time.monotonic() + 5)
    shipper._rest(0.1)
    assert time.monotonic() - started < 1.2


def test_a_lock_dies_with_its_process_not_with_its_children(
    tmp_path: Path, cloud_logging_server: CloudLoggingServer
) -> None:
    """A child inherits the descriptor of a lock: it must let go, or the writer is locked as long as it lives."""
    body = """
shipper.start(); record(first, count); assert shipper.flush(20)
if os.fork() == 0:
    os.close(1); os.close(2)
    time.sleep(60)
    os._exit(0)
record(first + count, count)
os.kill(os.getpid(), signal.SIGKILL)
"""
    process = run(body, tmp_path, cloud_logging_server, start_new_session=True)
    process.communicate(timeout=60)
    try:
        ship_here(tmp_path, cloud_logging_server)
        assert arrived(cloud_logging_server) == list(range(200))
    finally:
        os.killpg(process.pid, signal.SIGKILL)


def test_importing_the_shipper_imports_nothing_heavy() -> None:
    program = "import sys, ml_diagnostics_common.shipper; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True).stdout.split()
    assert not {"msgspec", "google.auth", "grpc", "requests", "asyncio", "ssl", "http", "inspect"} & set(modules)


def test_an_unclaimed_writer_is_adopted_after_a_while(tmp_path: Path, cloud_logging_server: CloudLoggingServer) -> None:
    """Its host may share only the folder: this host cannot check that its process lives."""
    journal = Journal(LOG, root=tmp_path, labels={})
    journal.append({"step_count": 0})
    [segment] = list_segments(journal.folder)
    Path(segment.path).rename(journal.folder / "elsewhere-1-1-0.0.jsonl")
    now = [0.0]
    counters = Counters()
    transport = connect(environ=cloud_logging_server.environment())
    delivery = Delivery(tmp_path, LOG, transport, counters, clock=lambda: now[0])
    delivery.run_round()
    assert counters.as_dict() == {}
    now[0] = 11.0
    delivery.run_round()
    delivery.run_round()
    assert counters.as_dict() == {"requests": 1, "shipped": 1}
    with Path(journal.folder / "elsewhere-1-1-0.0.jsonl").open("a") as file:
        file.write(f'\n{{"t":2,"s":{10**11 + 1},"p":{{"step_count":1}}}}')
    now[0] = 22.0
    delivery.run_round()
    assert counters.as_dict()["shipped"] == 2
    delivery.close()
    transport.close()


def test_the_owner_of_a_writer() -> None:
    host, now_ns = host_name(), time.time_ns()
    assert owner(f"{host}-{os.getpid()}-{now_ns}-0") is Owner.UNKNOWN  # Our pid in another container.
    assert owner(f"{host}-{os.getpid()}-1000-0") is Owner.GONE  # The same pid, before the start of this process.
    assert owner(f"{host}-{os.getppid()}-{now_ns}-0") is Owner.ALIVE
    assert owner(f"{host}-4194999-{now_ns}-0") is Owner.GONE
    assert owner(f"elsewhere-{os.getpid()}-{now_ns}-0") is Owner.UNKNOWN
    assert owner("anything") is Owner.UNKNOWN


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="asks /proc")
def test_a_process_that_has_ended_is_gone_even_as_a_zombie() -> None:
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert owner(f"{host_name()}-{process.pid}-{time.time_ns()}-0") is Owner.GONE


def test_our_own_writers_stay_ours_when_the_clock_is_set(
    tmp_path: Path, cloud_logging_server: CloudLoggingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel reports a process's start by today's clock; a writer is named by the clock of its time."""
    journal = Journal(LOG, root=tmp_path, labels={})
    journal.append({"step_count": 0})
    monkeypatch.setattr(outbox_module, "process_started_ns", lambda _: time.time_ns() + 3600 * 10**9)
    assert owner(journal.writer) is Owner.US
    lock = OutboxLock.take(shipped_offset_path(tmp_path, LOG, journal.writer).with_suffix(".lock"))
    assert lock is not None
    with delivering(tmp_path, cloud_logging_server) as delivery:
        assert not delivery.run_round().drained
    lock.abandon()


def test_a_parents_writer_is_not_the_childs(tmp_path: Path, cloud_logging_server: CloudLoggingServer) -> None:
    body = """
from ml_diagnostics_common.shipper._outbox import Owner, owner
parents = journal.writer
record(first, 1)
assert owner(parents) is Owner.US
child = os.fork()
if child == 0:
    record(first, 1)
    os._exit(0 if owner(parents) is Owner.ALIVE and owner(journal.writer) is Owner.US else 1)
assert os.waitpid(child, 0)[1] == 0
"""
    finish(run(body, tmp_path, cloud_logging_server))


def test_entries_that_another_process_ships_have_arrived_once_it_has_shipped_those_of_now(
    tmp_path: Path, cloud_logging_server: CloudLoggingServer
) -> None:
    journal = Journal(LOG, root=tmp_path, labels={})
    journal.append({"step_count": 0})
    os.utime(journal.folder, (1e9, 1e9))  # So that the folder, which has not changed for long, is not listed again.
    state = shipped_offset_path(tmp_path, LOG, journal.writer)
    lock = OutboxLock.take(state.with_suffix(".lock"))
    assert lock is not None

    def shipped_by_the_other() -> None:
        [segment] = list_segments(journal.folder)
        write_state(state, {"segment": segment.number, "offset": segment.size})

    with delivering(tmp_path, cloud_logging_server) as delivery:
        assert not delivery.run_round().drained
        shipped_by_the_other()
        assert delivery.run_round().drained
        journal.append({"step_count": 1})
        assert not delivery.run_round().drained
        shipped_by_the_other()
        assert delivery.run_round().drained
    lock.abandon()


def test_what_a_journal_holds_at_the_end_is_written_in_time_to_be_shipped(
    tmp_path: Path, cloud_logging_server: CloudLoggingServer
) -> None:
    """The disk was full until just now."""
    body = """
import logging; logging.disable()
from ml_diagnostics_common.journal import _journal as module
record(first, 1); shipper.start(); assert shipper.flush(20)
write = module._write
def full(*_): raise OSError(28, "No space left on device")
module._write = full
record(first + 1, count - 1)
assert journal.statistics().held == count - 1
assert not shipper.flush(5)
module._write = write
"""
    finish(run(body, tmp_path, cloud_logging_server))
    assert arrived(cloud_logging_server) == list(range(100))


@pytest.mark.timing
def test_the_last_request_ends_with_the_grace_period(tmp_path: Path, cloud_logging_server: CloudLoggingServer) -> None:
    """It is asked for no longer than there is time, whatever a request may take at other times."""
    cloud_logging_server.faults.script([Status(503)], on="write")
    cloud_logging_server.faults.always(Hang(), on="write")
    Journal(LOG, root=tmp_path, labels={}).append({"step_count": 0})
    environ = cloud_logging_server.environment()
    shipper = Shipper(LOG, root=tmp_path, connect=lambda: connect(environ=environ), request_seconds=30)
    shipper.start()
    wait_until(lambda: shipper.statistics().state == "waiting")
    started = time.monotonic()
    assert not shipper.close(0.5)
    assert shipper._thread is not None
    assert shipper._thread.wait(5)
    assert time.monotonic() - started < 3
    assert len(cloud_logging_server.requests) == 2
    assert shipper.statistics().counts["failed_DEADLINE_EXCEEDED"] == 1
    cloud_logging_server.faults.clear()


@pytest.mark.timing
def test_all_journals_together_hold_up_the_exit_for_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    write = journal_module._write

    def hang(descriptor: int, line: bytes) -> int:
        answers.wait(20)
        return write(descriptor, line)

    monkeypatch.setattr(journal_module, "_write", hang)
    journals = [Journal(f"{LOG}_{n}", root=tmp_path, labels={}, queued=True) for n in range(5)]
    own = LiveObjects[own_journals.OwnJournal]()
    monkeypatch.setattr(own_journals, "_journals_of_this_process", own)
    for journal in journals:
        own.add(journal)
        journal.append({"step_count": 0})
    started = time.monotonic()
    own_journals._close_at_exit()
    took = time.monotonic() - started
    answers.set()
    assert 0.9 < took < 2
    assert all(journal.flush(5) for journal in journals)


def test_closing_twice_and_starting_twice_is_once(tmp_path: Path, cloud_logging_server: CloudLoggingServer) -> None:
    environ = cloud_logging_server.environment()
    shipper = Shipper(LOG, root=tmp_path, connect=lambda: connect(environ=environ), max_latency_seconds=60)
    assert not shipper.flush(0.1)
    shipper.start()
    shipper.start()
    started = time.monotonic()
    assert shipper.close(50)
    assert time.monotonic() - started < 20  # Nothing to ship: the latency is not waited for.
    shipper.close(5)
    assert shipper.statistics().state == "stopped"
