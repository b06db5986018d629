"""The callback for Ray Train, called as the controller of Ray 2.60.0 does (ray/train/v2/_internal/callbacks).

Where Ray is installed, the class is its own; else it has the signatures of that version. It passes the reports of all
workers at once, and the exceptions of workers by their rank. It never calls `before_run`: the first report starts the
job.
"""

from __future__ import annotations

import pickle
from typing import Any

import ml_diagnostics
import pytest
from ml_diagnostics_common.exceptions import ConfigurationError

from .frameworks import hook
from .recorded_jobs import QUIET, activities, metrics, only_run, runs


class UserCallback:
    """The callback of Ray Train v2, with its recorded signatures."""

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None: ...

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None: ...


def test_reports_of_the_first_worker_are_metrics_of_a_run() -> None:
    with hook("ray", "ray.train", UserCallback=UserCallback) as hooks:
        callback = pickle.loads(pickle.dumps(hooks.DiagnosticsCallback("digits")))  # As Ray sends it to its controller.
        callback.before_run(run_context=None)
        for loss in (0.5, 0.25):
            reports: list[dict[str, Any]] = [{"loss": loss, "note": "text"}, {"loss": 9}]
            callback.after_report(run_context=None, metrics=reports, checkpoint=None)
        assert ml_diagnostics.current().name == "digits"
        callback._training.end()
    assert metrics()["loss"] == {0: 0.5, 1: 0.25}
    assert "note" not in metrics()
    assert activities("digits") == []


def test_an_exception_of_a_worker_fails_the_attempt_and_the_next_report_starts_another() -> None:
    with hook("ray", "ray.train", UserCallback=UserCallback) as hooks:
        callback = hooks.DiagnosticsCallback("digits")
        callback.after_exception(run_context=None, worker_exceptions={1: ValueError("b"), 0: ZeroDivisionError("a")})
        assert only_run()["runPhase"] == "FAILED"
        assert not ml_diagnostics.current().name
        callback.after_report(run_context=None, metrics=[{"loss": 0.5}], checkpoint=None)
        callback._training.end()
    assert sorted(run["runPhase"] for run in runs()) == ["COMPLETED", "FAILED"]


def test_arguments_that_are_not_valid_are_an_error_where_the_program_makes_the_callback() -> None:
    with hook("ray", "ray.train", UserCallback=UserCallback) as hooks, pytest.raises(ConfigurationError):
        hooks.DiagnosticsCallback("", **QUIET)
