"""AXLearn: a registered recorder, for `--recorder_type=ml_diagnostics.integrations.axlearn:ml_diagnostics`."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ml_diagnostics import current, instrument
from ml_diagnostics.integrations._training import requires

with requires("axlearn"):
    from axlearn.common import measurement

__all__ = ["DiagnosticsRecorder"]


@measurement.register_recorder("ml_diagnostics")
class DiagnosticsRecorder(measurement.Recorder):
    """Record AXLearn's events in a job, which is the block of its event JOB.

    The flag `--recorder_spec=name=my-run` names the job.
    """

    @classmethod
    def from_flags(cls, fv: Any) -> Any:
        """Return the recorder of AXLearn's flags; called by AXLearn."""
        spec = dict(each.split("=", 1) for each in fv.recorder_spec)
        return cls.default_config().set(name=spec["name"]).instantiate()

    def record_event(self, event: Any, *args: Any, **kwargs: Any) -> AbstractContextManager[Any]:
        """Return the block of an event; called by AXLearn."""
        if event.value == "job":
            return instrument(self.config.name)
        if event.value == "step":
            return current().step(int(kwargs.get("step", args[0] if args else 0)))
        return current().phase(str(kwargs.get("custom_badput_event_type") or event.value))

    def maybe_monitor_all(self) -> AbstractContextManager[None]:
        """Return a block that does nothing: the job uploads its goodput itself; called by AXLearn."""
        return nullcontext()

    def record(self, event: Any, *args: Any, **kwargs: Any) -> None:
        """Ignore an event of AXLearn's older interface, which has `record_event` for each."""

    def start_monitoring(self, **kwargs: Any) -> None:
        """Do nothing; see `maybe_monitor_all`."""
