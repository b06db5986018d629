"""A file of exclusions is read by its keys; a wrong one is one message that names the position."""

from __future__ import annotations

import datetime
import json
import time
from pathlib import Path
from typing import Any

import pytest
from ml_diagnostics_common.exceptions import ConfigurationError
from ml_goodput_measurement.exclusion_utils import read_exclusions


def utc(hour: int, minute: int = 0, microsecond: int = 0) -> datetime.datetime:
    return datetime.datetime(2026, 11, 21, hour, minute, 0, microsecond, datetime.timezone.utc)


def interval(start: Any = "2026-11-21T05:00:00Z", end: Any = "2026-11-21T07:30:00Z") -> dict[str, Any]:
    return {"start_time_utc": start, "end_time_utc": end}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "holidays.json"


def test_the_intervals_are_those_of_the_file_in_its_order(file: Path) -> None:
    file.write_text(json.dumps([interval(), interval("2026-11-21T01:00:00Z", "2026-11-21T02:00:00Z")]))
    assert read_exclusions(file) == [(utc(5), utc(7, 30)), (utc(1), utc(2))]


def test_a_list_without_intervals_excludes_nothing(file: Path) -> None:
    file.write_text("[]")
    assert read_exclusions(str(file)) == []


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-11-21T05:00:00Z", utc(5)),
        ("2026-11-21t05:00:00z", utc(5)),
        ("2026-11-21 05:00", utc(5)),
        ("2026-11-21T05:00:00", utc(5)),
        ("2026-11-21T05:00:00+00:00", utc(5)),
        ("2026-11-20T21:00:00-08:00", utc(5)),
        ("2026-11-21T10:30:00+05:30", utc(5)),
        ("2026-11-21T05:00:00.123456789Z", utc(5, 0, 123456)),
        ("2026-11-21T05:00:00.5+00:00", utc(5, 0, 500000)),
        (" 2026-11-21T05:00:00Z\n", utc(5)),
        ("2026-11-21", utc(0)),
    ],
)
def test_a_time_without_an_offset_is_utc(
    file: Path, text: str, moment: datetime.datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(json.dumps([interval(start=text)]))
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Kolkata")
        time.tzset()
        [(start, _)] = read_exclusions(file)
    time.tzset()
    assert start == moment
    assert start.utcoffset() == datetime.timedelta()


def test_other_keys_and_a_byte_order_mark_do_no_harm(file: Path) -> None:
    file.write_text(json.dumps([{**interval(), "reason": "maintenance"}]), encoding="utf-8-sig")
    assert read_exclusions(file) == [(utc(5), utc(7, 30))]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holidays.json, line 1, column 1: not JSON"),
        ('[{"start_time_utc":\n  oops}]', "holidays.json, line 2, column 3: not JSON"),
        ("[" * 100_000, "holidays.json: not JSON"),
        (json.dumps(interval()), "holidays.json: expected a list of intervals; write [{"),
        (json.dumps([interval(), 5]), "holidays.json, interval 2: expected an interval, got 5"),
        ('[{"end_time_utc": "2026-11-21T05:00:00Z"}]', "holidays.json, interval 1: start_time_utc is missing"),
        ('[{"start_time_utc": "2026-11-21T05:00:00Z"}]', "holidays.json, interval 1: end_time_utc is missing"),
        (json.dumps([interval("yesterday")]), 'interval 1: start_time_utc is "yesterday"; write a time such as'),
        (json.dumps([interval(end=1_700_000_000)]), "interval 1: end_time_utc is 1700000000; write a time such as"),
        (json.dumps([interval(end=None)]), "interval 1: end_time_utc is null"),
        (json.dumps([interval("")]), 'interval 1: start_time_utc is ""'),
        (json.dumps([interval("0001-01-01T00:00:00+14:00")]), "interval 1: start_time_utc is"),
        (json.dumps([interval("2026-02-30T00:00:00Z")]), "interval 1: start_time_utc is"),
        (
            json.dumps([interval("2026-11-21T07:30:00Z", "2026-11-21T05:00:00Z")]),
            'interval 1: start_time_utc "2026-11-21T07:30:00Z" is not before end_time_utc "2026-11-21T05:00:00Z"',
        ),
        (json.dumps([interval("2026-11-21T07:30:00Z")]), "interval 1: start_time_utc"),
        (json.dumps([interval("x" * 10_000)]), "interval 1: start_time_utc is"),
    ],
    ids=lambda text: text[:40],
)
def test_a_wrong_file_is_reported_with_the_position(file: Path, content: str, message: str) -> None:
    file.write_text(content)
    with pytest.raises(ConfigurationError) as error:
        read_exclusions(file)
    assert message in str(error.value)
    assert str(file) in str(error.value)
    assert len(str(error.value)) < 500
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_text_is_reported(file: Path) -> None:
    file.write_bytes(b"\xff\xfe[]")
    with pytest.raises(ConfigurationError, match=r"holidays\.json: not JSON"):
        read_exclusions(file)


def test_a_file_that_is_not_there_is_the_systems_word(file: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_exclusions(file)
