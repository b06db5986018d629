"""Wall time by bucket: exact pieces if there are few, else the exact shares of each pixel column."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_diagnostics_console._web.ledger_view import Pieces, column_shares, pieces_between
from ml_diagnostics_console._web.run_goodput import RunGoodput, goodput_of, why_none
from ml_goodput_measurement.partition import Bucket, Piece
from ml_goodput_measurement.reading import BUCKET_KEYS
from ml_goodput_measurement.reading import column_shares as reference

from ...waiting import wait_until
from .made_runs import MadeAttempt, MadeRun
from .recorded import Page, page_of

_BUCKETS = list(Bucket)


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


@given(
    lengths=st.lists(st.tuples(st.integers(1, 1000), st.sampled_from(range(len(_BUCKETS)))), min_size=1, max_size=40),
    width=st.integers(1, 50),
    window=st.tuples(st.floats(-0.2, 1.1), st.floats(0.01, 1.5)),
)
def test_shares_are_those_of_the_picture_of_the_command_line(
    lengths: list[tuple[int, int]], width: int, window: tuple[float, float]
) -> None:
    pieces, at = [], 0
    for length, bucket in lengths:
        pieces.append(Piece(at, at + length, list(BUCKET_KEYS)[bucket], 1))
        at += length
    start = window[0] * at
    end = start + window[1] * at
    arrays = Pieces(
        np.array([float(piece.start_ns) for piece in pieces]),
        np.array([float(piece.end_ns) for piece in pieces]),
        np.array([bucket for _, bucket in lengths]),
        np.ones(len(pieces), np.int64),
    )
    found = column_shares(arrays.between(start, end), start, end, width)
    wanted = reference(pieces, start, end, width)  # type: ignore[arg-type]  # It takes any numbers.
    for column, shares in zip(found, wanted, strict=True):
        known = {list(BUCKET_KEYS)[index]: share for index, share in enumerate(column) if share > 1e-9}
        assert known == {bucket: pytest.approx(share, abs=1e-6) for bucket, share in shares.items() if share > 1e-9}


def test_sums_of_windows_are_the_shares_of_pieces(restarted: Page) -> None:
    run = restarted.run
    assert run is not None
    report, job = goodput_of(run).report(run), goodput_of(run).ledger
    assert report is not None
    assert job is not None
    start, end = report.start_ns / 1e9 - 3, report.end_ns / 1e9 - 5
    by_pieces = column_shares(pieces_between(run, job, report, start, end), start, end, 7)
    found = restarted.columns("/ledger", {"from": str(start), "to": str(end), "width": "1"})[1]["shares"]
    wanted = column_shares(pieces_between(run, job, report, start + 3, end), start + 3, end, 1)
    assert found == pytest.approx(wanted.ravel(), abs=1e-6)
    assert by_pieces[1:].sum(axis=1) == pytest.approx([1.0] * 6)


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
