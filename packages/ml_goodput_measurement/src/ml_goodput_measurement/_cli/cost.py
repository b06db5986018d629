"""Money in reports: what a job's time costs by bucket, in parts that sum to the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ml_goodput_measurement._cli.buckets import TimeByBucket
from ml_goodput_measurement._cli.report import rows
from ml_goodput_measurement.money import HOUR_NS, MICRO, Price, apportion, format_amount, rounded, unit_of
from ml_goodput_measurement.partition import Bucket

__all__ = ["Bill", "bill_of", "format_bill"]


@dataclass(frozen=True, slots=True)
class Bill:
    """The cost of the wall time of a job.

    Attributes:
        price: The price of a chip.
        chips: The number of chips.
        wall_ns: The wall time.
        parts: Bucket, name and nanoseconds of each kind of time; they sum to the wall time.
    """

    price: Price
    chips: int
    wall_ns: int
    parts: tuple[tuple[Bucket, str, int], ...]

    def amounts(self, unit: Fraction) -> list[int]:
        """Return the amount of each part in whole units, which sum to that of the wall time."""
        return apportion([self.price.of(ns * self.chips) for _, _, ns in self.parts], unit)

    def whole(self, unit: Fraction) -> int:
        """Return the amount of the wall time in whole units."""
        return rounded(self.price.of(self.wall_ns * self.chips), unit)

    def as_dict(self) -> dict[str, Any]:
        """Return the bill in the types of JSON: amounts are integers, in millionths of the currency's unit."""
        amounts = self.amounts(MICRO)
        parts = [
            {"bucket": bucket.value, "name": name, "micro": amount}
            for (bucket, name, _), amount in zip(self.parts, amounts, strict=True)
        ]
        productive, excluded = self.of(Bucket.PRODUCTIVE, amounts), self.of(Bucket.EXCLUDED, amounts)
        return {
            "currency": self.price.currency,
            "micro_per_chip_hour": self.price.micro_per_chip_hour,
            "chips": self.chips,
            "wall_micro": self.whole(MICRO),
            "productive_micro": productive,
            "badput_micro": self.whole(MICRO) - productive - excluded,
            "excluded_micro": excluded,
            "parts": parts,
        }

    def of(self, bucket: Bucket, values: Sequence[int]) -> int:
        """Return the sum of some values of the parts, for a kind of time."""
        return sum(value for (kind, _, _), value in zip(self.parts, values, strict=True) if kind is bucket)


def bill_of(time: TimeByBucket, price: Price, chips: int) -> Bill:
    """Return the bill for the time of a job, or of a part of its life."""
    parts = tuple(rows(time))
    return Bill(price, chips, sum(ns for _, _, ns in parts), parts)


def format_bill(bill: Bill, width: int | None) -> list[str]:
    """Return the lines of a bill; lost time from the largest part on.

    Args:
        bill: The bill.
        width: The columns of the terminal; None if there is no limit.
    """
    currency = bill.price.currency
    unit = unit_of(bill.price.of(bill.wall_ns * bill.chips))
    amounts = bill.amounts(unit)
    hour = unit_of(Fraction(bill.wall_ns * bill.chips, HOUR_NS))
    hours = apportion([Fraction(ns * bill.chips, HOUR_NS) for _, _, ns in bill.parts], hour)

    def money(units: int) -> str:
        return format_amount(units, unit, currency)

    whole, productive = bill.whole(unit), bill.of(Bucket.PRODUCTIVE, amounts)
    is_whole = sum(amounts) == whole
    first = [
        f"wall {_wall_hours(bill.wall_ns)} h x {bill.chips:,} chips = {_hours(sum(hours), hour)} chip-hours = "
        f"{money(whole)}",
        f"productive {_hours(bill.of(Bucket.PRODUCTIVE, hours), hour)} chip-hours {money(productive)}",
    ]
    excluded = bill.of(Bucket.EXCLUDED, amounts)
    if excluded:
        first.append(f"excluded {money(excluded)}")
    parts = sorted(zip(bill.parts, amounts, strict=True), key=lambda part: -part[0][2])
    bad = [
        f"{name}  {money(amount)}"
        for (bucket, name, _), amount in parts
        if bucket not in (Bucket.PRODUCTIVE, Bucket.EXCLUDED)
    ]
    badput = f"badput {money(whole - productive - excluded)}"
    first.append(f"{badput}, of which" if bad else badput)
    sums = f"(parts sum to the whole: {'yes' if is_whole else 'no'})"
    return [*_wrapped(first, width, ""), *_wrapped([*bad, sums], width, "  ")]


def _wall_hours(wall_ns: int) -> str:
    hours = wall_ns / HOUR_NS
    return f"{hours:,.1f}" if hours >= 1 else f"{hours:.3f}"


def _hours(units: int, unit: Fraction) -> str:
    return f"{units:,}" if unit == 1 else f"{units / 100:,.2f}"


def _wrapped(texts: list[str], width: int | None, indent: str) -> list[str]:
    """Return texts side by side, in as few lines as fit."""
    lines: list[str] = []
    for text in texts:
        longer = f"{lines[-1]}   {text}" if lines else ""
        if lines and (width is None or len(longer) <= width):
            lines[-1] = longer
        else:
            lines.append(f"{indent}{text}")
    return lines
