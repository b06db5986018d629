"""Snapshots to export, and what TensorBoard reads back of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from ml_goodput_measurement.goodput_utils import BadputType, UnproductiveTimeDict
from ml_goodput_measurement.snapshot import Cumulative, DeviatingStep, Deviation, Snapshot
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

SECOND_NS = 1_000_000_000
NOW_NS = 1_780_000_000 * SECOND_NS


class Point(NamedTuple):
    tag: str
    step: int
    value: float


def cumulative(step: int = 5, goodput: float = 80.0, badput: UnproductiveTimeDict | None = None) -> Cumulative:
    return Cumulative(
        goodput_seconds=80.0,
        goodput_percent=goodput,
        badput_seconds={},
        badput_percent={BadputType.OTHER: 12.5} if badput is None else badput,
        max_productive_step=step,
        total_elapsed_seconds=100.0,
        disruptions=0,
        ideal_step_seconds=1.0,
        slice_efficiency=None,
    )


def whole_life(step: int = 5, goodput: float = 80.0, badput: UnproductiveTimeDict | None = None) -> Snapshot:
    return Snapshot("job", NOW_NS + step * SECOND_NS, cumulative=cumulative(step, goodput, badput))


def steps_of(numbers: Iterable[int], *, first_ns: int = NOW_NS) -> list[DeviatingStep]:
    """Steps a second apart, each with a deviation of its own."""
    return [
        DeviatingStep(number, first_ns + index * SECOND_NS, deviation_of(number))
        for index, number in enumerate(numbers)
    ]


def deviation_of(step: int) -> float:
    return step / 64  # Exact in single precision.


def deviating(steps: list[DeviatingStep], *, with_cumulative: Cumulative | None = None) -> Snapshot:
    def steps_since(start_ns: int) -> Iterator[DeviatingStep]:
        return (step for step in steps if step.start_ns > start_ns)

    return Snapshot("job", NOW_NS, cumulative=with_cumulative, deviation=Deviation(0.5, steps_since))


def deviation_points(numbers: Iterable[int]) -> list[Point]:
    return [Point("step_deviation", number, deviation_of(number)) for number in numbers]


def points(folder: Path) -> list[Point]:
    """All points in a folder, in the order in which TensorBoard reads them; by tag."""
    found = accumulated(folder)
    return [Point(tag, event.step, event.value) for tag in found.Tags()["scalars"] for event in found.Scalars(tag)]


def accumulated(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("events.out.tfevents.*"))
