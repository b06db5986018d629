"""Durations, sizes, counts and times as people read them."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_diagnostics_common import texts
from ml_diagnostics_common.texts import format_ago, format_bytes, format_clock, format_count, format_duration, one_line


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (850e-6, "850 us"),
        (999.4e-6, "999 us"),
        (999.6e-6, "1.00 ms"),
        (0.0123, "12.3 ms"),
        (0.9996, "1.00 s"),
        (41.23, "41.2 s"),
        (59.97, "1 min 0 s"),
        (200, "3 min 20 s"),
        (3599.6, "1 h 0 min"),
        (5 * 3600 + 12 * 60, "5 h 12 min"),
        (12 * 86_400 + 3 * 3600, "12 d 3 h"),
        (-0.25, "-250 ms"),
        (None, "-"),
        (math.nan, "-"),
        (math.inf, "-"),
    ],
)
def test_a_duration_has_three_digits_or_two_units(seconds: float | None, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.floats(1e-6, 1e9))
def test_a_duration_is_exact_to_its_last_digit(seconds: float) -> None:
    text = format_duration(seconds)
    units = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
    parts = re.findall(r"([\d.]+) (\w+)", text)
    last_number, last_unit = parts[-1]
    digit = units[last_unit] / 10 ** len(last_number.partition(".")[2])
    assert abs(sum(float(number) * units[unit] for number, unit in parts) - seconds) <= 0.51 * digit


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1.00 kB"),
        (12_500, "12.5 kB"),
        (999_999, "1.00 MB"),
        (20_600_000, "20.6 MB"),
        (2_500_000_000, "2.50 GB"),
        (None, "-"),
    ],
)
def test_a_size_has_three_digits_and_a_unit(size: int | None, text: str) -> None:
    assert format_bytes(size) == text


def test_counts_have_their_noun() -> None:
    assert [format_count(number, "step") for number in (1, 2000)] == ["1 step", "2,000 steps"]
    assert format_count(0, "entry", "entries") == "0 entries"


def test_percentages_have_a_space() -> None:
    assert (texts.format_percent(14.84), texts.format_percent(None)) == ("14.8 %", "-")


def test_times_are_in_utc() -> None:
    assert (format_clock(1_795_300_000_999_999_999), format_clock(None)) == ("2026-11-21 22:26:40Z", "-")
    assert (format_ago(10**9, 62 * 10**9), format_ago(None, 1)) == ("1 min 1 s ago", "-")


@given(st.text(), st.integers(4, 20))
def test_a_cut_text_is_one_printable_line(text: str, length: int) -> None:
    line = one_line(text, length)
    assert line.isprintable()
    assert len(line) <= length
    assert len(one_line(text)) == len(text)
