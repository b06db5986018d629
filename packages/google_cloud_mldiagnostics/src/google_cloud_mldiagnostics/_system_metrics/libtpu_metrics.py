"""Metrics that libtpu reports of a host, beside the few that are recorded of each chip all the time. Pure.

libtpu gives a list of texts for each metric. Their forms are those of `description()` of each metric in libtpu 0.0.52;
where that has none (`idle_duration`, the times of Orbax and of grain), every form of a number is accepted. A text in
another form is not guessed at: it is returned as unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from google_cloud_mldiagnostics._system_metrics import Reading
from google_cloud_mldiagnostics.metric_types import AcceleratorType

__all__ = ["METRICS", "RECORDED_OF_EACH_CHIP", "LibtpuMetric", "Parsed", "metric_name"]

RECORDED_OF_EACH_CHIP: Final = ("duty_cycle_pct", "tensorcore_util", "hbm_capacity_usage", "hbm_capacity_total")
"""The metrics that `tpu` records in each collection, under the public package's names."""

_MOST_ELEMENTS: Final = 512
"""A host has 8 chips with 6 links each."""
_ABSENT: Final = frozenset({"", "n/a", "nan", "none"})
_NUMBER: Final = r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"
_DISTRIBUTION: Final = (
    rf"(?P<value>{_NUMBER}),\s*(?P<p50>{_NUMBER}),\s*(?P<p90>{_NUMBER}),\s*(?P<p95>{_NUMBER}),\s*(?P<p999>{_NUMBER})"
)
_PERCENTILES: Final = ("p50", "p90", "p95", "p999")


class _Element(NamedTuple):
    """One text of libtpu's list."""

    value: float
    fields: Mapping[str, Any]
    """The labels and percentiles, by the keys that the reading has lists of."""
    has_position: bool = False
    """True if it is the value of the chip at its position."""
    chip: int | None = None
    """The chip that it names itself."""


_Parse = Callable[[str], "_Element | None"]


class Parsed(NamedTuple):
    """The data of a metric."""

    reading: Reading | None
    """None if there is no value."""
    unknown: list[str]
    """The texts in another form than the metric has."""


@dataclass(frozen=True)
class LibtpuMetric:
    """One metric of libtpu.

    Attributes:
        name: Its name there.
        unit: The unit of its values.
        forms: The forms that a text of its data may have.
        is_watched: True for a state: it is read in each collection, and recorded when it changes. Others once a minute.
        most: The largest possible value; None if there is none.
    """

    name: str
    unit: str
    forms: tuple[_Parse, ...]
    is_watched: bool = False
    most: float | None = None

    def parse(self, data: Iterable[object]) -> Parsed:
        """Return the reading, and the texts that could not be read.

        All values of a reading have the same labels; a text with others than the first is unknown.

        Args:
            data: The result of libtpu's `data()`.
        """
        elements: list[tuple[int, _Element]] = []
        unknown: list[str] = []
        for position, item in enumerate(data):
            text = str(item).strip()
            if text.lower() in _ABSENT:
                continue
            element = self._element(text) if position < _MOST_ELEMENTS else None
            if element is None or (elements and not _is_alike(element, elements[0][1])):
                unknown.append(text)
            else:
                elements.append((position, element))
        return Parsed(self._reading(elements), unknown)

    def _element(self, text: str) -> _Element | None:
        for form in self.forms:
            element = form(text)
            if element is not None:
                return element if self.most is None or element.value <= self.most else None
        return None

    def _reading(self, elements: Sequence[tuple[int, _Element]]) -> Reading | None:
        if not elements:
            return None
        _, first = elements[0]
        chips = [
            f"tpu{position if element.chip is None else element.chip}"
            for position, element in elements
            if element.has_position or element.chip is not None
        ]
        return Reading(
            metric_name(self.name),
            self.unit,
            [element.value for _, element in elements],
            chips,
            AcceleratorType.TPU,
            {key: [element.fields[key] for _, element in elements] for key in first.fields},
            is_detail=True,
        )


def metric_name(name: str) -> str:
    """Return the name under which a metric of libtpu is recorded."""
    return name if name.startswith("tpu_") else f"tpu_{name}"


def _is_alike(element: _Element, other: _Element) -> bool:
    return element.fields.keys() == other.fields.keys() and element.has_position == other.has_position


# --- Forms --------------------------------------------------------------------------------------------


def _form(pattern: str, make: Callable[[re.Match[str]], _Element]) -> _Parse:
    compiled = re.compile(pattern, re.ASCII)

    def parse(text: str) -> _Element | None:
        match = compiled.fullmatch(text)
        return None if match is None else make(match)

    return parse


def _labels(match: re.Match[str]) -> dict[str, Any]:
    """Return the groups that are neither the value nor a percentile, which are lists of the reading."""
    return {name: text for name, text in match.groupdict().items() if name not in ("value", *_PERCENTILES)}


def _distribution(match: re.Match[str]) -> _Element:
    percentiles = {name: float(match[name]) for name in _PERCENTILES}
    return _Element(float(match["value"]), {**_labels(match), **percentiles})


def _link(match: re.Match[str]) -> _Element:
    fields = {"links": match[1], "trays": int(match[2]), "chips": int(match[3]), "ports": match[4]}
    return _Element(float(match[5]), fields)


_OF_CHIP: Final = _form(rf"(?P<value>{_NUMBER})", lambda match: _Element(float(match["value"]), {}, has_position=True))
_OF_CORE: Final = _form(
    rf"(?P<tensorcores>tensorcore_\d+): (?P<value>{_NUMBER})",
    lambda match: _Element(float(match["value"]), _labels(match)),
)
_OF_NAMED_CHIP: Final = _form(r"(\d+)-(\d+)", lambda match: _Element(float(match[2]), {}, chip=int(match[1])))
_OF_LINK: Final = _form(r"(tray(\d+)\.chip(\d+)\.(ici\d+\.\w+)): (\d+)", _link)
_TIMES: Final = _form(_DISTRIBUTION, _distribution)
_TIMES_OF_CORE: Final = _form(rf"(?P<tensorcores>tensorcore_\d+),\s*{_DISTRIBUTION}", _distribution)
_TIMES_BY_SIZE: Final = _form(rf"(?P<sizes>\d+[KMGT]?i?B\+?),\s*{_DISTRIBUTION}", _distribution)
_TIMES_OF_COLLECTIVE: Final = _form(
    rf"(?P<sizes>\d+[KMGT]?i?B\+?)-(?P<operations>[A-Z_]+),\s*{_DISTRIBUTION}", _distribution
)
_SERIES: Final = r"(?P<series>[A-Za-z][^,:]{0,99})"
_ANY: Final = (
    _form(rf"(?P<value>{_NUMBER})", lambda match: _Element(float(match["value"]), {})),
    _form(rf"{_SERIES}: (?P<value>{_NUMBER})", lambda match: _Element(float(match["value"]), _labels(match))),
    _TIMES,
    _form(rf"{_SERIES},\s*{_DISTRIBUTION}", _distribution),
)
_OF_ANY_CHIP: Final = (_OF_CHIP, _ANY[1])

METRICS: Final = (
    LibtpuMetric("ici_link_health", "1", (_OF_LINK,), is_watched=True, most=10),
    LibtpuMetric("tpu_throttle_score", "1", (_OF_NAMED_CHIP,), is_watched=True, most=10),
    LibtpuMetric("idle_duration", "s", _OF_ANY_CHIP, is_watched=True),
    LibtpuMetric("hlo_queue_size", "1", (_OF_CORE,), is_watched=True),
    LibtpuMetric("hlo_execution_timing", "us", (_TIMES_OF_CORE,)),
    LibtpuMetric("collective_e2e_latency", "us", (_TIMES_OF_COLLECTIVE,)),
    LibtpuMetric("buffer_transfer_latency", "us", (_TIMES_BY_SIZE,)),
    LibtpuMetric("inbound_buffer_transfer_latency", "us", (_TIMES_BY_SIZE,)),
    LibtpuMetric("host_to_device_transfer_latency", "us", (_TIMES_BY_SIZE,)),
    LibtpuMetric("device_to_host_transfer_latency", "us", (_TIMES_BY_SIZE,)),
    LibtpuMetric("host_compute_latency", "us", (_TIMES_BY_SIZE,)),
    LibtpuMetric("tcp_min_rtt", "us", (_TIMES,)),
    LibtpuMetric("tcp_delivery_rate", "Mbit/s", (_TIMES,)),
    LibtpuMetric("hbm_util", "%", (_OF_CHIP,)),
    LibtpuMetric("runtime_hbm_utilization", "%", _OF_ANY_CHIP),
    LibtpuMetric("orbax_write_size", "GB", _ANY),
    LibtpuMetric("orbax_write_throughput", "GB/s", _ANY),
    LibtpuMetric("checkpoint_write_async_blocking_duration", "s", _ANY),
    LibtpuMetric("checkpoint_write_async_total_duration", "s", _ANY),
    LibtpuMetric("orbax_read_total_duration", "s", _ANY),
    LibtpuMetric("orbax_read_blocking_duration", "s", _ANY),
    LibtpuMetric("orbax_write_async_start_count", "1", _ANY),
    LibtpuMetric("orbax_read_async_start_count", "1", _ANY),
    LibtpuMetric("pygrain_data_sources_read_size", "bytes", _ANY),
    LibtpuMetric("pygrain_dataset_source_read_duration", "s", _ANY),
    LibtpuMetric("pygrain_dataset_next_duration", "s", _ANY),
    LibtpuMetric("pygrain_dataset_prefetch_buffer_ready_count", "1", _ANY),
    LibtpuMetric("pygrain_dataloader_iterator_get_next_duration", "s", _ANY),
)
"""All that libtpu 0.0.52 reports beside `RECORDED_OF_EACH_CHIP`."""
