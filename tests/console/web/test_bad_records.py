"""Damaged and hostile records: each view of the page answers, and what it sends is valid text."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from ml_diagnostics_common.entry import COMPANION_LOG_ID
from ml_diagnostics_common.journal import Journal
from ml_diagnostics_console._web.assets import Assets
from ml_diagnostics_console._web.case_file import case_answer

from .made_runs import MadeAttempt, MadeRun
from .recorded import DOCTOR_SECONDS, Page, page_of

_SECOND_NS = 10**9
_HOSTILE = "<img src=x onerror=alert(1)>\u202e\n\ud800'\"&" + "x" * 10_000
_VIEWS = (
    "",
    "/verdict",
    "/ledger",
    "/stacks",
    "/logs",
    "/logs?level=error",
    "/logs?around=step:3",
    "/configs",
    "/explain?of=attempt:1",
    "/explain?of=metric:loss",
    "/explain?of=stacks:1e10",
)
_FRAMES = {"groups": [{"threads": 1, "main": True, "names": ["MainThread"], "frames": ["f (a.py:1)"]}], "threads": 1}
_DAMAGED: tuple[dict[str, Any], ...] = (
    {"kind": "snapshot", "groups": "none", "threads": {}},
    {"kind": "snapshot", "groups": [{"frames": [None], "threads": -1, "names": [7]}], "threads": 1e300},
    {"kind": "snapshot", **_FRAMES, "step": "NaN", "phase": 7, "interval_seconds": "x"},
    {"kind": "snapshot", **_FRAMES, "step": 1e308, "message": _HOSTILE},
    {"kind": "dump", "message": 7, "part": "a", "parts": []},
    {"kind": "dump", "message": 'Current thread 0x1 (most recent call first):\n  File "\n', "part": 1},
    {"kind": "hang_suspected", "stuck_seconds": "long", "step": [], "message": None},
    {"kind": "hang_suspected", "stuck_seconds": -1e300, "message": _HOSTILE},
    {"kind": "console", "message": {"a": 1}, "stream": 5, "times": [[1], "x", None, [1e30, -1]]},
    {"kind": "console", "message": _HOSTILE, "stream": "out", "times": 7, "path": "\0"},
    {"kind": "job_ended", "how": [], "ended_ns": "now", "message": _HOSTILE},
    {"kind": ["signal"], "message": "x"},
    {"kind": "signal", "signal": {}, "sender_pid": "x"},
    {"kind": "held", "until_ns": None},
    {"kind": "fast_fail", "message": 3},
)


@pytest.fixture
def damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Page:
    """The page of a run with hostile names and texts, and damaged entries of its companion."""
    start_ns = time.time_ns() - 600 * _SECOND_NS
    configs = {_HOSTILE: _HOSTILE, "nothing": "", "number": "1e400"}
    attempts = [MadeAttempt(0, 9, "FAILED", _HOSTILE[:2000])]
    MadeRun(
        "hostile", start_ns, attempts, hosts=("<b>vm</b>", "\u202evm\n2"), configs=configs, group=_HOSTILE[:200],
        metrics={"loss": "1", "<script>alert(1)</script>": "<b>"}, nan_at=frozenset(range(10)),
    ).write(tmp_path)  # fmt: skip
    labels = {"job": "hostile", "run": "hostile", "attempt": "1", "host": "<b>vm</b>", "process_index": "0"}
    clock = iter(range(start_ns + _SECOND_NS, start_ns + 10**6 * _SECOND_NS, _SECOND_NS))
    journal = Journal(
        COMPANION_LOG_ID, root=tmp_path, labels={**labels, "pid": "4001"}, clock_ns=lambda: next(clock),
        about_pid=4001, shippable=False,
    )  # fmt: skip
    for payload in _DAMAGED:
        journal.append({"verb": "stacktraceanalyzer", **payload})
    journal.close(5)
    return page_of(tmp_path, monkeypatch)


@pytest.mark.parametrize("view", _VIEWS)
def test_each_view_answers_with_valid_text(damaged: Page, view: str) -> None:
    path, _, query = view.partition("?")
    name, _, value = query.partition("=")
    answer = damaged.ask(path, {name: value} if name else {})
    assert answer.status == 200, answer.body[:500]
    if answer.media_type == "application/json":
        text = answer.body.decode()
        assert json.loads(text)
        assert "NaN" not in text.replace('"NaN"', "")


def test_the_logs_of_a_hostile_host_are_text(damaged: Page) -> None:
    sources = damaged.json("/logs")["sources"]
    assert sources
    for source in sources:
        where = {"host": source["host"], "stream": source["stream"]}
        text = damaged.ask("/logs", where).body.decode()
        assert "\u202e" not in text
        assert "\0" not in text


def test_a_journal_that_vanishes_leaves_what_was_read(
    restarted_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(restarted_folder, folder)
    page = page_of(folder, monkeypatch)
    before = page.json()["goodput"]
    shutil.rmtree(folder)
    page.store.refresh()
    assert page.run is not None
    page.run.version += 1
    for view in _VIEWS[:8]:
        path, _, query = view.partition("?")
        name, _, value = query.partition("=")
        assert page.ask(path, {name: value} if name else {}).status in (200, 404)
    assert before is not None


def test_a_run_without_any_record_has_all_its_views(empty: Page) -> None:
    for view in _VIEWS:
        path, _, query = view.partition("?")
        name, _, value = query.partition("=")
        answer = empty.ask(path, {name: value} if name else {})
        assert answer.status in (200, 404), (view, answer.body)
        assert b"could not be worked out" not in answer.body


def test_a_run_that_is_deleted_while_it_is_open_is_a_sentence(
    restarted_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(restarted_folder, folder)
    page = page_of(folder, monkeypatch)
    assert page.run is not None
    shutil.rmtree(folder / "runs" / page.run.id)
    page.store.doctor.wait(page.run, DOCTOR_SECONDS)
    assert f"no run {page.run.id}" in json.dumps(page.json("/verdict"))
    case = case_answer(page.store, page.run.id, Assets())
    assert (case.status, f"no run {page.run.id}" in json.loads(case.body)["error"]) == (404, True)
    assert [record.exc_info for record in caplog.records if record.exc_info] == []
