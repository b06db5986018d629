"""A trainer that uses the public library at 0.2.3 as MaxText does, and runs unchanged with either library.

Usage: maxtext_like.py RUN_NAME TENSORBOARD_DIR FIRST_STEP STEPS [--die]
"""

import contextlib
import enum
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

from ml_goodput_measurement import goodput, monitoring


class GoodputEvent(enum.Enum):
    JOB = "job"
    STEP = "step"
    TPU_INIT = "tpu_init"
    TRAINING_PREPARATION = "training_preparation"
    DATA_LOADING = "data_loading"


@contextlib.contextmanager
def maybe_record_goodput(recorder: Any, event: Any, *args: Any) -> Iterator[Any]:
    """Records start and end of an event, whichever of them the recorder knows."""
    if recorder is None:
        yield
        return
    start = getattr(recorder, f"record_{event.value}_start_time", None)
    end = getattr(recorder, f"record_{event.value}_end_time", None)
    if start:
        start(*args)
    try:
        yield
    finally:
        if end:
            end(*args)


@contextlib.contextmanager
def maybe_monitor_goodput(run_name: Any, tensorboard_dir: Any) -> Iterator[Any]:
    monitor = monitoring.GoodputMonitor(
        job_name=run_name,
        logger_name=f"goodput_{run_name}",
        tensorboard_dir=tensorboard_dir,
        upload_interval=1,
        monitoring_enabled=True,
        pathway_enabled=False,
        include_badput_breakdown=True,
        include_step_deviation=True,
        step_deviation_interval_seconds=1,
        gcp_options=monitoring.GCPOptions(enable_gcp_goodput_metrics=True, enable_gcp_step_deviation_metrics=True),
    )
    try:
        monitor.start_goodput_uploader()
        monitor.start_step_deviation_uploader()
        monitor.start_rolling_window_goodput_uploader([3600, 86400])
        yield
    finally:
        monitor.stop_goodput_uploader()
        monitor.stop_step_deviation_uploader()
        monitor.stop_rolling_window_goodput_uploader()


def main() -> None:
    run_name, tensorboard_dir, first_step, steps = sys.argv[1:5]
    recorder = goodput.GoodputRecorder(run_name, f"goodput_{run_name}", True)
    with maybe_record_goodput(recorder, GoodputEvent.JOB), maybe_monitor_goodput(run_name, tensorboard_dir):
        with maybe_record_goodput(recorder, GoodputEvent.TPU_INIT):
            time.sleep(0.02)
        with maybe_record_goodput(recorder, GoodputEvent.TRAINING_PREPARATION):
            time.sleep(0.02)
        for step in range(int(first_step), int(first_step) + int(steps)):
            with maybe_record_goodput(recorder, GoodputEvent.DATA_LOADING):
                time.sleep(0.001)
            with maybe_record_goodput(recorder, GoodputEvent.STEP, step):
                time.sleep(0.02)
        if "--die" in sys.argv:
            os.kill(os.getpid(), signal.SIGKILL)
    print("loss 0.1")


if __name__ == "__main__":
    main()
