"""The progress that a recorder publishes for hang detection."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ml_diagnostics_common import progress
from ml_diagnostics_common.progress import ProgressPage, ProgressReader
from ml_goodput_measurement.goodput_elastic import ElasticGoodputRecorder

Recorder = ElasticGoodputRecorder
State = tuple[int, str, int | None]


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[ProgressReader]:
    page = ProgressPage.create(tmp_path / "progress")
    progress.start_publishing(page)
    reader = ProgressReader(page.path)
    yield reader
    reader.close()
    progress.stop_publishing(page)


@pytest.fixture(params=[True, False], ids=["enabled", "disabled"])
def recorder(request: pytest.FixtureRequest) -> Recorder:
    return ElasticGoodputRecorder("job", "goodput_job", logging_enabled=request.param)


def state_of(reader: ProgressReader) -> State | None:
    state = reader.read()
    return None if state is None else (state.sequence, state.phase, state.step)


LIFE: list[tuple[Callable[[Recorder], None], str, int | None]] = [
    (lambda recorder: recorder.record_job_start_time(), "init", None),
    (lambda recorder: recorder.record_tpu_init_start_time(), "init", None),
    (lambda recorder: recorder.record_tpu_init_end_time(), "init", None),
    (lambda recorder: recorder.record_training_preparation_start_time(), "init", None),
    (lambda recorder: recorder.record_training_preparation_end_time(), "compile", None),
    (lambda recorder: recorder.record_data_loading_start_time(), "data", None),
    (lambda recorder: recorder.record_data_loading_end_time(), "init", None),
    (lambda recorder: recorder.record_step_start_time(7), "step", 7),
    (lambda recorder: recorder.record_step_end_time(7), "step", 7),
    (lambda recorder: recorder.record_data_loading_start_time(), "data", 7),
    (lambda recorder: recorder.record_data_loading_end_time(), "step", 7),
    (lambda recorder: recorder.record_step_start_time(8), "step", 8),
    (lambda recorder: recorder.record_checkpoint_progress(8), "checkpoint", 8),
    (lambda recorder: recorder.record_step_start_time(9), "step", 9),
    (lambda recorder: recorder.record_custom_badput_event_start_time(None, "Eval_Step"), "eval", 9),
    (lambda recorder: recorder.record_custom_badput_event_end_time(None, "Eval_Step"), "step", 9),
    (lambda recorder: recorder.record_custom_badput_event_start_time(None, "checkpoint_save"), "checkpoint", 9),
    (lambda recorder: recorder.record_custom_badput_event_end_time(None, "checkpoint_save"), "step", 9),
    (lambda recorder: recorder.record_custom_badput_event_start_time(None, "sdc_check"), "other", 9),
    (lambda recorder: recorder.record_custom_badput_event_end_time(None, "sdc_check"), "step", 9),
    (lambda recorder: recorder.record_elastic_wait_start_time("scale_up"), "wait", 9),
    (lambda recorder: recorder.record_elastic_wait_end_time("scale_up"), "step", 9),
    (lambda recorder: recorder.record_elastic_reinit_start_time(), "init", 9),
    (lambda recorder: recorder.record_elastic_reinit_end_time(), "compile", 9),
    (lambda recorder: recorder.record_job_end_time(), "ended", 9),
]


def test_each_call_publishes_the_current_activity(recorder: Recorder, reader: ProgressReader) -> None:
    for count, (call, phase, step) in enumerate(LIFE, start=1):
        call(recorder)
        assert state_of(reader) == (count, phase, step), count


def test_a_disabled_recorder_publishes_and_records_nothing(reader: ProgressReader) -> None:
    recorder = ElasticGoodputRecorder("job", "goodput_job", logging_enabled=False)
    for call, _, _ in LIFE:
        call(recorder)
    assert state_of(reader) == (len(LIFE), "ended", 9)
    assert list(Path(os.environ["ML_DIAGNOSTICS_DIR"]).glob("journal/**/*")) == []


def test_without_a_page_nothing_is_published_and_a_later_page_receives_the_next_call(
    recorder: Recorder, tmp_path: Path
) -> None:
    for call, _, _ in LIFE[:9]:
        call(recorder)
    page = ProgressPage.create(tmp_path)
    progress.start_publishing(page)
    reader = ProgressReader(page.path)
    assert state_of(reader) is None
    recorder.record_step_start_time(8)
    assert state_of(reader) == (1, "step", 8)
    progress.stop_publishing(page)
    reader.close()


@pytest.mark.usefixtures("in_production")
@pytest.mark.parametrize("junk", [None, "seven", float("nan"), [], 10**400, object()])
def test_anything_may_be_given_for_a_step(recorder: Recorder, reader: ProgressReader, junk: Any) -> None:
    recorder.record_step_start_time(junk)
    recorder.record_data_loading_start_time()
    recorder.record_data_loading_end_time()
    recorder.record_custom_badput_event_start_time(None, junk)
    recorder.record_checkpoint_progress(junk)
    state = state_of(reader)
    assert state is not None
    assert state[1:] == ("checkpoint", None)


def test_an_explicit_time_is_not_the_time_of_publishing(recorder: Recorder, reader: ProgressReader) -> None:
    recorder.record_step_start_time(1, 1_000.0)
    first = reader.read()
    recorder.record_step_start_time(2, 1_000.0)
    second = reader.read()
    assert first is not None
    assert second is not None
    assert second.monotonic_ns > first.monotonic_ns > 0


def test_blocks_publish_their_phase_and_the_step_after_it(recorder: Recorder, reader: ProgressReader) -> None:
    states: list[State | None] = []
    with recorder.step(5):
        states.append(state_of(reader))
        for name in ("checkpoint_save", "evaluation"):
            with recorder.phase(name):
                states.append(state_of(reader))
        states.append(state_of(reader))
    assert [state and state[1:] for state in states] == [("step", 5), ("checkpoint", 5), ("eval", 5), ("step", 5)]
