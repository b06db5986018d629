"""torchtitan: a handler of its structured logs, by an environment variable alone.

Set TITAN_STRUCT_LOGGER_HANDLERS=ml_diagnostics.integrations.torchtitan.register, and ML_DIAGNOSTICS_JOB=NAME.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from ml_diagnostics_common.guard import guarded

from ml_diagnostics.integrations._training import Training

__all__ = ["register"]

_CHECKPOINTS = {
    "checkpoint_save_end": ("save", "checkpoint_manager_blocking"),
    "checkpoint_load_end": ("restore", "checkpoint_manager"),
}


def register(*, structured_logger: logging.Logger, **_: Any) -> None:
    """Start the job that ML_DIAGNOSTICS_JOB names, and record spans and scalars in it; called by torchtitan."""
    training = Training(os.environ.get("ML_DIAGNOSTICS_JOB") or "torchtitan", {})
    training.start()
    training.pause()  # All activities are those of its spans.
    structured_logger.addHandler(_Handler(training))


class _Handler(logging.Handler):
    """Record spans at the times in their records: torchtitan sends records from a thread, later."""

    def __init__(self, training: Training) -> None:
        super().__init__()
        self._training = training
        self._step: int | None = None

    @guarded
    def emit(self, record: logging.LogRecord) -> None:
        name, step, seconds = getattr(record, "log_type_name", ""), getattr(record, "step", None), record.created
        value = getattr(record, "value", None)
        if name == "metric_value":
            self._training.log({str(getattr(record, "event_name", name)): value}, step)
        recorder = self._training.job.recorder
        if recorder is None:
            return
        if name == "fetching_batch_start":
            recorder.record_data_loading_start_time(seconds)
        elif name == "fetching_batch_end":
            recorder.record_data_loading_end_time(seconds)
        elif name == "fwd_bwd_start" and step != self._step:  # The span `step` starts before the batch is loaded.
            self._step = step
            recorder.record_step_start_time(step, seconds)
        elif name == "step_end" and step == self._step:
            recorder.record_step_end_time(step, seconds)
        elif name == "eval_start":
            recorder.record_custom_badput_event_start_time(seconds, "evaluation")
        elif name == "eval_end":
            recorder.record_custom_badput_event_end_time(seconds, "evaluation")
        elif name in _CHECKPOINTS and value is not None:
            kind, prefix = _CHECKPOINTS[name]
            times = {f"{prefix}_start_time": seconds - value / 1e3, f"{prefix}_duration_secs": value / 1e3}
            recorder.record_payload({"event_type": kind, "step": step or 0, **times})
