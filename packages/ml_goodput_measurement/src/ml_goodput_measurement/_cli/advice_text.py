"""Advice and predictions as text, and as data: never a number without its range."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ml_diagnostics_common.texts import format_count, format_duration, format_percent

from ml_goodput_measurement.advice.advise import FEWEST_FAILURES, Advice, Range
from ml_goodput_measurement.advice.history import JobHistory
from ml_goodput_measurement.advice.replay import Prediction
from ml_goodput_measurement.money import HOUR_NS, MICRO, Price, format_amount, rounded, unit_of

__all__ = [
    "ADVICE_FIELDS",
    "PREDICTION_FIELDS",
    "Worth",
    "advice_as_dict",
    "advice_as_row",
    "format_advice",
    "format_prediction",
    "prediction_as_dict",
    "prediction_as_row",
]

ADVICE_FIELDS = (
    "job_name",
    "failures",
    "uptime_seconds",
    "interval_low_seconds",
    "interval_high_seconds",
    "recommended_seconds",
    "now_seconds",
    "now_regret_low_points",
    "now_regret_high_points",
    "worst_regret_points",
    "lever_low_points",
    "lever_high_points",
    "currency",
    "now_a_day_low_micro",
    "now_a_day_high_micro",
    "lever_a_day_low_micro",
    "lever_a_day_high_micro",
)
PREDICTION_FIELDS = (
    "job_name",
    "goodput_percent",
    "predicted_percent",
    "same_failures_low_percent",
    "same_failures_high_percent",
    "other_failures_low_percent",
    "other_failures_high_percent",
)
_DAY_NS = 24 * HOUR_NS
_SMALL = 0.05
"""Points that are shown as 0."""


@dataclass(frozen=True, slots=True)
class Worth:
    """The price of a point of goodput.

    Attributes:
        price: The price of a chip.
        chips: The number of chips.
    """

    price: Price
    chips: int

    def a_day(self, points: float) -> Fraction:
        """Return what some points are worth each day."""
        return self.price.of(_DAY_NS * self.chips) * Fraction(points) / 100

    def format_range(self, points: Range) -> str:
        """Format what a range of points is worth each day: $150 to $650 a day."""
        amounts = [self.a_day(value) for value in points]
        unit = unit_of(amounts[1])
        low, high = (format_amount(rounded(amount, unit), unit, self.price.currency) for amount in amounts)
        return f"{high} a day" if low == high else f"{low} to {high} a day"


def format_advice(history: JobHistory, advice: Advice, worth: Worth | None, *, is_verbose: bool) -> Iterator[str]:
    """Yield the lines of advice."""
    yield _headline(advice)
    if advice.now_regret_points is not None:
        yield (
            f"  Now costs {_points(advice.now_regret_points)} more than the best interval would"
            f"{_worth(worth, advice.now_regret_points)}."
        )
    elif advice.now_seconds is None:
        yield "  How often the job saves now is not known: it recorded no two saves in one attempt."
    if advice.lever_points is not None:
        yield (
            f"  The other lever: each {_seconds(advice.lever_seconds)} less of detection and restart is worth "
            f"{_points(advice.lever_points)}{_worth(worth, advice.lever_points)}: restarts take "
            f"{_seconds(advice.restart_seconds)}, {advice.failures} of them in "
            f"{_hours(history.wall_seconds)}."
        )
    yield _background(advice)
    if advice.floor_seconds > (advice.background_seconds or 0.0):
        yield (
            f"  Failures may stay undetected for {_seconds(advice.floor_seconds)}, so never below that"
            f"{_now_is_below(advice, advice.floor_seconds)}."
        )
    if is_verbose:
        yield from _details(history, advice)


def _headline(advice: Advice) -> str:
    failures = format_count(advice.failures, "failure")
    source = f"80 % range, from {failures} in {_hours(advice.uptime_seconds)}"
    low, high = advice.interval_seconds
    now = "" if advice.now_seconds is None else f" Now: {_seconds(advice.now_seconds)}."
    if not advice.failures:
        return (
            f"Too few failures to say more than: the best interval is at least {_seconds(low)} (90 % sure, from no "
            f"failure in {_hours(advice.uptime_seconds)}).{now}"
        )
    interval = f"save every {_range(low, high)} ({source})"
    if advice.recommended_seconds is None or advice.worst_regret_points is None:
        return f"Too few failures to say more than: {interval}.{now}"
    return (
        f"{interval[0].upper()}{interval[1:]}; we would take {_seconds(advice.recommended_seconds)}.{now}   "
        f"method: Young 1974, Daly 2006; worst regret in the range {_point(advice.worst_regret_points)}"
    )


def _background(advice: Advice) -> str:
    if advice.background_seconds is None:
        return (
            "  Asynchronous saves: how long the background part takes is not recorded, so ensure that it is "
            "shorter than the interval (--background)."
        )
    return (
        f"  Asynchronous saves: the background part takes {_seconds(advice.background_seconds)}, so never below that"
        f"{_now_is_below(advice, advice.background_seconds)}."
    )


def _now_is_below(advice: Advice, seconds: float) -> str:
    return "; now it is" if advice.now_seconds is not None and advice.now_seconds < seconds else ""


def _details(history: JobHistory, advice: Advice) -> Iterator[str]:
    yield ""
    low, high = advice.between_seconds
    between = f"at least {format_duration(low)}" if math.isinf(high) else (
        f"{format_duration(low)} to {format_duration(high)}"
    )  # fmt: skip
    yield f"  mean time between failures: {between}, from the posterior Gamma({advice.failures} + 1/2, uptime)"
    yield f"  a save blocks for {_seconds(advice.save_seconds)}, in the mean of {history.saves:,} saves"
    yield (
        f"  a step takes {format_duration(history.step_seconds)} of training and "
        f"{format_duration(history.other_seconds)} beside it; its mean differs by {100 * history.step_noise:.1f} % "
        "between attempts"
    )
    for method in advice.methods:
        yield f"  {method.name}: {_range(*method.seconds)}"
    if advice.recommended_steps is not None:
        yield f"  least regret: {format_count(advice.recommended_steps, 'step')}"


def format_prediction(history: JobHistory, prediction: Prediction) -> Iterator[str]:
    """Yield the lines of a prediction."""
    same, other = prediction.same_failures, prediction.other_failures
    yield (
        f"{format_percent(history.goodput_percent)} -> {format_percent(prediction.percent)} (80 % range "
        f"{same[0]:.1f} to {same[1]:.1f} for these failures; {other[0]:.1f} to {other[1]:.1f} for another run with as "
        "many)"
    )
    if history.failures < FEWEST_FAILURES:
        yield f"  The job had {format_count(history.failures, 'failure')}: too few to say more than these ranges."


def advice_as_dict(job_name: str, history: JobHistory, advice: Advice, worth: Worth | None) -> dict[str, Any]:
    """Return advice in the types of JSON; what is not known, and a range without an end, is None."""
    money = None
    if worth is not None:
        money = {
            "currency": worth.price.currency,
            "chips": worth.chips,
            "now_a_day_micro": _micro(worth, advice.now_regret_points),
            "lever_a_day_micro": _micro(worth, advice.lever_points),
        }
    return {
        "job_name": job_name,
        "failures": advice.failures,
        "uptime_seconds": advice.uptime_seconds,
        "has_few_failures": advice.has_few_failures,
        "between_seconds": _finite(advice.between_seconds),
        "interval_seconds": _finite(advice.interval_seconds),
        "recommended_seconds": advice.recommended_seconds,
        "recommended_steps": advice.recommended_steps,
        "worst_regret_points": advice.worst_regret_points,
        "now_seconds": advice.now_seconds,
        "now_regret_points": _finite(advice.now_regret_points),
        "lever_seconds": advice.lever_seconds,
        "lever_points": _finite(advice.lever_points),
        "save_seconds": advice.save_seconds,
        "restart_seconds": advice.restart_seconds,
        "background_seconds": advice.background_seconds,
        "floor_seconds": advice.floor_seconds,
        "step_seconds": history.step_seconds,
        "methods": {method.name: _finite(method.seconds) for method in advice.methods},
        "money": money,
    }


def advice_as_row(document: dict[str, Any]) -> dict[str, Any]:
    """Return the row of CSV for a document of `advice_as_dict`."""
    money = document["money"] or {"currency": None, "now_a_day_micro": None, "lever_a_day_micro": None}
    return {
        **document,
        **_ends("interval", "seconds", document["interval_seconds"]),
        **_ends("now_regret", "points", document["now_regret_points"]),
        **_ends("lever", "points", document["lever_points"]),
        "currency": money["currency"],
        **_ends("now_a_day", "micro", money["now_a_day_micro"]),
        **_ends("lever_a_day", "micro", money["lever_a_day_micro"]),
    }


def prediction_as_dict(job_name: str, history: JobHistory, prediction: Prediction) -> dict[str, Any]:
    """Return a prediction in the types of JSON."""
    return {
        "job_name": job_name,
        "failures": history.failures,
        "goodput_percent": history.goodput_percent,
        "predicted_percent": prediction.percent,
        "same_failures_percent": list(prediction.same_failures),
        "other_failures_percent": list(prediction.other_failures),
    }


def prediction_as_row(document: dict[str, Any]) -> dict[str, Any]:
    """Return the row of CSV for a document of `prediction_as_dict`."""
    return {
        **document,
        **_ends("same_failures", "percent", document["same_failures_percent"]),
        **_ends("other_failures", "percent", document["other_failures_percent"]),
    }


def _ends(name: str, unit: str, values: Sequence[float | None] | None) -> dict[str, float | None]:
    """Return the columns of a range: its ends, or nothing."""
    low, high = values or (None, None)
    return {f"{name}_low_{unit}": low, f"{name}_high_{unit}": high}


def _micro(worth: Worth, points: Range | None) -> list[int] | None:
    return None if points is None else [rounded(worth.a_day(value), MICRO) for value in points]


def _finite(values: Range | None) -> list[float | None] | None:
    return None if values is None else [value if math.isfinite(value) else None for value in values]


def _worth(worth: Worth | None, points: Range) -> str:
    return "" if worth is None else f" ({worth.format_range(points)})"


def _points(points: Range) -> str:
    low, high = (f"{value:.1f}" if value >= _SMALL else "0" for value in points)
    return _point(points[1]) if low == high else f"{low} to {high} points"


def _point(points: float) -> str:
    return f"{points:.1f} points" if points >= _SMALL else "less than 0.1 points"


def _range(low: float, high: float) -> str:
    first, last = _seconds(low), _seconds(high)
    return first if first == last else f"{first.removesuffix(' s')} to {last}"


def _seconds(value: float) -> str:
    """Format seconds as people set them: 4.2 s, 455 s, 1,000 s."""
    return f"{value:,.0f} s" if value >= 10 else f"{value:.2g} s"


def _hours(value: float) -> str:
    return f"{value / 3600:.1f} h" if value >= 3600 else format_duration(value)
