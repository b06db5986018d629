"""GoodputCache returns each entry once, from files and copies that several processes share, and logs what fails."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_common.exceptions import ConfigurationError
from ml_diagnostics_testing.cloud_storage import CloudStorageServer
from ml_goodput_measurement.goodput_cache import GoodputCache
from ml_goodput_measurement.goodput_utils import GoodputInfo, StepInfo

from .histories import BASE, History

UTC = datetime.timezone.utc
EARLY = datetime.datetime(2026, 1, 1, tzinfo=UTC), "a"
LATE = datetime.datetime(2026, 1, 2, tzinfo=UTC), "b"
HISTORY = History().start(0).load(1, 2).steps(range(3), at=10).end(40).payloads


@pytest.fixture
def cache(tmp_path: Path) -> GoodputCache:
    return GoodputCache("job", str(tmp_path))


@pytest.fixture(scope="module")
def server() -> Iterator[CloudStorageServer]:
    with CloudStorageServer(buckets=["bucket"]) as server:
        yield server


@pytest.fixture(params=["bucket", "folder"])
def gcs_path(
    request: pytest.FixtureRequest, server: CloudStorageServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> str:
    if request.param == "folder":
        return str(tmp_path / "shared")
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    return f"gs://bucket/{tmp_path.name}"


def moment(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(BASE + seconds, UTC)


def timeline(folder: Path, name: str = "job") -> Path:
    return folder / f"{name}_timeline.jsonl"


def metadata(folder: Path, name: str = "job") -> Path:
    return folder / f"{name}_metadata.json"


# --- One process ------------------------------------------------------------------------------------------


def test_a_new_cache_is_empty_and_touches_no_disk(tmp_path: Path) -> None:
    cache = GoodputCache("job", str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()
    assert cache.is_cache_empty()
    assert cache.get_cached_entries() == cache.get_step_entries() == []
    assert cache.get_last_entry_info() is None
    assert cache.get_job_start_time() is None
    assert cache.get_job_end_time() is None
    assert cache.get_goodput_info() is None
    assert cache.get_step_info() is None


def test_entries_are_returned_in_order(cache: GoodputCache) -> None:
    cache.update_cached_entries(HISTORY, LATE)
    assert not cache.is_cache_empty()
    assert cache.get_cached_entries() == HISTORY
    assert [entry["step_count"] for entry in cache.get_step_entries()] == [0, 1, 2]
    assert cache.get_last_entry_info() == LATE


def test_the_files_have_the_format_of_the_public_library(cache: GoodputCache, tmp_path: Path) -> None:
    cache.update_cached_entries(HISTORY, LATE)
    lines = timeline(tmp_path).read_text().splitlines()
    assert [json.loads(line) for line in lines] == HISTORY
    assert json.loads(metadata(tmp_path).read_text()) == {
        "last_entry_timestamp": "2026-01-02T00:00:00+00:00",
        "last_entry_id": "b",
    }


def test_files_of_the_public_library_are_read(cache: GoodputCache, tmp_path: Path) -> None:
    timeline(tmp_path).write_text("".join(json.dumps(entry) + "\n" for entry in HISTORY))
    metadata(tmp_path).write_text('{"last_entry_timestamp": "2026-01-02T00:00:00Z", "last_entry_id": "b"}')
    assert cache.get_cached_entries() == HISTORY
    assert cache.get_last_entry_info() == LATE
    assert cache.get_job_start_time() == moment(0)


def test_start_and_end_are_those_of_the_whole_job(cache: GoodputCache) -> None:
    cache.update_cached_entries(History().start(0).steps(range(3), at=10).end(40).payloads, EARLY)
    assert (cache.get_job_start_time(), cache.get_job_end_time()) == (moment(0), moment(40))
    cache.update_cached_entries(History().start(100).payloads, LATE)
    assert (cache.get_job_start_time(), cache.get_job_end_time()) == (moment(0), None)  # Restarted.
    cache.update_cached_entries(History().end(200).payloads, LATE)
    assert (cache.get_job_start_time(), cache.get_job_end_time()) == (moment(0), moment(200))


def test_invalid_times_are_ignored(cache: GoodputCache) -> None:
    entries = [{"job_name": "job", "job_start_time": value} for value in (None, "soon", True, 1e300)]
    cache.update_cached_entries(entries, EARLY)
    assert cache.get_cached_entries() == entries
    assert cache.get_job_start_time() is None


def test_an_equal_entry_is_returned_once(cache: GoodputCache) -> None:
    cache.update_cached_entries([*HISTORY, HISTORY[0]], EARLY)
    as_cloud_logging_returns_them = [
        {key: float(value) if isinstance(value, int) else value for key, value in reversed(entry.items())}
        for entry in HISTORY
    ]
    cache.update_cached_entries(as_cloud_logging_returns_them, LATE)
    assert cache.get_cached_entries() == HISTORY


def test_a_cursor_moves_forward_only(cache: GoodputCache) -> None:
    cache.update_cached_entries(HISTORY, LATE)
    cache.update_last_entry_info(EARLY)
    cache.update_cached_entries([], EARLY)
    cache.update_last_entry_info(None)
    cache.update_last_entry_info((None, None))
    assert cache.get_last_entry_info() == LATE
    cache.update_last_entry_info((LATE[0], "c"))
    assert cache.get_last_entry_info() == (LATE[0], "c")


def test_a_naive_cursor_is_local_time(cache: GoodputCache) -> None:
    naive = datetime.datetime(2026, 1, 1, 12, 0, 0, 123456)
    cache.update_cached_entries(HISTORY, (naive, 7))
    assert cache.get_last_entry_info() == (naive.astimezone(UTC), "7")


def test_a_cursor_without_entries_is_ignored(cache: GoodputCache, tmp_path: Path) -> None:
    cache.update_cached_entries(HISTORY, LATE)
    timeline(tmp_path).unlink()
    assert GoodputCache("job", str(tmp_path)).get_last_entry_info() is None
    assert cache.get_last_entry_info() is None


def test_a_damaged_cursor_is_ignored(cache: GoodputCache, tmp_path: Path) -> None:
    cache.update_cached_entries(HISTORY, EARLY)
    for damaged in ("", "{", "[]", '{"last_entry_timestamp": 3}', '{"last_entry_timestamp": "soon"}'):
        metadata(tmp_path).write_text(damaged)
        assert GoodputCache("job", str(tmp_path)).get_last_entry_info() is None
    cache.update_last_entry_info(LATE)
    assert GoodputCache("job", str(tmp_path)).get_last_entry_info() == LATE


def test_results_stay_in_memory(cache: GoodputCache) -> None:
    goodput, steps = GoodputInfo(total_productive_time=3.0), StepInfo(1.5, {1: 0.5})
    cache.update_goodput_info(goodput)
    cache.update_step_info(steps)
    assert cache.get_goodput_info() is goodput
    assert cache.get_step_info() is steps


def test_clearing_deletes_the_files_for_all_processes(cache: GoodputCache, tmp_path: Path) -> None:
    other = GoodputCache("job", str(tmp_path))
    cache.update_cached_entries(HISTORY, LATE)
    assert other.get_job_start_time() == moment(0)
    cache.update_goodput_info(GoodputInfo())
    cache.clear_cache()
    for either in (cache, other):
        assert either.is_cache_empty()
        assert either.get_last_entry_info() is None
        assert either.get_job_start_time() is None
    assert cache.get_goodput_info() is None
    other.update_cached_entries(HISTORY, EARLY)
    assert cache.get_cached_entries() == HISTORY


def test_the_default_folder_is_private(tmp_path: Path) -> None:
    GoodputCache("job").update_cached_entries(HISTORY, LATE)
    folder = diagnostics_directory() / "state" / "goodput"
    assert timeline(folder).stat().st_mode & 0o777 == metadata(folder).stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", ["run-7", "Run_7.b", "llama 3", "a" * 150])
def test_ordinary_names_are_file_names_unchanged(tmp_path: Path, name: str) -> None:
    GoodputCache(name, str(tmp_path)).update_cached_entries(HISTORY, LATE)
    assert timeline(tmp_path, name).exists()


def test_each_name_has_its_own_file_inside_the_folder(tmp_path: Path) -> None:
    names = ["a/b", "a%2Fb", "../up", "..", ".hidden", "/etc", "\0", "é" * 300, "é" * 301, "\udc80"]
    for name in names:
        GoodputCache(name, str(tmp_path / "in")).update_cached_entries([{"job_name": name[:9]}], LATE)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    assert len(list((tmp_path / "in").glob("*_timeline.jsonl"))) == len(names)


@pytest.mark.parametrize(
    "arguments", [("", "/tmp"), (None, "/tmp"), ("job", "/tmp", "s3://bucket"), ("job", "/tmp", 7)]
)
def test_invalid_arguments_are_refused(arguments: Any) -> None:
    with pytest.raises(ConfigurationError):
        GoodputCache(*arguments)


# --- Damage -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", range(1, 20))
def test_a_truncated_line_costs_only_itself(cache: GoodputCache, tmp_path: Path, cut: int) -> None:
    cache.update_cached_entries(HISTORY, LATE)
    os.truncate(timeline(tmp_path), timeline(tmp_path).stat().st_size - cut)
    again = GoodputCache("job", str(tmp_path))
    kept = HISTORY if cut == 1 else HISTORY[:-1]  # A line without its newline is whole.
    assert again.get_cached_entries() == kept
    again.update_cached_entries(HISTORY, LATE)
    assert again.get_cached_entries() == cache.get_cached_entries() == HISTORY


def test_entries_after_a_damaged_line_are_read(
    cache: GoodputCache, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache.update_cached_entries(HISTORY, LATE)
    lines = timeline(tmp_path).read_bytes().splitlines(keepends=True)
    timeline(tmp_path).write_bytes(b"".join([lines[0], b'{"job_name\n', b"\n", b"[1]\n", *lines[1:]]))
    assert GoodputCache("job", str(tmp_path)).get_cached_entries() == HISTORY
    assert "2 lines of" in caplog.text


def test_a_link_is_not_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine\n")
    for name in ("job_timeline.jsonl", ".job.lock", "other_metadata.json"):
        (tmp_path / name).symlink_to(precious)
    cache = GoodputCache("job", str(tmp_path))
    cache.update_cached_entries(HISTORY, LATE)
    assert cache.get_cached_entries() == []
    GoodputCache("other", str(tmp_path)).update_cached_entries(HISTORY, LATE)
    assert precious.read_text() == "mine\n"
    assert "cannot save entries" in caplog.text


def test_a_failing_disk_does_not_move_the_cursor(
    cache: GoodputCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache.update_cached_entries(HISTORY[:2], EARLY)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        cache.update_cached_entries(HISTORY[2:], LATE)
    assert "No space left" in caplog.text
    assert cache.get_last_entry_info() == EARLY
    cache.update_cached_entries(HISTORY[2:], LATE)
    assert (cache.get_cached_entries(), cache.get_last_entry_info()) == (HISTORY, LATE)


def test_values_outside_json_become_text(cache: GoodputCache) -> None:
    cache.update_cached_entries([{"job_name": "job", "x": float("nan"), "y": Path("/a")}], LATE)
    assert cache.get_cached_entries() == [{"job_name": "job", "x": "NaN", "y": "/a"}]


# --- Several processes and machines -----------------------------------------------------------------------

WRITER = """
import datetime, sys
from ml_goodput_measurement.goodput_cache import GoodputCache
cache = GoodputCache("job", sys.argv[1])
for first in range(0, 300, 10):
    entries = [{"job_name": "job", "step_count": n, "step_start_time": 1e9 + n} for n in range(first, first + 10)]
    cache.update_cached_entries(entries, (datetime.datetime.fromtimestamp(1e9 + first, datetime.timezone.utc), ""))
"""


def test_processes_that_write_the_same_entries_have_each_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    writers = [subprocess.Popen(command) for _ in range(3)]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0, 0]
    cache = GoodputCache("job", str(tmp_path))
    assert sorted(entry["step_count"] for entry in cache.get_cached_entries()) == list(range(300))
    assert cache.get_last_entry_info() == (datetime.datetime.fromtimestamp(1e9 + 290, UTC), "")


def test_threads_share_a_cache(cache: GoodputCache) -> None:
    threads = [threading.Thread(target=cache.update_cached_entries, args=(HISTORY, LATE)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.get_cached_entries() == HISTORY


def machine(tmp_path: Path, name: str, gcs_path: str) -> GoodputCache:
    return GoodputCache("job", str(tmp_path / name), gcs_path)


def test_another_machine_continues_from_the_copy(tmp_path: Path, gcs_path: str) -> None:
    first = machine(tmp_path, "first", gcs_path)
    first.update_cached_entries(HISTORY, LATE)
    first.sync_to_gcs()
    second = machine(tmp_path, "second", gcs_path)
    assert second.get_cached_entries() == HISTORY
    assert second.get_last_entry_info() == LATE
    assert second.get_job_start_time() == moment(0)


def test_a_copy_is_added_to_the_files(tmp_path: Path, gcs_path: str) -> None:
    first, second = machine(tmp_path, "first", gcs_path), machine(tmp_path, "second", gcs_path)
    first.update_cached_entries(HISTORY[:3], EARLY)
    second.update_cached_entries(HISTORY[2:], LATE)
    first.sync_to_gcs()
    again = machine(tmp_path, "second", gcs_path)
    assert (again.get_cached_entries(), again.get_last_entry_info()) == ([*HISTORY[2:], *HISTORY[:2]], LATE)
    again.sync_to_gcs()
    first.sync_to_gcs()
    for cache in (first, machine(tmp_path, "third", gcs_path)):
        assert len(cache.get_cached_entries()) == len(HISTORY)
        assert cache.get_last_entry_info() == LATE


def test_the_copy_has_the_names_of_the_public_library(tmp_path: Path, gcs_path: str) -> None:
    from ml_diagnostics_common import storage

    cache = machine(tmp_path, "first", gcs_path)
    cache.update_cached_entries(HISTORY, LATE)
    cache.sync_to_gcs()
    lines = storage.read(f"{gcs_path}/goodput_cache/job_timeline.jsonl").splitlines()
    assert [json.loads(line) for line in lines] == HISTORY
    assert json.loads(storage.read(f"{gcs_path}/goodput_cache/job_metadata.json"))["last_entry_id"] == "b"


def test_sync_without_a_copy_does_nothing(cache: GoodputCache, tmp_path: Path) -> None:
    cache.sync_to_gcs()
    assert list(tmp_path.iterdir()) == []


def test_a_failing_copy_only_logs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    cache = machine(tmp_path, "first", str(tmp_path / "file" / "in"))
    cache.update_cached_entries(HISTORY, LATE)
    cache.sync_to_gcs()
    assert cache.get_cached_entries() == HISTORY
    assert "cannot update the copy" in caplog.text
