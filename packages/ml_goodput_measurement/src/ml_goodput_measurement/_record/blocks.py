"""Steps, phases and whole jobs as `with` blocks around the calls of a recorder."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ml_diagnostics_common.clock import now_ns
from ml_diagnostics_common.exceptions import ConfigurationError
from ml_diagnostics_common.guard import report_loss

from ml_goodput_measurement._record.arguments import checked_name

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Block", "StepBlock", "phase_block"]

Block: TypeAlias = AbstractContextManager[None]

_Recorder: TypeAlias = Any
"""A GoodputRecorder, which imports this module."""

_MARKS: Final = {
    "tpu_init": "tpu_init",
    "tpu_initialization": "tpu_init",
    "training_prep": "training_preparation",
    "training_preparation": "training_preparation",
    "data_loading": "data_loading",
    "data_loading_sync": "data_loading",
    "elastic_reinit": "elastic_reinit",
    "elastic_reinitialization": "elastic_reinit",
}
"""The pair of calls of each phase that has one: `record_<pair>_start_time` and `record_<pair>_end_time`."""

_SAVES: Final = frozenset({"checkpoint", "checkpoint_save", "unproductive_checkpoint_save_time"})
_RESTORES: Final = frozenset({"checkpoint_restore", "restore", "unproductive_checkpoint_restore_time"})
_ELASTIC_WAITS: Final = frozenset({"elastic_slice_down", "elastic_scale_up"})
_COMPUTED: Final = frozenset(
    {
        "excluded",
        "infrastructure_recovery_from_disruption",
        "productive",
        "program_startup",
        "wasted_progress_from_disruption",
    }
)
"""Time that no program records: it is what is between the recorded events."""


class StepBlock:
    """Record the start and the end of one step; of a step that raises an exception, only the start.

    Such a step counts as progress only if a later one does.
    """

    __slots__ = ("_recorder", "_step")

    def __init__(self, recorder: _Recorder, step: int) -> None:
        self._recorder = recorder
        self._step = step

    def __enter__(self) -> None:
        self._recorder.record_step_start_time(self._step)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self._recorder.record_step_end_time(self._step)


def phase_block(recorder: _Recorder, name: str, step: int | None) -> Block:
    """Return the block that records a phase; one that does nothing if the name cannot be recorded.

    Args:
        recorder: The job's recorder.
        name: A phase of `GoodputRecorder.phase`, in any case.
        step: The step of a checkpoint; None for 0.
    """
    try:
        return _phase_block(recorder, name, 0 if step is None else int(step))
    except Exception as error:
        report_loss("GoodputRecorder.phase", error)
        return nullcontext()


def _phase_block(recorder: _Recorder, name: str, step: int) -> Block:
    given = checked_name("the phase", name)
    key = given.strip().lower().replace("-", "_").replace(" ", "_")
    if key in _COMPUTED:
        raise ConfigurationError(
            f"expected a phase that a program can record, got {given!r}, which is computed from all others"
        )
    if key in _SAVES:
        return _Checkpoint(recorder, "save", step)
    if key in _RESTORES:
        return _Checkpoint(recorder, "restore", step)
    if key in _MARKS and hasattr(recorder, f"record_{_MARKS[key]}_start_time"):
        pair = f"record_{_MARKS[key]}"
        return _Pair(getattr(recorder, f"{pair}_start_time"), getattr(recorder, f"{pair}_end_time"))
    if key in _ELASTIC_WAITS and hasattr(recorder, "record_elastic_wait_start_time"):
        start, end = recorder.record_elastic_wait_start_time, recorder.record_elastic_wait_end_time
        return _Pair(lambda: start(key), lambda: end(key))
    return _Pair(
        lambda: recorder.record_custom_badput_event_start_time(custom_badput_event_type=given),
        lambda: recorder.record_custom_badput_event_end_time(custom_badput_event_type=given),
    )


class _Pair(Block):
    """Record the start and the end of an activity; the end also after an exception."""

    def __init__(self, start: Callable[[], None], end: Callable[[], None]) -> None:
        self._start = start
        self._end = end

    def __enter__(self) -> None:
        self._start()

    def __exit__(self, *_: object) -> None:
        self._end()


class _Checkpoint(Block):
    """Record a save or a restore as Orbax does: one entry when it is done, and none if it raises an exception.

    The time of one that fails is a custom event, so that it is not missing in the breakdown.
    """

    _PREFIXES: Final = {"save": "checkpoint_manager_blocking", "restore": "checkpoint_manager"}

    def __init__(self, recorder: _Recorder, kind: str, step: int) -> None:
        self._recorder = recorder
        self._kind = kind
        self._step = step
        self._started_ns = 0
        self._started_seconds = 0.0

    def __enter__(self) -> None:
        self._started_ns, self._started_seconds = now_ns(), monotonic()
        self._recorder._publish_phase("checkpoint")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._recorder._publish_return()
        start_seconds = self._started_ns / 1e9
        if kind is not None:
            name = f"failed_checkpoint_{self._kind}"
            self._recorder.record_custom_badput_event_start_time(start_seconds, name)
            self._recorder.record_custom_badput_event_end_time(custom_badput_event_type=name)
            return
        prefix = self._PREFIXES[self._kind]
        self._recorder.record_payload(
            {
                "event_type": self._kind,
                "step": self._step,
                f"{prefix}_start_time": start_seconds,
                f"{prefix}_duration_secs": monotonic() - self._started_seconds,
            }
        )
        if self._kind == "save":
            self._recorder.sync()  # Steps in a checkpoint must not be missing in the log.
