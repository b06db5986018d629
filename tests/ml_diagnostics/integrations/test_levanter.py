"""The tracker for Levanter, called as its trainer does.

The signatures are those of lib/levanter/src/levanter/tracker/tracker.py of marin-community/marin at commit 1ff034e7. In
trainer.py at f0198ae5, hooks log the loss of a step when it is computed, and the trainer its times, at the same step.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Any

import ml_diagnostics

from .frameworks import hook
from .recorded_jobs import QUIET, activities, metrics, only_run, read


class Tracker(abc.ABC):
    """Levanter's tracker, with its recorded signatures."""

    name: str

    @abc.abstractmethod
    def log_hyperparameters(self, hparams: dict[str, Any]) -> None: ...

    @abc.abstractmethod
    def log(self, metrics: Mapping[str, Any], *, step: int | None, commit: bool | None = None) -> None: ...

    @abc.abstractmethod
    def log_summary(self, metrics: dict[str, Any]) -> None: ...

    @abc.abstractmethod
    def log_artifact(self, artifact_path: Any, *, name: str | None = None, type: str | None = None) -> None: ...

    @abc.abstractmethod
    def finish(self) -> None: ...


class TrackerConfig(abc.ABC):
    """Levanter's registry of trackers, which draccus fills from a config."""

    registered: dict[str, Any] = {}  # noqa: RUF012

    @classmethod
    def register_subclass(cls, name: str) -> Callable[[Any], Any]:
        return lambda subclass: cls.registered.setdefault(name, subclass)

    @abc.abstractmethod
    def init(self, run_id: str | None) -> Tracker: ...


def test_what_levanter_logs_are_steps_metrics_and_configs() -> None:
    with hook("levanter", "levanter.tracker", Tracker=Tracker, TrackerConfig=TrackerConfig) as hooks:
        tracker = hooks.DiagnosticsTracker("llama", **QUIET)
        tracker.log_hyperparameters({"optimizer": {"rate": 0.25}})
        for step in range(3):
            tracker.log({"train/loss": 1.0 / (step + 1), "note": "text"}, step=step, commit=True)
            tracker.log({"eval/loss": 0.5}, step=step)
        tracker.log_summary({"parameters": 7})
        tracker.log_artifact("config.yaml", name="config.yaml", type="config")
        tracker.finish()
    assert activities("llama") == ["start", "step 1", "step 2", "step 3", "end"]
    assert sorted(metrics()["train/loss"]) == [0, 1, 2]
    assert metrics()["parameters"] == {3: 7}
    assert "rate" in str(only_run()["configs"]["userConfigs"])
    assert only_run()["runPhase"] == "COMPLETED"
    assert not ml_diagnostics.current().name


def test_the_time_after_the_last_logged_step_is_not_a_step() -> None:
    with hook("levanter", "levanter.tracker", Tracker=Tracker, TrackerConfig=TrackerConfig) as hooks:
        tracker = hooks.DiagnosticsTracker("llama", run=False, **QUIET)
        for step in range(3):
            tracker.log({"train/loss": 1.0}, step=step)
        tracker.finish()
    ends = [entry.payload.get("step_end_count") for entry in read("goodput_llama") if "step_ended" in entry.payload]
    assert ends == [1, 2]


def test_a_config_makes_the_tracker_with_the_id_of_the_run() -> None:
    TrackerConfig.registered.clear()
    with hook("levanter", "levanter.tracker", Tracker=Tracker, TrackerConfig=TrackerConfig) as hooks:
        if hooks.TrackerConfig is TrackerConfig:
            assert TrackerConfig.registered == {"ml_diagnostics": hooks.DiagnosticsConfig}
        with ml_diagnostics.instrument("outer", run=False, **QUIET) as job:
            tracker = hooks.DiagnosticsConfig(name="llama").init("run-7")
            tracker.log({"loss": 1.0}, step=4)
            tracker.finish()
            assert ml_diagnostics.current() is job
    assert activities("outer") == ["start", "step 5", "end"]
