"""The heat of a metric: a byte for each host and piece of time."""

from __future__ import annotations

from typing import Final

import numpy as np

from ml_diagnostics_console._web.answers import Answer, BadQueryError, binary_answer
from ml_diagnostics_console._web.host_matrix import host_matrix
from ml_diagnostics_console._web.points_view import columns_of
from ml_diagnostics_console._web.quantiles import quantile
from ml_diagnostics_console._web.queries import Query
from ml_diagnostics_console._web.run_data import RunData
from ml_diagnostics_console._web.wire import encode

__all__ = ["heat"]

_NOTHING: Final = 255
_LEVELS: Final = 254
_MOST_CELLS: Final = 6_000_000
_QUANTILES: Final = (0.005, 0.995)
_LEAST_RANGE: Final = 0.1
"""The least range of colours where no host is odd, as a share of the values."""


def heat(run: RunData, query: Query) -> Answer:
    """Answer the heat of a metric over time: the mean of each host in each column, from 0 (`lo`) to 254 (`hi`).

    Raises:
        NotThereError: The run has no such metric.
        BadQueryError: A parameter is not valid.
    """
    columns = columns_of(run, query.text("metric"))
    span, width = query.span(), query.width()
    if len(columns) * width > _MOST_CELLS:
        raise BadQueryError(
            f"{len(columns)} hosts in {width} columns are too much for one answer: ask for fewer columns"
        )
    key = ("heat", columns[0].metric, span, width)

    def made() -> bytes:
        matrix = host_matrix(run, columns, "time", span, width)
        means, odd = matrix.means, matrix.odd
        finite = means[np.isfinite(means)]
        low, high = (quantile(finite, share) for share in _QUANTILES) if len(finite) else (0.0, 0.0)
        if odd is not None:  # What is odd is in the range of colours, though it is rare.
            own = means[odd.row][np.isfinite(means[odd.row])]
            low, high = min(low, quantile(own, 0.01)), max(high, quantile(own, 0.99))
        elif high - low < _LEAST_RANGE * abs(high + low) / 2:  # Hosts that are alike have like colours.
            middle, half = (low + high) / 2, _LEAST_RANGE * abs(high + low) / 4
            low, high = middle - half, middle + half
        with np.errstate(invalid="ignore", over="ignore"):
            levels = np.clip((means - low) / (high - low if high > low else 1.0), 0.0, 1.0) * _LEVELS
        cells = np.where(np.isfinite(means), np.nan_to_num(levels).round(), _NOTHING).astype(np.uint8)
        header = {
            "columns": ["heat"],
            "metric": columns[0].metric,
            "unit": columns[0].unit,
            "hosts": matrix.hosts,
            "width": means.shape[1],
            "from": float(matrix.edges[0]),
            "to": float(matrix.edges[-1]),
            "lo": low,
            "hi": high,
            "odd": None if odd is None else odd.to_json(),
        }
        return encode(header, [cells.ravel()])

    return binary_answer(run.cached(key, made))
