"""The host that differs from all others now, if one does: of a fleet that is alike, none is named."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from ml_diagnostics_common.texts import format_three_digits

from ml_diagnostics_console._web.quantiles import column_medians, median

__all__ = ["OddHost", "find_odd_host"]

Floats: TypeAlias = npt.NDArray[np.float64]

_SHARE: Final = 0.15
"""The last part of the span that is compared."""
_LEAST_COLUMNS: Final = 8
_LEAST_HOSTS: Final = 3
_STANDARD_ERRORS: Final = 4.0
_LEAST_SHARE_OF_RANGE: Final = 0.03
_LEAST_FLEET: Final = 6
_ODD_AT_MOST: Final = 16
"""One host of so many may be odd at the same time as another."""
_OF_TRIMMED: Final = 1.17
"""The standard deviation of a normal distribution is so much larger than that of its middle 15 / 16."""


class OddHost(NamedTuple):
    """The host that differs.

    Attributes:
        row: Its row, by process index.
        host: Its name.
        deviation: Its mean distance to the median of all hosts, in the metric's unit.
        text: The deviation for the user, such as `-18.5 %` or `+40 ms`.
    """

    row: int
    host: str
    deviation: float
    text: str

    def to_json(self) -> dict[str, Any]:
        """Return it as the page gets it."""
        return {"index": self.row, "host": self.host, "deviation": self.deviation, "text": self.text}


def find_odd_host(means: Floats, hosts: Sequence[str], unit: str = "1") -> OddHost | None:
    """Return the host with a distance to the median of all that is neither noise nor too small to matter.

    The mean distance over the last 15 % of the columns must be more than 4 standard errors, both by how much the host
    itself varies over time and by how much the hosts differ from each other, and more than 3 % of the range.

    Args:
        means: The mean of each host (row) in each piece of time (column); NaN where there is none.
        hosts: Their names.
        unit: The unit of the values.
    """
    count, columns = means.shape
    if count < _LEAST_HOSTS or not columns:
        return None
    values = np.where(np.isfinite(means), means, np.nan)
    recorded = np.flatnonzero((~np.isnan(values)).sum(axis=0) >= _LEAST_HOSTS)
    recorded = recorded[-max(_LEAST_COLUMNS, math.ceil(columns * _SHARE)) :]
    recorded = recorded[recorded >= min(columns * (1 - _SHARE), columns - _LEAST_COLUMNS)]
    if len(recorded) < 2:
        return None
    part = values[:, recorded]
    middles = column_medians(part)
    distances = part - middles
    numbers = (~np.isnan(distances)).sum(axis=1)
    known = np.flatnonzero(numbers >= max(2, len(recorded) // 3))
    if len(known) < _LEAST_HOSTS:
        return None
    distances, numbers = distances[known], numbers[known]
    deviations = np.nanmean(distances, axis=1)
    spreads = np.nanstd(distances, axis=1, ddof=1)
    errors = np.maximum(spreads, median(spreads)) / np.sqrt(numbers)
    number = int(np.argmax(np.abs(deviations)))
    deviation = float(deviations[number])
    span = float(np.nanmax(values) - np.nanmin(values))
    least = max(
        _STANDARD_ERRORS * (1 + 4 / len(recorded)) * float(errors[number]),
        _least_among(deviations),
        _LEAST_SHARE_OF_RANGE * span,
    )
    if not math.isfinite(deviation) or abs(deviation) <= least:
        return None
    row = int(known[number])
    return OddHost(row, hosts[row], deviation, _text(deviation, median(middles), unit))


def _least_among(deviations: Floats) -> float:
    """Return the least deviation that is not to be expected of one of so many hosts that each are a little different.

    That is Student's t of the host against the others, for a chance of about 0.2 % in a fleet; fewer than six hosts
    cannot show how much hosts differ. In a large fleet, several may be odd: they are not among the others either.
    """
    count = len(deviations)
    if count < _LEAST_FLEET:
        return 0.0
    left_out = max(1, count // _ODD_AT_MOST)
    nearest = np.sort(np.abs(deviations - median(deviations)))[:-left_out]
    freedom = len(nearest) - 1
    spread = math.sqrt(float(np.square(nearest).sum()) / freedom) * (1.0 if left_out == 1 else _OF_TRIMMED)
    return spread * float(4.4 + 40 / freedom**1.25)


def _text(deviation: float, middle: float, unit: str) -> str:
    sign = "+" if deviation > 0 else "-"
    if unit in ("%", "percent"):
        return f"{sign}{format_three_digits(abs(deviation))} %"
    if middle:
        return f"{sign}{format_three_digits(abs(deviation / middle) * 100)} %"
    return f"{sign}{format_three_digits(abs(deviation))}" + (f" {unit}" if unit != "1" else "")
