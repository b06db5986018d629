"""The time of a dispatch is distinguished from that of the load before it, with a clock that the program moves."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from ml_diagnostics._inference.dispatch_times import DispatchTimes

LOAD_NS, LIBRARY_NS, DISPATCH_NS = 7_000_000, 1_000_000, 2_000_000
LIBRARY = """
def prepare():
    program.now_ns += nanoseconds // 2
def call(dispatch=lambda: None):
    prepare()
    prepare()
    dispatch()
"""


class Program:
    """A loop that reads a result, loads a batch, and dispatches a step."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.times = DispatchTimes(lambda: self.now_ns)
        self.call_library: Callable[[], None] | None = None
        self.batches = self.load()

    def load(self, work: Callable[[], Any] = int) -> Iterator[None]:
        while True:
            self.now_ns += LOAD_NS
            work()
            yield

    def train(self, steps: int) -> None:
        names: dict[str, Any] = {"__name__": "jax._src.array", "read": self.times.result_read}
        exec("def value(): read()", names)
        for _ in range(steps):
            names["value"]()
            next(self.batches)
            if self.call_library is not None:
                self.call_library()
            self.now_ns += DISPATCH_NS  # In C++: Python sees no call.
            self.times.dispatched()


@pytest.fixture
def program() -> Iterator[Program]:
    before = sys.getprofile()
    sys.setprofile(None)  # As of a coverage measurement.
    yield Program()
    sys.setprofile(before)


def test_the_time_of_a_dispatch_is_without_that_of_the_load(program: Program) -> None:
    program.train(200)
    assert program.times.usual_seconds == pytest.approx(DISPATCH_NS / 1e9)
    assert sys.getprofile() is None


def test_what_a_library_in_python_does_right_before_a_dispatch_is_a_part_of_it(program: Program) -> None:
    names: dict[str, Any] = {"__name__": "flax.nnx.transforms", "program": program, "nanoseconds": LIBRARY_NS}
    exec(LIBRARY, names)
    program.call_library = names["call"]
    program.train(200)
    assert program.times.usual_seconds == pytest.approx((LIBRARY_NS + DISPATCH_NS) / 1e9)


def test_a_dispatch_within_a_call_of_a_library_is_not_slowed_by_the_measurement(program: Program) -> None:
    measured: list[bool] = []

    def dispatch() -> None:
        measured.append(sys.getprofile() is not None)
        program.times.dispatched()

    names: dict[str, Any] = {"__name__": "flax.nnx.transforms", "program": program, "nanoseconds": LIBRARY_NS}
    exec(LIBRARY, names)
    program.call_library = lambda: names["call"](dispatch)
    program.train(200)
    assert program.times.usual_seconds == pytest.approx(LIBRARY_NS / 1e9)
    assert not any(measured)


def test_a_profile_function_of_the_program_is_left_alone(program: Program) -> None:
    events: list[str] = []

    def theirs(frame: Any, event: str, argument: Any) -> None:
        events.append(event)

    sys.setprofile(theirs)
    program.train(200)
    assert sys.getprofile() is theirs
    assert events
    assert program.times.usual_seconds == 0.0


def test_a_load_of_many_calls_gives_no_sample_and_is_soon_measured_no_more(program: Program) -> None:
    def many_calls() -> None:
        for _ in range(3_000):
            abs(-1)

    program.batches = program.load(many_calls)
    program.train(100)
    assert program.times.usual_seconds == 0.0
    program.times.result_read()
    assert sys.getprofile() is None


def test_a_closed_measurement_leaves_no_profile_function(program: Program) -> None:
    program.train(7)
    program.times.result_read()
    program.times.close()
    assert sys.getprofile() is None
    program.train(100)
    assert program.times.usual_seconds == 0.0
