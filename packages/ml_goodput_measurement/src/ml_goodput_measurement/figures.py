"""From the ledger's nanoseconds to the public figures: kinds of badput, in seconds or percent."""

from __future__ import annotations

from ml_goodput_measurement._ledger import Summary, Window
from ml_goodput_measurement.metric_details import BadputType, UnproductiveTimeDict
from ml_goodput_measurement.partition import Bucket

__all__ = ["badput", "counted_ns", "goodput_percent"]

_OTHER = (Bucket.UNKNOWN, Bucket.IN_FLIGHT)
_KINDS = [
    (kind, Bucket(kind.name) if kind.name in Bucket._value2member_map_ else None)
    for kind in BadputType
    if kind is not BadputType.CUSTOM_BADPUT_EVENTS
]
_ELASTIC = {BadputType.ELASTIC_SLICE_DOWN, BadputType.ELASTIC_SCALE_UP, BadputType.ELASTIC_REINITIALIZATION}


def counted_ns(part: Summary | Window) -> int:
    """Return the time that shares are taken of: of a job all but what is excluded, of a window all of it."""
    return part.end_ns - part.start_ns - part.buckets[Bucket.EXCLUDED]


def goodput_percent(part: Summary | Window) -> float:
    """Return the productive share, in percent; 0.0 where there is no time at all."""
    whole_ns = counted_ns(part)
    return 100 * part.buckets[Bucket.PRODUCTIVE] / whole_ns if whole_ns else 0.0


def badput(part: Summary | Window, unit_ns: float, *, elastic: bool = False) -> UnproductiveTimeDict:
    """Return every kind of badput; custom events by their type.

    Args:
        part: A job or a window of it.
        unit_ns: In units of so many nanoseconds; 1e9 for seconds, a hundredth of the whole for percent.
        elastic: Whether the kinds that only elastic jobs have are there where they took no time, too.
    """
    figures: UnproductiveTimeDict = {}
    for kind, bucket in _KINDS:
        length = part.buckets[bucket] if bucket is not None else _other_ns(part, kind)
        if length or elastic or kind not in _ELASTIC:
            figures[kind] = length / unit_ns
    figures[BadputType.CUSTOM_BADPUT_EVENTS] = {
        label: length / unit_ns for label, length in part.custom.items() if length
    }
    return figures


def _other_ns(part: Summary | Window, kind: BadputType) -> int:
    """Return the time of a kind that is no bucket."""
    if kind is BadputType.DATA_LOADING_ASYNC:
        return part.data_loading_async_ns
    outside_ns = part.outside_ns if isinstance(part, Window) else 0
    return outside_ns + sum(part.buckets[bucket] for bucket in _OTHER)
