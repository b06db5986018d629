"""Prices are exact, and parts that are shown sum to the whole that is shown."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_diagnostics_common.exceptions import ConfigurationError
from ml_goodput_measurement.money import HOUR_NS, Price, apportion, format_amount, rounded, unit_of


@pytest.mark.parametrize(
    ("text", "micro", "currency", "shown"),
    [
        ("3.22/chip-hour", 3_220_000, "$", "$3.22/chip-hour"),
        ("$3.22/chip-hour", 3_220_000, "$", "$3.22/chip-hour"),
        (" 3 / chip-hour ", 3_000_000, "$", "$3.00/chip-hour"),
        ("2.955001 EUR/chip-hour", 2_955_001, "EUR", "2.955001 EUR/chip-hour"),
        ("€2.5/chip-hour", 2_500_000, "€", "€2.50/chip-hour"),
    ],
)
def test_a_price_is_read_exactly(text: str, micro: int, currency: str, shown: str) -> None:
    price = Price.parse(text)
    assert (price.micro_per_chip_hour, price.currency) == (micro, currency)
    assert str(price) == shown


@pytest.mark.parametrize(
    "text",
    [
        "",
        "3.22",
        "-1/chip-hour",
        "1e3/chip-hour",
        "3.22/hour",
        "3.2212345/chip-hour",
        "$3 EUR/chip-hour",
        "\u0663/chip-hour",
        "€\u0663/chip-hour",
    ],
)
def test_what_is_not_a_price_is_an_error_that_shows_one(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"such as 3\.22/chip-hour"):
        Price.parse(text)


def test_an_amount_is_exact() -> None:
    assert Price(3_220_000).of(256 * HOUR_NS) == Fraction(82432, 100)
    assert Price(1).of(1) == Fraction(1, HOUR_NS * 10**6)


amounts = st.lists(st.fractions(min_value=-(10**9), max_value=10**9), min_size=1, max_size=20)


@given(amounts, st.sampled_from([Fraction(1), Fraction(1, 100), Fraction(1, 10**6)]))
def test_parts_sum_to_the_rounded_whole_and_none_is_off_by_a_unit(parts: list[Fraction], unit: Fraction) -> None:
    units = apportion(parts, unit)
    assert sum(units) == rounded(sum(parts, Fraction(0)), unit)
    assert all(abs(found * unit - part) < unit for found, part in zip(units, parts, strict=True))


def test_halves_are_rounded_away_from_zero() -> None:
    assert [rounded(Fraction(number, 2), Fraction(1)) for number in (1, -1, 3, -3)] == [1, -1, 2, -2]


def test_amounts_are_shown_with_their_sign_and_currency() -> None:
    assert format_amount(20540, Fraction(1), "$") == "$20,540"
    assert format_amount(-5, Fraction(1, 100), "$") == "-$0.05"
    assert format_amount(123456, Fraction(1, 100), "EUR") == "1,234.56 EUR"
    assert unit_of(Fraction(100)) == 1
    assert unit_of(Fraction(-99)) == Fraction(1, 100)
