"""The wall time of a run by bucket: the pieces of its ledger in a window, or the shares of each pixel column."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from ml_goodput_measurement.partition import Bucket, JobReport
from ml_goodput_measurement.reading import BUCKET_KEYS, BUCKET_NAMES, JobLedger

from ml_diagnostics_console._web import wire
from ml_diagnostics_console._web.answers import Answer, binary_answer
from ml_diagnostics_console._web.queries import Query
from ml_diagnostics_console._web.run_goodput import as_of_ns, goodput_of, why_none

if TYPE_CHECKING:
    from ml_diagnostics_console._web.run_data import RunData

__all__ = ["Pieces", "bucket_percents", "bucket_rows", "ledger", "pieces_between", "run_attempts"]

Floats = npt.NDArray[np.float64]
_BUCKETS: Final = tuple(BUCKET_KEYS)
_INDEX: Final = {bucket: index for index, bucket in enumerate(_BUCKETS)}
_SECOND: Final = 1e9
_PIECES_A_COLUMN: Final = 4
_COLUMNS: Final = ("start", "end", "bucket", "attempt")


class Pieces(NamedTuple):
    """The pieces of a ledger in order of time, disjoint; one value of each column a piece."""

    starts: Floats
    """Seconds since 1970."""
    ends: Floats
    buckets: npt.NDArray[np.int64]
    """Positions in the fixed order of buckets: see `BUCKET_KEYS`."""
    attempts: npt.NDArray[np.int64]
    """Numbers of the run's attempts."""


def ledger(run: RunData, query: Query) -> Answer:
    """Answer the ledger of a window, exact if it has few pieces."""
    width, span = query.width(), query.span()
    goodput = goodput_of(run)
    report, job = goodput.report(run), goodput.ledger
    if report is None or job is None:
        header = {**_header(), "columns": list(_COLUMNS), "rows": 0, "exact": True, "help": why_none(run)}
        return binary_answer(wire.encode(header, [[], [], [], []]))
    start, end = span or (-math.inf, math.inf)
    start = max(start, report.start_ns / _SECOND)
    end = max(start, min(end, report.end_ns / _SECOND))
    return run.cached(("ledger", start, end, width), lambda: _ledger(run, job, report, start, end, width))


def _ledger(run: RunData, job: JobLedger, report: JobReport, start: float, end: float, width: int) -> Answer:
    header = {**_header(), "from": start, "to": end}
    pieces = pieces_between(run, job, report, start, end, most=_PIECES_A_COLUMN * width)
    if len(pieces.starts) <= _PIECES_A_COLUMN * width:
        header |= {"columns": list(_COLUMNS), "rows": len(pieces.starts), "exact": True}
        return binary_answer(wire.encode(header, list(pieces)))
    shares = _shares_of_windows(run, job, start, end, width)
    header |= {"columns": ["shares"], "rows": shares.size, "width": width, "exact": False}
    return binary_answer(wire.encode(header, [shares.ravel()]))


def _header() -> dict[str, Any]:
    return {"buckets": list(BUCKET_KEYS.values()), "titles": [_title(bucket) for bucket in _BUCKETS]}


def pieces_between(
    run: RunData, job: JobLedger, report: JobReport, start: float, end: float, *, most: int | None = None
) -> Pieces:
    """Return the pieces of a run's ledger in a window, cut at its borders. Costs what lies in it.

    Args:
        run: The run.
        job: Its ledger.
        report: Its report.
        start: The start of the window, in seconds since 1970.
        end: Its end.
        most: If there are more pieces than this, only the first ones are returned, and one more; None for all.
    """
    found = job.timeline(as_of_ns(run), _ns(start), _ns(end), most=most)
    numbers = np.array([0, *run_attempts(run, report)])
    attempts = np.fromiter((piece.attempt for piece in found), np.int64, len(found))
    return Pieces(
        np.fromiter((piece.start_ns / _SECOND for piece in found), np.float64, len(found)),
        np.fromiter((piece.end_ns / _SECOND for piece in found), np.float64, len(found)),
        np.fromiter((_INDEX[piece.bucket] for piece in found), np.int64, len(found)),
        numbers[attempts],
    )


def _shares_of_windows(run: RunData, job: JobLedger, start: float, end: float, width: int) -> Floats:
    """Return the share of each bucket in each column from the sums of the ledger, at any number of steps."""
    edges = np.linspace(start, end, width + 1)
    moments = [_ns(edge) for edge in edges]
    windows = job.windows(as_of_ns(run), list(pairwise(moments)))
    sums = np.array([[window.buckets[bucket] for bucket in _BUCKETS] for window in windows], np.float64)
    return np.clip(sums / np.maximum(np.diff(moments), 1)[:, None], 0.0, 1.0)


def _ns(seconds: float) -> int:
    return round(seconds * _SECOND)


def run_attempts(run: RunData, report: JobReport) -> list[int]:
    """Return the number of the run's attempt for each attempt of the ledger: the one with the longest common time.

    The ledger divides by job starts and repeated steps, the run by its own starts; mostly they are the same.
    """
    own = run.attempts
    if not own or len(own) == len(report.attempts):
        return [attempt.number for attempt in own] or [attempt.number for attempt in report.attempts]
    numbers = []
    for attempt in report.attempts:
        start, end = attempt.start_ns / _SECOND, attempt.end_ns / _SECOND
        common = [
            min(end, math.inf if each.ended_s is None else each.ended_s) - max(start, each.started_s) for each in own
        ]
        numbers.append(own[common.index(max(common))].number)
    return numbers


def bucket_rows(report: JobReport) -> list[dict[str, Any]]:
    """Return a row for each bucket that took time, in their fixed order; percent of the counted time."""
    return [
        {
            "bucket": BUCKET_KEYS[bucket],
            "title": _title(bucket),
            "seconds": report.buckets[bucket] / _SECOND,
            "percent": _percent(report, bucket),
        }
        for bucket in _BUCKETS
        if report.buckets[bucket]
    ]


def bucket_percents(report: JobReport) -> list[tuple[str, float]]:
    """Return (bucket, percent of the counted time) of each bucket that took time, in their fixed order."""
    return [
        (BUCKET_KEYS[bucket], percent)
        for bucket in _BUCKETS
        if report.buckets[bucket] and (percent := _percent(report, bucket)) is not None
    ]


def _percent(report: JobReport, bucket: Bucket) -> float | None:
    if bucket is Bucket.EXCLUDED or not report.counted_ns:
        return None
    return 100 * report.buckets[bucket] / report.counted_ns


def _title(bucket: Bucket) -> str:
    name = BUCKET_NAMES[bucket]
    return name[0].upper() + name[1:]
