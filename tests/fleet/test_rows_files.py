"""Rows count once: a commit may be repeated, files without one do not exist, and a job's latest rows replace others."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from ml_diagnostics_common.exceptions import ConfigurationError, MissingExtraError, StorageError
from ml_diagnostics_fleet import rows_files
from ml_diagnostics_fleet.beam_engine import run_beam, run_beam_continuously
from ml_diagnostics_fleet.job_rows import JobRows, error_rows, job_rows
from ml_diagnostics_fleet.local_engine import run_local
from ml_diagnostics_fleet.manifest import ManifestConflictError, ManifestError, commit, latest_rows
from ml_diagnostics_fleet.rows_files import RowsWriter, commit_rows, newest_rows, read_table, replace_jobs, row_paths
from ml_diagnostics_fleet.schemas import TABLES, JobKey
from ml_diagnostics_fleet.synthetic import AS_OF_NS, SyntheticFleet
from ml_diagnostics_fleet.synthetic_files import write_event_files

FLEET = SyntheticFleet(seed=3, jobs=4, events=2_000)
DAY_NS = 86_400 * 10**9


def rows_of(index: int, as_of_ns: int) -> JobRows:
    job = FLEET.job(index)
    return job_rows(job.key, job.table().to_batches(), as_of_ns)


def moments(mirror: Path) -> dict[str, int]:
    snapshot = newest_rows(mirror)
    assert snapshot is not None
    return {row["job"]: row["as_of_ns"] for row in read_table(mirror, snapshot, "jobs").to_pylist()}


def test_a_bundle_that_is_tried_again_and_a_second_commit_have_each_row_once(tmp_path: Path) -> None:
    written = []
    for _ in range(2):
        writer = RowsWriter(tmp_path, AS_OF_NS, AS_OF_NS)
        writer.add(rows_of(0, AS_OF_NS))
        written.append(writer.finish())
    first, second = (
        commit_rows(tmp_path, AS_OF_NS, written[1:], events_version=1, events=5, now_ns=AS_OF_NS) for _ in range(2)
    )
    assert first == second
    assert (latest_rows(tmp_path).version, latest_rows(tmp_path).snapshots) == (1, (first,))
    assert read_table(tmp_path, first, "ledger_rows") == rows_of(0, AS_OF_NS).table("ledger_rows")
    assert (first.jobs, first.events, first.errors) == (1, 5, 0)


def test_rows_of_a_job_are_replaced_as_a_whole_and_the_latest_moment_wins(tmp_path: Path) -> None:
    write_event_files(tmp_path, FLEET)
    run = run_local(tmp_path, AS_OF_NS, processes=1)
    later = [rows_of(1, AS_OF_NS + 2 * DAY_NS), rows_of(1, AS_OF_NS + DAY_NS), rows_of(2, AS_OF_NS - 1)]
    snapshot = replace_jobs(tmp_path, later, AS_OF_NS)
    assert snapshot is not None
    names = [FLEET.job(index).key.job for index in range(4)]
    assert moments(tmp_path) == {**dict.fromkeys(names, AS_OF_NS), names[1]: AS_OF_NS + 2 * DAY_NS}
    for name in TABLES:
        rows = read_table(tmp_path, snapshot, name).to_pylist()
        expected = [row for row in read_table(tmp_path, run.snapshot, name).to_pylist() if row["job"] != names[1]]
        assert [row for row in rows if row["job"] != names[1]] == expected
        assert [row for row in rows if row["job"] == names[1]] == later[0].table(name).to_pylist()
    assert (snapshot.jobs, snapshot.errors, snapshot.events) == (4, 0, run.events)
    assert replace_jobs(tmp_path, later, AS_OF_NS) == snapshot
    assert latest_rows(tmp_path).snapshots == (snapshot, run.snapshot)


def test_each_continuous_snapshot_replaces_the_one_before_and_no_other(tmp_path: Path) -> None:
    assert replace_jobs(tmp_path, [], AS_OF_NS) is None
    first = replace_jobs(tmp_path, [rows_of(0, AS_OF_NS)], AS_OF_NS)
    second = replace_jobs(tmp_path, [error_rows(FLEET.job(1).key, "a defect", AS_OF_NS + 1)], AS_OF_NS + 1)
    assert first is not None
    assert second is not None
    assert (second.jobs, second.errors) == (2, 1)
    known = latest_rows(tmp_path)
    assert known.snapshots == (second,)
    assert set(known.removed) == {path for files in first.files.values() for path in files}
    assert all((tmp_path / "v1" / path).exists() for path in known.removed)
    # They are deleted after an hour, when the manifest names them no longer.
    for minutes, exist in ((50, True), (70, False)):
        replace_jobs(tmp_path, [rows_of(2, AS_OF_NS + minutes)], AS_OF_NS + minutes * 60 * 10**9)
        assert all((tmp_path / "v1" / path).exists() == exist for path in known.removed)
    replace_jobs(tmp_path, [rows_of(3, AS_OF_NS)], AS_OF_NS + 200 * 60 * 10**9)
    assert not set(known.removed) & set(latest_rows(tmp_path).removed)


def test_a_snapshot_that_another_process_created_meanwhile_is_the_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def commit_after_another(*arguments: object) -> object:
        calls.append(1)
        if len(calls) == 1:
            replace_jobs(tmp_path, [rows_of(1, AS_OF_NS)], AS_OF_NS)
            raise ManifestConflictError("another process was first")
        return commit(*arguments)  # type: ignore[type-var, arg-type]

    monkeypatch.setattr(rows_files, "commit", commit_after_another)
    replace_jobs(tmp_path, [rows_of(0, AS_OF_NS)], AS_OF_NS)
    assert set(moments(tmp_path)) == {FLEET.job(index).key.job for index in range(2)}


def test_rows_of_another_version_of_the_rules_are_not_mixed(tmp_path: Path) -> None:
    replace_jobs(tmp_path, [rows_of(0, AS_OF_NS)], AS_OF_NS)
    known = latest_rows(tmp_path)
    commit(tmp_path, replace(known, snapshots=(replace(known.snapshots[0], rules="0"),)), AS_OF_NS)
    with pytest.raises(ManifestError, match="are of version 0 of the rules, and this is version"):
        replace_jobs(tmp_path, [rows_of(1, AS_OF_NS)], AS_OF_NS)


def test_the_error_without_beam_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    for run in (lambda: run_beam(tmp_path, AS_OF_NS), lambda: run_beam_continuously(tmp_path)):
        with pytest.raises(MissingExtraError, match=r"pip install 'ml-diagnostics-fleet\[beam\]'"):
            run()
    with pytest.raises(ConfigurationError, match="source='log' is unknown; expected one of events, segments"):
        run_beam(tmp_path, AS_OF_NS, source="log")
    with pytest.raises(ConfigurationError, match="pace_seconds=0 is invalid"):
        run_beam_continuously(tmp_path, pace_seconds=0)
    for mirror, subscription in ((f"{tmp_path}", "projects/p/subscriptions/s"), ("gs://b/m", "mirror-rows")):
        with pytest.raises(ConfigurationError, match=r"is invalid for .*expected projects/P/subscriptions/S"):
            run_beam_continuously(mirror, subscription=subscription)


def test_a_key_of_two_texts_is_not_another_key_of_the_same_letters(tmp_path: Path) -> None:
    keys = [JobKey("a", "bc"), JobKey("ab", "c")]
    replace_jobs(tmp_path, [error_rows(key, "a defect", AS_OF_NS) for key in keys], AS_OF_NS)
    snapshot = replace_jobs(tmp_path, [error_rows(keys[1], "another", AS_OF_NS + 1)], AS_OF_NS)
    assert snapshot is not None
    rows = read_table(tmp_path, snapshot, "jobs").to_pylist()
    assert {(row["log"], row["job"]): row["rules"] for row in rows} == {
        keys[0]: "error: a defect",
        keys[1]: "error: another",
    }


@pytest.mark.parametrize("how", ["bit", "cut", "empty"])
def test_damaged_rows_are_an_error_with_the_name_of_their_file(tmp_path: Path, how: str) -> None:
    write_event_files(tmp_path, FLEET)
    run = run_local(tmp_path, AS_OF_NS, processes=1)
    (path,) = (Path(path) for path in row_paths(tmp_path, run.snapshot, "ledger_rows"))
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes({"bit": bytes(data), "cut": bytes(data[:-9]), "empty": b""}[how])
    with pytest.raises(StorageError, match=f"{path.name} is damaged: .*; make the rows of that moment again"):
        read_table(tmp_path, run.snapshot, "ledger_rows")
    assert run_local(tmp_path, AS_OF_NS, processes=1).snapshot != run.snapshot
    assert read_table(tmp_path, latest_rows(tmp_path).snapshots[0], "ledger_rows").num_rows
