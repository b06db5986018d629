"""The saved state of the store: a restart reads what is new only, and any doubt throws the state away."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google_cloud_mldiagnostics.reading import LOG_ID, LocalSource
from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_common.journal import Journal, log_directory
from ml_diagnostics_console._web import saved_state
from ml_diagnostics_console._web.routes import handle
from ml_diagnostics_console._web.store import Store

from .made_runs import SECOND_NS, MadeAttempt, MadeRun

START_NS = 1_763_710_310 * SECOND_NS
NOW_NS = START_NS + 500 * SECOND_NS


@pytest.fixture(autouse=True)
def save_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_state, "_SAVED_AT", 1)


@pytest.fixture
def root() -> Path:
    root = diagnostics_directory()
    attempts = [MadeAttempt(0, 99, "FAILED", "RuntimeError: oops"), MadeAttempt(50, 120, "ACTIVE")]
    run = MadeRun("run-1", START_NS, attempts, [f"vm-{host}" for host in range(3)], step_seconds=1.0)
    run.host_metrics, run.nan_at, run.alive_until_ns = {"cpu": "%"}, frozenset({70}), NOW_NS
    run.write(root)
    MadeRun("run-2", START_NS, [MadeAttempt(0, 9)], metrics={"accuracy": "%"}).write(root)
    return root


def new_store(root: Path) -> Store:
    made = Store(LocalSource(pytest.fail), clock_ns=lambda: NOW_NS, cache=root / "cache" / "ui")
    made.refresh()
    return made


def answers(of: Store) -> Iterator[Any]:
    rows = json.loads(handle(of, "/api/runs", {}).body)["rows"]
    yield [{**row, "version": 0} for row in rows]
    for run in ("run-1", "run-2"):
        overview = json.loads(handle(of, f"/api/runs/{run}", {}).body)
        yield {**overview, "version": 0}
        for metric in of.run(run).columns.names():
            for axis in ("step", "time"):
                yield handle(of, f"/api/runs/{run}/points", {"metric": metric, "x": axis}).body
            yield handle(of, f"/api/runs/{run}/heat", {"metric": metric}).body


def test_a_restart_shows_the_same_and_reads_nothing(root: Path) -> None:
    first = new_store(root)
    assert first._dispatch.count > 500
    second = new_store(root)
    assert second._dispatch.count == 0
    assert list(answers(second)) == list(answers(first))


def record(root: Path, step: int, value: float) -> None:
    """Record a value of the loss of the first run, 400 s after its start."""
    labels = {"run": "run-1", "host": "vm-0", "process_index": "0", "pid": "4002", "attempt": "2"}
    node = {"type": "generic_node", "labels": {"node_id": "run-1"}}
    options: dict[str, Any] = {"clock_ns": lambda: START_NS + 400 * SECOND_NS, "about_pid": 4002}
    journal = Journal(LOG_ID, root=root, labels=labels, resource=node, **options)
    journal.append({"values": [value], "step_index": step, "unit": "1"}, resource_labels={"namespace": "loss"})
    journal.close(5)


def test_what_was_recorded_meanwhile_is_read(root: Path) -> None:
    new_store(root)
    record(root, 121, 7.5)
    second = new_store(root)
    assert second._dispatch.count == 1
    column = second.run("run-1").columns.of("loss")[0]
    assert (column.last_step, column.last, len(column)) == (121, 7.5, 172)
    record(root, 122, 8.5)
    third = new_store(root)
    assert third.run("run-1").step == 122
    fresh = Store(LocalSource(pytest.fail), clock_ns=lambda: NOW_NS)
    fresh.refresh()
    assert list(answers(third)) == list(answers(fresh))


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.999, 0.9999999])
def test_a_damaged_state_is_thrown_away(root: Path, share: float) -> None:
    first = new_store(root)
    path = root / "cache" / "ui" / "state"
    data = bytearray(path.read_bytes())
    data[int(share * len(data))] ^= 0x55
    path.write_bytes(data)
    second = new_store(root)
    assert second._dispatch.count == first._dispatch.count
    assert list(answers(second)) == list(answers(first))


@pytest.mark.parametrize("length", [0, 7, 100, -1, -1000])
def test_a_state_that_was_cut_is_thrown_away(root: Path, length: int) -> None:
    first = new_store(root)
    path = root / "cache" / "ui" / "state"
    path.write_bytes(path.read_bytes()[:length])
    second = new_store(root)
    assert second._dispatch.count == first._dispatch.count


def test_a_state_of_another_version_is_thrown_away(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = new_store(root)
    monkeypatch.setattr(saved_state, "__version__", "0.0")
    assert new_store(root)._dispatch.count == first._dispatch.count


def test_a_journal_that_has_less_than_was_read_is_read_again(root: Path) -> None:
    new_store(root)
    path = max(log_directory(root, LOG_ID).iterdir(), key=lambda path: path.stat().st_size)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: len(lines) // 2]))
    second = new_store(root)
    fresh = Store(LocalSource(pytest.fail), clock_ns=lambda: NOW_NS)
    fresh.refresh()
    assert second._dispatch.count == fresh._dispatch.count > 0


def test_another_journal_in_the_same_folder_is_read(root: Path) -> None:
    new_store(root)
    shutil.rmtree(root / "journal")
    shutil.rmtree(root / "runs")
    MadeRun("run-1", START_NS, [MadeAttempt(0, 3)]).write(root)
    assert new_store(root).run("run-1").columns.points("loss") == 4


def test_files_that_were_dropped_from_the_journal_stay_in_the_state(root: Path) -> None:
    new_store(root)
    path = max(log_directory(root, LOG_ID).iterdir(), key=lambda path: path.stat().st_size)
    path.unlink()
    second = new_store(root)
    assert second._dispatch.count == 0
    assert second.run("run-1").columns.points("loss") == 171


def test_a_state_that_cannot_be_saved_is_not_needed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "cache").write_text("a file in its way")
    first = new_store(root)
    assert len(first.runs()) == 2
    assert new_store(root)._dispatch.count == first._dispatch.count


def test_a_state_of_too_many_values_is_not_saved(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_state, "_MOST_BYTES", 1000)
    new_store(root)
    assert not (root / "cache").exists()


def test_what_a_killed_process_left_is_removed(root: Path) -> None:
    folder = root / "cache" / "ui"
    folder.mkdir(parents=True)
    old, new = folder / ".state.1-1.new", folder / ".state.2-2.new"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    new_store(root)
    assert sorted(path.name for path in folder.iterdir()) == [".state.2-2.new", "state"]
