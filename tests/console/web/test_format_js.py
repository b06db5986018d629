"""The page writes numbers, durations and times as the command line does: both on the same values."""

from __future__ import annotations

import math
import struct
from typing import Any

from google_cloud_mldiagnostics._cli.metric_output import format_number
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_diagnostics_common.texts import (
    format_ago,
    format_bytes,
    format_clock,
    format_count,
    format_duration,
    format_percent,
    format_three_digits,
)

from .node import needs_node, run_script

pytestmark = needs_node

_CALL = """
const format = await load("../common/format.js");
const number = (value) => (typeof value === "string" ? Number(value) : value);
answer(given.values.map((values) => format[given.name](...values.map(number))));
"""
_TIES = [0.125, 0.375, 0.625, 1.5, 2.5, 0.5, 12.25, 12.75, 100.5, 101.5, 0.005, 1.005, 2.675, 1e-3, 0.145]
_EDGES = [0.0, 1.0, 59.0, 59.94, 59.95, 59.949999, 60.0, 89.5, 90.5, 119.5, 3599.4, 3599.5, 3600.0, 3629.9, 3630.0]
_LONG = [5400.0, 86_399.0, 86_400.0, 88_200.0, 90_000.0, 508_000.0, 1e7, 1e9, 999.5e-6, 999.4e-6, 0.9995, 1e-9, 3e-7]
_SIZES = [0, 1, 999, 1000, 999_499, 999_500, 1_234_567, 25_100_000, 10**9, 999_499_999_999, 10**12, 5 * 10**15]
_NUMBERS = [1e-5, 1.5e-5, 0.0001, 0.00012345649, 123456.7, 1234567.8, 1e9, 1e9 + 0.5, 1e15, 1e22, -3.25, 0.1, 1 / 3]
_MORE = [100000.5, 100001.5, 999999.5, 999999.4, 1000000.5, 12345.65, 0.5, 1e-300, 1.7976931348623157e308, -1e-7, 2e-5]


def in_javascript(name: str, values: list[tuple[Any, ...]]) -> list[Any]:
    """Call a function of format.js on each tuple of values; what JSON lacks is passed as a text."""
    shown = [[value if _is_json(value) else _name(value) for value in one] for one in values]
    answers: list[Any] = run_script(_CALL, {"name": name, "values": shown})
    return answers


def _is_json(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _name(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def some_doubles(count: int) -> list[float]:
    """Positive numbers of all sizes, the same in each run: spread over exponents, with few and with many digits."""
    doubles = []
    for at in range(count):
        exponent = -12 + 24 * at / count
        doubles.append(10**exponent)
        doubles.append(round(10**exponent * (1 + at % 7), 3))
    return [value for value in doubles if value > 0]


def test_durations() -> None:
    values = [None, math.nan, math.inf, *_TIES, *_EDGES, *_LONG, *[-value for value in _EDGES], *some_doubles(400)]
    # Above 2**53 ns of days a double has no seconds left, and neither end claims more.
    assert in_javascript("formatDuration", [(value,) for value in values]) == [
        format_duration(value) for value in values
    ]


def test_numbers_below_a_thousand() -> None:
    values = [
        *_TIES,
        9.994,
        9.995,
        9.9949999,
        99.94,
        99.95,
        999.4,
        0.0,
        -0.125,
        *[v for v in some_doubles(300) if v < 999],
    ]
    assert in_javascript("formatThreeDigits", [(value,) for value in values]) == [
        format_three_digits(value) for value in values
    ]


def test_numbers_with_six_digits() -> None:
    values = [None, math.nan, math.inf, -math.inf, *_NUMBERS, *_MORE, *_TIES, *_EDGES, *some_doubles(400)]
    assert in_javascript("formatNumber", [(value,) for value in values]) == [format_number(value) for value in values]


def test_sizes() -> None:
    values = [None, *_SIZES]
    assert in_javascript("formatBytes", [(value,) for value in values]) == [format_bytes(value) for value in values]


def test_percentages() -> None:
    values = [(None,), *[(100 * value,) for value in _TIES], (92.46,), (0.04,), (0.05,), (14.85,), (99.95,)]
    assert in_javascript("formatPercent", values) == [format_percent(*value) for value in values]
    whole = [(value, 0) for (value,) in values if value is not None]
    assert in_javascript("formatPercent", whole) == [format_percent(value, digits) for value, digits in whole]


def test_counts() -> None:
    values: list[tuple[Any, ...]] = [
        (0, "step"),
        (1, "step"),
        (2000, "step"),
        (1_060_789, "step"),
        (1, "entry", "entries"),
        (3, "entry", "entries"),
    ]
    assert run_script(_CALL.replace("values.map(number)", "values"), {"name": "formatCount", "values": values}) == [
        format_count(*value) for value in values
    ]


def test_clocks_and_ages() -> None:
    seconds = [0.0, 1_795_809_279.399614, 1_795_809_279.999999, 951_782_400.0, 4_102_444_799.5]
    assert in_javascript("formatClock", [(None,), *[(value,) for value in seconds]]) == [
        format_clock(None),
        *[format_clock(int(value * 1e9)) for value in seconds],
    ]
    ages = [0.0, 0.4, 59.9, 60.0, 8 * 60 + 0.5, 3600.0, 5 * 86_400.0 + 21 * 3600]
    now = 1_795_809_279.0
    assert in_javascript("formatAgo", [(now - age, now) for age in ages]) == [
        format_ago(round((now - age) * 1e9), round(now * 1e9)) for age in ages
    ]


@settings(max_examples=4, deadline=None)
@given(st.lists(st.integers(0, 2**64 - 1), min_size=400, max_size=400))
def test_any_double(bits: list[int]) -> None:
    values = [struct.unpack("<d", struct.pack("<Q", one))[0] for one in bits]
    assert in_javascript("formatNumber", [(value,) for value in values]) == [format_number(value) for value in values]
    short = [abs(value) % 1000 for value in values if math.isfinite(value)]
    assert in_javascript("formatThreeDigits", [(value,) for value in short]) == [
        format_three_digits(value) for value in short
    ]
