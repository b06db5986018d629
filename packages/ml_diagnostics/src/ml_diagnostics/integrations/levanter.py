"""Levanter: a tracker that records steps and metrics."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ml_diagnostics.integrations._training import Training, record_configs, requires

with requires("levanter"):
    from levanter.tracker import Tracker, TrackerConfig

__all__ = ["DiagnosticsConfig", "DiagnosticsTracker"]


class DiagnosticsTracker(Tracker):
    """Record what Levanter logs, in the job of the process, or in one that ends with `finish`.

    Levanter logs at the end of each step, so a step is recorded as starting when the one before was logged.
    """

    name = "ml_diagnostics"

    def __init__(self, name: str | None = None, **options: Any) -> None:
        """Start the job; take the arguments of `instrument`, none in a process that is instrumented."""
        self._training = Training(name, options)
        self._step = -1
        self._training.start()

    def log_hyperparameters(self, hparams: dict[str, Any]) -> None:
        record_configs(hparams)

    def log(self, metrics: Mapping[str, Any], *, step: int | None, commit: bool | None = None) -> None:
        self._training.log(metrics, step)
        if step is not None and step > self._step:
            self._step = int(step)
            self._training.step(self._step + 1)

    def log_summary(self, metrics: dict[str, Any]) -> None:
        self._training.log(metrics, None)

    def log_artifact(self, artifact_path: Any, *, name: str | None = None, type: str | None = None) -> None:
        """Record nothing: artifacts stay with other trackers."""

    def finish(self) -> None:
        # What follows the last step, such as a save, is not one: the step that was started gets no end.
        self._training.pause(RuntimeError("no step was logged"))
        self._training.end()


@TrackerConfig.register_subclass("ml_diagnostics")
@dataclasses.dataclass
class DiagnosticsConfig(TrackerConfig):
    """The tracker in a config: `trainer.tracker: {type: ml_diagnostics, name: digits}`.

    Attributes:
        name: The name of the job; None for the id of Levanter's run.
        directory: The destination of profiles and TensorBoard's files.
    """

    name: str | None = None
    directory: str | None = None

    def init(self, run_id: str | None) -> DiagnosticsTracker:
        """Return the tracker; called by Levanter."""
        return DiagnosticsTracker(self.name or run_id, directory=self.directory)
