"""Files of events that are damaged: an error with the file's name, and never another number."""

from __future__ import annotations

import io
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ml_diagnostics_common.exceptions import DiagnosticsError, ObjectNotFoundError, StorageError
from ml_diagnostics_fleet.compact import compact
from ml_diagnostics_fleet.events import DamagedEventsError, EventsFile, checksum, write_events
from ml_diagnostics_fleet.local_engine import run_local
from ml_diagnostics_fleet.manifest import latest_events, latest_rows
from ml_diagnostics_fleet.rows_files import read_table
from ml_diagnostics_fleet.schemas import EVENTS, TABLES, JobKey
from ml_diagnostics_fleet.synthetic import AS_OF_NS, SyntheticFleet
from ml_diagnostics_fleet.synthetic_files import write_event_files, write_segments

FLEET = SyntheticFleet(seed=1, jobs=6, events=6_000)


@pytest.fixture(scope="module")
def data() -> bytes:
    sink = io.BytesIO()
    write_events(sink, sorted((job.key, job.table()) for job in FLEET))
    return sink.getvalue()


def read(path: Path) -> dict[JobKey, pa.Table]:
    with EventsFile(str(path)) as file:
        return {key: file.table(groups) for key, groups in file.jobs().items()}


def named(folder: Path, data: bytes) -> Path:
    return folder / f"20261122T000000-0123abcd-0-{checksum(io.BytesIO(data))}.parquet"


def test_a_wrong_bit_anywhere_is_an_error_with_the_name_or_changes_nothing(tmp_path: Path, data: bytes) -> None:
    path, moments, errors = named(tmp_path, data), random.Random(1), list[str]()
    path.write_bytes(data)
    expected = read(path)
    for _ in range(400):
        damaged = bytearray(data)
        damaged[moments.randrange(len(data))] ^= 1 << moments.randrange(8)
        path.write_bytes(damaged)
        try:
            assert read(path) == expected
        except DamagedEventsError as error:
            errors.append(str(error))
    assert len(errors) > 300
    assert all(path.name in error for error in errors)


def test_a_file_that_is_cut_anywhere_is_an_error_with_the_name(tmp_path: Path, data: bytes) -> None:
    path, moments = named(tmp_path, data), random.Random(2)
    for length in [0, 1, 4, 8, 12, len(data) - 1, *(moments.randrange(len(data)) for _ in range(50))]:
        path.write_bytes(data[:length])
        with pytest.raises(DamagedEventsError, match=path.name):
            read(path)


def test_files_of_a_compactor_and_of_a_synthetic_fleet_have_the_checksum_of_their_end(tmp_path: Path) -> None:
    write_segments(tmp_path / "segments", FLEET)
    compact(tmp_path / "segments", now_ns=AS_OF_NS)
    write_event_files(tmp_path / "events", FLEET)
    for mirror in (tmp_path / "segments", tmp_path / "events"):
        for entry in latest_events(mirror).files:
            path = mirror / "v1" / entry.path
            assert entry.path.endswith(f"-{checksum(io.BytesIO(path.read_bytes()))}.parquet")


def damage(mirror: Path, how: str) -> Path:
    """Damage the file of one group; return its path."""
    path = mirror / "v1" / latest_events(mirror).files[2].path
    whole = path.read_bytes()
    if how == "gone":
        path.unlink()
    else:
        damaged = {"cut": whole[: len(whole) // 2], "empty": b"", "end": whole[:-60] + b"\0" + whole[-59:]}
        path.write_bytes(damaged[how])
    return path


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("how", ["cut", "empty", "end", "gone"])
def test_a_run_names_a_damaged_file_and_writes_no_rows(tmp_path: Path, how: str, processes: int) -> None:
    """Its jobs are not known, so rows without them would be those of a smaller fleet."""
    write_event_files(tmp_path, FLEET)
    before = run_local(tmp_path, AS_OF_NS - 1, processes=1)
    path = damage(tmp_path, how)
    kind: type[DiagnosticsError] = ObjectNotFoundError if how == "gone" else DamagedEventsError
    with pytest.raises(kind, match=path.name):
        run_local(tmp_path, AS_OF_NS, processes=processes)
    assert issubclass(kind, StorageError)
    assert latest_rows(tmp_path).snapshots == (before.snapshot,)


def damage_page(mirror: Path) -> JobKey:
    """Change a bit of the events of one job; return the job."""
    path = mirror / "v1" / latest_events(mirror).files[2].path
    with EventsFile(str(path)) as file:
        key = next(iter(file.jobs()))
    column = pq.ParquetFile(path).metadata.row_group(0).column(EVENTS.get_field_index("t_ns"))
    damaged = bytearray(path.read_bytes())
    damaged[column.data_page_offset + column.total_compressed_size // 2] ^= 1
    path.write_bytes(damaged)
    return key


def test_a_damaged_page_is_the_error_of_its_job_and_the_others_go_on(tmp_path: Path) -> None:
    write_event_files(tmp_path, FLEET)
    broken, path = damage_page(tmp_path), tmp_path / "v1" / latest_events(tmp_path).files[2].path
    run = run_local(tmp_path, AS_OF_NS, processes=1)
    ((key, reason),) = run.errors
    assert (key, run.jobs, run.snapshot.errors) == (broken, 6, 1)
    assert reason.startswith(f"DamagedEventsError: {path} is damaged: ")
    rows: dict[str, Any] = {row["job"]: row["rules"] for row in read_table(tmp_path, run.snapshot, "jobs").to_pylist()}
    assert {name for name, rules in rows.items() if rules != "1"} == {key.job}


def goodput(*arguments: object) -> subprocess.CompletedProcess[str]:
    argv = [str(Path(sys.executable).with_name("goodput")), "fleet", *map(str, arguments)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=100, check=False)


def test_the_command_names_a_damaged_file_and_fails(tmp_path: Path) -> None:
    write_event_files(tmp_path, FLEET)
    path = damage(tmp_path, "cut")
    done = goodput("run", "--mirror", tmp_path, "--as-of", "2026-11-22", "--processes", "2")
    assert done.returncode == 1
    assert path.name in done.stderr
    assert "Traceback" not in done.stderr


def test_the_command_reports_a_job_that_cannot_be_read_and_fails_above_one_percent(tmp_path: Path) -> None:
    pytest.importorskip("duckdb", reason="DuckDB 2 needs Python 3.11")
    write_event_files(tmp_path, FLEET)
    key = damage_page(tmp_path)
    made = goodput("run", "--mirror", tmp_path, "--as-of", "2026-11-22")
    assert made.returncode == 0
    assert f"job {key.job}: DamagedEventsError: " in made.stderr
    report = goodput("report", "--mirror", tmp_path)
    assert report.returncode == 1
    assert "1 of 6 jobs could not be read: more than 1 %" in report.stderr


def test_the_command_names_the_first_jobs_that_cannot_be_read_and_counts_the_others(tmp_path: Path) -> None:
    fleet = SyntheticFleet(seed=1, jobs=26, events=800)
    write_event_files(tmp_path, fleet)
    for entry in latest_events(tmp_path).files:
        path = tmp_path / "v1" / entry.path
        with EventsFile(str(path)) as file:
            groups = range(sum(map(len, file.jobs().values())))
        data = bytearray(path.read_bytes())
        for number in groups:
            column = pq.ParquetFile(path).metadata.row_group(number).column(EVENTS.get_field_index("t_ns"))
            data[column.data_page_offset + column.total_compressed_size // 2] ^= 1
        path.write_bytes(data)
    done = goodput("run", "--mirror", tmp_path, "--as-of", "2026-11-22", "--processes", "1")
    lines = done.stderr.splitlines()
    assert sum(line.startswith("goodput: job run-") for line in lines) == 20
    assert lines[-1] == "goodput: 6 more jobs failed; the table of jobs has all of them"


def test_the_command_refuses_a_mirror_of_a_newer_version(tmp_path: Path) -> None:
    write_event_files(tmp_path, FLEET)
    (tmp_path / "v2" / "segments").mkdir(parents=True)
    (tmp_path / "v2" / "segments" / "x").write_bytes(b"")
    for part in ("compact", "run"):
        done = goodput(part, "--mirror", tmp_path, "--as-of", "2026-11-22")
        assert done.returncode == 1
        assert "was written by a newer version of ml-diagnostics" in done.stderr


def test_a_table_that_is_deleted_is_made_again_from_the_segments(tmp_path: Path) -> None:
    """Do what the reference says of a damaged file."""
    write_segments(tmp_path, FLEET)
    compact(tmp_path, now_ns=AS_OF_NS)
    before = run_local(tmp_path, AS_OF_NS, processes=1)
    rows = [read_table(tmp_path, before.snapshot, name) for name in TABLES]
    damage(tmp_path, "cut")
    shutil.rmtree(tmp_path / "v1" / "events")
    shutil.rmtree(tmp_path / "v1" / "manifests" / "events")
    compact(tmp_path, now_ns=AS_OF_NS)
    after = run_local(tmp_path, AS_OF_NS, processes=1)
    assert [read_table(tmp_path, after.snapshot, name) for name in TABLES] == rows
