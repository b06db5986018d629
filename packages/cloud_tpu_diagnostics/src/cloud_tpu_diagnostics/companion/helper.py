"""The main program of the helper beside a block without a companion: see `unanswered`."""

from __future__ import annotations

import os
import select
import signal
import time
from typing import NoReturn

from cloud_tpu_diagnostics.companion.job import Job
from cloud_tpu_diagnostics.companion.unanswered import UnansweredRequests

__all__ = ["FIRST_DESCRIPTOR", "SETTINGS", "main"]

SETTINGS = "ML_DIAGNOSTICS_HELPER"
"""Environment variable: the job's pid, the signal for faulthandler and the names of the descriptors, with commas."""
FIRST_DESCRIPTOR = 3
_MOST_DESCRIPTORS = 65_536
"""More than programs open; the limit itself may be a billion, which takes minutes where there is no close_range(2)."""


def main() -> NoReturn:
    """Watch a job until it ends or leaves its block; then exit."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    pid, dump_signal, *names = os.environ[SETTINGS].split(",")
    descriptors = {name: FIRST_DESCRIPTOR + position for position, name in enumerate(names)}
    # C libraries of the job open files that a new program inherits: other processes may wait until all close them.
    os.closerange(FIRST_DESCRIPTOR + len(names), _MOST_DESCRIPTORS)
    try:
        os.nice(10)
        job = Job(int(pid), descriptors.get("job"))
        _run(job, UnansweredRequests(descriptors, job, int(dump_signal)), descriptors["control"])
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
