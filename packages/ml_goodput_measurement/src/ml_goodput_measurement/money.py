"""Money: the price of chips, and amounts with parts that sum to the whole. Integers and fractions, never floats."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from ml_diagnostics_common.exceptions import ConfigurationError

__all__ = ["HOUR_NS", "MICRO", "Price", "apportion", "format_amount", "rounded", "unit_of"]

HOUR_NS = 3_600 * 10**9

_IN_A_UNIT = 10**6
MICRO = Fraction(1, _IN_A_UNIT)
"""A millionth of the currency's unit: the unit of amounts in data."""
_PRICE = re.compile(
    r"(?P<before>[$€£¥]|[A-Z]{3})?\s?(?P<amount>[0-9]{1,9}(?:\.[0-9]{1,6})?)\s?(?P<after>[$€£¥]|[A-Z]{3})?\s?/\s?chip-hour"
)


@dataclass(frozen=True, slots=True)
class Price:
    """The price of one chip for one hour.

    Attributes:
        micro_per_chip_hour: Millionths of the currency's unit.
        currency: A sign, such as $, or a code of three letters, such as EUR.
    """

    micro_per_chip_hour: int
    currency: str = "$"

    @classmethod
    def parse(cls, text: str) -> Price:
        """Return the price in a text such as `3.22/chip-hour` or `2.95 EUR/chip-hour`.

        Raises:
            ConfigurationError: The text is not a price.
        """
        found = _PRICE.fullmatch(text.strip())
        if found is None or (found["before"] and found["after"]):
            raise ConfigurationError(
                f"expected a price such as 3.22/chip-hour or 2.95 EUR/chip-hour, with at most 6 decimals, got "
                f"{text[:100]!r}"
            )
        micro = Fraction(found["amount"]) / MICRO
        return cls(int(micro), found["before"] or found["after"] or "$")

    def of(self, chip_ns: int) -> Fraction:
        """Return the exact price of some chip-nanoseconds, in units of the currency."""
        return Fraction(chip_ns * self.micro_per_chip_hour, HOUR_NS) * MICRO

    def __str__(self) -> str:
        whole, micro = divmod(self.micro_per_chip_hour, _IN_A_UNIT)
        decimals = f"{micro:06}".rstrip("0").ljust(2, "0")
        return f"{_with_currency(f'{whole}.{decimals}', self.currency)}/chip-hour"


def unit_of(whole: Fraction) -> Fraction:
    """Return the unit in which to show an amount and its parts: one from 100 on, else a hundredth."""
    return Fraction(1) if abs(whole) >= 100 else Fraction(1, 100)


def rounded(amount: Fraction, unit: Fraction) -> int:
    """Return the amount in whole units; halves are rounded away from zero."""
    units = abs(amount) / unit + Fraction(1, 2)
    return (units.numerator // units.denominator) * (1 if amount >= 0 else -1)


def apportion(parts: Sequence[Fraction], unit: Fraction) -> list[int]:
    """Round parts to whole units so that they sum to their rounded sum.

    Each is rounded down, and those with the largest remainders are given the rest: no part is off by a unit or more.

    Args:
        parts: The exact amounts.
        unit: The unit.
    """
    whole = rounded(sum(parts, Fraction(0)), unit)
    exact = [part / unit for part in parts]
    units = [one.numerator // one.denominator for one in exact]
    missing = whole - sum(units)
    order = sorted(range(len(parts)), key=lambda index: (units[index] - exact[index], index))
    for index in order[:missing]:
        units[index] += 1
    return units


def format_amount(units: int, unit: Fraction, currency: str) -> str:
    """Format an amount of `apportion` or `rounded`: $1,234, $0.57, -$12, 1,234 EUR."""
    sign = "-" if units < 0 else ""
    size = abs(units)
    text = f"{size:,}" if unit == 1 else f"{size // 100:,}.{size % 100:02}"
    return f"{sign}{_with_currency(text, currency)}"


def _with_currency(text: str, currency: str) -> str:
    return f"{text} {currency}" if currency.isalpha() else f"{currency}{text}"
