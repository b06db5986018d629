"""Inferred events in goodput's log, with the source and the certainty of each kind."""

from __future__ import annotations

import enum
import os
from typing import Any, Final

from ml_diagnostics_common.clock import now_ns

from ml_diagnostics._inference.deferred_recorder import DeferredRecorder

__all__ = ["Certainty", "InferredEvents"]

COMPILATION: Final = "compilation"
EVALUATION: Final = "evaluation"
_WAIT: Final = "checkpoint_wait"
_PAUSES: Final = "pauses between the results of a step and the next"
_MOMENT_SECONDS: Final = 2e-6
_SHORTEST_COMPILATION_SECONDS: Final = 0.001


class Certainty(enum.Enum):
    """The certainty of an inference."""

    HIGH = "high"
    """It was measured: only that it means this activity is inferred."""
    MEDIUM = "medium"
    """The pattern of calls nearly always means this activity."""
    LOW = "low"
    """It may be another activity."""


class InferredEvents:
    """Records inferred events of a job."""

    def __init__(self, recorder: Any) -> None:
        """Record nothing yet.

        Args:
            recorder: Goodput's recorder of the job.
        """
        self._recorder = recorder
        self._deferred: DeferredRecorder | None = None
        self._is_held = False
        self._inferred: dict[str, str] = {}
        self._is_prepared = False
        self._first_step = 0.0
        self._process = f"{os.getpid()} {now_ns()}"
        self._compiled_functions = 0
        self._compiled_seconds = 0.0
        self._cache_hits = 0
        self._cache_misses = 0
        self._has_recorded_compilations = True

    @classmethod
    def of_new_job(cls, job_name: str, started: float) -> InferredEvents:
        """Record a job that does not record itself; until its first step it may yet do so, and events are held back.

        Args:
            job_name: The name of the job.
            started: When it started, in seconds since 1970.
        """
        from ml_goodput_measurement.goodput import Recorder

        deferred = DeferredRecorder(Recorder(job_name))
        deferred.record_job_start_time(started)
        records = cls(deferred)
        records._deferred, records._is_held = deferred, True
        return records

    def is_of(self, recorder: Any) -> bool:
        """Return True if events are recorded by this recorder."""
        return recorder is (self._recorder if self._deferred is None else self._deferred.recorder)

    def infers(self, activity: str, source: str, certainty: Certainty) -> None:
        """Record, once for each source, that events of an activity are inferred.

        Args:
            activity: The activity, by the beginning of its key in the log, or the name of a custom event.
            source: The origin of the inference.
            certainty: Its certainty.
        """
        if self._inferred.get(activity) != source:
            self._inferred[activity] = source
            self._recorder.record_payload(
                {"inferred_activity": activity, "inferred_from": source[:200], "inferred_certainty": certainty.value}
            )

    def step(self, number: int, start: float) -> None:
        """Record that a step started."""
        if self._is_held and self._deferred is not None:
            self._is_held = False
            self._deferred.release()
        self._first_step = self._first_step or start
        self._recorder.record_step_start_time(number, start)

    def evaluated(self, source: str, start: float, end: float) -> None:
        """Record an evaluation."""
        self.infers(EVALUATION, source, Certainty.MEDIUM)
        self._custom(EVALUATION, start, end)

    def compiled(self, start: float, end: float, *, is_after_first_step: bool) -> None:
        """Record a compilation that stopped training; the first ones are part of the start of the program."""
        self._compiled_functions += 1
        self._compiled_seconds += end - start
        self._has_recorded_compilations = False
        if is_after_first_step and end - start >= _SHORTEST_COMPILATION_SECONDS:
            self.infers(COMPILATION, "JAX's events", Certainty.HIGH)
            self._custom(COMPILATION, start, end)
            self._record_compilations()

    def used_cache(self, *, is_hit: bool) -> None:
        """Count a search of the compilation cache."""
        self._cache_hits += is_hit
        self._cache_misses += not is_hit
        self._has_recorded_compilations = False

    def checkpointed(
        self,
        kind: str,
        step: int,
        start: float,
        end: float,
        source: str = "Orbax's events",
        certainty: Certainty = Certainty.HIGH,
    ) -> None:
        """Record a save or a restore, as Orbax's own logger does."""
        self.infers(f"checkpoint_{kind}", source, certainty)
        prefix = "checkpoint_manager_blocking" if kind == "save" else "checkpoint_manager"
        self._recorder.record_payload(
            {
                "event_type": kind,
                "step": step,
                f"{prefix}_start_time": start,
                f"{prefix}_duration_secs": end - start,
            }
        )

    def waited_for_save(self, start: float, end: float) -> None:
        """Record that the program waited for a save in the background."""
        self.infers(_WAIT, "Orbax's events", Certainty.HIGH)
        self._custom(_WAIT, start, end)

    def initialized_devices(self, start: float, end: float) -> None:
        """Record the initialization of the devices."""
        self.infers("tpu_init", "JAX's back ends", Certainty.HIGH)
        self._recorder.record_tpu_init_start_time(start)
        self._recorder.record_tpu_init_end_time(end)

    def loaded(self, source: str, start: float, end: float, ended_step: int | None = None) -> None:
        """Record that a batch was waited for, after a step, if it is known which one had ended."""
        self.infers("data_loading", source, Certainty.HIGH)
        self._recorder.record_data_loading_start_time(start, ended_step=ended_step)
        self._recorder.record_data_loading_end_time(end)

    def paused(self, step: int, start: float, end: float) -> None:
        """Record a pause of the device after a step as data loading, unless an iterator of the program is known."""
        if self._inferred.get("data_loading", _PAUSES) != _PAUSES:
            return
        if "data_loading" not in self._inferred:
            # The first load of an attempt is what its first step waits for. That one is not known; this one is later.
            self.infers("data_loading", _PAUSES, Certainty.LOW)
            self._recorder.record_data_loading_start_time(self._first_step - _MOMENT_SECONDS)
            self._recorder.record_data_loading_end_time(self._first_step)
        self._recorder.record_data_loading_start_time(start, ended_step=step)
        self._recorder.record_data_loading_end_time(end)

    def prepared(self, start: float, end: float) -> None:
        """Record the preparation of training: all between the start of the process and the first step."""
        if not self._is_prepared:
            self._is_prepared = True
            self.infers("training_prep", "the time before the first step", Certainty.MEDIUM)
            self._recorder.record_training_preparation_start_time(start)
            self._recorder.record_training_preparation_end_time(end)
            self._record_compilations()

    def finish(self) -> None:
        """Record what is counted, what was held back, and what was deferred."""
        self._record_compilations()
        if self._deferred is not None:
            self._deferred.finish()

    def drop(self) -> bool:
        """Record nothing; return False if something has been recorded."""
        return self._deferred is not None and self._deferred.drop()

    def end(self) -> None:
        """Record the end of the job as far as it was observed."""
        self.finish()
        self._recorder.record_job_end_time()

    def _record_compilations(self) -> None:
        if not self._has_recorded_compilations:
            self._has_recorded_compilations = True
            self._recorder.record_payload(
                {
                    "compiled_by": self._process,
                    "compiled_functions": self._compiled_functions,
                    "compiled_seconds": self._compiled_seconds,
                    "compilation_cache_hits": self._cache_hits,
                    "compilation_cache_misses": self._cache_misses,
                }
            )

    def _custom(self, name: str, start: float, end: float) -> None:
        self._recorder.record_custom_badput_event_start_time(start, name)
        self._recorder.record_custom_badput_event_end_time(end, name)
