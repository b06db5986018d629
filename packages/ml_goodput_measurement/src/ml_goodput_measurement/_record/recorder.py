"""GoodputRecorder: the calls with which a training job records its activities.

Every trainer imports this module, so it imports nothing heavy; a call in each step is one line of text and one
`os.write` (see `ml_diagnostics_common.journal`). If another process watches this one for hangs, each call also
publishes the activity, on every host (see `ml_diagnostics_common.progress`).
"""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from ml_diagnostics_common import progress
from ml_diagnostics_common.clock import now_ns, steadied
from ml_diagnostics_common.environment import (
    Backend,
    announce_job,
    announce_plan,
    configured_backend,
    configured_mirror,
    diagnostics_directory,
    expected_processes,
    identity,
    planned_steps,
)
from ml_diagnostics_common.exceptions import ConfigurationError, CredentialsError
from ml_diagnostics_common.guard import guarded, log_once, report_loss
from ml_diagnostics_common.job_labels import chips_label
from ml_diagnostics_common.journal import Journal
from ml_diagnostics_common.payload import encode_payload, encode_text
from ml_diagnostics_common.worker import start

from ml_goodput_measurement._record import process_end
from ml_goodput_measurement._record.arguments import Moment as GivenMoment
from ml_goodput_measurement._record.arguments import (
    RebuiltFromArguments,
    checked_name,
    event_type,
    posix_seconds,
    shown,
)
from ml_goodput_measurement._record.blocks import Block, StepBlock, phase_block
from ml_goodput_measurement._record.process_outcome import ProcessOutcome

if TYPE_CHECKING:
    from ml_diagnostics_common.mirror.writer import Mirror
    from ml_diagnostics_common.shipper import Shipper

__all__ = ["CloudLogger", "GoodputRecorder", "Moment"]

Moment: TypeAlias = GivenMoment | None
"""When something happened: a datetime (naive: local time), seconds since 1970, or None for now."""


class CloudLogger(Protocol):
    """A sink of the user's, for the argument `cloud_logger`."""

    def write_cloud_logging_entry(self, entry: dict[str, Any]) -> None:
        """Receive one payload: the job's name, and the keys of one event."""
        ...


class GoodputRecorder(RebuiltFromArguments):
    """Record the activities of a training job.

    Events are written to the journal on this machine immediately, and are sent from there to Cloud Logging if there is
    a Google Cloud project and `ML_DIAGNOSTICS_BACKEND` allows it. No call raises, and none waits for a network: see
    `ml_diagnostics_common.guard`. All times default to now. A copy, or a restored pickle, is a new recorder of the same
    job: another writer, as in a forked child.
    """

    _is_copy = False
    """True for a copy and a restored pickle: their constructor does not raise for a missing cloud."""

    def __init__(
        self,
        job_name: str,
        logger_name: str,
        logging_enabled: bool = False,
        cloud_logger: CloudLogger | None = None,
        *,
        background_grace_period_s: float = 5.0,
        background_batch_size: int = 100,
        background_max_latency_s: float = 2.0,
        expected_processes: int | None = None,
        planned_steps: int | None = None,
    ) -> None:
        """Open nothing, and wait for nothing; a disabled recorder never records.

        Args:
            job_name: The job, the same in all its attempts and on all its hosts.
            logger_name: The log; pass the same to `GoodputCalculator`.
            logging_enabled: True on one host: one recorder is enough to compute the job's goodput.
            cloud_logger: Receives every payload instead of Cloud Logging; the journal is written as well.
            background_grace_period_s: Seconds that the exit of the process, and `flush`, wait for Cloud Logging.
            background_batch_size: Maximum number of entries in one request to Cloud Logging.
            background_max_latency_s: Seconds that an entry waits for others before it is sent.
            expected_processes: The number of processes of the job, so that a missing one is noticed; None if it is
                only known from JAX or the launcher.
            planned_steps: The number of steps of the job, so that an early end is noticed; None if it is not known.

        Raises:
            ConfigurationError: An argument, or ML_DIAGNOSTICS_BACKEND, is not valid.
            CredentialsError: ML_DIAGNOSTICS_BACKEND is `cloud` and no cloud is found.
        """
        arguments, names_before = dict(locals()), frozenset(vars(self))
        self.job_name = checked_name("job_name", job_name)
        self.logger_name = checked_name("logger_name", logger_name)
        _at_least("background_grace_period_s", background_grace_period_s, 0)
        _at_least("background_batch_size", background_batch_size, 1)
        _at_least("background_max_latency_s", background_max_latency_s, 0)
        if cloud_logger is not None and not callable(getattr(cloud_logger, "write_cloud_logging_entry", None)):
            raise ConfigurationError(
                f"expected cloud_logger to have a method write_cloud_logging_entry(entry), got {shown(cloud_logger)}"
            )
        for argument, count in (("expected_processes", expected_processes), ("planned_steps", planned_steps)):
            if count is not None:
                _at_least(argument, count, 1)
        announce_job(self.job_name)
        announce_plan(
            expected_processes=None if expected_processes is None else int(expected_processes),
            planned_steps=None if planned_steps is None else int(planned_steps),
        )
        self._enabled = bool(logging_enabled)
        self._cloud_logger = cloud_logger
        self._grace_period_seconds = float(background_grace_period_s)
        self._shipper: Shipper | None = None
        self._mirror: Mirror | None = None
        self._last_step: int | None = None
        self._has_started = False
        self._started = "0"
        """The time of the last job start, as JSON."""
        if self._enabled:
            self._open(int(background_batch_size), float(background_max_latency_s))
        self._remember(GoodputRecorder, arguments, names_before)

    def _open(self, batch_entries: int, max_latency_seconds: float) -> None:
        """Prepare the journal and start the shipper."""
        backend = configured_backend()
        is_shipped = self._cloud_logger is None and backend is not Backend.LOCAL
        self._journal = Journal(
            self.logger_name,
            root=diagnostics_directory(),
            labels={**chips_label(), **identity().labels(job=self.job_name)},
            shippable=is_shipped,
        )
        # The beginning of every payload, escaped once.
        self._head = encode_payload({"job_name": self.job_name})[:-1] + ","
        if is_shipped:
            try:
                self._shipper = _start_shipper(
                    self.logger_name,
                    backend,
                    batch_entries=batch_entries,
                    max_latency_seconds=max_latency_seconds,
                    grace_period_seconds=self._grace_period_seconds,
                )
            except CredentialsError as error:
                if not self._is_copy:
                    raise
                log_once(
                    logging.WARNING, "a copy without a cloud", "This process cannot ship what it records: %s", error
                )
        if configured_mirror():
            from ml_diagnostics_common.mirror.writer import start_mirror

            self._mirror = start_mirror(self.logger_name)
        process_end.watch()

    def __setstate__(self, state: Any) -> None:
        self._is_copy = True
        super().__setstate__(state)

    # The two calls of every step are guarded by hand: with cold caches the wrapper costs a third of them.

    def record_step_start_time(self, step: int, start_time: Moment = None) -> None:
        """Record that a step starts.

        Args:
            step: The step's number; anything that `int` accepts.
            start_time: The time.
        """
        if progress.page_of_this_process is not None:
            self._publish_step(step)
        if self._enabled:
            try:
                self._record("step_start_time", start_time, f'"step_count":{int(step)},')
            except Exception as error:
                report_loss("GoodputRecorder.record_step_start_time", error)

    def record_step_end_time(self, step: int, end_time: Moment = None, *_: object) -> None:
        """Record that a step has ended: optional, for trainers that work between two steps.

        Args:
            step: The step's number.
            end_time: The time.
        """
        if progress.page_of_this_process is not None:
            self._publish_step(step)
        # Keys without "time": the public library takes the first key with it for the time of an entry.
        if self._enabled:
            try:
                self._record("step_ended", end_time, f'"step_end_count":{int(step)},')
            except Exception as error:
                report_loss("GoodputRecorder.record_step_end_time", error)

    @guarded
    def record_job_start_time(self, start_time: Moment = None) -> None:
        """Record that the job, or another attempt of it, starts."""
        progress.publish("init")
        if self._enabled:
            self._journal.recheck_file()
            self._started = self._record("job_start_time", start_time, _plan())
            self._journal.sync(timeout_seconds=0)
            process_end.job_started(self.logger_name, self.job_name, self._record_process_end)
            if not self._has_started:
                self._has_started = True
                start(self._warn_if_ended_before, "goodput-continuation")

    @guarded
    def record_job_end_time(self, end_time: Moment = None) -> None:
        """Record that the job is done; wait up to a second until the disk has it.

        While an exception is handled, as in a `finally`, its type is recorded, too: a restart is to be expected then.
        """
        self._record_job_end(end_time, sys.exc_info()[1])

    def _record_job_end(self, end_time: Moment, error: BaseException | None) -> None:
        progress.publish("ended", self._last_step)
        if self._enabled:
            self._journal.recheck_file()
            self._record("job_end_time", end_time, _exception_of(error))
            process_end.job_ended(self.logger_name, self.job_name)
            self._journal.sync(timeout_seconds=1.0)

    @guarded
    def record_checkpoint_progress(self, step: int, checkpoint_start_time: Moment = None) -> None:
        """Record that a checkpoint of a step starts.

        Args:
            step: The step that is saved.
            checkpoint_start_time: The time.
        """
        progress.publish("checkpoint", step)
        if self._enabled:
            details = f'"checkpoint_progress_step":{int(step)},'
            self._journal.recheck_file()
            self._record("checkpoint_progress_started", checkpoint_start_time, details)
            self._journal.sync(timeout_seconds=0)

    @guarded
    def record_tpu_init_start_time(self, start_time: Moment = None) -> None:
        """Record that the initialization of the devices starts."""
        progress.publish("init")
        if self._enabled:
            self._record("tpu_init_start_time", start_time)

    @guarded
    def record_tpu_init_end_time(self, end_time: Moment = None) -> None:
        """Record that the devices are initialized."""
        progress.publish("init")
        if self._enabled:
            self._record("tpu_init_end_time", end_time)

    @guarded
    def record_training_preparation_start_time(self, start_time: Moment = None) -> None:
        """Record that the preparation of training starts: building the model, restoring a checkpoint."""
        progress.publish("init")
        if self._enabled:
            self._record("training_prep_start_time", start_time)

    @guarded
    def record_training_preparation_end_time(self, end_time: Moment = None) -> None:
        """Record that the preparation of training has ended."""
        progress.publish("compile")
        if self._enabled:
            self._record("training_prep_end_time", end_time)

    @guarded
    def record_data_loading_start_time(self, start_time: Moment = None, *, ended_step: int | None = None) -> None:
        """Record that the loading of a batch starts.

        Args:
            start_time: The time.
            ended_step: The step that ends at the same time, so that training waits for this load; recorded in the same
                entry, which saves a call in each step. None for a load beside a step, as in a thread.
        """
        progress.publish("data", self._last_step)
        if self._enabled:
            details = "" if ended_step is None else f'"step_end_count":{int(ended_step)},'
            self._record("data_loading_start_time", start_time, details)

    @guarded
    def record_data_loading_end_time(self, end_time: Moment = None) -> None:
        """Record that a batch is loaded."""
        self._publish_return()
        if self._enabled:
            self._record("data_loading_end_time", end_time)

    @guarded
    def record_custom_badput_event_start_time(
        self, start_time: Moment = None, custom_badput_event_type: str = "unknown"
    ) -> None:
        """Record that an activity of your own starts that stops training: an evaluation, a check of the devices.

        Args:
            start_time: The time.
            custom_badput_event_type: Its name in the breakdown; case does not matter.
        """
        progress.publish(_phase_of(custom_badput_event_type), self._last_step)
        if self._enabled:
            details = f'"custom_badput_event_type":{encode_text(event_type(custom_badput_event_type))},'
            self._record("custom_badput_event_start_time", start_time, details)

    @guarded
    def record_custom_badput_event_end_time(
        self, end_time: Moment = None, custom_badput_event_type: str = "unknown"
    ) -> None:
        """Record that an activity of your own has ended.

        Args:
            end_time: The time.
            custom_badput_event_type: The name with which its start was recorded.
        """
        self._publish_return()
        if self._enabled:
            details = f'"custom_badput_event_type":{encode_text(event_type(custom_badput_event_type))},'
            self._record("custom_badput_event_end_time", end_time, details)

    def step(self, step: int) -> Block:
        """Return a block that records the start and the end of a step.

            for step in range(first, 1_000):
                with recorder.step(step):
                    state = train_step(state, next(batches))

        Of a step that raises an exception, only the start is recorded.

        Args:
            step: The step's number.
        """
        self._last_step = step
        return StepBlock(self, step)

    def phase(self, name: str, step: int | None = None) -> Block:
        """Return a block that records an activity that is not a step; its end is recorded after an exception, too.

        Args:
            name: `tpu_init`, `training_preparation`, `data_loading`, `checkpoint_save` or `checkpoint_restore`; of an
                elastic job also `elastic_reinit`, `elastic_slice_down` or `elastic_scale_up`. The names of the kinds of
                badput are accepted, too. Any other name is an activity of your own, such as `evaluation`.
            step: The step that is saved or restored.
        """
        return phase_block(self, name, self._last_step if step is None else step)

    @guarded
    def flush(self) -> None:
        """Send all recorded entries; wait at most `background_grace_period_s`.

        Other entries stay in the journal, and are sent later, if necessary by another process.
        """
        if not self._enabled:
            return
        deadline = monotonic() + self._grace_period_seconds
        self._journal.flush(self._grace_period_seconds)
        if self._shipper is not None:
            self._shipper.flush(max(0.0, deadline - monotonic()))
        if self._mirror is not None:
            self._mirror.flush(max(0.0, deadline - monotonic()))
        flush = getattr(self._cloud_logger, "flush", None)
        if callable(flush):
            flush()

    @guarded
    def record_payload(self, payload: Mapping[str, Any]) -> None:
        """Record an entry of another kind than the events above, such as one of Orbax's.

        Args:
            payload: Its keys and values, which are recorded without secrets; the job's name is added.
        """
        if self._enabled:
            from ml_diagnostics_common.redaction import redact  # A trainer without such entries does not load it.

            text = encode_payload({key: value for key, value in payload.items() if key != "job_name"})
            text = encode_payload(redact(json.loads(text), max_bytes=len(text)))
            text = self._head + text[1:] if text != "{}" else self._head[:-1] + "}"
            self._journal.append_text(str(now_ns()), text)
            if self._cloud_logger is not None:
                self._cloud_logger.write_cloud_logging_entry(json.loads(text))

    @guarded
    def sync(self) -> None:
        """Start to sync recorded entries to disk, in case of a power failure; does not wait for it."""
        if self._enabled:
            self._journal.sync(timeout_seconds=0)

    def _warn_if_ended_before(self) -> None:
        """Check earlier entries; called in a thread, since it reads files."""
        process_end.warn_if_ended_before(self._journal.folder, self.job_name, self._journal.writer)

    def _record_process_end(self, outcome: ProcessOutcome, exception: str) -> None:
        """Record that this process exits, while the job that it started has not ended."""
        progress.publish("ended", self._last_step)
        details = f'"process_outcome":"{outcome.value}","process_began":{self._started},'
        if exception:
            details += f'"process_exception":{encode_text(exception)},'
        # A program that returned is done: also the public package's calculator reads that. After a failure the job
        # is likely to be restarted, and that calculator raises ValueError while a job goes on after a job end.
        key = "job_end_time" if outcome is ProcessOutcome.RETURNED else "process_ended"
        self._journal.recheck_file()
        self._record(key, None, details)

    def _publish_step(self, step: int) -> None:
        self._last_step = step
        progress.publish("step", step)

    def _publish_phase(self, phase: str) -> None:
        progress.publish(phase, self._last_step)

    def _publish_return(self) -> None:
        """Publish the end of an activity between steps, or before the first."""
        progress.publish("init" if self._last_step is None else "step", self._last_step)

    def _record(self, key: str, moment: Moment, details: str = "") -> str:
        """Append an event: `details`, which is JSON that ends with a comma, then the time under `key`.

        Returns:
            The time, as JSON.
        """
        now = str(now_ns())
        # The seconds are the digits of the stamp with a point among them: faster than a division and a format.
        seconds = f"{now[:-9]}.{now[-9:]}" if moment is None else repr(steadied(posix_seconds(moment)))
        payload = f'{self._head}{details}"{key}":{seconds}}}'
        self._journal.append_text(now, payload)
        if self._cloud_logger is not None:
            self._cloud_logger.write_cloud_logging_entry(json.loads(payload))
        return seconds


def _plan() -> str:
    """Return what is known of the job's processes and steps as JSON for `_record`: keys without "time"."""
    expected = expected_processes()
    numbers = {"expected_processes": None if expected is None else expected.number, "planned_steps": planned_steps()}
    return "".join(f'"{name}":{number},' for name, number in numbers.items() if number is not None)


def _exception_of(error: BaseException | None) -> str:
    """Return the exception that ends a job as JSON for `_record`; empty for none, and for exit code 0."""
    if error is None or (isinstance(error, SystemExit) and not error.code):
        return ""
    return f'"job_end_exception":{encode_text(type(error).__name__[:200])},'


def _phase_of(event_type: str) -> str:
    name = str(event_type).lower()
    if "eval" in name or "validation" in name:
        return "eval"
    return "checkpoint" if "checkpoint" in name else "other"


def _start_shipper(
    log_id: str, backend: Backend, *, batch_entries: int, max_latency_seconds: float, grace_period_seconds: float
) -> Shipper:
    from ml_diagnostics_common.shipper import Shipper

    if backend is Backend.CLOUD:
        from ml_diagnostics_common.credentials import find_cloud

        find_cloud()  # Raises now if there is no cloud; the shipper's thread searches again.
    shipper = Shipper(
        log_id,
        root=diagnostics_directory(),
        batch_entries=batch_entries,
        max_latency_seconds=max_latency_seconds,
        grace_period_seconds=grace_period_seconds,
    )
    shipper.start()
    return shipper


def _at_least(argument: str, value: object, minimum: int) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not minimum <= value < math.inf:  # type: ignore[operator]
        raise ConfigurationError(f"expected {argument} to be a number of at least {minimum}, got {shown(value)}")


# Pickles contain the public name.
GoodputRecorder.__module__ = "ml_goodput_measurement.goodput"
