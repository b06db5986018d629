"""The copy of the saved state: other machines continue from it, a newer one is never replaced, and no query waits."""

from __future__ import annotations

import io
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ml_diagnostics_common.backoff import Backoff
from ml_diagnostics_common.exceptions import ConfigurationError
from ml_diagnostics_common.storage import storage_for
from ml_diagnostics_testing.cloud_storage import CloudStorageServer
from ml_diagnostics_testing.faults import Delay, Hang, Reset, Status, Truncate
from ml_goodput_measurement._ledger.recorders import Recorders
from ml_goodput_measurement._ledger.writers import Writer
from ml_goodput_measurement._query import state_store
from ml_goodput_measurement._query.saved_state import _MAGIC, decode_state, encode_state, facts_in_front
from ml_goodput_measurement._query.state_store import StateStore, checked_gcs_path

from ..waiting import wait_until
from .histories import JOB, History
from .loaded_modules import loaded_by
from .states import LIFE, contents_of, recorders_of, wait_long_for_copies

OBJECT = "runs/goodput_state/job.goodput"
OLDER, NEWER = LIFE.payloads[:-3], LIFE.payloads


@pytest.fixture(scope="module")
def shared_server() -> Iterator[CloudStorageServer]:
    with CloudStorageServer(buckets=["bucket"]) as server:
        yield server


@pytest.fixture
def server(shared_server: CloudStorageServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[CloudStorageServer]:
    for name, value in shared_server.environment().items():
        monkeypatch.setenv(name, value)
    for name in shared_server.names("bucket"):
        shared_server.delete("bucket", name)
    shared_server.requests.clear()
    yield shared_server
    shared_server.faults.clear()
    shared_server.faults.release()


@pytest.fixture(autouse=True)
def _patient(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only tests of how long a query waits for the copy depend on that."""
    if request.node.get_closest_marker("timing") is None:
        wait_long_for_copies(monkeypatch)


@pytest.fixture(params=["gs", "folder"])
def gcs_path(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A folder for copies: in a bucket, or local."""
    if request.param == "folder":
        return str(tmp_path / "shared" / "runs")
    request.getfixturevalue("server")
    return "gs://bucket/runs"


def store_of(machine: Path, gcs_path: str | None) -> StateStore:
    return StateStore(machine / "job.goodput", gcs_path)


def encoded(recorders: Recorders, **position: Any) -> bytes:
    return b"".join(encode_state(recorders, position))


def facts_in_copy(gcs_path: str) -> int:
    path = f"{gcs_path}/goodput_state/job.goodput"
    data = storage_for(path).read(path)
    state = decode_state(io.BytesIO(data), len(data), JOB)
    facts = state.recorders.fact_count
    assert facts_in_front(data, JOB) == facts
    return facts


def facts(payloads: list[dict[str, Any]]) -> int:
    return len(recorders_of(payloads).ledger.facts)


# --- The choice between the copy and this machine's state ---------------------------------------------------------


def test_another_machine_continues_from_the_copy(gcs_path: str, tmp_path: Path) -> None:
    recorders = recorders_of(NEWER)
    assert store_of(tmp_path / "a", gcs_path).sync(recorders, {"journal": 3})
    state = store_of(tmp_path / "b", gcs_path).load(JOB)
    assert state is not None
    assert state.position == {"journal": 3}
    assert contents_of(state.recorders) == contents_of(recorders)


@pytest.mark.parametrize(("local", "copied", "taken"), [(OLDER, NEWER, "copy"), (NEWER, OLDER, "local")])
def test_the_state_with_more_facts_is_continued_from(
    gcs_path: str, tmp_path: Path, local: list[Any], copied: list[Any], taken: str
) -> None:
    store = store_of(tmp_path / "a", gcs_path)
    assert store.save(recorders_of(local), {"from": "local"})
    assert store.sync(recorders_of(copied), {"from": "copy"})
    state = store.load(JOB)
    assert state is not None
    assert state.position == {"from": taken}
    assert contents_of(state.recorders) == contents_of(recorders_of(NEWER))


def test_where_they_know_as_much_the_local_one_is_taken_and_the_copy_not_downloaded(
    server: CloudStorageServer, tmp_path: Path
) -> None:
    store = store_of(tmp_path, "gs://bucket/runs")
    recorders = recorders_of(History().start(0).steps(range(5000), at=1, each=1).payloads)
    assert store.sync(recorders, {"from": "copy"})
    assert store.save(recorders, {"from": "local"})
    server.requests.clear()
    state = store.load(JOB)
    assert state is not None
    assert state.position == {"from": "local"}
    assert len(server.requests) == 1
    (tmp_path / "job.goodput").unlink()
    assert store.load(JOB) is not None
    assert len(server.requests) == 3  # Its front, and all of it.


def test_a_missing_state_is_none_without_a_warning(
    gcs_path: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert store_of(tmp_path, gcs_path).load(JOB) is None
    assert store_of(tmp_path, None).load(JOB) is None
    assert caplog.messages == []


def test_without_a_path_for_it_there_is_no_copy(tmp_path: Path) -> None:
    store = store_of(tmp_path, None)
    assert not store.sync(recorders_of(NEWER), {})
    assert store.save(recorders_of(NEWER), {"from": "local"})
    state = store.load(JOB)
    assert state is not None
    assert state.position == {"from": "local"}


def test_a_local_state_that_is_damaged_gives_way_to_a_copy_that_knows_less(
    gcs_path: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = store_of(tmp_path, gcs_path)
    assert store.sync(recorders_of(OLDER), {"from": "copy"})
    assert store.save(recorders_of(NEWER), {"from": "local"})
    path = tmp_path / "job.goodput"
    path.write_bytes(path.read_bytes()[:-100])
    state = store.load(JOB)
    assert state is not None
    assert state.position == {"from": "copy"}
    assert len(caplog.messages) == 1


# --- A copy that is not what it was -------------------------------------------------------------------------------


def of_another_job() -> Recorders:
    recorders = Recorders("another job")
    recorders.add(Writer(0), [{**payload, "job_name": "another job"} for payload in NEWER])
    return recorders


# It claims to be newer than the records, so that it would be used.
WHOLE = encoded(recorders_of([*NEWER, *History().steps(range(20, 30), at=500).payloads]))
MIDDLE = len(WHOLE) // 2
DAMAGES = {
    "empty": b"",
    "something else": b"\x89PNG" * 5000,
    "older version": WHOLE.replace(_MAGIC, b"goodput state of 0.9.9 little\n"),
    "another job": encoded(of_another_job()),
    "truncated in the front": WHOLE[:60],
    "truncated": WHOLE[:MIDDLE],
    "corrupt": WHOLE[:MIDDLE] + bytes([WHOLE[MIDDLE] ^ 1]) + WHOLE[MIDDLE + 1 :],
    "longer": WHOLE + WHOLE,
}


@pytest.mark.parametrize("has_local", [True, False])
@pytest.mark.parametrize("content", DAMAGES.values(), ids=DAMAGES)
def test_an_unusable_copy_is_skipped_once_and_rebuilt(
    gcs_path: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes, has_local: bool
) -> None:
    path = f"{gcs_path}/goodput_state/job.goodput"
    storage_for(path).write(path, content)
    store = store_of(tmp_path, gcs_path)
    recorders = recorders_of(NEWER)
    if has_local:
        assert store.save(recorders, {"from": "local"})
    for _ in range(2):
        state = store.load(JOB)
        assert (state is not None) == has_local
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert path in record.getMessage()
    assert "cannot be used" in record.getMessage()
    assert store.sync(recorders, {})
    assert facts_in_copy(gcs_path) == facts(NEWER)


# --- Never newer by older -----------------------------------------------------------------------------------------


def test_an_older_state_never_replaces_a_copy_that_knows_more(gcs_path: str, tmp_path: Path) -> None:
    assert store_of(tmp_path / "a", gcs_path).sync(recorders_of(NEWER), {"is": "newer"})
    assert store_of(tmp_path / "b", gcs_path).sync(recorders_of(OLDER), {"is": "older"})  # What it knows is there.
    assert facts_in_copy(gcs_path) == facts(NEWER)


def test_a_copy_that_knows_as_much_is_not_uploaded_again(server: CloudStorageServer, tmp_path: Path) -> None:
    store = store_of(tmp_path, "gs://bucket/runs")
    assert store.sync(recorders_of(NEWER), {})
    server.requests.clear()
    assert store.sync(recorders_of(NEWER), {})
    assert server.requests_for("upload") == []


def test_a_state_of_nothing_is_not_copied(gcs_path: str, tmp_path: Path) -> None:
    assert not store_of(tmp_path, gcs_path).sync(Recorders(JOB), {})


@pytest.mark.parametrize(("theirs", "left"), [(NEWER, NEWER), (OLDER[:-3], OLDER)])
def test_the_loser_of_a_race_reads_again(
    server: CloudStorageServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, theirs: list[Any], left: list[Any]
) -> None:
    """Another process writes between the read and the write: the newer of the two remains."""
    real = state_store.encode_state  # type: ignore[attr-defined]

    def encode_while_another_writes(*arguments: Any) -> Any:
        server.write("bucket", OBJECT, encoded(recorders_of(theirs)))
        return real(*arguments)

    monkeypatch.setattr(state_store, "encode_state", encode_while_another_writes)
    assert store_of(tmp_path, "gs://bucket/runs").sync(recorders_of(OLDER), {})
    assert facts_in_copy("gs://bucket/runs") == facts(left)


def test_many_refusals_end_with_one_warning(
    server: CloudStorageServer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state_store, "Backoff", lambda *_: Backoff(0.001))
    server.faults.always(Status(412), on="upload")
    store = store_of(tmp_path, "gs://bucket/runs")
    assert not store.sync(recorders_of(NEWER), {})
    assert 2 <= len(server.requests_for("upload")) < 10
    assert not store.sync(recorders_of(NEWER), {})
    [message] = caplog.messages
    assert f"gs://bucket/{OBJECT}" in message
    server.faults.clear()
    assert store.sync(recorders_of(NEWER), {})


SYNCER = """
import sys
from pathlib import Path
from ml_goodput_measurement._ledger.recorders import Recorders
from ml_goodput_measurement._query import state_store
from ml_goodput_measurement._query.state_store import StateStore
from ml_goodput_measurement._ledger.writers import Writer
state_store._CHECK_PATIENCE_SECONDS = 30.0  # As in all tests but those of how long a query waits.
state_store._StateCopy._store.__defaults__ = (30.0,)
folder, gcs_path, first = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
store, recorders = StateStore(folder / "job.goodput", gcs_path), Recorders("job")
for step in range(first, 60, 2):
    done = [{"job_name": "job", "step_count": i, "step_start_time": 1.7e9 + i} for i in range(step + 1)]
    recorders.add(Writer(0), done)
    while not store.sync(recorders, {"step": step}):
        pass
    seen = store.load("job")
    assert len(seen.recorders.ledger.facts) >= len(recorders.ledger.facts), "newer was replaced by older"
"""


def test_of_two_processes_that_race_neither_replaces_newer_by_older(gcs_path: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", SYNCER]
    racers = [
        subprocess.Popen([*command, str(tmp_path / str(first)), gcs_path, str(first)], stderr=subprocess.PIPE)
        for first in (0, 1)
    ]
    for racer in racers:
        _, err = racer.communicate(timeout=60)
        assert racer.returncode == 0, err.decode()
    assert facts_in_copy(gcs_path) == facts(History().steps(range(60), at=0, each=1).payloads)


# --- A store that fails -------------------------------------------------------------------------------------------


@pytest.mark.timing
@pytest.mark.parametrize(
    ("fault", "on"),
    [(Hang(), None), (Status(503), None), (Reset(), None), (Truncate(20), "read"), (Status(403), None)],
    ids=["hang", "503", "reset", "truncate", "403"],
)
def test_a_failing_store_costs_a_query_two_seconds_and_one_warning(
    server: CloudStorageServer, tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: Any, on: str | None
) -> None:
    store = store_of(tmp_path, "gs://bucket/runs")
    assert store.sync(recorders_of(NEWER), {"from": "copy"})
    assert store.save(recorders_of(OLDER), {"from": "local"})
    server.faults.always(fault, on=on)
    started = time.monotonic()
    state = store.load(JOB)
    assert time.monotonic() - started < 2.5
    assert state is not None
    assert state.position == {"from": "local"}
    store_of(tmp_path / "another", "gs://bucket/runs").load(JOB)
    [message] = caplog.messages
    assert f"gs://bucket/{OBJECT}" in message


@pytest.mark.timing
def test_a_store_that_falls_silent_in_between_costs_about_two_seconds(
    server: CloudStorageServer, tmp_path: Path
) -> None:
    store = store_of(tmp_path, "gs://bucket/runs")
    assert store.sync(recorders_of(NEWER), {})
    server.faults.script([None, *[Hang()] * 10], on="read")
    started = time.monotonic()
    assert store.load(JOB) is None
    assert time.monotonic() - started < 2.5


@pytest.mark.timing
def test_a_store_that_no_timeout_of_sockets_bounds_costs_about_two_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as the look-up of a name, or a network filesystem."""
    asleep = threading.Event()
    monkeypatch.setattr(state_store, "storage_for", lambda *_, **__: asleep.wait(20))
    store = store_of(tmp_path, None)
    store._copy = state_store._StateCopy("gs://bucket/x")
    started = time.monotonic()
    assert store.load(JOB) is None
    assert time.monotonic() - started < 2.5
    assert "no answer within" in caplog.text
    asleep.set()


def test_the_last_moments_of_a_process_do_not_ask_for_the_copy(server: CloudStorageServer, tmp_path: Path) -> None:
    store = store_of(tmp_path, "gs://bucket/runs")
    assert store.sync(recorders_of(NEWER), {})
    assert store.load(JOB, local_only=True) is None
    assert store.load(JOB) is not None


def test_a_slow_store_is_waited_for_while_it_is_worth_it(server: CloudStorageServer, tmp_path: Path) -> None:
    store = store_of(tmp_path, "gs://bucket/runs")
    assert store.sync(recorders_of(NEWER), {})
    server.faults.always(Delay(0.3), on="read")
    assert store.load(JOB) is not None


def test_a_store_that_fails_a_moment_is_asked_again(server: CloudStorageServer, tmp_path: Path) -> None:
    server.faults.script([Status(503), Reset()], on="read")
    server.faults.script([Status(503, after_apply=True)], on="upload")
    store = store_of(tmp_path, "gs://bucket/runs")
    assert store.sync(recorders_of(NEWER), {})
    server.faults.script([Status(503)], on="read")
    assert store.load(JOB) is not None


def test_a_copy_that_cannot_be_written_is_one_warning(
    tmp_path: Path, server: CloudStorageServer, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "taken").write_text("")
    for gcs_path in ("gs://missing-bucket/runs", str(tmp_path / "taken"), "/proc/read-only/for/all"):
        store = store_of(tmp_path, gcs_path)
        caplog.clear()
        for _ in range(2):
            assert not store.sync(recorders_of(NEWER), {})
        [message] = caplog.messages
        assert f"could not be copied to {gcs_path}" in message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tmp_path.chmod(0o500)
    assert not store_of(tmp_path, str(tmp_path)).sync(recorders_of(NEWER), {})
    tmp_path.chmod(0o700)
    assert "could not be copied" in caplog.text


def test_without_credentials_or_the_client_the_local_state_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "google.cloud.storage", None)
    monkeypatch.delattr("google.cloud.storage", raising=False)
    monkeypatch.setenv("CLOUDSDK_AUTH_DISABLE_CREDENTIALS", "true")
    store = store_of(tmp_path, "gs://bucket/without-the-client")
    assert store.save(recorders_of(NEWER), {"from": "local"})
    assert store.load(JOB) is not None
    assert not store.sync(recorders_of(NEWER), {})
    assert len(caplog.messages) == 2
    assert all("ml-diagnostics-common[gcs]" in message for message in caplog.messages)


FULL_DISK = """
import resource, sys
from pathlib import Path
from ml_goodput_measurement._ledger.recorders import Recorders
from ml_goodput_measurement._query.state_store import StateStore
from ml_goodput_measurement._ledger.writers import Writer
recorders = Recorders("job")
recorders.add(Writer(0), [{"job_name": "job", "step_count": i, "step_start_time": 1.7e9 + i} for i in range(1000)])
store = StateStore(Path(sys.argv[1]) / "job.goodput", sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (700, 700))
print(store.save(recorders, {}), store.sync(recorders, {}))
"""


def test_a_full_disk_is_survived_and_the_old_copy_stays(tmp_path: Path) -> None:
    assert store_of(tmp_path, str(tmp_path)).sync(recorders_of(OLDER), {})
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "False False\n"
    assert "could not be saved" in done.stderr
    assert "could not be copied" in done.stderr
    assert facts_in_copy(str(tmp_path)) == facts(OLDER)
    assert [file.name for file in (tmp_path / "goodput_state").iterdir()] == ["job.goodput"]


KILLED = SYNCER.replace("60, 2", "10**6").replace("step + 1", "20_000 + step")


@pytest.mark.parametrize("seed", range(3))
def test_a_process_killed_while_it_copies_leaves_a_whole_copy(gcs_path: str, tmp_path: Path, seed: int) -> None:
    command = [sys.executable, "-W", "ignore", "-c", KILLED, str(tmp_path), gcs_path, "0"]
    path = f"{gcs_path}/goodput_state/job.goodput"
    with subprocess.Popen(command) as process:
        wait_until(lambda: storage_for(path).exists(path), running=process)
        time.sleep(random.Random(seed).random() / 3)
        process.send_signal(signal.SIGKILL)
    known = facts_in_copy(gcs_path)
    state = store_of(tmp_path / "another", gcs_path).load(JOB)
    assert state is not None
    assert len(state.recorders.ledger.facts) == known >= 20_000


# --- Names --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gcs_path", "name"),
    [
        ("gs://bucket/runs", "runs/goodput_state/job.goodput"),
        ("gs://bucket/runs/deep/", "runs/deep/goodput_state/job.goodput"),
        ("gs://bucket", "goodput_state/job.goodput"),
        ("gs://bucket/", "goodput_state/job.goodput"),
    ],
)
def test_a_copy_lies_in_a_folder_of_its_own(
    server: CloudStorageServer, tmp_path: Path, gcs_path: str, name: str
) -> None:
    assert store_of(tmp_path, gcs_path).sync(recorders_of(NEWER), {})
    assert server.names("bucket") == [name]


@pytest.mark.parametrize(
    "gcs_path", ["s3://bucket/x", "gs://", "gs:///x", Path("gs://bucket/x"), Path("s3://b/x"), 3, b"x"]
)
def test_a_folder_that_cannot_be_is_refused_at_once(tmp_path: Path, gcs_path: Any) -> None:
    with pytest.raises(ConfigurationError, match="gs"):
        StateStore(tmp_path / "job.goodput", gcs_path)
    with pytest.raises(ConfigurationError):
        checked_gcs_path(gcs_path)


@pytest.mark.parametrize(("gcs_path", "folder"), [(None, None), ("", None), ("gs://b", "gs://b"), (Path("/x"), "/x")])
def test_a_folder_that_can_be_is_taken_as_text(gcs_path: Any, folder: str | None) -> None:
    assert checked_gcs_path(gcs_path) == folder


def test_nothing_of_google_is_imported_for_a_local_state() -> None:
    program = """
from pathlib import Path
from ml_goodput_measurement._query.state_store import StateStore
StateStore(Path("nowhere"), "gs://bucket/x")
StateStore(Path("nowhere")).load("job")
"""
    assert not {"google", "grpc", "numpy", "requests"} & loaded_by(program)


def test_saving_and_copying_take_no_more_memory_than_one_copy(tmp_path: Path) -> None:
    recorders = recorders_of(History().steps(range(200_000), at=0, each=1).payloads)
    size = len(encoded(recorders))
    store = store_of(tmp_path, str(tmp_path))

    def peak(call: Callable[[Recorders, dict[str, Any]], bool]) -> float:
        tracemalloc.start()
        try:
            assert call(recorders, {})
            return tracemalloc.get_traced_memory()[1] / size
        finally:
            tracemalloc.stop()

    assert peak(store.save) < 0.2
    assert peak(store.sync) < 1.2
