"""One contract for local files and Cloud Storage, and what each promises beyond it."""

import errno
import gc
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.oauth2.credentials import Credentials
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ml_diagnostics_common import storage
from ml_diagnostics_common.exceptions import (
    ConfigurationError,
    DiagnosticsError,
    MissingExtraError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
)
from ml_diagnostics_common.failures import Kind, classify
from ml_diagnostics_testing.cloud_storage import CloudStorageServer
from ml_diagnostics_testing.faults import Drip, Hang, Reset, Status, Truncate


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    with CloudStorageServer(buckets=["bucket"]) as server:
        yield server


@pytest.fixture
def cloud(server: Any) -> Iterator[Any]:
    server.faults.clear()
    server.requests.clear()
    for name in server.names("bucket"):
        server.delete("bucket", name)
    cloud = storage.GoogleCloudStorage(
        environ={"STORAGE_EMULATOR_HOST": server.url}, deadline_seconds=5, sleep=lambda seconds: None
    )
    yield cloud
    cloud.close()


@pytest.fixture(params=["local", "cloud"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A store, and the root of its paths."""
    if request.param == "local":
        return storage.LocalStorage(), str(tmp_path / "root")
    return request.getfixturevalue("cloud"), "gs://bucket/root"


# --- The contract -------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"hello", bytes(range(256)) * 4096])
def test_what_is_written_is_read(store: Any, data: Any) -> None:
    keep, root = store
    generation = keep.write(f"{root}/deep/er/file name ü", data)
    assert keep.read(f"{root}/deep/er/file name ü") == data
    assert keep.read_with_generation(f"{root}/deep/er/file name ü") == (data, generation)


@pytest.mark.parametrize(
    ("data", "first"), [(b"", b""), (b"hel", b"hel"), (b"hell", b"hell"), (b"hello" * 9999, b"hell")]
)
def test_the_first_bytes_are_read_with_the_generation_of_the_whole(store: Any, data: Any, first: Any) -> None:
    keep, root = store
    generation = keep.write(f"{root}/x", data)
    assert keep.read_with_generation(f"{root}/x", first_bytes=4) == (first, generation)
    with pytest.raises(ObjectNotFoundError):
        keep.read_with_generation(f"{root}/none", first_bytes=4)


@pytest.mark.parametrize("data", [b"", b"hel", b"hello" * 9999])
def test_a_part_is_read_without_the_rest_and_ends_with_the_content(store: Any, data: Any) -> None:
    keep, root = store
    keep.write(f"{root}/x", data)
    assert keep.size(f"{root}/x") == len(data)
    for start, end in ((0, 2), (1, 3), (2, 2), (3, 1), (4, 100), (len(data) - 1, len(data)), (len(data), 60000)):
        if start >= 0:
            assert keep.read_part(f"{root}/x", start, end) == data[start : max(start, end)]


def test_every_write_has_a_greater_generation(store: Any) -> None:
    keep, root = store
    generations = [keep.write(f"{root}/x", b"%d" % number) for number in range(20)]
    assert generations == sorted(set(generations))
    assert generations[0] > 0
    assert keep.read_with_generation(f"{root}/x") == (b"19", generations[-1])


def test_an_object_is_there_from_its_write_to_its_deletion(store: Any) -> None:
    keep, root = store
    assert not keep.exists(f"{root}/a/x")
    keep.write(f"{root}/a/x", b"")
    assert keep.exists(f"{root}/a/x")
    assert not keep.exists(f"{root}/a")
    keep.delete(f"{root}/a/x")
    assert not keep.exists(f"{root}/a/x")


@pytest.mark.parametrize("method", ["read", "read_with_generation", "delete"])
def test_what_is_not_there_is_an_error_that_names_it(store: Any, method: str) -> None:
    keep, root = store
    with pytest.raises(ObjectNotFoundError, match=f"{root}/none.*there is no such"):
        getattr(keep, method)(f"{root}/none")
    with pytest.raises(FileNotFoundError):
        getattr(keep, method)(f"{root}/none")


def test_there_is_neither_a_size_nor_a_part_of_what_is_not_there(store: Any) -> None:
    keep, root = store
    with pytest.raises(ObjectNotFoundError):
        keep.size(f"{root}/none")
    with pytest.raises(ObjectNotFoundError):
        keep.read_part(f"{root}/none", 0, 1)


def test_generation_zero_means_must_not_exist(store: Any) -> None:
    keep, root = store
    keep.write(f"{root}/x", b"1", if_generation=0)
    with pytest.raises(PreconditionFailedError, match=f"{root}/x.*read it again and repeat the change"):
        keep.write(f"{root}/x", b"2", if_generation=0)
    assert keep.read(f"{root}/x") == b"1"


def test_a_write_on_top_of_another_write_is_refused(store: Any) -> None:
    keep, root = store
    first = keep.write(f"{root}/x", b"1")
    second = keep.write(f"{root}/x", b"2", if_generation=first)
    with pytest.raises(PreconditionFailedError):
        keep.write(f"{root}/x", b"3", if_generation=first)
    with pytest.raises(PreconditionFailedError):
        keep.write(f"{root}/none", b"3", if_generation=first)
    keep.write(f"{root}/x", b"3", if_generation=second)
    assert keep.read(f"{root}/x") == b"3"


def test_no_increment_of_many_writers_is_lost(store: Any) -> None:
    keep, root = store
    keep.write(f"{root}/count", b"0")

    def increment() -> None:
        for _ in range(5):
            while True:
                data, generation = keep.read_with_generation(f"{root}/count")
                try:
                    keep.write(f"{root}/count", b"%d" % (int(data) + 1), if_generation=generation)
                    break
                except PreconditionFailedError:
                    pass

    threads = [threading.Thread(target=increment) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert keep.read(f"{root}/count") == b"20"


def test_a_list_has_the_paths_with_the_prefix(store: Any) -> None:
    keep, root = store
    for name in ("run-1/a", "run-1/b/c", "run-10", "other", "é"):
        keep.write(f"{root}/{name}", b"")
    assert keep.list_prefix(f"{root}/run-1/") == [f"{root}/run-1/a", f"{root}/run-1/b/c"]
    assert keep.list_prefix(f"{root}/run-1") == [f"{root}/run-1/a", f"{root}/run-1/b/c", f"{root}/run-10"]
    assert keep.list_prefix(root) == [f"{root}/{name}" for name in ("other", "run-1/a", "run-1/b/c", "run-10", "é")]
    assert keep.list_prefix(f"{root}/none/") == []


def test_a_list_from_a_name_on_has_only_what_is_behind_it(store: Any) -> None:
    keep, root = store
    names = ["a", "log=x/day=1/w.1", "log=x/day=2/w.1", "log=x/day=2/w.2", "log=x/end", "log=y/a"]
    for name in names:
        keep.write(f"{root}/{name}", b"")
    paths = [f"{root}/{name}" for name in names]
    assert keep.list_prefix(f"{root}/", after=f"{root}/log=x/day=2/") == paths[2:]
    assert keep.list_prefix(f"{root}/", after=paths[2]) == paths[3:]
    assert keep.list_prefix(f"{root}/log=x/", after=f"{root}/log=x/day=1/w.1z") == paths[2:5]
    assert keep.list_prefix(f"{root}/log=x/", after=paths[5]) == []
    assert keep.list_prefix(f"{root}/log=x/", after=f"{root}/") == paths[1:5]
    assert keep.list_prefix(f"{root}/log=", limit=1) == paths[1:2]
    assert keep.list_prefix(f"{root}/log=", after=paths[1], limit=2) == paths[2:4]


def test_a_reader_sees_the_old_content_or_the_new_and_nothing_between(store: Any) -> None:
    keep, root = store
    contents = [bytes([digit]) * 200_000 for digit in b"01"]
    keep.write(f"{root}/x", contents[0])
    stop = threading.Event()

    def write() -> None:
        turn = 0
        while not stop.is_set():
            turn = 1 - turn
            keep.write(f"{root}/x", contents[turn])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = {keep.read(f"{root}/x") for _ in range(30)}
    finally:
        stop.set()
        writer.join()
    assert seen <= set(contents)


@pytest.mark.parametrize("method", ["read", "exists", "delete", "list_prefix"])
def test_a_path_with_a_nul_byte_is_refused(store: Any, method: str) -> None:
    keep, root = store
    with pytest.raises(ConfigurationError):
        getattr(keep, method)(f"{root}/a\0b")
    with pytest.raises(ConfigurationError):
        keep.write(f"{root}/a\0b", b"")


@given(name=st.text(min_size=1, max_size=300).filter(lambda name: name.strip("/. ")))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
def test_any_name_works_or_is_refused_with_our_error(store: Any, name: Any) -> None:
    keep, root = store
    try:
        keep.write(f"{root}/n/{name}", b"data")
    except (ConfigurationError, StorageError):
        return
    assert keep.read(f"{root}/n/{name}") == b"data"


def test_the_functions_choose_the_store_by_the_path(
    server: Any, cloud: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in server.environment().items():
        monkeypatch.setenv(variable, value)
    for path in ("gs://bucket/by-function", str(tmp_path / "by-function"), tmp_path / "by-path"):
        generation = storage.write(path, b"1", if_generation=0)
        assert storage.read(path) == b"1"
        assert storage.read_with_generation(path) == (b"1", generation)
        assert storage.read_with_generation(path, first_bytes=1) == (b"1", generation)
        assert storage.list_prefix(path) == [os.fspath(path)]
        assert storage.exists(path)
        storage.delete(path)
        assert not storage.exists(path)
    assert storage.storage_for("gs://bucket/a") is storage.storage_for("gs://other/b")
    storage.storage_for("gs://bucket/a").close()  # type: ignore[attr-defined]


def test_headers_that_drip_are_given_up_and_a_body_that_drips_is_read(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in server.environment().items():
        monkeypatch.setenv(variable, value)
    store = storage.GoogleCloudStorage(deadline_seconds=2.0)
    store.write("gs://bucket/x", b"12345678")
    server.faults.script([Drip(0.3, body_only=True)])
    assert store.read("gs://bucket/x") == b"12345678"  # In more than two seconds: each byte is in time.
    server.faults.always(Drip(0.3))
    with pytest.raises(StorageError, match=r"within 2 s"):
        store.read("gs://bucket/x")
    server.faults.clear()
    store.close()


def test_the_deadline_is_the_callers_to_choose(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in server.environment().items():
        monkeypatch.setenv(variable, value)
    server.faults.always(Hang())
    store = storage.storage_for("gs://bucket/x", deadline_seconds=0.1)
    assert store is storage.storage_for("gs://bucket/y", deadline_seconds=0.1)
    with pytest.raises(StorageError, match=r"within 0\.1 s"):
        store.read("gs://bucket/x")
    server.faults.clear()
    store.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "path", ["s3://bucket/key", "http://host/x", "file:///x", "s3+http://b/k", "GS://b/k", "s3:/b/k"]
)
def test_another_scheme_is_an_error_that_names_the_valid_ones(path: str) -> None:
    with pytest.raises(ConfigurationError, match=r"not supported; give gs://bucket/folder or a path"):
        storage.read(path)


# --- Local files --------------------------------------------------------------------------------------


def test_dots_in_a_local_path_are_resolved(tmp_path: Path) -> None:
    keep = storage.LocalStorage()
    keep.write(f"{tmp_path}/a/../b/./x", b"1")
    assert keep.list_prefix(f"{tmp_path}/c/..") == [f"{tmp_path}/b/x"]
    assert not (tmp_path / "a").exists()


def test_local_files_are_private_but_keep_the_permissions_they_were_given(tmp_path: Path) -> None:
    keep, path = storage.LocalStorage(), tmp_path / "folder" / "x"
    keep.write(str(path), b"1")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.chmod(0o644)
    keep.write(str(path), b"2")
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_symlink_at_the_target_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / "x").symlink_to(tmp_path / "victim")
    storage.LocalStorage().write(str(tmp_path / "x"), b"data")
    assert (tmp_path / "victim").read_bytes() == b"precious"
    assert (tmp_path / "x").read_bytes() == b"data"


def test_a_list_follows_no_symlink(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_bytes(b"")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "root" / "loop").symlink_to(tmp_path / "root")
    assert storage.LocalStorage().list_prefix(f"{tmp_path}/root/") == []


def test_a_create_needs_no_lock_where_there_are_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    keep = storage.LocalStorage()
    keep.write(str(tmp_path / "x"), b"1", if_generation=0)
    with pytest.raises(PreconditionFailedError, match="read it again and repeat the change"):
        keep.write(str(tmp_path / "x"), b"2", if_generation=0)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"1"]
    monkeypatch.undo()

    def no_links(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("os.link", no_links)
    keep.write(str(tmp_path / "y"), b"1", if_generation=0)
    with pytest.raises(PreconditionFailedError):
        keep.write(str(tmp_path / "y"), b"2", if_generation=0)


def test_all_folders_of_a_local_path_are_private(tmp_path: Path) -> None:
    storage.LocalStorage().write(str(tmp_path / "a" / "b" / "x"), b"1")
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a", "a/b")] == [0o700, 0o700]


def test_an_object_has_the_media_type_that_it_was_given(server: Any, cloud: Any) -> None:
    cloud.write("gs://bucket/x.gz", b"1", content_type="application/gzip")
    cloud.write("gs://bucket/x", b"1")
    stored = [server.stored("bucket", name).properties for name in ("x.gz", "x")]
    assert [each["contentType"] for each in stored] == ["application/gzip", "application/octet-stream"]
    assert not any("contentEncoding" in each for each in stored)


def test_a_failed_write_leaves_the_old_content_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep, path = storage.LocalStorage(), tmp_path / "x"
    keep.write(str(path), b"old")

    def full(descriptor: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match=r"cannot write .*x: No space left on device; free some space"):
        keep.write(str(path), b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_writer_left_is_not_listed(tmp_path: Path) -> None:
    (tmp_path / ".ml-diagnostics-0123456789abcdef.tmp").write_bytes(b"half")
    (tmp_path / ".hidden").write_bytes(b"")
    assert storage.LocalStorage().list_prefix(f"{tmp_path}/") == [f"{tmp_path}/.hidden"]


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("file/x", "a file where a folder should be"),
        ("folder", "give the path of a file"),
        ("n" * 300, "a shorter name"),
    ],
)
def test_a_local_error_names_the_path_and_what_to_do(tmp_path: Path, path: Any, what: Any) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError, match=what) as caught:
        storage.LocalStorage().write(f"{tmp_path}/{path}", b"")
    assert str(tmp_path / path) in str(caught.value)


def test_reading_a_named_pipe_does_not_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageError, match="not a regular file"):
        storage.LocalStorage().read(str(tmp_path / "pipe"))
    assert not storage.LocalStorage().exists(str(tmp_path / "pipe"))


def test_a_filesystem_with_coarse_times_still_distinguishes_generations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.utime
    monkeypatch.setattr(
        os, "utime", lambda path, ns: real(path, ns=tuple(t // 2_000_000_000 * 2_000_000_000 for t in ns))
    )
    keep = storage.LocalStorage()
    generations = [keep.write(str(tmp_path / "x"), b"") for _ in range(3)]
    assert generations == sorted(set(generations))


def test_a_clock_that_goes_back_does_not_take_a_generation_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = storage.LocalStorage()
    first = keep.write(str(tmp_path / "x"), b"1")
    monkeypatch.setattr(time, "time_ns", lambda: 1_000_000_000)
    assert keep.write(str(tmp_path / "x"), b"2", if_generation=first) > first


def test_a_conditional_write_is_refused_where_there_are_no_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fcntl = pytest.importorskip("fcntl")

    def no_locks(descriptor: Any, operation: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    storage.LocalStorage().write(str(tmp_path / "x"), b"1")
    with pytest.raises(StorageError, match="no file locks, so a conditional write is unsafe"):
        storage.LocalStorage().write(str(tmp_path / "x"), b"2", if_generation=1)


def test_a_lock_that_is_never_released_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    descriptor = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        with pytest.raises(StorageError, match="another process holds the lock"):
            storage.LocalStorage(lock_timeout_seconds=0.02).write(str(tmp_path / "x"), b"1")
    finally:
        os.close(descriptor)


INCREMENT_OFTEN = """
import sys
from ml_diagnostics_common.exceptions import PreconditionFailedError
from ml_diagnostics_common.storage import LocalStorage
keep, path = LocalStorage(), sys.argv[1]
for _ in range(25):
    while True:
        data, generation = keep.read_with_generation(path)
        try:
            keep.write(path, b"%d" % (int(data) + 1), if_generation=generation)
            break
        except PreconditionFailedError:
            pass
"""


def test_no_increment_of_many_processes_is_lost(tmp_path: Path) -> None:
    path = str(tmp_path / "count")
    storage.LocalStorage().write(path, b"0")
    processes = [subprocess.Popen([sys.executable, "-c", INCREMENT_OFTEN, path]) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert storage.LocalStorage().read(path) == b"75"


# --- Cloud Storage ------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [Status(503), Status(429, retry_after=1), Status(408), Reset()])
@pytest.mark.parametrize("after_apply", [False, True])
def test_transient_faults_are_tried_again_and_done_once(server: Any, cloud: Any, fault: Any, after_apply: bool) -> None:
    if after_apply:
        fault = type(fault)(**{**vars(fault), "after_apply": True})
    for operation in ("upload", "read", "list", "get", "delete"):
        server.faults.script([fault, fault], on=operation)
    generation = cloud.write("gs://bucket/x", b"1", if_generation=0)
    assert generation == server.stored("bucket", "x").generation
    assert cloud.read_with_generation("gs://bucket/x") == (b"1", generation)
    assert cloud.list_prefix("gs://bucket/") == ["gs://bucket/x"]
    assert cloud.exists("gs://bucket/x")
    cloud.delete("gs://bucket/x")
    assert server.names("bucket") == []
    assert len(server.faults.injected) >= 8


def test_the_delay_that_a_server_requests_is_obeyed(server: Any) -> None:
    pauses: list[float] = []
    cloud = storage.GoogleCloudStorage(environ={"STORAGE_EMULATOR_HOST": server.url}, sleep=pauses.append)
    server.faults.script([Status(429, retry_after=7), Status(503)])
    assert not cloud.exists("gs://bucket/none")
    assert 7 <= pauses[0] < 7.1
    assert 0 < pauses[1] < 1
    cloud.close()


def test_a_retry_does_not_take_another_write_for_its_own(server: Any, cloud: Any) -> None:
    server.faults.script([Status(503)], on="upload")
    server.write("bucket", "x", b"theirs")
    with pytest.raises(PreconditionFailedError):
        cloud.write("gs://bucket/x", b"ours", if_generation=0)
    assert server.read("bucket", "x") == b"theirs"


def test_a_download_that_was_cut_is_tried_again(server: Any, cloud: Any) -> None:
    server.write("bucket", "x", b"0123456789" * 100)
    server.faults.script([Truncate(5), Truncate(0)], on="read")
    assert cloud.read("gs://bucket/x") == b"0123456789" * 100


def test_a_large_object_is_written_whole(server: Any, cloud: Any) -> None:
    data = os.urandom(9 * 1024 * 1024)  # Above the client's limit for an upload in one request.
    server.faults.script([None, Status(503)], on="upload")
    cloud.write("gs://bucket/big", data, if_generation=0)
    assert server.read("bucket", "big") == data


def test_a_long_list_is_complete(server: Any, cloud: Any) -> None:
    for number in range(1001):
        server.write("bucket", f"many/{number:04}", b"")
    assert len(cloud.list_prefix("gs://bucket/many/")) == 1001
    assert len(server.requests_for("list")) == 2


def test_a_server_that_stays_down_is_given_up_at_the_deadline(server: Any) -> None:
    now = [0.0]

    def sleep(seconds: Any) -> None:
        now[0] += seconds

    cloud = storage.GoogleCloudStorage(
        environ={"STORAGE_EMULATOR_HOST": server.url}, deadline_seconds=30, clock=lambda: now[0], sleep=sleep
    )
    server.faults.always(Status(503))
    with pytest.raises(StorageError, match=r"cannot read gs://bucket/x.*within 30 s, in \d+ attempts.*try again later"):
        cloud.read("gs://bucket/x")
    assert 10 < now[0] <= 30
    assert 3 < len(server.requests) < 60
    server.faults.clear()
    cloud.close()


@pytest.mark.timing
@pytest.mark.parametrize("method", ["read", "exists", "delete", "list_prefix", "write"])
def test_a_server_that_never_answers_is_given_up_at_the_deadline(server: Any, method: str) -> None:
    server.faults.always(Hang())
    cloud = storage.GoogleCloudStorage(environ={"STORAGE_EMULATOR_HOST": server.url}, deadline_seconds=0.2)
    start = time.monotonic()
    with pytest.raises(StorageError, match=r"did not answer well within 0\.2 s"):
        getattr(cloud, method)("gs://bucket/x", *([b""] if method == "write" else []))
    assert time.monotonic() - start < 2
    server.faults.clear()
    cloud.close()


def test_a_refusal_names_the_account_and_the_role(server: Any, cloud: Any) -> None:
    server.faults.always(Status(403))
    with pytest.raises(StorageError, match=r"gs://bucket/x.*anonymous may not.*roles/storage.objectUser"):
        cloud.write("gs://bucket/x", b"")
    assert len(server.requests) == 1


def test_a_missing_bucket_is_an_error_with_that_reason(cloud: Any) -> None:
    for method in (cloud.read, cloud.delete, cloud.list_prefix):
        with pytest.raises(ObjectNotFoundError, match="no such bucket"):
            method("gs://missing/x")


@pytest.mark.parametrize("path", ["gs://", "gs:///x", "gs://bucket", "gs://bucket/", "gs://b u/x", "gs://../x"])
def test_a_broken_gs_path_is_refused_before_the_network(server: Any, cloud: Any, path: str) -> None:
    with pytest.raises(ConfigurationError, match="gs://"):
        cloud.read(path)
    assert server.requests == []


@pytest.mark.parametrize("path", ["gs://", "gs:///x", "gs://b u/x"])
def test_no_store_is_given_for_a_path_without_a_bucket(path: str) -> None:
    with pytest.raises(ConfigurationError, match="gs://"):
        storage.storage_for(path)


def test_gclouds_setting_redirects_and_the_emulators_wins(server: Any) -> None:
    anonymous = {"CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true"}
    there = {**anonymous, "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{server.url}/storage/v1/"}
    wrong = {"CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": "http://127.0.0.1:1/", "STORAGE_EMULATOR_HOST": server.url}
    for environ in (there, wrong):
        cloud = storage.GoogleCloudStorage(environ=environ)
        cloud.write("gs://bucket/redirected", b"1")
        assert server.read("bucket", "redirected") == b"1"
        cloud.close()


def test_no_token_is_sent_to_another_machine_without_tls() -> None:
    environ = {"CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": "http://storage.example.com/"}
    cloud = storage.GoogleCloudStorage(Credentials("token"), environ=environ, deadline_seconds=2)
    with pytest.raises(ConfigurationError, match=r"CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE.*https"):
        cloud.read("gs://bucket/x")


def test_an_emulator_gets_no_token(server: Any) -> None:
    cloud = storage.GoogleCloudStorage(Credentials("token"), environ={"STORAGE_EMULATOR_HOST": server.url})
    cloud.write("gs://bucket/x", b"1")
    cloud.close()
    assert server.requests
    assert not any("token" in request.headers.get("authorization", "") for request in server.requests)


def test_a_netrc_does_not_replace_the_token(server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login user password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    server.requests.clear()
    environ = {"CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{server.url}/storage/v1/"}
    cloud = storage.GoogleCloudStorage(Credentials("token"), environ=environ, deadline_seconds=20)
    cloud.write("gs://bucket/x", b"1")
    assert cloud.read("gs://bucket/x") == b"1"
    cloud.close()
    assert {request.headers["authorization"] for request in server.requests} == {"Bearer token"}


def test_a_missing_extra_is_one_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.cloud.storage", None)
    monkeypatch.delattr("google.cloud.storage", raising=False)
    with pytest.raises(MissingExtraError, match=r"pip install 'ml-diagnostics-common\[gcs\]'"):
        storage.GoogleCloudStorage(environ={"CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true"}).read("gs://bucket/x")


def test_a_file_of_1970_is_there_whoever_asks(tmp_path: Path) -> None:
    path = tmp_path / "old"
    path.write_bytes(b"old")
    os.utime(path, ns=(0, 0))
    local = storage.LocalStorage()
    data, generation = local.read_with_generation(str(path))
    assert data == b"old"
    assert local.write(str(path), b"new", if_generation=generation) > generation > 0


def test_an_address_without_a_slash_is_not_a_local_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="one slash"):
        storage.write(Path("gs://bucket/x"), b"data")
    assert list(tmp_path.iterdir()) == []


# --- Kinds of failures --------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # The client leaves a connection open after a 401.
@pytest.mark.parametrize(
    ("fault", "kind", "is_temporary"),
    [
        (Status(401), Kind.REFUSED, False),
        (Status(403), Kind.REFUSED, False),
        (Status(403, reason="rateLimitExceeded"), Kind.BUSY, True),
        (Status(403, reason="quotaExceeded"), Kind.BUSY, False),
        (Status(404), Kind.MISSING, False),
        (Status(503), Kind.UNREACHABLE, True),
        (Reset(), Kind.UNREACHABLE, True),
        (Status(400), Kind.INVALID, False),
    ],
    ids=repr,
)
def test_failures_of_cloud_storage_are_classified(
    cloud: Any, server: Any, fault: Any, kind: Any, is_temporary: Any
) -> None:
    server.faults.always(fault)
    with pytest.raises(DiagnosticsError) as raised:
        cloud.read("gs://bucket/a")
    failure = classify(raised.value)
    assert (failure.kind, failure.is_temporary) == (kind, is_temporary)
    del raised
    gc.collect()  # The connection is closed here, where its warning is ignored, not in a later test.


def test_failures_of_local_files_are_classified(tmp_path: Path) -> None:
    local = storage.LocalStorage()
    with pytest.raises(ObjectNotFoundError) as missing:
        local.read(str(tmp_path / "none"))
    with pytest.raises(StorageError) as folder:
        local.read(str(tmp_path))
    refused = StorageError("not yours")
    refused.__cause__ = PermissionError(errno.EACCES, "not yours")
    found = [classify(error).kind for error in (missing.value, refused, folder.value, ValueError())]
    assert found == [Kind.MISSING, Kind.REFUSED, Kind.INVALID, Kind.INVALID]
