"""Metrics of the run's hosts and chips, measured every few seconds by a thread that is never waited for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from google_cloud_mldiagnostics.metric_types import AcceleratorType

__all__ = ["Collect", "Reading", "payload_of"]


@dataclass(frozen=True)
class Reading:
    """One measurement of a metric of a host, a process or an accelerator's chips.

    Attributes:
        name: The name of the metric.
        unit: The unit of the values: %, bytes, bytes/s, s, us; 1 for counts and scores.
        values: One value, or one for each chip.
        chips: The name of each chip, such as tpu0; empty for other values.
        accelerator: The kind of the chips.
        beside: Additional fields of the entry.
        is_detail: True for a metric without an average in the run.
    """

    name: str
    unit: str
    values: list[float]
    chips: list[str] = field(default_factory=list)
    accelerator: AcceleratorType | None = None
    beside: Mapping[str, Any] = field(default_factory=dict)
    is_detail: bool = False

    @property
    def mean(self) -> float:
        """The mean of the values."""
        return sum(self.values) / len(self.values)


Collect: TypeAlias = Callable[[], list[Reading]]
"""Measure, and return the readings; a metric that cannot be measured is absent, not zero."""


def payload_of(reading: Reading, host: str, process_index: int) -> dict[str, Any]:
    """Return the entry's payload, with the public package's keys; `mean` and the fields of `beside` are ours.

    Args:
        reading: The reading.
        host: The host's name.
        process_index: The index in the run of the process that measured.
    """
    payload: dict[str, Any] = {"values": reading.values, "unit": reading.unit, "hostname": host}
    payload["process_index"] = str(process_index)
    if reading.accelerator is not None:
        payload["accelerator_type"] = reading.accelerator.value
        if reading.chips:
            payload["accelerator_labels"] = [f"{host}-{chip}" for chip in reading.chips]
        payload["mean"] = reading.mean
    return payload | dict(reading.beside)
