"""The loop over a job's steps: what is recorded of each, and the profile of some."""

from __future__ import annotations

import operator
import sys
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from ml_diagnostics_common.clock import now_seconds
from ml_diagnostics_common.guard import warn_once
from ml_diagnostics_common.worker import Worker

from ml_diagnostics._preparation import Preparation
from ml_diagnostics._profiled_steps import ProfiledSteps

__all__ = ["Heartbeats", "StepRecorder", "Steps", "StepsRecord"]

_Batch = TypeVar("_Batch")
_END: Any = object()
_FIRST_PAUSE_SECONDS: Final = 0.0005
_LONGEST_PAUSE_SECONDS: Final = 0.05
_LONGER: Final = 1.1
"""Pauses grow with the time that a device needs, which is thus known to a tenth."""
_NUMBERS: Final = (float, int)

_worker = Worker("ml-diagnostics-step-ends", limit=2)


class StepRecorder(Protocol):
    """The calls of a loop over steps: those of a goodput recorder, or of `Heartbeats`."""

    def record_step_start_time(self, step: int, /) -> None:
        """Record that a step starts."""
        ...

    def record_step_end_time(self, step: int, end_time: float | None = None, /) -> None:
        """Record that a step has ended, now or at a time in seconds since 1970."""
        ...

    def record_data_loading_start_time(self, *, ended_step: int | None = None) -> None:
        """Record that the loading of a batch starts, and that a step ends."""
        ...

    def record_data_loading_end_time(self) -> None:
        """Record that a batch is loaded."""
        ...

    def phase(self, name: str, step: int | None = None) -> AbstractContextManager[None]:
        """Return a block that records an activity that is not a step."""
        ...


class Heartbeats:
    """Reports of progress for the detection of hangs, in a job without a record of its goodput."""

    def __init__(self, heartbeat: Callable[[int | None, str], None]) -> None:
        self._heartbeat = heartbeat
        self._step: int | None = None

    def record_step_start_time(self, step: int, /) -> None:
        """Report that a step starts."""
        self._step = step
        self._heartbeat(step, "step")

    def record_step_end_time(self, step: int, end_time: float | None = None, /) -> None:
        """Report that a step has ended."""
        self._heartbeat(step, "step")

    def record_data_loading_start_time(self, *, ended_step: int | None = None) -> None:
        """Report that the loading of a batch starts."""
        self._heartbeat(self._step, "data")

    def record_data_loading_end_time(self) -> None:
        """Report that a batch is loaded."""
        self.leave_phase()

    def phase(self, name: str, step: int | None = None) -> AbstractContextManager[None]:
        """Return a block that reports an activity that is not a step."""
        return _HeartbeatPhase(self, name)

    def enter_phase(self, name: str) -> None:
        """Report that a phase starts."""
        key = name.lower() if isinstance(name, str) else ""
        self._heartbeat(self._step, next((phase for part, phase in _PHASES.items() if part in key), "other"))

    def leave_phase(self) -> None:
        """Report that a phase has ended."""
        self._heartbeat(self._step, "step" if self._step is not None else "init")


_PHASES: Final = {
    "eval": "eval",
    "validation": "eval",
    "checkpoint": "checkpoint",
    "restore": "checkpoint",
    "data_loading": "data",
    "init": "init",
    "prep": "init",
}
"""The phase of a heartbeat, by a part of the name that a program gives its own."""


class _HeartbeatPhase(AbstractContextManager[None]):
    def __init__(self, heartbeats: Heartbeats, name: str) -> None:
        self._heartbeats = heartbeats
        self._name = name

    def __enter__(self) -> None:
        self._heartbeats.enter_phase(self._name)

    def __exit__(self, *_: object) -> None:
        self._heartbeats.leave_phase()


class StepsRecord:
    """The steps of a job, as they are recorded.

    Attributes:
        step: The step that started last; None before the first.
        count: The number of steps that have started.
        is_asynchronous: True once the program is known to compute on devices, which may still compute a step when the
            loop's body returns: JAX has compiled a function, PyTorch has initialized CUDA or XLA, or a value was logged
            before it was computed.
        value: The last value of the step that was logged, one of a device before any other; None before that.
    """

    def __init__(
        self,
        recorder: StepRecorder | None,
        preparation: Preparation,
        profiled: ProfiledSteps | None = None,
    ) -> None:
        """Record nothing yet.

        Args:
            recorder: Receives the start and the end of steps and of data loading; None records nothing.
            preparation: Ended by the first step.
            profiled: Receives the start and the end of each step; None for no profile.
        """
        self.step: int | None = None
        self.count = 0
        self.is_asynchronous = False
        self.value: Any = None
        self.recorder = recorder
        self.preparation = preparation
        self._profiled = profiled
        self._is_in_loop = False

    def open_loop(self) -> bool:
        """Return True if a loop that starts now records its steps: there is a recorder, and it is the outermost."""
        if self.recorder is None:
            return False
        if self._is_in_loop:
            warn_once(
                "steps within steps",
                "job.steps() within a loop over job.steps(): only the steps of the outer loop are recorded.",
            )
            return False
        self._is_in_loop = True
        self.preparation.end()
        return True

    def close_loop(self) -> None:
        """Note that a loop has ended, by an exception or not."""
        self._is_in_loop = False
        self.value = None
        if self._profiled is not None:
            self._profiled.end_loop()

    def stop(self) -> None:
        """Record nothing further: the job ends, and a loop may go on."""
        self.recorder, self.value, self._is_in_loop = None, None, False
        profiled, self._profiled = self._profiled, None
        if profiled is not None:
            profiled.end()
        self.preparation.end()

    def forget(self) -> None:
        """Record nothing further in a forked child, where all that is open is the parent's."""
        self.recorder, self.value, self._profiled = None, None, None
        self.preparation.forget()

    def note_values(self, metrics: Mapping[Any, Any]) -> None:
        """Keep a value that the step has logged: the step goes on while a device computes it."""
        try:
            for value in metrics.values():
                if self.value is None or (type(value) not in _NUMBERS and _is_of_device(value)):
                    self.value = value
        except Exception:
            pass  # A mapping without values: nothing is known of the step's end.

    def phase(self, name: str, step: int | None) -> AbstractContextManager[None]:
        """Return a block that records a phase; the step is the last one if it is None."""
        recorder = self.recorder
        if recorder is None:
            return nullcontext()
        return _PhaseBlock(self, recorder, recorder.phase(name, self.step if step is None else step))

    def returned(self) -> int | None:
        """Return the step that ends now, since the loop's body has returned; None if that is not known.

        The program may have dispatched the step only. A thread records the end if the step's last value is ready before
        the next step starts. A number was computed; of a step without any value nothing is known.
        """
        value, self.value = self.value, None
        if self._profiled is not None:
            self._profiled.end_step()
        if value is None:
            self.is_asynchronous = self.is_asynchronous or _has_torch_on_devices()
            return None if self.is_asynchronous else self.step
        if not _is_computing(value):
            return self.step
        self.is_asynchronous = True
        if hasattr(value, "is_ready"):
            step, count = self.step, self.count
            _worker.put(lambda: self._end_when_ready(value, step, count))
        return None

    def _end_when_ready(self, value: Any, step: int | None, count: int) -> None:
        pause_seconds = _FIRST_PAUSE_SECONDS
        while _is_computing(value):
            time.sleep(pause_seconds)
            if self.count != count or not self._is_in_loop:
                return
            pause_seconds = min(_LONGER * pause_seconds, _LONGEST_PAUSE_SECONDS)
        # The next step may start at any moment. As the time is read before that is checked, the end is never later.
        ready_seconds, recorder = now_seconds(), self.recorder
        if self.count == count and self._is_in_loop and recorder is not None and step is not None:
            recorder.record_step_end_time(step, ready_seconds)

    def start(self, step: int) -> None:
        """Record that a step starts, and start or end the profile."""
        if not self.count:
            self.preparation.end()
        self.count += 1  # First, for the thread that checks whether a step was followed.
        self.step = step
        self.value = None
        if self._profiled is not None:
            self._profiled.start_step(step)
        if self.recorder is not None:
            self.recorder.record_step_start_time(step)

    def end(self) -> None:
        """Record that the last step has ended, if there was one."""
        if self._profiled is not None:
            self._profiled.end_step()
        if self.recorder is not None and self.step is not None:
            self.recorder.record_step_end_time(self.step)


class _PhaseBlock(AbstractContextManager[None]):
    """Record a phase instead of the preparation; not its end, once the job has ended or in a forked child."""

    def __init__(self, steps: StepsRecord, recorder: StepRecorder, block: AbstractContextManager[None]) -> None:
        self._steps = steps
        self._recorder = recorder
        self._block = block

    def __enter__(self) -> None:
        self._steps.preparation.pause()
        self._block.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._steps.recorder is self._recorder:
            self._block.__exit__(kind, error, traceback)
            self._steps.preparation.resume()


_call = operator.methodcaller("__call__")


def _is_computing(value: Any) -> bool:
    """Return True if a value is still computed, or if that cannot be known without waiting for its device."""
    try:
        if hasattr(value, "is_ready"):
            # JAX crashes if it is asked whether a deleted array is ready; `any` does not release the GIL between both.
            return not any(map(_call, (value.is_deleted, value.is_ready)))
    except Exception:  # It was deleted, or has no `is_deleted`.
        return False
    return _is_of_device(value)


def _is_of_device(value: Any) -> bool:
    """Return True if a value is computed on a device, as by JAX, or by PyTorch but on the CPU."""
    try:
        return hasattr(value, "is_ready") or getattr(value.device, "type", "cpu") != "cpu"
    except Exception:
        return False


def _has_torch_on_devices() -> bool:
    """Return True if PyTorch has initialized CUDA or XLA."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return False
    try:
        return "torch_xla" in sys.modules or bool(torch.cuda.is_initialized())
    except Exception:  # It is being imported.
        return False


NO_STEPS = StepsRecord(None, Preparation())


class Steps(Generic[_Batch]):
    """Pairs of a step's number and its batch, for one `for` or `async for` loop; see `Job.steps`."""

    def __init__(self, record: StepsRecord, data: Iterable[_Batch] | AsyncIterable[_Batch], start: int) -> None:
        self._record = record
        self._data = data
        self._start = start

    # An iterator that is closed has left its loop by `break` or by an exception, which cannot be distinguished, so the
    # end of that step is not recorded: reports estimate it.

    def __iter__(self) -> Iterator[tuple[int, _Batch]]:
        record, step = self._record, self._start
        batches = iter(cast("Iterable[_Batch]", self._data))
        if not record.open_loop():
            yield from enumerate(batches, step)
            return
        recorder = record.recorder
        assert recorder is not None
        load_starts, load_ended = recorder.record_data_loading_start_time, recorder.record_data_loading_end_time
        ended_step: int | None = None
        try:
            while True:
                load_starts(ended_step=ended_step)
                try:
                    batch = next(batches, _END)
                finally:
                    if record.recorder is recorder:
                        load_ended()
                if batch is _END:
                    return
                record.start(step)
                yield step, batch
                ended_step = record.returned()
                step += 1
                if record.recorder is None:  # The job has ended.
                    yield from enumerate(batches, step)
                    return
        finally:
            record.close_loop()

    def __aiter__(self) -> AsyncIterator[tuple[int, _Batch]]:
        return _AsyncLoop(self._record, cast("AsyncIterable[_Batch]", self._data), self._start)


class _AsyncLoop(AsyncIterator[tuple[int, _Batch]]):
    """An `async for` loop. Not a generator: the event loop closes one that is left only after the next loop starts."""

    def __init__(self, record: StepsRecord, data: AsyncIterable[_Batch], start: int) -> None:
        self._record = record
        self._is_started = False
        self._is_recorded = False
        self._next_step = start
        self._batches = data.__aiter__()

    async def __anext__(self) -> tuple[int, _Batch]:
        record, ended_step = self._record, None
        if not self._is_started:
            self._is_started, self._is_recorded = True, record.open_loop()
        elif self._is_recorded:
            ended_step = record.returned()
        recorder = record.recorder if self._is_recorded else None
        try:
            if recorder is not None:
                recorder.record_data_loading_start_time(ended_step=ended_step)
            try:
                batch = await self._batches.__anext__()
            finally:
                if recorder is not None:
                    recorder.record_data_loading_end_time()
        except BaseException:
            self._close()
            raise
        step, self._next_step = self._next_step, self._next_step + 1
        if self._is_recorded:
            record.start(step)
        return step, batch

    def _close(self) -> None:
        if self._is_recorded:
            self._is_recorded = False
            self._record.close_loop()

    def __del__(self) -> None:
        self._close()
