"""The recorder for AXLearn, called as its trainer does.

AXLearn makes no releases: the signatures are those of axlearn/common/measurement_base.py at commit d4ec399a of its
repository, apple/axlearn; the order of the events is that of launch_trainer.py at 066ddce1 and trainer.py at 035d4712.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import ml_diagnostics
import pytest

from .frameworks import hook
from .recorded_jobs import activities

recorders: dict[str, Any] = {}


class EventType(enum.Enum):
    """AXLearn's events."""

    JOB = "job"
    STEP = "step"
    ACCELERATOR_INIT = "tpu_init"
    TRAINING_PREPARATION = "training_preparation"
    DATA_LOADING = "data_loading"
    CUSTOM_BADPUT_EVENT = "custom_badput_event"


class Config(SimpleNamespace):
    """A config of AXLearn: `set`, then `instantiate`."""

    def set(self, **values: Any) -> Config:
        return Config(**{**vars(self), **values})

    def instantiate(self) -> Any:
        return self.klass(self)


class Recorder:
    """AXLearn's base of recorders, with its recorded signatures."""

    def __init__(self, cfg: Config) -> None:
        self.config = cfg

    @classmethod
    def default_config(cls) -> Config:
        return Config(klass=cls)


def register_recorder(name: str) -> Callable[[Any], Any]:
    return lambda recorder: recorders.setdefault(name, recorder)


MEASUREMENT = SimpleNamespace(Recorder=Recorder, register_recorder=register_recorder, EventType=EventType)


def train(recorder: Any, *, fails: bool = False) -> None:
    """Make the calls of AXLearn's trainer."""
    with recorder.record_event(EventType.JOB), recorder.maybe_monitor_all():
        with recorder.record_event(EventType.ACCELERATOR_INIT):
            pass
        with recorder.record_event(EventType.TRAINING_PREPARATION):
            pass
        for step in range(2):
            with recorder.record_event(EventType.DATA_LOADING):
                pass
            with recorder.record_event(EventType.STEP, step):
                if fails:
                    raise ZeroDivisionError
        with recorder.record_event(EventType.CUSTOM_BADPUT_EVENT, custom_badput_event_type="EVAL"):
            pass


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("ML_DIAGNOSTICS_DISABLE", "run,stacks,hangs,monitor")
    recorders.clear()
    with hook("axlearn", "axlearn.common", measurement=MEASUREMENT):
        flags = SimpleNamespace(recorder_spec=["name=ax", "upload_dir=unused"])
        yield recorders["ml_diagnostics"].from_flags(flags)


def test_axlearns_events_are_recorded_in_a_job(recorder: Any) -> None:
    train(recorder)
    assert activities("ax") == ["start", "load", "step 0", "load", "step 1", "eval", "end"]
    assert not ml_diagnostics.current().name


def test_an_exception_in_a_step_ends_the_job_with_its_type_and_passes(recorder: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        train(recorder, fails=True)
    assert activities("ax") == ["start", "load", "step 0", "end ZeroDivisionError"]


def test_events_outside_of_a_job_and_of_the_older_interface_are_ignored(recorder: Any) -> None:
    with contextlib.ExitStack() as blocks:
        blocks.enter_context(recorder.record_event(EventType.STEP, 3))
    recorder.record("START_JOB")
    recorder.start_monitoring()
    assert activities("ax") == []
