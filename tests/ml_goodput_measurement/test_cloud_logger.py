"""`goodput._CloudLogger` writes and reads a job's log for programs that know the public library's."""

from __future__ import annotations

import datetime

import pytest
from ml_goodput_measurement import goodput
from ml_goodput_measurement.goodput import GoodputCalculator, GoodputRecorder

from .histories import JOB, History

PAYLOADS = History().start(0).steps(range(5), at=10).end(60).payloads


def test_what_was_written_is_read_in_its_order() -> None:
    log = goodput._CloudLogger(JOB, "log")
    assert log.read_cloud_logging_entries() == ([], (None, None))
    for payload in [*PAYLOADS, None, {"job_name": "another"}, {}]:
        log.write_cloud_logging_entry(payload)
    log.flush()
    payloads, (timestamp, identity) = log.read_cloud_logging_entries(None, None, None)
    assert payloads == PAYLOADS
    assert isinstance(timestamp, datetime.datetime)
    assert identity


def test_a_read_goes_on_after_the_last_entry() -> None:
    log = goodput._CloudLogger(JOB, "log")
    found, last = [], None
    for payload in PAYLOADS:
        log.write_cloud_logging_entry(payload)
        new, last = log.read_cloud_logging_entries(None, None, last)
        found += new
        assert log.read_cloud_logging_entries(None, None, last) == ([], (None, None))
    assert found == PAYLOADS


def test_a_read_keeps_to_its_window() -> None:
    log = goodput._CloudLogger(JOB, "log")
    log.write_cloud_logging_entry(PAYLOADS[0])
    first = log.read_cloud_logging_entries()[1][0]
    now = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1)
    assert first is not None
    assert log.read_cloud_logging_entries(first, now)[0] == []
    assert log.read_cloud_logging_entries(first - datetime.timedelta(seconds=1), now)[0] == PAYLOADS[:1]
    assert log.read_cloud_logging_entries(None, first - datetime.timedelta(seconds=1))[0] == []
    old = goodput._CloudLogger(JOB, "log", datetime.timedelta(days=7))
    assert old.read_cloud_logging_entries()[0] == PAYLOADS[:1]


def test_recorder_and_calculator_take_it() -> None:
    log = goodput._CloudLogger(JOB, "log")
    recorder = GoodputRecorder(JOB, "log", True, log)
    start = datetime.datetime.fromtimestamp(1_700_000_000, datetime.timezone.utc)
    recorder.record_job_start_time(start)
    for step in range(5):
        recorder.record_step_start_time(step, start + datetime.timedelta(seconds=10 * step))
    recorder.record_job_end_time(start + datetime.timedelta(seconds=50))
    for calculator in (GoodputCalculator(JOB, "log", log), GoodputCalculator(JOB, "log")):
        assert float(calculator.get_job_goodput()) == pytest.approx(100.0)
