from __future__ import annotations

import pickle
import time

import pytest
from ml_diagnostics_common.exceptions import ConfigurationError
from ml_goodput_measurement.goodput import BadputType, GoodputCalculator, GoodputRecorder, Recorder
from ml_goodput_measurement.goodput_elastic import ElasticGoodputRecorder

from .test_recorder import JOB, LOG, payloads


def recorder() -> GoodputRecorder:
    return GoodputRecorder(JOB, LOG, logging_enabled=True)


def kinds() -> list[str]:
    """Return the key of each event that was recorded, without the job's name and details."""
    keys = [next((key for key in payload if key.endswith(("_time", "_ended"))), "other") for payload in payloads()]
    return [key for key in keys if key != "other"]


def test_a_step_block_records_the_start_and_the_end_of_the_step() -> None:
    with recorder().step(7):
        pass
    start, end = payloads()
    assert start["step_count"] == end["step_end_count"] == 7
    assert start["step_start_time"] <= end["step_ended"]


def test_a_step_that_raises_has_no_end_and_its_exception_passes() -> None:
    with pytest.raises(ZeroDivisionError), recorder().step(7):
        raise ZeroDivisionError
    assert kinds() == ["step_start_time"]


@pytest.mark.parametrize(
    ("name", "event"),
    [
        ("tpu_init", "tpu_init"),
        ("TPU_INITIALIZATION", "tpu_init"),
        ("training_preparation", "training_prep"),
        ("training prep", "training_prep"),
        ("data_loading", "data_loading"),
        ("data-loading-sync", "data_loading"),
        ("evaluation", "custom_badput_event"),
        ("elastic_scale_up", "custom_badput_event"),  # This recorder is not an elastic one.
    ],
)
def test_a_phase_block_records_the_pair_of_its_events_also_after_an_exception(name: str, event: str) -> None:
    with pytest.raises(ZeroDivisionError), recorder().phase(name):
        raise ZeroDivisionError
    assert kinds() == [f"{event}_start_time", f"{event}_end_time"]


def test_phases_of_elastic_jobs_are_recorded_by_an_elastic_recorder() -> None:
    elastic = ElasticGoodputRecorder(JOB, LOG, logging_enabled=True)
    for name in ("elastic_reinit", "elastic_slice_down", "ELASTIC_SCALE_UP"):
        with elastic.phase(name):
            pass
    assert kinds() == [f"elastic_{part}_{end}_time" for part in ("reinit", "wait", "wait") for end in ("start", "end")]
    assert payloads()[-1]["elastic_wait_event_type"] == "elastic_scale_up"


def test_checkpoint_blocks_are_counted_as_saves_and_restores() -> None:
    with Recorder(JOB) as job:
        with job.phase("checkpoint_restore"):
            time.sleep(0.02)
        with job.step(3):
            pass
        with job.phase("checkpoint_save"):
            time.sleep(0.03)
    saved = [payload for payload in payloads() if payload.get("event_type") == "save"]
    assert [payload["step"] for payload in saved] == [3]
    badput = GoodputCalculator(JOB, LOG).get_job_goodput(include_badput_breakdown=True)[1]
    for kind in (BadputType.UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME, BadputType.UNPRODUCTIVE_CHECKPOINT_SAVE_TIME):
        assert badput[kind]


def test_a_checkpoint_that_fails_is_not_a_save_and_its_time_is_not_missing() -> None:
    job = recorder()
    with pytest.raises(OSError, match="full"), job.phase("checkpoint_save", step=4):
        raise OSError("full")
    assert kinds() == ["custom_badput_event_start_time", "custom_badput_event_end_time"]
    assert {payload["custom_badput_event_type"] for payload in payloads()} == {"failed_checkpoint_save"}


@pytest.mark.parametrize("name", ["PRODUCTIVE", "excluded", "", 3, None])
def test_a_phase_that_cannot_be_recorded_is_an_error_in_tests_and_a_message_in_production(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ConfigurationError, match="expected"):
        recorder().phase(name)
    monkeypatch.delenv("ML_DIAGNOSTICS_RAISE")
    with recorder().phase(name):
        pass
    assert payloads() == []


def test_a_recorder_of_a_job_records_its_start_and_end_under_the_name_of_the_log_that_reports_search() -> None:
    with Recorder(JOB) as job:
        assert (job.job_name, job.logger_name) == (JOB, f"goodput_{JOB}")
    assert kinds() == ["job_start_time", "job_end_time"]


def test_an_exception_that_leaves_the_job_is_recorded_and_passes() -> None:
    with pytest.raises(ZeroDivisionError), Recorder(JOB):
        raise ZeroDivisionError
    assert payloads()[-1]["job_end_exception"] == "ZeroDivisionError"


def test_only_the_first_process_of_a_job_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "1")
    with Recorder(JOB) as job, job.step(1), job.phase("evaluation"):
        pass
    assert payloads() == []
    with Recorder(JOB, logging_enabled=True):
        pass
    assert kinds() == ["job_start_time", "job_end_time"]


def test_a_pickled_recorder_of_a_job_is_a_recorder_of_the_same_job() -> None:
    copy = pickle.loads(pickle.dumps(Recorder(JOB)))
    assert isinstance(copy, Recorder)
    with copy.step(1):
        pass
    assert kinds() == ["step_start_time", "step_ended"]
