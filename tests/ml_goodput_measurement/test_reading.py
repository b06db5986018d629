"""Programs that read many logs get the same reports as a calculator, and those of ended jobs stand still."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_diagnostics_common.entry import EntryContext, LogEntry
from ml_goodput_measurement._ledger import PROCESS_GONE
from ml_goodput_measurement.goodput import GoodputCalculator
from ml_goodput_measurement.partition import Bucket, Piece
from ml_goodput_measurement.reading import BUCKET_KEYS, BUCKET_NAMES, COLORS, JobLedger, column_shares

from .accounts import moment_ns
from .histories import History, MemoryLog, Payload
from .lives import ledger_of as life_of
from .lives import lives
from .sample_reports import killed_and_resumed, report_of

_CONTEXT = EntryContext("goodput_job", "", {}, {"host": "a", "pid": "1"}, writer="a-1-1-0")


def ledger_of(history: History) -> JobLedger:
    ledger = JobLedger(history.job)
    entries = [LogEntry(moment_ns(0), number, payload, _CONTEXT) for number, payload in enumerate(history.payloads)]
    ledger.add(entries[::2])
    ledger.add(entries[1::2])
    return ledger


def stopped_in_a_step() -> History:
    """In step 3 from 40 s on: nothing else is recorded."""
    return History().start(0).steps(range(4), at=10)


def test_entries_in_any_order_give_the_report_of_a_calculator() -> None:
    history = killed_and_resumed()
    assert ledger_of(history).report(moment_ns(10**9), include_timeline=True) == report_of(history)


@pytest.mark.parametrize("ended", [45, 50])
def test_the_step_in_flight_of_an_ended_job_counts_up_to_its_end_and_does_not_grow(ended: int) -> None:
    history = stopped_in_a_step()
    last_ns = max(moment_ns(float(payload["step_start_time"] - moment_ns(0) / 1e9)) for payload in history.payloads[1:])
    clock = [moment_ns(10**6)]
    calculator = GoodputCalculator(history.job, "log", MemoryLog(history.payloads), _clock_ns=lambda: clock[0])
    first = calculator.report(as_of_ns=moment_ns(ended))
    clock[0] = moment_ns(10**7)
    assert calculator.report(as_of_ns=moment_ns(ended)) == first
    assert first.end_ns == moment_ns(ended)
    assert first.buckets[Bucket.IN_FLIGHT] == pytest.approx(moment_ns(ended) - last_ns, abs=1000)
    assert ledger_of(history).report(moment_ns(ended), include_timeline=True) == first


def test_without_that_moment_the_job_still_runs() -> None:
    report = ledger_of(stopped_in_a_step()).report(moment_ns(10**6))
    assert report is not None
    assert report.goodput_percent < 0.1


def test_nothing_is_reported_of_a_job_without_entries_or_with_those_of_another() -> None:
    assert JobLedger("job").report(moment_ns(10)) is None
    other = JobLedger("other")
    other.add(LogEntry(moment_ns(0), 1, payload, _CONTEXT) for payload in killed_and_resumed("job").payloads)
    assert other.fact_count == 0
    assert other.report(moment_ns(10)) is None


def clipped(pieces: Iterable[Piece], start_ns: int, end_ns: int) -> list[tuple[int, int, Bucket, int, str]]:
    """The pieces in a window, cut at its borders; neighbours that are equal are one."""
    found: list[tuple[int, int, Bucket, int, str]] = []
    for piece in pieces:
        lower, stop = max(piece.start_ns, start_ns), min(piece.end_ns, end_ns)
        rest = (piece.bucket, piece.attempt, piece.label)
        if lower < stop and found and found[-1][1:] == (lower, *rest):
            found[-1] = (found[-1][0], stop, *rest)
        elif lower < stop:
            found.append((lower, stop, *rest))
    return found


def test_a_window_of_the_timeline_is_a_part_of_the_whole() -> None:
    ledger, now_ns = ledger_of(killed_and_resumed()), moment_ns(200)
    report = ledger.report(now_ns, include_timeline=True)
    assert report is not None
    for start, end in ((0, 200), (70, 74), (120, 145), (150, 151), (199, 300), (300, 400)):
        window = moment_ns(start), moment_ns(end)
        assert clipped(ledger.timeline(now_ns, *window), *window) == clipped(report.timeline, *window), (start, end)


@given(life=lives(), window=st.tuples(st.floats(-0.1, 1.1), st.floats(0.01, 1.0)), is_gone=st.booleans())
def test_a_window_of_any_life_is_a_part_of_the_whole(
    life: tuple[list[Payload], float], window: tuple[float, float], is_gone: bool
) -> None:
    payloads, now = life
    ledger, now_ns = life_of(payloads), PROCESS_GONE if is_gone else moment_ns(now)
    whole = ledger.timeline(now_ns)
    if not whole:
        assert ledger.timeline(now_ns, between=(0, 10**18)) == []
        return
    start_ns, length_ns = whole[0].start_ns, whole[-1].end_ns - whole[0].start_ns
    lower = start_ns + round(window[0] * length_ns)
    span = lower, lower + max(1, round(window[1] * length_ns))
    part = ledger.timeline(now_ns, between=span)
    most = len(part) // 2
    assert len(ledger.timeline(now_ns, between=span, most=most)) == min(len(part), most + 1)
    assert clipped(part, *span) == clipped(whole, *span)
    sums = ledger.windows([span], now_ns)[0]
    spent = dict.fromkeys(Bucket, 0)
    for piece in part:
        spent[piece.bucket] += piece.end_ns - piece.start_ns
    assert spent == sums.buckets


def test_the_steps_of_a_window_are_counted_each_time() -> None:
    ledger = ledger_of(killed_and_resumed())
    assert ledger.steps_between(moment_ns(0), moment_ns(200)) == 14
    assert ledger.steps_between(moment_ns(0), moment_ns(12)) == 0
    assert ledger.steps_between(moment_ns(140), moment_ns(200)) == 4
    (window,) = ledger.windows(moment_ns(200), [(moment_ns(0), moment_ns(200))])
    assert sum(window.buckets.values()) == moment_ns(200) - moment_ns(0)


def test_names_keys_and_colors_are_of_all_buckets_in_one_order() -> None:
    assert set(BUCKET_NAMES) == set(BUCKET_KEYS) == set(COLORS) == set(Bucket)
    assert list(BUCKET_NAMES) == list(BUCKET_KEYS)
    assert len(set(BUCKET_KEYS.values())) == len(Bucket)


def test_the_shares_of_columns_sum_to_one() -> None:
    report = report_of(killed_and_resumed())
    shares = column_shares(report.timeline, report.start_ns, report.end_ns, 7)
    assert [sum(column.values()) for column in shares] == pytest.approx([1.0] * 7)


def test_reading_needs_no_drawing_library() -> None:
    code = "import sys, ml_goodput_measurement.reading; print({'matplotlib', 'numpy'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True)
    assert found.stdout == "set()\n"


@pytest.mark.timing
def test_a_window_costs_what_lies_in_it_and_not_what_lies_before() -> None:
    history = History().start(0)
    for step in range(20_000):
        history.load(10 + step, 10.1 + step).step(step, 10.2 + step).step_end(step, 10.9 + step)
    ledger, now_ns = ledger_of(history), moment_ns(20_011)
    ledger.report(now_ns)
    started = time.thread_time()
    whole = ledger.timeline(now_ns, 0, now_ns)
    whole_seconds = time.thread_time() - started
    started = time.thread_time()
    part = ledger.timeline(now_ns, moment_ns(19_900), now_ns)
    assert time.thread_time() - started < whole_seconds / 5
    assert 200 < len(part) < len(whole) / 50
