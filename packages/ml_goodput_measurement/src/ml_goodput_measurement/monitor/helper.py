"""The helper process, from within: it does the uploads, and ends with its trainer.

Its main thread never does anything that may hang: it hears commands, sees the trainer die, and ends the process when
time is up, wherever the worker's thread is.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from ml_diagnostics_common.child_process import exists, process_descriptor
from ml_diagnostics_common.environment import Backend
from ml_diagnostics_common.guard import job_logger

from ml_goodput_measurement.monitor.settings import MonitorSettings, Upload
from ml_goodput_measurement.monitor.sinks import Exporter, Sink
from ml_goodput_measurement.monitor.worker import Worker

if TYPE_CHECKING:
    from ml_goodput_measurement.calculator import GoodputCalculator

__all__ = ["calculator_of", "main", "sinks_of"]

_log = job_logger("ml_diagnostics.goodput")

_NICENESS = 10
_OUT_OF_MEMORY_SCORE = "500"
_LOOK_FOR_TRAINER_SECONDS = 1.0
_LONGEST_START_SECONDS = 60.0
_GRACE_SECONDS = 0.5
"""For an export that is under way, where there is no time for a last one."""
_LONGEST_WAIT_FOR_THE_CLOUD_SECONDS = 5.0
"""By one query. A final flush that comes meanwhile has to wait too, and has 10 s in all."""
_READ_BYTES = 1 << 16
_LONGEST_SLEEP_SECONDS = 3600.0
_KINDS_OF_MESSAGES = 200
_GIVEN_UP = "The last upload of goodput was given up at its deadline"
_MESSAGE_CHARACTERS = 900
"""A line of so many is written at once: several writers to one pipe do not mix then."""


def main() -> NoReturn:
    """Does what comes in over stdin; ends the process."""
    channel = _Channel()
    logging.basicConfig(level=logging.INFO, handlers=[_ToTrainer(channel)], force=True)
    with _failures_told():
        _be_humble()
        _do_without_a_cloud()
        _obey(_Commands(), channel)


def _obey(commands: _Commands, channel: _Channel) -> NoReturn:
    """Hands the worker what the trainer says, and ends the process when time is up."""
    hello = commands.next_message(time.monotonic() + _LONGEST_START_SECONDS)
    if hello is None:
        os._exit(0)
    settings = MonitorSettings.from_json(hello["settings"])
    commands.watch_trainer(hello["trainer"])
    orders: queue.SimpleQueue[_Order] = queue.SimpleQueue()
    threading.Thread(target=_work, args=(settings, orders, channel), name="goodput-uploads", daemon=True).start()
    end_by: float | None = None
    flushed: int | None = None
    while True:
        message = commands.next_message(end_by)
        if end_by is not None and time.monotonic() >= end_by:
            if flushed is not None and channel.done != flushed:
                channel.say({"level": logging.WARNING, "message": _GIVEN_UP})
            os._exit(1)
        if message is None:  # The trainer is gone, or has become another program.
            order = _Order(None, {}, not settings.skip_final_flush, settings.flush_seconds)
        else:
            order = _Order.from_message(message)
        orders.put(order)
        if not order.uploads:
            flushed = order.number if order.flush else None
            seconds = max(order.flush_seconds, _GRACE_SECONDS)
            end_by = min(time.monotonic() + seconds, end_by or float("inf"))


def calculator_of(settings: MonitorSettings) -> GoodputCalculator:
    """Returns what takes the snapshots."""
    from ml_goodput_measurement.calculator import GoodputCalculator

    calculator: type[GoodputCalculator] = GoodputCalculator
    if settings.is_elastic:
        from ml_goodput_measurement.elastic_calculator import ElasticGoodputCalculator

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
    """Returns where snapshots go."""

    def tensorboard() -> Exporter:
        from ml_goodput_measurement._export.tensorboard import tensorboard_exporter

        return tensorboard_exporter(
            settings.tensorboard_dir, settings.job_name, include_badput_breakdown=settings.include_badput_breakdown
        )

    def cloud_monitoring() -> Exporter:
        from ml_goodput_measurement._export.cloud_monitoring import cloud_monitoring_exporter

        # Badput goes there by cause whatever TensorBoard shows: dashboards add goodput and badput up.
        return cloud_monitoring_exporter(
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


class _Order(NamedTuple):
    """What the worker is told: which uploads shall be on."""

    number: int | None
    uploads: Mapping[Upload, list[int]]
    flush: bool
    flush_seconds: float

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> _Order:
        uploads = {Upload(name): windows for name, windows in message["uploads"].items()}
        return cls(message["number"], uploads, message["flush"], message["flush_seconds"])


def _work(settings: MonitorSettings, orders: queue.SimpleQueue[_Order], channel: _Channel) -> NoReturn:
    """Does uploads until it is told that none is on any more."""
    with _failures_told():
        worker = Worker(
            calculator_of(settings),
            sinks_of(settings),
            interval_seconds=settings.interval_seconds,
            configured_ideal_step_seconds=settings.configured_ideal_step_seconds,
            sync_interval_seconds=settings.gcs_sync_interval_seconds if settings.gcs_path else None,
        )
        while True:
            wait_seconds = worker.seconds_to_next()
            if wait_seconds is not None:
                wait_seconds = min(wait_seconds, _LONGEST_SLEEP_SECONDS)
            try:
                order = orders.get(timeout=wait_seconds)
            except queue.Empty:
                worker.tick()
                continue
            if worker.set_uploads(order.uploads, flush=order.flush, flush_seconds=order.flush_seconds):
                channel.say({"done": order.number})
            if not order.uploads:
                worker.wait_for_sinks(_GRACE_SECONDS)
                if order.flush:
                    worker.sync()
                os._exit(0)


@contextlib.contextmanager
def _failures_told() -> Iterator[None]:
    """Ends the process when a thread of it fails, and says why: the trainer starts another one."""
    try:
        yield
    except BaseException:
        _log.exception("The goodput monitor's helper process failed")
        os._exit(1)


def _be_humble() -> None:
    """Puts everything of the trainer first, and leaves it to the trainer when this process ends."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    steps: list[Callable[[], object]] = [lambda: os.nice(_NICENESS), _die_first]
    for step in steps:
        try:
            step()
        except OSError:
            pass
    # numpy comes with tensorboardX; it needs no thread for each core here.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def _do_without_a_cloud() -> None:
    """`cloud` is for those who can be told that there is none. Here points are written, and one may be found later."""
    if os.environ.get("ML_DIAGNOSTICS_BACKEND") == Backend.CLOUD.value:
        os.environ["ML_DIAGNOSTICS_BACKEND"] = Backend.AUTO.value


def _die_first() -> None:
    """Where memory runs out, rather this process than the trainer."""
    with open("/proc/self/oom_score_adj", "w") as score:  # noqa: PTH123
        score.write(_OUT_OF_MEMORY_SCORE)


class _Channel:
    """What the trainer hears: JSON lines on what was stdout. Nobody else writes there but by accident.

    It never blocks: what does not fit, because the trainer does not listen, is dropped.
    """

    def __init__(self) -> None:
        self._descriptor = os.dup(1)
        os.set_blocking(self._descriptor, False)
        self.done: int | None = None
        """The last command that was said to be done."""
        # What libraries print is of no use; what their C code says, or a dying interpreter, still goes down the pipe.
        sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115

    def say(self, message: Mapping[str, Any]) -> None:
        self.done = message.get("done", self.done)
        try:
            line = json.dumps(message, ensure_ascii=False).encode("utf-8", "replace")
            os.write(self._descriptor, b"\n" + line + b"\n")
        except OSError:
            pass


class _ToTrainer(logging.Handler):
    """Sends warnings to the trainer's log, each kind once, and what this library says at INFO."""

    def __init__(self, channel: _Channel) -> None:
        super().__init__()
        self._channel = channel
        self._said: set[tuple[str, str]] = set()

    def emit(self, record: logging.LogRecord) -> None:
        kind = (record.name, str(record.msg) if record.args else record.getMessage())
        is_ours = record.name.startswith("ml_diagnostics")
        if record.levelno < logging.WARNING and not is_ours:
            return
        if (not is_ours and kind in self._said) or len(self._said) >= _KINDS_OF_MESSAGES:
            return
        self._said.add(kind)
        message = record.getMessage() if is_ours else f"{record.name}: {record.getMessage()}"
        if record.exc_info and record.exc_info[1] is not None:
            message += f" ({type(record.exc_info[1]).__name__}: {record.exc_info[1]})"
        self._channel.say({"level": record.levelno, "message": message[:_MESSAGE_CHARACTERS]})


class _Commands:
    """What comes from the trainer: lines on stdin, and its death."""

    def __init__(self, stdin: int = 0) -> None:
        self._stdin = stdin
        self._poller = select.poll()
        self._poller.register(stdin, select.POLLIN)
        self._buffer = b""
        self._parent = os.getppid()
        self._trainer: int | None = None
        self._death: int | None = None
        self._is_over = False

    def watch_trainer(self, pid: int) -> None:
        """From now on the death of this process ends the commands.

        The end of stdin alone does not tell it: a forked data loader of the trainer holds the other end too.
        """
        self._trainer = pid
        self._death = process_descriptor(pid)
        if self._death is not None:
            self._poller.register(self._death, select.POLLIN)

    def next_message(self, deadline: float | None) -> Mapping[str, Any] | None:
        """Waits for the next message; None if there will be no more, or after the deadline (monotonic seconds).

        After the last one it always waits for the deadline.
        """
        while True:
            line, newline, rest = self._buffer.partition(b"\n")
            if newline:
                self._buffer = rest
                message: Mapping[str, Any] = json.loads(line)
                return message
            if deadline is not None and time.monotonic() >= deadline:
                return None
            if self._is_over:
                time.sleep(0.1 if deadline is None else max(0.0, deadline - time.monotonic()))
                continue
            if self._has_ended(deadline):
                self._is_over = True
                return None

    def _has_ended(self, deadline: float | None) -> bool:
        """Waits for something, and reads it if it is a part of a message."""
        waits = [] if deadline is None else [deadline - time.monotonic()]
        if self._trainer is not None and self._death is None:
            waits.append(_LOOK_FOR_TRAINER_SECONDS)
        # Our parent is the trainer, or a program around Python. Its number is never another's while it is our parent.
        is_orphan = os.getppid() != self._parent
        if self._trainer is not None and self._death is None:
            is_orphan = is_orphan or not exists(self._trainer)
        if is_orphan:
            waits.append(0.0)  # What it said last may still be in the pipe.
        ready = {descriptor for descriptor, _ in self._poller.poll(1e3 * max(0.0, min(waits)) if waits else None)}
        if self._stdin in ready:
            try:
                data = os.read(self._stdin, _READ_BYTES)
            except ConnectionError:  # The other end is gone.
                data = b""
            self._buffer += data
            return not data
        return is_orphan or self._death in ready
