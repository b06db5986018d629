"""A trainer that uses the public library at 0.2.3 as AXLearn does: elastic, and by keyword.

Usage: axlearn_like.py NAME UPLOAD_DIR STEPS
"""

import datetime
import sys
import time
from typing import Any

from ml_goodput_measurement import goodput, goodput_elastic, monitoring_elastic
from ml_goodput_measurement.src import goodput as goodput_of_src


class GoodputRecorder:
    """Makes the library's objects when they are first needed, and calls them by the names of events."""

    def __init__(self, name: Any, upload_dir: Any) -> None:
        self._name, self._upload_dir = name, upload_dir
        self._recorder: Any = None
        self._monitor: Any = None

    def record(self, event: Any, *args: Any, **kwargs: Any) -> None:
        if self._recorder is None:
            self._recorder = goodput_elastic.ElasticGoodputRecorder(
                job_name=self._name, logger_name=f"goodput_logger_{self._name}", logging_enabled=True
            )
        getattr(self._recorder, f"record_{event}")(*args, **kwargs)

    def start_monitoring(self) -> None:
        self._monitor = monitoring_elastic.ElasticGoodputMonitor(
            job_name=self._name,
            logger_name=f"goodput_logger_{self._name}",
            upload_interval=1,
            monitoring_enabled=True,
            tensorboard_dir=self._upload_dir,
            include_badput_breakdown=True,
            include_slice_efficiency=True,
            gcp_options=monitoring_elastic.GCPOptions(location="europe-west4", acc_type="v6e", replica_id="3"),
        )
        self._monitor.start_goodput_uploader()
        self._monitor.start_rolling_window_goodput_uploader([600])

    def stop_monitoring(self) -> None:
        self._monitor.stop_rolling_window_goodput_uploader()
        self._monitor.stop_goodput_uploader()
        self._recorder.flush()


def main() -> None:
    name, upload_dir, steps = sys.argv[1:4]
    assert goodput_of_src is goodput
    recorder = GoodputRecorder(name, upload_dir)
    recorder.record("job_start_time")
    recorder.record("elastic_slice_counts", active_slices=2, total_slices=2, available_slices=2)
    recorder.start_monitoring()
    recorder.record("tpu_init_start_time", datetime.datetime.now(datetime.timezone.utc))
    recorder.record("tpu_init_end_time", datetime.datetime.now(datetime.timezone.utc))
    for step in range(int(steps)):
        recorder.record("step_start_time", step)
        time.sleep(0.02)
        if step == int(steps) // 2:
            recorder.record("elastic_slice_counts", active_slices=1, total_slices=2, available_slices=1)
            recorder.record("elastic_wait_start_time", "slice_down")
            time.sleep(0.2)
            recorder.record("elastic_wait_end_time", "slice_down")
            recorder.record("elastic_reinit_start_time")
            recorder.record("elastic_reinit_end_time")
        if step % 10 == 3:
            recorder.record("custom_badput_event_start_time", custom_badput_event_type="eval_step")
            recorder.record("custom_badput_event_end_time", custom_badput_event_type="eval_step")
    recorder.record("job_end_time")
    recorder.stop_monitoring()


if __name__ == "__main__":
    main()
