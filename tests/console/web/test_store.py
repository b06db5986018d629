"""The store over journals that the public writers made: states, changes, and what is read when."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from google_cloud_mldiagnostics import machinelearning_run, metrics
from google_cloud_mldiagnostics.reading import LocalSource
from ml_diagnostics_common.entry import COMPANION_LOG_ID
from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_common.journal import Journal
from ml_diagnostics_console._web import wire
from ml_diagnostics_console._web.allocator import give_back
from ml_diagnostics_console._web.answers import NotThereError
from ml_diagnostics_console._web.routes import handle
from ml_diagnostics_console._web.run_goodput import RunGoodput
from ml_diagnostics_console._web.run_rows import LETTERS, primary_metric
from ml_diagnostics_console._web.store import Store

from ...waiting import LONG_SECONDS
from .made_runs import SECOND_NS, MadeAttempt, MadeRun, write_hang

START_NS = 1_763_710_310 * SECOND_NS


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self, now_ns: int = START_NS) -> None:
        self.now_ns = now_ns

    def __call__(self) -> int:
        return self.now_ns

    def advance(self, seconds: float) -> None:
        self.now_ns += round(seconds * SECOND_NS)


@pytest.fixture
def root() -> Path:
    return diagnostics_directory()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(root: Path, clock: Clock) -> Store:
    return Store(LocalSource(pytest.fail), clock_ns=clock)


def made(root: Path, run_id: str = "run-1", *attempts: MadeAttempt, **options: Any) -> int:
    """Write a run; return the time of its last entry."""
    given = attempts or (MadeAttempt(0, 99),)
    last_ns: int = MadeRun(run_id, START_NS, given, **{"step_seconds": 1.0, "startup_seconds": 10.0, **options}).write(
        root
    )
    return last_ns


def rows(store: Store) -> list[dict[str, Any]]:
    answer = handle(store, "/api/runs", {})
    assert answer.status == 200
    found: list[dict[str, Any]] = json.loads(answer.body)["rows"]
    return found


def changes(store: Store, cursor: str) -> Mapping[str, Any]:
    found = store.changes_since(cursor)
    assert found is not None
    return found


def test_an_empty_folder_has_no_runs_and_no_notes(store: Store, root: Path) -> None:
    store.refresh()
    assert json.loads(handle(store, "/api/runs", {}).body) == {
        "cursor": store.cursor,
        "now": START_NS / 1e9,
        "place": str(root),
        "notes": [],
        "next": None,
        "rows": [],
    }
    answer = handle(store, "/api/runs/last", {})
    assert (answer.status, json.loads(answer.body)["error"]) == (404, f"There are no runs in {root}.")


def test_a_completed_run_is_a_row(store: Store, root: Path, clock: Clock) -> None:
    clock.now_ns = made(root, configs={"lr": "0.001", "api_key": "AKIAIOSFODNN7EXAMPLE"}, planned_steps=100, group="g")
    store.refresh()
    (row,) = rows(store)
    assert (row["id"], row["name"], row["group"], row["state"], row["attempts"]) == (
        "run-1",
        "run-1",
        "g",
        "completed",
        "c",
    )
    assert (row["step"], row["steps"], row["hosts"]) == (99, 100, 1)
    assert row["started"] == START_NS / 1e9
    assert row["ended"] == pytest.approx(START_NS / 1e9 + 110)
    assert row["loss"] == row["metrics"]["loss"]
    assert row["config"]["lr"] == "0.001"
    assert "AKIA" not in json.dumps(row)
    assert len(row["spark"]) == 28
    assert set(row["spark"]) <= set(LETTERS)
    assert row["spark"][0] == "/"  # The loss falls.
    assert row["goodput"] == pytest.approx(90, abs=2)
    assert sum(percent for _, percent in row["buckets"]) == pytest.approx(100, abs=0.1)


def test_runs_are_in_the_order_of_their_starts_and_last_is_the_newest(store: Store, root: Path) -> None:
    for number in range(3):
        MadeRun(f"run-{number}", START_NS + number * SECOND_NS, [MadeAttempt(0, 9)]).write(root)
    store.refresh()
    assert [row["id"] for row in rows(store)] == ["run-2", "run-1", "run-0"]
    assert store.run("last").id == "run-2"
    with pytest.raises(NotThereError, match="There is no run 'run-9' in"):
        store.run("run-9")
    answer = handle(store, "/api/runs/" + "x" * 10_000, {})
    assert answer.status == 404
    assert len(answer.body) < 300


def test_an_answer_waits_until_the_first_refresh_has_something_to_show(
    store: Store, root: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.now_ns = made(root)
    is_reading, is_asked, whole = threading.Event(), threading.Event(), store.source.entries.read

    def read_late(*arguments: Any) -> Any:
        is_reading.set()
        is_asked.wait(LONG_SECONDS)
        time.sleep(0.1)
        yield from whole(*arguments)

    monkeypatch.setattr(store.source.entries, "read", read_late)
    thread = threading.Thread(target=store.refresh)
    thread.start()
    assert is_reading.wait(LONG_SECONDS)
    is_asked.set()
    assert [row["state"] for row in rows(store)] == ["completed"]
    thread.join()


def test_a_refresh_that_fails_lets_answers_go(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_read", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        store.refresh()
    assert rows(store) == []


def test_a_long_list_is_answered_in_parts(store: Store, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ml_diagnostics_console._web.runs_view._MOST_ROWS", 2)
    for number in range(5):
        MadeRun(f"run-{number}", START_NS + number * SECOND_NS, [MadeAttempt(0, 1)]).write(root)
    store.refresh()
    found = []
    query: dict[str, str] = {}
    for _ in range(3):
        answer = json.loads(handle(store, "/api/runs", query).body)
        found.append([row["id"] for row in answer["rows"]])
        query = {"next": answer["next"]}
    assert found == [["run-4", "run-3"], ["run-2", "run-1"], ["run-0"]]
    assert answer["next"] is None
    assert json.loads(handle(store, "/api/runs", {"next": "unknown"}).body)["rows"] == []


def test_an_attempt_for_each_letter(store: Store, root: Path, clock: Clock) -> None:
    clock.now_ns = made(
        root,
        "run-1",
        MadeAttempt(0, 9, "FAILED", "RuntimeError: out of memory"),
        MadeAttempt(0, 19, "FAILED", "preempted by the system"),
        MadeAttempt(10, 29),
    )
    store.refresh()
    run = store.run("run-1")
    assert [attempt.end for attempt in run.attempts] == ["x", "p", "c"]
    assert run.attempts[0].reason == "RuntimeError: out of memory"
    assert run.attempts[1].started_s > (run.attempts[0].ended_s or 0) > run.attempts[0].started_s


@pytest.mark.parametrize(("silent_seconds", "state"), [(100, "running"), (200, "silent")])
def test_a_run_without_signs_of_life_is_silent(
    store: Store, root: Path, clock: Clock, silent_seconds: float, state: str
) -> None:
    clock.now_ns = made(root, "run-1", MadeAttempt(0, 99, "ACTIVE"))
    clock.advance(silent_seconds)
    store.refresh()
    assert rows(store)[0]["state"] == state
    clock.advance(200)
    store.refresh()
    (row,) = rows(store)
    assert row["state"] == "silent"
    assert "no event" in row["verdict"]


def test_a_run_of_which_no_process_is_known_may_have_ended(store: Store, root: Path, clock: Clock) -> None:
    clock.now_ns = made(root, "run-1", MadeAttempt(0, 99, "ACTIVE"))
    shutil.rmtree(root / "journal")
    clock.advance(200)
    store.refresh()
    (row,) = rows(store)
    assert (row["state"], row["verdict"]) == ("unknown", "no event of any process is known: it may have ended")


def hanging(root: Path, clock: Clock, *, silent_seconds: float = 6.0) -> MadeRun:
    """Write a run of four hosts that wait for the third one, and set the clock to some seconds after its last sign."""
    hosts = [f"vm-{host}" for host in range(4)]
    end_ns = START_NS + 110 * SECOND_NS
    attempts = [MadeAttempt(0, 99, "ACTIVE")]
    run = MadeRun("run-1", START_NS, attempts, hosts, step_seconds=1.0, startup_seconds=10.0)
    run.alive_until_ns = end_ns + 600 * SECOND_NS
    run.write(root)
    write_hang(run, root, end_ns, stuck_host=2, until_ns=end_ns + 600 * SECOND_NS)
    clock.now_ns = end_ns + 600 * SECOND_NS
    clock.advance(silent_seconds)
    return run


def test_a_run_that_hangs_is_stuck_while_it_gives_signs_of_life(store: Store, root: Path, clock: Clock) -> None:
    hanging(root, clock)
    store.refresh()
    (row,) = rows(store)
    assert (row["state"], row["attempts"]) == ("stuck", "h")
    assert row["reason"] == "3 of 4 hosts wait at step 99, while vm-2 is in __next__ (/job/data.py:40)"
    assert row["verdict"].startswith("Stuck for 10 min")
    clock.advance(200)
    store.refresh()
    (row,) = rows(store)
    assert (row["state"], row["attempts"]) == ("silent", "h")
    assert row["reason"] == "Ended, or lost, after a hang at step 99: no sign of life of any process"


def test_a_hang_is_taken_back_by_a_later_step(store: Store, root: Path, clock: Clock) -> None:
    hanging(root, clock)
    labels = {"run": "run-1", "job": "run-1", "attempt": "1", "pid": "4001"}
    for host in range(4):
        journal = Journal(
            COMPANION_LOG_ID, root=root, labels={**labels, "host": f"vm-{host}"}, clock_ns=clock, about_pid=4001
        )
        journal.append({"kind": "step_summary", "count": 3, "first_step": 100, "last_step": 102})
        journal.close(5)
    store.refresh()
    assert rows(store)[0]["state"] == "running"


def test_a_summary_of_the_steps_before_a_hang_does_not_take_it_back(store: Store, root: Path, clock: Clock) -> None:
    hanging(root, clock)
    labels = {"run": "run-1", "job": "run-1", "attempt": "1", "host": "vm-2", "pid": "4001"}
    journal = Journal(COMPANION_LOG_ID, root=root, labels=labels, clock_ns=clock, about_pid=4001)
    journal.append({"kind": "step_summary", "count": 3, "first_step": 96, "last_step": 98})
    journal.close(5)
    store.refresh()
    assert rows(store)[0]["state"] == "stuck"


@pytest.mark.timing  # Metrics of the host may be sampled in between.
def test_a_run_that_records_is_kept_up_to_date(root: Path) -> None:
    store = Store(LocalSource(pytest.fail))
    run = machinelearning_run(name="live", configs={"layers": 2})
    try:
        metrics.record("loss", 3.0, step=0)
        run_id = _refreshed(store, 0)
        cursor = store.cursor
        for step in range(1, 5):
            metrics.record("loss", 3.0 - step, step=step)
        assert _refreshed(store, 4) == run_id
        found = changes(store, cursor)
        (changed,) = found["changed"]["rows"]
        assert (changed["id"], changed["step"], changed["loss"]) == (run_id, 4, -1.0)
        assert not {"name", "config", "spark", "metrics", "started"} & set(changed)
        while "metrics" not in found:  # At most each two seconds.
            time.sleep(0.1)
            store.refresh()
            found = changes(store, cursor)
        assert found["metrics"][run_id]["loss"] == 5
        assert changes(store, found["cursor"]) == {"cursor": store.cursor}
        assert store.run(run_id).state == "running"
    finally:
        run.finish()
    header, columns = wire.decode(handle(store, f"/api/runs/{run_id}/points", {"metric": "loss", "x": "step"}).body)
    assert columns["y"].tolist() == [3.0, 2.0, 1.0, 0.0, -1.0]
    assert header["host"]


def _refreshed(store: Store, step: int) -> str:
    """Refresh until a step is there: the journal is written by a thread."""
    deadline = time.monotonic() + LONG_SECONDS
    while time.monotonic() < deadline:
        store.refresh()
        if store.runs() and store.run("last").step == step:
            return store.run("last").id
        time.sleep(0.02)
    return pytest.fail(f"step {step} never came")


def test_pictures_of_a_row_change_each_ten_seconds_at_most(store: Store, root: Path, clock: Clock) -> None:
    clock.now_ns = made(root, "run-1", MadeAttempt(0, 99, "ACTIVE"), has_goodput=False)
    store.refresh()
    cursor, before = store.cursor, rows(store)[0]
    node = {"type": "generic_node", "labels": {"node_id": "run-1"}}
    labels = {"run": "run-1", "host": "vm-0", "process_index": "0", "pid": "4001", "attempt": "1"}
    journal = Journal("ml_diagnostics_metric", root=root, labels=labels, resource=node, clock_ns=clock, about_pid=4001)
    for step in range(100, 103):
        clock.advance(1)
        payload = {"values": [50.0], "step_index": step, "unit": "1"}
        journal.append(payload, resource_labels={"namespace": "loss"})
        assert journal.flush(5)
        store.refresh()
    (changed,) = changes(store, cursor)["changed"]["rows"]
    assert (changed["step"], changed["loss"]) == (102, 50.0)
    assert "spark" not in changed
    clock.advance(10)
    store.refresh()
    (changed,) = changes(store, cursor)["changed"]["rows"]
    assert changed["spark"] != before["spark"]
    assert changed["metrics"]["loss"] == 50.0
    journal.close(5)


def test_a_store_has_no_news_of_another_store(store: Store) -> None:
    store.refresh()
    for cursor in ("", "x", "0-0", store.cursor + "9", "ffffffff-0", f"{store.cursor}-1", "-1"):
        assert store.changes_since(cursor) is None
    assert store.changes_since(store.cursor) == {"cursor": store.cursor}


def test_a_run_that_is_deleted_while_it_is_open_is_gone_and_can_return(store: Store, root: Path, clock: Clock) -> None:
    clock.now_ns = made(root)
    made(root, "run-2")
    store.refresh()
    cursor = store.cursor
    kept = root / "kept"
    shutil.move(root / "runs" / "run-1", kept)
    store.refresh()
    assert changes(store, cursor)["gone"] == {"ids": ["run-1"]}
    assert [row["id"] for row in rows(store)] == ["run-2"]
    assert handle(store, "/api/runs/run-1/points", {"metric": "loss"}).status == 404
    cursor = store.cursor
    shutil.move(kept, root / "runs" / "run-1")
    store.refresh()
    found = changes(store, cursor)
    assert "gone" not in found
    assert [row["id"] for row in found["changed"]["rows"]] == ["run-1"]
    assert found["changed"]["rows"][0]["name"] == "run-1"
    assert store.run("run-1").columns.points("loss") == 100


def test_a_folder_that_vanishes_is_a_note_and_what_was_read_is_shown(store: Store, root: Path, clock: Clock) -> None:
    clock.now_ns = made(root)
    store.refresh()
    shutil.rmtree(root)
    clock.advance(20)
    store.refresh()
    assert [row["id"] for row in rows(store)] == ["run-1"]
    assert store.notes == [f"The folder {root / 'runs'} does not exist any more: what was read before is shown."]
    made(root, "run-2")
    store.refresh()
    assert [row["id"] for row in rows(store)] == ["run-2"]
    assert store.notes == []


@pytest.mark.parametrize("name", ["journal", "runs", ""])
def test_a_folder_that_vanishes_for_a_while_is_not_read_twice(
    store: Store, root: Path, clock: Clock, tmp_path: Path, name: str
) -> None:
    clock.now_ns = made(root)
    store.refresh()
    shutil.move(root / name, tmp_path / "aside")
    clock.advance(20)
    store.refresh()
    (note,) = store.notes
    assert note.endswith("does not exist any more: what was read before is shown.")
    assert store.run("run-1").columns.points("loss") == 100
    shutil.move(tmp_path / "aside", root / name)
    clock.advance(20)
    store.refresh()
    assert store.notes == []
    assert store.run("run-1").columns.points("loss") == 100


@pytest.mark.filterwarnings("ignore")
def test_a_damaged_run_is_a_note_and_the_others_are_shown(store: Store, root: Path, clock: Clock) -> None:
    clock.now_ns = made(root)
    made(root, "run-2")
    path = root / "runs" / "run-1" / "run.json"
    whole = path.read_text()
    path.write_text("{")
    store.refresh()
    assert [row["id"] for row in rows(store)] == ["run-2"]
    (note,) = store.notes
    assert note.startswith(f"A run cannot be shown: {path} is damaged")
    path.write_text(whole)
    store.refresh()
    assert [row["id"] for row in rows(store)] == ["run-2", "run-1"]
    assert store.notes == []


def test_entries_of_a_run_that_is_listed_later_are_not_lost(store: Store, root: Path, clock: Clock) -> None:
    clock.now_ns = made(root)
    kept = root / "kept"
    shutil.move(root / "runs" / "run-1", kept)
    store.refresh()
    assert rows(store) == []
    shutil.move(kept, root / "runs" / "run-1")
    store.refresh()
    assert rows(store)[0]["step"] == 99


def test_values_that_are_not_finite_are_null_in_a_row(store: Store, root: Path, clock: Clock) -> None:
    clock.now_ns = made(root, nan_at=frozenset(range(50, 100)))
    store.refresh()
    (row,) = rows(store)
    assert (row["loss"], row["metrics"]["loss"]) == (None, None)
    assert row["spark"][14:] == " " * 14
    header, columns = wire.decode(handle(store, "/api/runs/run-1/points", {"metric": "loss", "x": "step"}).body)
    assert len(columns["y"]) == 100
    assert header["nonfinite"] == [[50.0, 99.0, 50, "NaN"]]


def test_a_request_never_reads_files(store: Store, root: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    clock.now_ns = made(root, host_metrics={"cpu": "%"})
    store.refresh()
    opened, here = [], threading.get_ident()

    def watch(name: str) -> None:
        real = getattr(os, name)

        def watched(*arguments: Any, **options: Any) -> Any:
            if threading.get_ident() == here:  # A thread of a journal may still measure it.
                opened.append(arguments)
            return real(*arguments, **options)

        monkeypatch.setattr(os, name, watched)

    watch("open")
    watch("scandir")
    for path, query in (
        ("/api/runs", {}),
        ("/api/runs/run-1/points", {"metric": "loss"}),
        ("/api/runs/run-1/points", {"metric": "cpu", "hosts": "spread"}),
        ("/api/runs/run-1/heat", {"metric": "cpu"}),
    ):
        assert handle(store, path, query).status == 200
    assert opened == []


def test_what_fails_in_a_view_is_an_answer(store: Store, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(root)
    store.refresh()

    def fail(*arguments: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("ml_diagnostics_console._web.config_view.config_rows", fail)
    answer = handle(store, "/api/runs/run-1/configs", {})
    assert answer.status == 500
    assert json.loads(answer.body) == {"error": "This could not be worked out: ZeroDivisionError: division by zero"}
    assert handle(store, "/api/nothing", {}).status == 404
    assert handle(store, "/api/runs/run-1/points/more", {}).status == 404
    assert handle(store, "/api/runs/..%2f..%2fetc/points", {"metric": "loss"}).status == 404


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["accuracy", "loss", "train_loss"], "loss"),
        (["eval_loss", "train/loss"], "train/loss"),
        (["eval_loss", "my_loss_total"], "my_loss_total"),
        (["Loss"], "Loss"),
        (["accuracy"], None),
        ([], None),
    ],
)
def test_the_metric_of_the_small_curve_is_the_loss(names: list[str], expected: str | None) -> None:
    assert primary_metric(names) == expected


def test_answers_are_whole_while_the_store_is_refreshed(root: Path) -> None:
    made(root, "run-2", MadeAttempt(0, 50), host_metrics={"cpu": "%"})
    store = Store(LocalSource(pytest.fail))
    store.refresh()
    node = {"type": "generic_node", "labels": {"node_id": "run-2"}}
    labels = {"run": "run-2", "host": "vm-0", "process_index": "0", "attempt": "1"}
    journal = Journal("ml_diagnostics_metric", root=root, labels=labels, resource=node, about_pid=4001)
    is_over = threading.Event()
    failures: list[object] = []

    def ask() -> None:
        while not is_over.is_set():
            cursor = store.cursor
            for path, query in (
                ("", {}),
                ("/points", {"metric": "loss", "x": "step"}),
                ("/points", {"metric": "loss", "x": "time", "after": "20"}),
                ("/points", {"metric": "cpu", "hosts": "spread"}),
                ("/heat", {"metric": "cpu"}),
                ("/ledger", {}),
            ):
                answer = handle(store, f"/api/runs/run-2{path}", query)
                if answer.status != 200:
                    failures.append((path, answer.body))
            handle(store, "/api/runs", {})
            store.changes_since(cursor)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for step in range(51, 400):
        payload = {"values": [1.0], "step_index": step, "unit": "1"}
        journal.append(payload, resource_labels={"namespace": "loss" if step % 3 else "cpu"})
        if step % 10 == 0:
            store.refresh()
    journal.close(5)
    store.refresh()
    is_over.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert store.run("run-2").columns.points("loss") == 51 + sum(step % 3 > 0 for step in range(51, 400))


def test_free_memory_is_given_back_once_when_all_was_read(
    store: Store, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    monkeypatch.setattr("ml_diagnostics_console._web.store.give_back", lambda: calls.append(1))
    made(root)
    for _ in range(5):
        store.refresh()
    assert calls == [1]


def test_to_give_back_memory_never_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    give_back()
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())  # Another C library.
    give_back()


def test_a_goodput_log_that_cannot_be_read_is_a_note_until_it_can(
    store: Store, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(root)
    with monkeypatch.context() as patch:
        patch.setattr(RunGoodput, "report", lambda *arguments: (_ for _ in ()).throw(OSError("the disk is gone")))
        store.refresh()
        store.refresh()
    assert [note for note in store.notes if "goodput" in note] == [
        "The goodput of run-1 could not be read: the disk is gone"
    ]
    store.run("run-1").version += 1
    store._kept["run-1"].pictures_ns = 0
    store.refresh()
    store.refresh()
    assert [note for note in store.notes if "goodput" in note] == []
