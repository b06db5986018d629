"""Wall time by bucket: exact pieces if there are few, else the exact shares of each pixel column."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ml_diagnostics_console._web.run_goodput import RunGoodput, as_of_ns, goodput_of, why_none
from ml_goodput_measurement.partition import Bucket
from ml_goodput_measurement.reading import BUCKET_KEYS
from ml_goodput_measurement.reading import column_shares as reference

from ...waiting import wait_until
from .made_runs import MadeAttempt, MadeRun
from .recorded import Page, page_of


def test_the_pieces_cover_the_run_without_a_gap(restarted: Page) -> None:
    header, columns = restarted.columns("/ledger")
    assert header["exact"]
    assert header["buckets"] == list(BUCKET_KEYS.values())
    assert len(columns["start"]) == header["rows"]
    assert columns["start"][1:] == pytest.approx(columns["end"][:-1])
    assert sorted(set(columns["attempt"])) == [1, 2, 3]
    answer = restarted.json()
    seconds = {header["buckets"][int(each)]: 0.0 for each in columns["bucket"]}
    for start, end, bucket in zip(columns["start"], columns["end"], columns["bucket"], strict=True):
        seconds[header["buckets"][int(bucket)]] += end - start
    assert seconds == {row["bucket"]: pytest.approx(row["seconds"], abs=1e-5) for row in answer["ledger"]}


def test_a_window_has_the_pieces_in_it(restarted: Page) -> None:
    _, whole = restarted.columns("/ledger")
    start, end = float(whole["start"][0]) + 50, float(whole["end"][-1]) - 50
    header, part = restarted.columns("/ledger", {"from": str(start), "to": str(end)})
    assert (header["from"], header["to"]) == (start, end)
    assert part["start"][0] == pytest.approx(start)
    assert part["end"][-1] == pytest.approx(end)


def test_many_pieces_are_shares_of_columns(restarted: Page) -> None:
    header, columns = restarted.columns("/ledger", width=1)
    assert not header["exact"]
    shares = columns["shares"].reshape(header["width"], len(header["buckets"]))
    assert shares.sum(axis=1) == pytest.approx([1.0])
    answer = restarted.json()
    wall = answer["totals"]["wall_seconds"]
    for row in answer["ledger"]:
        assert shares[0][header["buckets"].index(row["bucket"])] == pytest.approx(row["seconds"] / wall, abs=1e-6)


def test_a_window_outside_of_the_run_is_empty(restarted: Page) -> None:
    header, columns = restarted.columns("/ledger", {"from": "1", "to": "2"})
    assert header["rows"] == 0
    assert len(columns["start"]) == 0


@pytest.mark.parametrize("query", [{"from": "x"}, {"from": "2", "to": "1"}, {"width": "0"}, {"width": "4001"}])
def test_a_bad_window_is_refused(restarted: Page, query: dict[str, str]) -> None:
    assert restarted.error(400, "/ledger", query)


def test_a_run_without_goodput_says_what_would_fill_it(empty: Page) -> None:
    header, _ = empty.columns("/ledger")
    assert header["rows"] == 0
    assert "instrument" in header["help"]


def test_the_time_of_a_failed_run_stands_still(failed: Page) -> None:
    assert failed.run is not None
    before = goodput_of(failed.run).report(failed.run)
    failed.run.now_s += 86_400
    assert goodput_of(failed.run).report(failed.run) == before
    assert before is not None
    assert before.end_ns / 1e9 == pytest.approx(failed.run.ended_s, abs=20)  # The exit takes its time.


def test_runs_with_one_job_name_keep_their_own_time(failed_folder: object, failed: Page, restarted: Page) -> None:
    """Each run has the writers that name it."""
    first, second = restarted.store.runs()
    reports = [goodput_of(run).report(run) for run in (first, second)]
    assert [report.last_step for report in reports if report is not None] == [999, 99]


@given(start=st.floats(-0.2, 1.1), length=st.floats(0.01, 1.5), width=st.integers(1, 30))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_shares_are_those_of_the_picture_of_the_command_line(
    restarted: Page, start: float, length: float, width: int
) -> None:
    run = restarted.run
    assert run is not None
    report, job = goodput_of(run).report(run), goodput_of(run).ledger
    assert report is not None
    assert job is not None
    began, wall = report.start_ns / 1e9, report.wall_ns / 1e9
    window = {"from": str(began + start * wall), "to": str(began + (start + length) * wall), "width": str(width)}
    header, columns = restarted.columns("/ledger", window)
    start_ns, end_ns = round(header["from"] * 1e9), round(header["to"] * 1e9)
    pieces = job.timeline(as_of_ns(run), start_ns, end_ns)
    if header["exact"]:
        assert len(columns["start"]) == len(pieces) <= 4 * width
        return
    shares = columns["shares"].reshape(width, len(header["buckets"]))
    for column, wanted in zip(shares, reference(pieces, start_ns, end_ns, width), strict=True):
        known = dict(zip(BUCKET_KEYS, column, strict=True))
        assert known == {bucket: pytest.approx(wanted.get(bucket, 0.0), abs=1e-4) for bucket in BUCKET_KEYS}


def test_a_long_log_is_read_in_parts_and_the_page_says_so(
    restarted_folder: Path, restarted: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = restarted.run
    assert run is not None
    whole = goodput_of(run).report(run)
    monkeypatch.setattr(RunGoodput, "part_seconds", -1.0)  # A batch at a time.
    slow = RunGoodput(restarted_folder)
    monkeypatch.setattr("ml_diagnostics_console._web.run_goodput.goodput_of", lambda run: slow)
    assert slow.report(run) is None
    assert not slow.is_complete
    assert "still being read" in why_none(run)
    wait_until(lambda: slow.report(run) is not None)
    assert slow.report(run) == whole
    assert slow.is_complete


def test_what_is_written_after_the_end_of_a_run_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start_ns = time.time_ns() - 70 * 10**9
    MadeRun("late", start_ns, [MadeAttempt(0, 99)]).write(tmp_path)  # It has ended just now.
    page = page_of(tmp_path, monkeypatch)
    run = page.run
    assert run is not None
    first = goodput_of(run).report(run)
    assert first is not None
    assert goodput_of(run).is_due(run)
    (segment,) = (tmp_path / "journal" / "goodput_late").iterdir()
    late = {"job_name": "late", "custom_badput_event_start_time": start_ns / 1e9 + 1, "custom_badput_event_type": "x"}
    end = {"job_name": "late", "custom_badput_event_end_time": start_ns / 1e9 + 3, "custom_badput_event_type": "x"}
    with segment.open("a") as file:
        for number, payload in enumerate((late, end)):
            file.write(f"\n{json.dumps({'t': start_ns, 's': 100000900000 + number, 'p': payload})}")
    second = goodput_of(run).report(run)
    assert second is not None
    assert second.buckets[Bucket.CUSTOM] == pytest.approx(2e9, abs=1e6)
