"""The end of a step of `job.steps`: when the loop's body returns, or when the device has what the step logged."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import ml_diagnostics
import numpy as np
import pytest
from ml_diagnostics_common.reader import JournalReader
from ml_goodput_measurement.partition import Bucket

from ..waiting import LONG_SECONDS, wait_until

JOB = "digits"
_ROUNDED_NS = 10_000_000
"""More than recorded times are rounded by, or the clock is set by in a test; no wait of a test is as short."""


def goodput_only() -> ml_diagnostics.Job:
    return ml_diagnostics.instrument(JOB, run=False, stacks=False, hangs=False, monitor=False)


def payloads() -> list[dict[str, Any]]:
    """Return what goodput has recorded."""
    reader = JournalReader(f"goodput_{JOB}", root=Path(os.environ["ML_DIAGNOSTICS_DIR"]))
    return [entry.payload for batch in reader.read_new() for entry in batch]


def ended_steps() -> list[int]:
    """Return the steps with a recorded end, in the order of recording."""
    return [int(payload["step_end_count"]) for payload in payloads() if "step_end_count" in payload]


class Device:
    """A computation of JAX that ends when the test wants it."""

    def __init__(self) -> None:
        jax = pytest.importorskip("jax")
        self._may_end = threading.Event()
        scalar = jax.ShapeDtypeStruct((), "float32")
        self._hold = jax.jit(lambda matrix: jax.pure_callback(self._wait, scalar, matrix[0, 0]))
        # JAX computes small functions at once, in the caller's thread, unless they wait for the result of another.
        self._compute = jax.jit(lambda matrix: jax.lax.fori_loop(0, 60, lambda _, each: each @ matrix, matrix))
        self._matrix = np.full((1000, 1000), 0.001, dtype="float32")
        self.end()
        self.compute().block_until_ready()

    def _wait(self, _: Any) -> Any:
        assert self._may_end.wait(LONG_SECONDS)
        return np.float32(1)

    def compute(self) -> Any:
        """Return a result that is ready only after `end`, if that was not called before."""
        return self._hold(self._compute(self._matrix))

    def start(self) -> None:
        self._may_end.clear()

    def end(self) -> None:
        self._may_end.set()


@pytest.fixture(scope="module")
def compiled() -> Device:
    return Device()


@pytest.fixture
def device(compiled: Device) -> Iterator[Device]:
    yield compiled
    compiled.end()


def test_the_time_in_which_a_loop_waits_for_its_data_is_no_progress() -> None:
    work = threading.Event()
    moments = []

    def data() -> Iterator[int]:
        for step in range(5):
            moments.append(time.time_ns())
            work.wait(0.1)
            moments.append(time.time_ns())
            yield step
        moments.append(time.time_ns())

    with goodput_only() as job:
        for _ in job.steps(data()):
            work.wait(0.02)
    spent = [end - start for start, end in itertools.pairwise(moments)]
    in_data, in_steps = sum(spent[::2]), sum(spent[1::2])
    report = job.report().data
    assert report.data_loading_async_ns == 0
    assert report.buckets[Bucket.DATA_LOADING_SYNC] > in_data - _ROUNDED_NS
    assert 0 < report.buckets[Bucket.PRODUCTIVE] < in_steps + _ROUNDED_NS


def test_a_step_ends_when_the_device_has_computed_what_it_logged(device: Device) -> None:
    def data() -> Iterator[str]:
        yield "a"
        assert ended_steps() == []
        device.end()
        wait_until(ended_steps)
        yield "b"

    with goodput_only() as job:
        for step, _ in job.steps(data()):
            if step == 0:
                device.start()
            job.log({"loss": device.compute(), "rate": 0.1})
    assert ended_steps()[0] == 0


@pytest.mark.parametrize("other", [np.float32(0.1), 0.1, "text"])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_step_goes_on_while_the_device_computes_any_of_the_values_that_it_logged(
    device: Device, other: Any, is_first: bool
) -> None:
    with goodput_only() as job:
        device.start()
        for _ in job.steps("a"):
            result = device.compute()
            job.log({"loss": result, "rate": other} if is_first else {"rate": other, "loss": result})
        assert ended_steps() == []
        device.end()
        result.block_until_ready()


def test_the_end_of_a_step_is_never_later_than_the_start_of_the_next(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_recording, is_followed = threading.Event(), threading.Event()

    def data() -> Iterator[str]:
        yield "a"
        device.end()
        assert is_recording.wait(LONG_SECONDS)
        yield "b"
        is_followed.set()

    with goodput_only() as job:
        record = job.recorder.record_step_end_time

        def record_late(*details: Any) -> None:
            is_recording.set()
            assert is_followed.wait(LONG_SECONDS)
            record(*details)

        monkeypatch.setattr(job.recorder, "record_step_end_time", record_late)
        for step, _ in job.steps(data()):
            if step == 0:
                device.start()
                job.log({"loss": device.compute()})
        wait_until(ended_steps)
    (ended,) = (payload["step_ended"] for payload in payloads() if "step_ended" in payload)
    (started,) = (payload["step_start_time"] for payload in payloads() if payload.get("step_count") == 1)
    assert ended_steps() == [0]
    assert ended <= started


@pytest.mark.parametrize(("is_cuda_used", "ended"), [(True, []), (False, [0, 1])])
def test_a_step_of_torch_without_a_logged_value_has_no_end_once_cuda_is_used(
    monkeypatch: pytest.MonkeyPatch, is_cuda_used: bool, ended: list[int]
) -> None:
    torch = ModuleType("torch")
    torch.cuda = SimpleNamespace(is_initialized=lambda: is_cuda_used)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    with goodput_only() as job:
        list(job.steps("ab"))
    assert ended_steps() == ended


@pytest.mark.parametrize(("is_logged", "ended"), [(True, [0, 1]), (False, [])])
def test_a_step_of_torch_xla_has_an_end_if_it_logs_a_number(
    monkeypatch: pytest.MonkeyPatch, is_logged: bool, ended: list[int]
) -> None:
    for name in ("torch", "torch_xla"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    with goodput_only() as job:
        for _ in job.steps("ab"):
            if is_logged:
                job.log({"loss": 0.5})
    assert ended_steps() == ended


def test_a_load_beside_a_step_that_the_device_computes_costs_nothing(device: Device) -> None:
    results = []
    with goodput_only() as job:
        device.start()
        for step, _ in job.steps("abc"):
            if step < 2:
                results.append(device.compute())
                job.log({"loss": results[-1]})
        # The last step logged nothing, but those before were dispatched only.
        assert ended_steps() == []
        device.end()
        for result in results:
            result.block_until_ready()
    assert ended_steps() == []


@pytest.mark.parametrize(("is_logged", "ended"), [(True, [0, 1]), (False, [])])
def test_a_step_of_jax_ends_with_its_body_if_it_logs_a_result(is_logged: bool, ended: list[int]) -> None:
    jax = pytest.importorskip("jax")

    with goodput_only() as job:
        for step, _ in job.steps("ab"):
            result = float(jax.jit(lambda x: x + 1)(step))
            if is_logged:
                job.log({"loss": result})
    assert ended_steps() == ended


def test_a_step_ends_with_its_body_where_its_value_was_deleted(device: Device) -> None:
    with goodput_only() as job:
        for _ in job.steps("a"):
            result = device.compute()
            result.block_until_ready()
            job.log({"loss": result})
            result.delete()
    assert ended_steps() == [0]


@pytest.mark.parametrize("value", [np.float32(1), np.ones(3), "text", None, object(), [1.0]])
def test_other_values_are_of_no_device(value: Any) -> None:
    with goodput_only() as job:
        for _ in job.steps("ab"):
            job.log({"loss": value})
    assert ended_steps() == [0, 1]
