"""From the ledger's nanoseconds to the public figures: kinds of badput, in seconds or percent."""

from __future__ import annotations

from ml_goodput_measurement.goodput_utils import BadputType, UnproductiveTimeDict
from ml_goodput_measurement.ledger import Summary, Window
from ml_goodput_measurement.partition import Bucket

__all__ = ["badput", "counted_ns", "goodput_percent"]

_OTHER = (Bucket.UNKNOWN, Bucket.IN_FLIGHT)
_ELASTIC = {BadputType.ELASTIC_SLICE_DOWN, BadputType.ELASTIC_SCALE_UP, BadputType.ELASTIC_REINITIALIZATION}


def counted_ns(part: Summary | Window) -> int:
    """Returns the time that shares are taken of: of a job all but what is excluded, of a window all of it."""
    return part.end_ns - part.start_ns - part.buckets[Bucket.EXCLUDED]


def goodput_percent(part: Summary | Window) -> float:
    """Returns the productive share, in percent; 0.0 where there is no time at all."""
    whole_ns = counted_ns(part)
    return 100 * part.buckets[Bucket.PRODUCTIVE] / whole_ns if whole_ns else 0.0


def badput(part: Summary | Window, unit_ns: float, *, elastic: bool = False) -> UnproductiveTimeDict:
    """Returns every kind of badput; custom events by their type.

    Args:
        part: A job or a window of it.
        unit_ns: In units of so many nanoseconds; 1e9 for seconds, a hundredth of the whole for percent.
        elastic: Whether the kinds that only elastic jobs have are there where they took no time, too.
    """
    figures: UnproductiveTimeDict = {}
    for kind in BadputType:
        if kind is BadputType.CUSTOM_BADPUT_EVENTS:
            figures[kind] = {label: length / unit_ns for label, length in part.custom.items() if length}
            continue
        if kind is BadputType.DATA_LOADING_ASYNC:
            length = part.data_loading_async_ns
        elif kind is BadputType.OTHER:
            length = sum(part.buckets[bucket] for bucket in _OTHER)
            length += part.outside_ns if isinstance(part, Window) else 0
        else:
            length = part.buckets[Bucket(kind.name)]
        if length or elastic or kind not in _ELASTIC:
            figures[kind] = length / unit_ns
    return figures
