"""The inference of one process: what it observes becomes events of a job, by goodput's recorder.

Nothing is recorded before the program compiles a function of JAX's, restores a checkpoint, or makes a step: so neither
a launcher nor a helper of the job is taken for it.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Sequence
from shlex import quote
from typing import TYPE_CHECKING, Any, Final

from ml_diagnostics_common.clock import now_seconds
from ml_diagnostics_common.guard import guarded_as, warn_once

from ml_diagnostics._inference.children import keep_from_children
from ml_diagnostics._inference.dispatches import Dispatches
from ml_diagnostics._inference.imports import after_import, forget_imports
from ml_diagnostics._inference.inferred_events import Certainty, InferredEvents
from ml_diagnostics._inference.jax_events import JaxEvents
from ml_diagnostics._inference.observers import observe_all
from ml_diagnostics._inference.rhythm import Rhythm
from ml_diagnostics._inference.torch_rhythm import TorchRhythm

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["Session"]

_EVALUATION_NAMES: Final = ("eval", "valid", "test", "predict")

_guarded = guarded_as("infer an activity")
"""For the calls of observers, which are made within functions of the program."""


class Session:
    """Observes this process from its start to its end."""

    def __init__(self, job_name: str, started: float, startup_folder: str) -> None:
        """Observe from now on.

        Args:
            job_name: The name of the job.
            started: When the process started, in seconds since 1970.
            startup_folder: The folder on PYTHONPATH, which this process's children need no longer once it trains.
        """
        self._job_name = job_name
        self._started = started
        self._startup_folder = startup_folder
        self._records: InferredEvents | None = None
        self._is_closed = False
        self._first_number = 0
        self._loads_before: list[tuple[str, float, float]] = []
        """The last data load before anything was recorded."""
        self._step_annotation: str | None = None
        self._rhythm = Rhythm(self)
        self._torch = TorchRhythm(self._rhythm, self._evaluated_by_torch)
        self._dispatches = Dispatches(self._rhythm, self._has_no_other_steps, self._chose_function)
        self._events = JaxEvents(self)
        self._events.open()
        after_import("jax", self._observe_calls)
        observe_all(self)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    @_guarded
    def close(self, job_name: str) -> None:
        """Observe no longer: the program records its job itself.

        Args:
            job_name: The name under which it records.
        """
        if self._is_closed:
            return
        if self._records is not None and not self._records.drop():
            self._infer_rest()
            self._records.end()
        self._stop()
        if job_name != self._job_name:
            warn_once(
                "records itself", "ml-diagnostics: the program records itself: goodput report %s", quote(job_name)
            )

    def _stop(self) -> None:
        self._is_closed, self._records = True, None
        self._events.close()
        self._dispatches.close()
        forget_imports()

    # --- What JAX and Orbax did -----------------------------------------------------------------------

    def compiled(self, function: str, start: float, end: float) -> None:
        """Note a compilation."""
        records = self._recording()
        if records is None:
            return
        had_steps = self._rhythm.next_number - self._first_number > 1
        self._dispatches.compiled(function, start, end)
        records.compiled(start, end, is_after_first_step=had_steps)

    def used_cache(self, *, is_hit: bool) -> None:
        """Note that the compilation cache was searched."""
        if self._records is not None:
            self._records.used_cache(is_hit=is_hit)

    def checkpointed(self, kind: str, step: int | None, start: float, end: float) -> None:
        """Note a save or a restore."""
        records = self._recording()
        if records is None:
            return
        if kind == "restore" and step is not None and not self._rhythm.has_steps:
            self._first_number = self._rhythm.next_number = step + 1
        records.checkpointed(kind, self._last_number() if step is None else step, start, end)
        self._rhythm.was_busy(end)

    def waited_for_save(self, start: float, end: float) -> None:
        """Note that the program waited for a save in the background."""
        records = self._recording()
        if records is not None:
            records.waited_for_save(start, end)
            self._rhythm.was_busy(end)

    # --- What else was observed -----------------------------------------------------------------------

    @_guarded
    def annotated(self, name: str, number: Any, time: float) -> None:
        """Note the start of an annotated step."""
        if self._is_closed:
            return
        if self._step_annotation is None:
            if self._torch.has_steps or any(part in name.lower() for part in _EVALUATION_NAMES):
                return
            self._step_annotation = name
            self._infers("step", f"StepTraceAnnotation {name!r}", Certainty.HIGH)
            if type(number) is int and not self._rhythm.has_steps:
                self._first_number = self._rhythm.next_number = number
        if name == self._step_annotation:
            self._rhythm.started(time)

    @_guarded
    def left_annotation(self, name: str) -> None:
        """Note the end of an annotated step."""
        if name == self._step_annotation:
            self._rhythm.ended()

    @_guarded
    def initialized_devices(self, start: float, end: float) -> None:
        """Note the initialization of the devices."""
        records = self._recording()
        if records is not None:
            records.initialized_devices(start, end)

    @_guarded
    def loaded(self, source: str, start: float, end: float) -> None:
        """Note that a batch was waited for."""
        if self._is_closed:
            return
        ended_step = self._rhythm.loaded(start, end)
        self._torch.loaded(end)
        if self._records is not None:
            self._records.loaded(source, start, end, ended_step)
        else:
            self._loads_before = [(source, start, end)]

    def fetched(self, time: float) -> None:
        """Note that the main thread has read a result of the device."""
        self._rhythm.fetched(time)
        self._dispatches.result_read()

    @_guarded
    def optimized(self, optimizer: Any, start: float, end: float) -> None:
        """Note a step of an optimizer of PyTorch."""
        if not self._is_closed and self._step_annotation is None:
            if not self._torch.has_steps:
                self._infers("step", f"{type(optimizer).__name__}.step", Certainty.MEDIUM)
            self._torch.optimized(optimizer, start, end)

    @_guarded
    def used_file(self, kind: str, start: float, end: float) -> None:
        """Note that PyTorch wrote or read a file."""
        if kind == "restore" and self._rhythm.has_steps:
            return  # A file that is read meanwhile may be anything.
        records = self._recording()
        if records is not None:
            source, certainty = ("torch.save", Certainty.MEDIUM) if kind == "save" else ("torch.load", Certainty.LOW)
            records.checkpointed(kind, self._last_number(), start, end, source, certainty)
            self._rhythm.was_busy(end)

    @_guarded
    def changed_mode(self, module: Any, time: float, *, is_training: bool) -> None:
        """Note that a module of PyTorch was set to training or to evaluation."""
        if not self._is_closed:
            self._torch.changed_mode(module, time, is_training=is_training)

    @_guarded
    def records_itself(self, recorder: Any) -> None:
        """Note that a recorder, perhaps ours, records the start of a job."""
        if self._records is None or not self._records.is_of(recorder):
            self.close(recorder.job_name)

    # --- What was inferred ----------------------------------------------------------------------------

    def step(self, number: int, start: float) -> None:
        """Record a step."""
        records = self._records or self._recording()
        if records is not None:
            records.step(number, start)

    def evaluated(self, functions: Sequence[str], start: float, end: float) -> None:
        """Record an evaluation."""
        records = self._recording()
        if records is not None:
            records.evaluated(f"calls of {', '.join(functions)} between steps", start, end)

    def paused(self, step: int, start: float, end: float) -> None:
        """Record a pause of the device, as the load of a batch: mostly it is."""
        records = self._recording()
        if records is not None:
            records.paused(step, start, end)

    def prepared(self, end: float) -> None:
        """Record the preparation of training."""
        records = self._recording()
        if records is not None:
            records.prepared(self._started, end)

    def _evaluated_by_torch(self, start: float, end: float) -> None:
        records = self._recording()
        if records is not None:
            records.evaluated("Module.eval to Module.train", start, end)

    def _infers(self, activity: str, source: str, certainty: Certainty) -> None:
        records = self._recording()
        if records is not None:
            records.infers(activity, source, certainty)

    def _chose_function(self, name: str, is_fed: bool) -> None:
        certainty = Certainty.MEDIUM if is_fed else Certainty.LOW
        self._infers("step", f"calls of {name}", certainty)

    def _last_number(self) -> int:
        return max(0, self._rhythm.next_number - 1)

    def _has_no_other_steps(self) -> bool:
        return self._step_annotation is None and not self._torch.has_steps

    def _observe_calls(self, jax: ModuleType) -> None:
        if not self._is_closed:
            self._dispatches.open(jax)

    # --- The recorder ---------------------------------------------------------------------------------

    def _recording(self) -> InferredEvents | None:
        """Return the records of this process; start them at the first call. None if it does not record."""
        if self._records is not None or self._is_closed:
            return self._records
        if threading.get_ident() != threading.main_thread().ident:
            return None
        if _is_worker() or not _is_recording_process():
            self._stop()
            return None
        self._records = InferredEvents.of_new_job(self._job_name, self._started)
        for load in self._loads_before:
            self._records.loaded(*load)
        atexit.register(self._finish)  # After the recorder's own exit function was registered, so before it.
        keep_from_children(self._startup_folder, self._finish)
        return self._records

    @_guarded
    def _finish(self) -> None:
        if self._is_closed:
            return
        self._infer_rest()
        if self._records is not None:
            self._records.finish()

    def _infer_rest(self) -> None:
        self._dispatches.finish()
        self._rhythm.finish(now_seconds())
        self._torch.finish(now_seconds())

    def _forget(self) -> None:
        """Do nothing in a forked child: it is not the job."""
        self._is_closed = True
        self._records = None


def _is_worker() -> bool:
    """Return True in a process of multiprocessing, such as a data loader's."""
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def _is_recording_process() -> bool:
    from ml_diagnostics_common.environment import identity

    return identity().process_index == 0
