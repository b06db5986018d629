"""The helper process's main program: it does the uploads, and ends with its trainer.

Its main thread never does anything that may hang: it receives commands, notices the trainer's death, and ends the
process at the deadline, also if the thread that uploads hangs.
"""

from __future__ import annotations

import contextlib
import os
import queue
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from ml_diagnostics_common.environment import Backend
from ml_diagnostics_common.guard import job_logger
from ml_diagnostics_common.sidecar_parent import WARNING, Parent, ignore_signals, lower_priority
from ml_diagnostics_common.worker import start

from ml_goodput_measurement._monitor.settings import MonitorSettings, Upload
from ml_goodput_measurement._monitor.sinks import Exporter, Sink
from ml_goodput_measurement._monitor.snapshot_schedule import SnapshotSchedule

if TYPE_CHECKING:
    from ml_goodput_measurement._query.calculator import GoodputCalculator

__all__ = ["calculator_of", "main", "sinks_of"]

_log = job_logger("ml_diagnostics.goodput")

_OUT_OF_MEMORY_SCORE = "500"
_GRACE_SECONDS = 0.5
"""The time for an export that is under way, if there is none left for a last one."""
_LONGEST_WAIT_FOR_THE_CLOUD_SECONDS = 5.0
"""The limit for one query. A final flush that is requested meanwhile has to wait too, and has 10 s in all."""
_LONGEST_SLEEP_SECONDS = 3600.0
_GIVEN_UP = "The last upload of goodput was given up at its deadline"


def main() -> NoReturn:
    """Execute the trainer's commands; end the process."""
    ignore_signals()
    lower_priority()
    trainer = Parent()
    trainer.forward_logs()
    with _failures_logged():
        _prepare()
        _serve(trainer)


def _serve(trainer: Parent) -> NoReturn:
    """Pass the trainer's commands to the thread that uploads, and end the process at the deadline."""
    settings = MonitorSettings.from_json(trainer.settings)
    reports = _Reports(trainer)
    commands: queue.SimpleQueue[_Command] = queue.SimpleQueue()
    start(lambda: _work(settings, commands, reports), "goodput-uploads")
    end_by: float | None = None
    flushed: int | None = None
    while True:
        message = trainer.next_message(end_by)
        if end_by is not None and time.monotonic() >= end_by:
            if flushed is not None and reports.last_done != flushed:
                trainer.log(WARNING, _GIVEN_UP)
            os._exit(1)
        if message is not None:
            command = _Command.from_message(message)
        elif end_by is None:  # The trainer has ended, or has become another program.
            command = _Command(None, {}, not settings.skip_final_flush, settings.flush_seconds)
        else:
            time.sleep(max(0.0, end_by - time.monotonic()))
            continue
        commands.put(command)
        if not command.uploads:
            flushed = command.number if command.flush else None
            seconds = max(command.flush_seconds, _GRACE_SECONDS)
            end_by = min(time.monotonic() + seconds, end_by or float("inf"))


def calculator_of(settings: MonitorSettings) -> GoodputCalculator:
    """Return the calculator that takes the snapshots."""
    from ml_goodput_measurement._query.calculator import GoodputCalculator

    calculator: type[GoodputCalculator] = GoodputCalculator
    if settings.is_elastic:
        from ml_goodput_measurement._query.calculator import ElasticGoodputCalculator

        calculator = ElasticGoodputCalculator
    return calculator(
        settings.job_name,
        settings.logger_name,
        using_pathways=settings.using_pathways,
        max_logs_retention_period=settings.retention_seconds,
        gcs_path=settings.gcs_path,
        cache_dir=settings.cache_dir,
        _patience_seconds=_LONGEST_WAIT_FOR_THE_CLOUD_SECONDS,
    )


def sinks_of(settings: MonitorSettings) -> list[Sink]:
    """Return the destinations of snapshots."""

    def tensorboard() -> Exporter:
        from ml_goodput_measurement._export.tensorboard import TensorBoardExporter

        return TensorBoardExporter(
            settings.tensorboard_dir, settings.job_name, include_badput_breakdown=settings.include_badput_breakdown
        )

    def cloud_monitoring() -> Exporter:
        from ml_goodput_measurement._export.cloud_monitoring import CloudMonitoringExporter

        # Badput is always sent by cause, since dashboards add up goodput and badput.
        return CloudMonitoringExporter(
            settings.job_name, settings.gcp_options, include_slice_efficiency=settings.include_slice_efficiency
        )

    options, deviation = settings.gcp_options, {Upload.DEVIATION} if settings.include_step_deviation else set()
    sinks = [Sink(f"The TensorBoard log in {settings.tensorboard_dir}", tensorboard, {Upload.CUMULATIVE, *deviation})]
    wants = {Upload.CUMULATIVE, Upload.WINDOWS} if options.enable_gcp_goodput_metrics else set()
    if options.enable_gcp_step_deviation_metrics:
        wants |= deviation
    if wants:
        sinks.append(Sink("Cloud Monitoring", cloud_monitoring, wants))
    return sinks


class _Command(NamedTuple):
    """The uploads that are to be on from now on."""

    number: int | None
    uploads: Mapping[Upload, list[int]]
    flush: bool
    flush_seconds: float

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> _Command:
        uploads = {Upload(name): windows for name, windows in message["uploads"].items()}
        return cls(message["number"], uploads, message["flush"], message["flush_seconds"])


@dataclass
class _Reports:
    """Reports of commands that were executed.

    Attributes:
        trainer: The process that sent the commands.
        last_done: The number of the last command.
    """

    trainer: Parent
    last_done: int | None = None

    def done(self, number: int | None) -> None:
        self.last_done = number
        self.trainer.send({"kind": "done", "number": number})


def _work(settings: MonitorSettings, commands: queue.SimpleQueue[_Command], reports: _Reports) -> NoReturn:
    """Do uploads until a command turns all of them off; ends the process."""
    with _failures_logged():
        schedule = SnapshotSchedule(
            calculator_of(settings),
            sinks_of(settings),
            interval_seconds=settings.interval_seconds,
            configured_ideal_step_seconds=settings.configured_ideal_step_seconds,
            sync_interval_seconds=settings.gcs_sync_interval_seconds if settings.gcs_path else None,
        )
        while True:
            wait_seconds = schedule.seconds_to_next()
            if wait_seconds is not None:
                wait_seconds = min(wait_seconds, _LONGEST_SLEEP_SECONDS)
            try:
                command = commands.get(timeout=wait_seconds)
            except queue.Empty:
                schedule.tick()
                continue
            if schedule.set_uploads(command.uploads, flush=command.flush, flush_seconds=command.flush_seconds):
                reports.done(command.number)
            if not command.uploads:
                schedule.wait_for_sinks(_GRACE_SECONDS)
                if command.flush:
                    schedule.sync()
                os._exit(0)


@contextlib.contextmanager
def _failures_logged() -> Iterator[None]:
    """End the process when one of its threads fails, and log the reason: the trainer starts another process."""
    try:
        yield
    except BaseException:
        _log.exception("The goodput monitor's helper process failed")
        os._exit(1)


def _prepare() -> None:
    try:  # If memory runs out, the kernel should kill this process rather than the trainer.
        with open("/proc/self/oom_score_adj", "w") as score:  # noqa: PTH123
            score.write(_OUT_OF_MEMORY_SCORE)
    except OSError:
        pass
    # If a client loads numpy, that needs no thread for each core here.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # `cloud` raises without a cloud, for users who can react to that. Here points are written to TensorBoard, too, and
    # credentials may be found later.
    if os.environ.get("ML_DIAGNOSTICS_BACKEND") == Backend.CLOUD.value:
        os.environ["ML_DIAGNOSTICS_BACKEND"] = Backend.AUTO.value
