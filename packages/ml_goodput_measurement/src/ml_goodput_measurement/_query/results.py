"""From the ledger's nanoseconds to public results: kinds of badput in seconds or percent, and step deviations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from ml_goodput_measurement._ledger import Summary, Window
from ml_goodput_measurement.metric_details import BadputType, UnproductiveTimeDict
from ml_goodput_measurement.partition import Bucket

__all__ = ["StepDeviations", "badput"]

_OTHER = (Bucket.UNKNOWN, Bucket.IN_FLIGHT)
_KINDS = [
    (kind, Bucket(kind.name) if kind.name in Bucket._value2member_map_ else None)
    for kind in BadputType
    if kind is not BadputType.CUSTOM_BADPUT_EVENTS
]
_ELASTIC = {BadputType.ELASTIC_SLICE_DOWN, BadputType.ELASTIC_SCALE_UP, BadputType.ELASTIC_REINITIALIZATION}


def badput(part: Summary | Window, unit_ns: float, *, elastic: bool = False) -> UnproductiveTimeDict:
    """Return every kind of badput; custom events by their type.

    Args:
        part: A job or a window of it.
        unit_ns: The unit in nanoseconds: 1e9 for seconds, a hundredth of the whole for percent.
        elastic: True to include the kinds of elastic jobs also if they took no time.
    """
    result: UnproductiveTimeDict = {}
    for kind, bucket in _KINDS:
        length = part.buckets[bucket] if bucket is not None else _other_ns(part, kind)
        if length or elastic or kind not in _ELASTIC:
            result[kind] = length / unit_ns
    result[BadputType.CUSTOM_BADPUT_EVENTS] = {
        label: length / unit_ns for label, length in part.custom.items() if length
    }
    return result


def _other_ns(part: Summary | Window, kind: BadputType) -> int:
    """Return the time of a kind without a bucket of its own."""
    if kind is BadputType.DATA_LOADING_ASYNC:
        return part.data_loading_async_ns
    outside_ns = part.outside_ns if isinstance(part, Window) else 0
    return outside_ns + sum(part.buckets[bucket] for bucket in _OTHER)


class StepDeviations(Mapping[int, float]):
    """Absolute deviation from the ideal step time, in seconds, by step.

    Computed at first use, from the calculator's data at that time: it costs time and memory in proportion to the steps,
    and most callers that read a job's details do not use it.
    """

    def __init__(self, step_seconds: Callable[[], Mapping[int, float]], ideal_seconds: float | None) -> None:
        """Take a function that returns the step times, and the ideal step time, if any."""
        self._step_seconds = step_seconds
        self._ideal_seconds = ideal_seconds
        self._deviations: dict[int, float] | None = None

    def __getitem__(self, step: int) -> float:
        return self._computed()[step]

    def __iter__(self) -> Iterator[int]:
        return iter(self._computed())

    def __reversed__(self) -> Iterator[int]:
        return reversed(self._computed())

    def __len__(self) -> int:
        return len(self._computed())

    def __repr__(self) -> str:
        return repr(self._computed())

    def __reduce__(self) -> tuple[type[dict[int, float]], tuple[dict[int, float]]]:
        return dict, (self._computed(),)  # A copy, in this process or another, needs no ledger.

    def _computed(self) -> dict[int, float]:
        if self._deviations is None:
            ideal = self._ideal_seconds
            steps = {} if ideal is None else self._step_seconds()
            self._deviations = {step: abs(seconds - (ideal or 0.0)) for step, seconds in steps.items()}
        return self._deviations
