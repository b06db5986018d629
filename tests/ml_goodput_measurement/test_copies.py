"""Copies and pickles of public objects are new ones, made from the same arguments, wherever they are restored."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ml_diagnostics_common.exceptions import MissingExtraError
from ml_goodput_measurement import gcp_metrics, goodput, goodput_elastic, monitoring, monitoring_elastic
from ml_goodput_measurement.exceptions import CloudMonitoringError

from .histories import JOB, History, MemoryLog
from .test_recorder import entries

LOG = "goodput_job"

COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda original: pickle.loads(pickle.dumps(original)),
}
each_copy = pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)


@each_copy
@pytest.mark.parametrize("kind", [goodput.GoodputRecorder, goodput_elastic.ElasticGoodputRecorder])
def test_a_copy_of_a_recorder_is_another_writer_of_the_same_job(
    kind: type[goodput.GoodputRecorder], copied: Callable[[Any], Any]
) -> None:
    recorder = kind(JOB, LOG, True, background_batch_size=7)
    recorder.record_job_start_time()
    recorder.record_step_start_time(0)
    same = copied(recorder)
    assert type(same) is kind
    assert (same.job_name, same.logger_name) == (JOB, LOG)
    same.record_step_start_time(1)
    recorder.record_step_start_time(2)
    found = [(entry.payload.get("step_count"), entry.context.writer, entry.sequence) for entry in entries(LOG)]
    first, second = found[0][1], found[2][1]
    assert first != second
    assert [(step, writer == first) for step, writer, _ in found] == [(None, True), (0, True), (1, False), (2, True)]
    assert len(set(found)) == 4


@each_copy
def test_a_copy_of_a_disabled_recorder_is_disabled(copied: Callable[[Any], Any]) -> None:
    copied(goodput.GoodputRecorder(JOB, LOG)).record_step_start_time(0)
    assert not entries(LOG)


@each_copy
def test_a_copy_of_a_calculator_answers_the_same(copied: Callable[[Any], Any]) -> None:
    log = MemoryLog(History().start(0).steps(range(10), at=10).end(110).payloads)
    for kind in (goodput.GoodputCalculator, goodput_elastic.ElasticGoodputCalculator):
        calculator = kind(JOB, LOG, log, max_logs_retention_period=60)
        answer = calculator.get_job_goodput(include_badput_breakdown=True)
        same = copied(calculator)
        assert type(same) is kind
        assert same.get_job_goodput(include_badput_breakdown=True) == answer
        assert same.get_job_goodput_details() == calculator.get_job_goodput_details()


@each_copy
def test_a_copy_of_a_monitor_has_its_settings_and_no_uploads(copied: Callable[[Any], Any], tmp_path: Path) -> None:
    for kind in (monitoring.GoodputMonitor, monitoring_elastic.ElasticGoodputMonitor):
        monitor = kind(JOB, LOG, tmp_path, 30, True, include_badput_breakdown=True)
        monitor.start_goodput_uploader()
        same = copied(monitor)
        assert type(same) is kind
        assert same._settings == monitor._settings
        assert same._uploaders.pid is None
        same.stop_goodput_uploader()
        assert monitor._uploaders is not None
        assert monitor._uploaders.pid is not None
        monitor.stop_goodput_uploader(skip_final_flush=True)
        copied(kind(JOB, LOG, tmp_path, 30)).start_goodput_uploader()  # not enabled


@each_copy
def test_the_other_public_objects_can_be_copied(copied: Callable[[Any], Any], tmp_path: Path) -> None:
    cache = goodput.GoodputCache(JOB, str(tmp_path))
    cache.update_cached_entries([{"job_name": JOB, "job_start_time": 1.0}], None)
    assert copied(cache).get_cached_entries() == cache.get_cached_entries()
    recorder = goodput.GoodputRecorder(JOB, LOG, True)
    for logger in (goodput.CheckpointLogger(recorder), goodput.CheckpointLogger(job_name=JOB)):
        copied(logger).log_entry({"event_type": "save", "step": 1})
    assert len(entries(LOG)) == 2
    copied(goodput._CloudLogger(JOB, LOG)).write_cloud_logging_entry({"job_name": JOB})
    assert len(entries(LOG)) == 3
    for other in (gcp_metrics.GCPMetrics("project"), monitoring.GCPOptions("p"), goodput.CheckpointBadputCalculator()):
        assert type(copied(other)) is type(other)
    missing = MissingExtraError("A picture", "ml-goodput-measurement", "plot")
    assert str(copied(missing)) == str(missing)
    error = copied(CloudMonitoringError("NOT_FOUND", "no such project", retry_after_seconds=2.0))
    assert (error.code, error.retry_after_seconds, error.access) == ("NOT_FOUND", 2.0, True)
    assert str(error) == "Cloud Monitoring answered NOT_FOUND: no such project"


class OwnRecorder(goodput.GoodputRecorder):
    """A user's, with a constructor and attributes of its own."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        super().__init__(config["job"], f"goodput_{config['job']}", logging_enabled=True)
        self.team = "vision"


@each_copy
def test_a_users_subclass_keeps_what_is_its_own(copied: Callable[[Any], Any]) -> None:
    same = copied(copied(OwnRecorder({"job": JOB})))
    assert (same.config, same.team, same.job_name) == ({"job": JOB}, "vision", JOB)
    same.record_step_start_time(3)
    assert [entry.payload["step_count"] for entry in entries(LOG)] == [3]


WORKERS = """
import json, multiprocessing, sys
from ml_goodput_measurement import goodput, monitoring


def work(config, queue):
    recorder, calculator = config["recorder"], config["calculator"]
    recorder.record_step_start_time(int(config["step"]))
    queue.put((float(calculator.get_job_goodput()) >= 0, config["monitor"].start_goodput_uploader()))


if __name__ == "__main__":
    method, enabled = sys.argv[1:]
    context = multiprocessing.get_context(method)
    recorder = goodput.GoodputRecorder("job", "goodput_job", logging_enabled=True)
    recorder.record_job_start_time()
    recorder.record_step_start_time(0)
    config = {
        "recorder": recorder if enabled == "enabled" else goodput.GoodputRecorder("job", "goodput_job"),
        "calculator": goodput.GoodputCalculator("job", "goodput_job"),
        "monitor": monitoring.GoodputMonitor("job", "goodput_job", "runs", 30, monitoring_enabled=enabled == "enabled"),
    }
    queue = context.Queue()
    processes = [context.Process(target=work, args=({**config, "step": step}, queue)) for step in (1, 2)]
    for process in processes:
        process.start()
    answers = [queue.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    recorder.record_step_start_time(3)
    recorder.record_job_end_time()
    print(json.dumps([answers, [process.exitcode for process in processes]]))
"""


@pytest.mark.parametrize(
    ("method", "enabled"),
    [("spawn", "enabled"), ("forkserver", "enabled"), ("fork", "enabled"), ("spawn", "disabled")],
)
def test_processes_that_are_started_with_a_recorder_record(method: str, enabled: str, tmp_path: Path) -> None:
    script = tmp_path / "workers.py"
    script.write_text(WORKERS)
    done = subprocess.run(
        [sys.executable, str(script), method, enabled], capture_output=True, text=True, timeout=100, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[[True, None]] * 2, [0, 0]]
    steps = sorted(entry.payload["step_count"] for entry in entries(LOG) if "step_count" in entry.payload)
    assert steps == ([0, 1, 2, 3] if enabled == "enabled" else [0, 3])
    writers = {entry.context.writer for entry in entries(LOG)}
    assert len(writers) == (3 if enabled == "enabled" else 1)
    ends = [
        entry.payload for entry in entries(LOG) if "job_end_time" in entry.payload or "process_outcome" in entry.payload
    ]
    assert len(ends) == 1, "no worker ends the job"
