"""Manifests: one process creates each version, and one that this version cannot read is refused."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from ml_diagnostics_common.entry import SeenSequences
from ml_diagnostics_common.exceptions import ConfigurationError
from ml_diagnostics_fleet.manifest import (
    EventsEntry,
    EventsManifest,
    Gap,
    LogState,
    ManifestConflictError,
    ManifestError,
    RowsManifest,
    RowsSnapshot,
    commit,
    delete_old_manifests,
    latest_events,
    latest_rows,
)

ENTRY = EventsEntry("events/group=7f/x-0.parquet", "7f", 10, 1000, 2, 5, 9)
FIRST = 100_000_000_000


def manifest_path(mirror: Path, version: int, table: str = "events") -> Path:
    return mirror / "v1" / "manifests" / table / f"{version:012d}.json"


def test_a_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert latest_events(tmp_path) == EventsManifest()
    seen = SeenSequences.from_json({"w": [[FIRST + 2, FIRST + 5], [FIRST + 9, FIRST + 9]], "v": [[FIRST, FIRST]]})
    state = LogState("log", seen, {"w"}, {"day=2026-11-22/w.1-9.0.jsonl.gz"})
    known = EventsManifest(files=(ENTRY,), logs={"log": state}, removed={"events/old": 7}, damaged=("segments/x",))
    first = commit(tmp_path, known, 44)
    assert (first.version, first.created_ns) == (1, 44)
    found = latest_events(tmp_path)
    assert found.to_json() == first.to_json()
    assert found.gaps() == [Gap("log", "w", FIRST, FIRST + 1), Gap("log", "w", FIRST + 6, FIRST + 8)]
    assert found.groups() == {"7f": [ENTRY]}
    commit(tmp_path, replace(found, files=()), 45)
    assert (latest_events(tmp_path).version, latest_events(tmp_path, 1).files) == (2, (ENTRY,))
    assert latest_events(tmp_path, 0) == EventsManifest()


def test_rows_have_manifests_of_their_own(tmp_path: Path) -> None:
    snapshot = RowsSnapshot(5, "1", 2, 3, 4, 0, {"jobs": ("rows/jobs/as_of=5/x.parquet",)})
    commit(tmp_path, RowsManifest(snapshots=(snapshot,)), 1)
    assert latest_rows(tmp_path).snapshots == (snapshot,)
    assert latest_events(tmp_path).version == 0


def test_of_processes_that_race_one_creates_a_version(tmp_path: Path) -> None:
    start, outcomes = threading.Barrier(8), list[str]()

    def create(number: int) -> None:
        start.wait()
        try:
            commit(tmp_path, EventsManifest(files=(replace(ENTRY, rows=number),)), 1)
            outcomes.append(f"created {number}")
        except ManifestConflictError:
            outcomes.append("refused")

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes)[1:] == ["refused"] * 7
    assert sorted(outcomes)[0] == f"created {latest_events(tmp_path).files[0].rows}"


def test_a_version_whose_answer_was_lost_is_not_a_conflict(tmp_path: Path) -> None:
    known = EventsManifest(files=(ENTRY,))
    assert commit(tmp_path, known, 1) == commit(tmp_path, known, 1)
    with pytest.raises(ManifestConflictError):
        commit(tmp_path, known, 2)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is damaged"),
        ("[]", "is not a manifest"),
        ('{"format": 2}', "was written by a newer version of ml-diagnostics-fleet: update this one"),
        ('{"format": 1}', "of the manifest of events is damaged: KeyError: 'logs'"),
        ('{"format": 1, "logs": {}, "files": [{}]}', "is damaged: TypeError"),
        ("\udcff", "is damaged"),
    ],
)
def test_a_manifest_that_cannot_be_read_is_named(tmp_path: Path, text: str, reason: str) -> None:
    path = manifest_path(tmp_path, 3)
    path.parent.mkdir(parents=True)
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ManifestError, match=reason):
        latest_events(tmp_path)


def test_a_newer_layout_is_refused_and_other_files_are_passed_over(tmp_path: Path) -> None:
    commit(tmp_path, EventsManifest(), 1)
    (manifest_path(tmp_path, 1).parent / "notes.txt").write_text("mine")
    assert latest_events(tmp_path).version == 1
    (tmp_path / "v2").mkdir()
    (tmp_path / "v2" / "x").write_text("")
    with pytest.raises(ManifestError, match="written by a newer version of ml-diagnostics: update this one"):
        latest_events(tmp_path)


def test_gaps_are_in_the_file_for_other_readers(tmp_path: Path) -> None:
    seen = SeenSequences.from_json({"w": [[FIRST + 2, FIRST + 5]]})
    commit(tmp_path, EventsManifest(logs={"log": LogState("log", seen)}), 1)
    assert json.loads(manifest_path(tmp_path, 1).read_text())["gaps"] == [["log", "w", FIRST, FIRST + 1]]


@pytest.mark.parametrize("mirror", ["", "  ", "s3://bucket/x", "gs:/bucket"])
def test_a_mirror_that_is_none_is_refused(mirror: str) -> None:
    with pytest.raises(ConfigurationError):
        latest_events(mirror)


DAY_NS = 86_400 * 10**9


def test_a_version_is_deleted_seven_days_after_the_next_one_and_the_newest_never(tmp_path: Path) -> None:
    known = EventsManifest(files=(ENTRY,))
    for day in range(4):
        known = commit(tmp_path, known, day * DAY_NS)
    assert delete_old_manifests(tmp_path, "events", 8 * DAY_NS) == 0
    assert delete_old_manifests(tmp_path, "events", 8 * DAY_NS + 1) == 1
    assert [manifest_path(tmp_path, version).exists() for version in (1, 2, 3, 4)] == [False, True, True, True]
    assert delete_old_manifests(tmp_path, "events", 400 * DAY_NS) == 2
    assert (latest_events(tmp_path), delete_old_manifests(tmp_path, "events", 800 * DAY_NS)) == (known, 0)


def test_a_damaged_old_version_is_left_with_those_after_it(tmp_path: Path) -> None:
    known = EventsManifest()
    for _ in range(3):
        known = commit(tmp_path, known, 0)
    manifest_path(tmp_path, 2).write_text("{")
    assert delete_old_manifests(tmp_path, "events", 9 * DAY_NS) == 0
    assert latest_events(tmp_path).version == 3


def test_more_versions_are_deleted_than_are_created(tmp_path: Path) -> None:
    known = EventsManifest()
    for _ in range(50):
        known = commit(tmp_path, known, 0)
    assert delete_old_manifests(tmp_path, "events", 9 * DAY_NS) > 10


def test_a_commit_on_a_version_that_was_deleted_is_a_conflict(tmp_path: Path) -> None:
    """A process that slept for a week would create a version that is not the newest: no reader would find it."""
    old = commit(tmp_path, EventsManifest(), 0)
    commit(tmp_path, commit(tmp_path, old, DAY_NS), 2 * DAY_NS)
    assert delete_old_manifests(tmp_path, "events", 30 * DAY_NS) == 2
    with pytest.raises(ManifestConflictError, match="version 1 of the manifest of events was deleted"):
        commit(tmp_path, replace(old, files=(ENTRY,)), 30 * DAY_NS)
    assert latest_events(tmp_path).version == 3
