"""The main program of the helper beside a block without a companion: see `unanswered`."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from typing import NoReturn

from cloud_tpu_diagnostics.companion.job import Job
from cloud_tpu_diagnostics.companion.unanswered import UnansweredRequests

__all__ = ["SETTINGS", "main"]

SETTINGS = "ML_DIAGNOSTICS_HELPER"
"""Environment variable: the job's pid, the signal for faulthandler and the descriptors by name, as JSON."""


def main() -> NoReturn:
    """Watch a job until it ends or leaves its block; then exit."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    settings = json.loads(os.environ[SETTINGS])
    descriptors = settings["descriptors"]
    try:
        os.nice(10)
        job = Job(settings["pid"], descriptors.get("job"))
        _run(job, UnansweredRequests(descriptors, job, settings["dump_signal"]), descriptors["control"])
    except BaseException:
        os._exit(1)  # Its stderr is /dev/null.
    os._exit(0)


def _run(job: Job, requests: UnansweredRequests, control: int) -> None:
    while not job.is_dead():
        seconds = requests.step(time.monotonic())
        poller = select.poll()
        for descriptor in (control, job.descriptor, requests.descriptor):
            if descriptor is not None:
                poller.register(descriptor, select.POLLIN)
        # Without a descriptor of the job its death is noticed now and then.
        ready = dict(poller.poll(1e3 * (60.0 if seconds is None else seconds)))
        if control in ready:
            return
