"""Goodput for TensorBoard: each point once, also over restarts.

<tensorboard_dir>/goodput/events.out.tfevents...
    goodput/goodput                             percent, at the last productive step
    badput/<kind>                               percent, likewise
    badput/custom_badput_events/<event>         percent, likewise
    step_deviation                              seconds, at each step
"""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, replace

from ml_diagnostics_common.event_files import EventLog, UploadLimits, event_record, points_folder
from ml_diagnostics_common.guard import log_once

from ml_goodput_measurement._export.export_state import ExportNote, Progress, decoded_progress, note_path, state_path
from ml_goodput_measurement._export.scalars import STEP_DEVIATION, Scalar, cumulative_scalars, single_precision
from ml_goodput_measurement.snapshot import Cumulative, DeviatingStep, Deviation, Snapshot

__all__ = ["TensorBoardExporter"]

_STEPS_A_CALL = 20_000
_STEPS_A_BATCH = 2_500
_LONGEST_WAIT_TO_TAKE_OVER_SECONDS = 2.0
_TAKE_OVER_POLL_SECONDS = 0.02
_NOTE_SECONDS = 5.0
"""The timeout for reading and writing the progress beside the points."""


class TensorBoardExporter:
    """Writes new points of snapshots to TensorBoard.

    If several processes of this host export one job to one directory, one of them writes and the others stand by.
    """

    def __init__(
        self,
        tensorboard_dir: str | os.PathLike[str],
        job_name: str,
        *,
        include_badput_breakdown: bool,
        upload_limits: UploadLimits = UploadLimits(),  # noqa: B008 - frozen
    ) -> None:
        """Open nothing yet.

        Args:
            tensorboard_dir: `gs://bucket/path` or a local path; the points go to its folder `goodput`.
            job_name: The job.
            include_badput_breakdown: True to write the kinds of badput, too.
            upload_limits: The limits of uploads to Cloud Storage.

        Raises:
            ConfigurationError: The directory is neither on this machine nor in Cloud Storage.
        """
        self._target = points_folder(os.fspath(tensorboard_dir), "goodput")
        self._job_name = job_name
        self._include_badput_breakdown = include_badput_breakdown
        self._note = ExportNote(note_path("tensorboard", job_name, self._target.removesuffix("/goodput")))
        self._log = EventLog(
            self._target,
            state_path("tensorboard", job_name, self._target),
            encode=asdict,
            decode=decoded_progress,
            empty=Progress(),
            initial=lambda: self._note.read(_NOTE_SECONDS),  # The progress of another host.
            limits=upload_limits,
        )
        self._time_ns = 0
        self._deviation: Deviation | None = None
        """The deviation of the last snapshot."""
        self._missed: Snapshot | None = None
        """The last of each part of a snapshot, if another process exported when it was taken."""

    def __call__(self, snapshot: Snapshot) -> None:
        """Write the points of a snapshot that were not written before.

        Raises:
            OSError: They could not be written; the next call does it.
            StorageError: They could not be written or uploaded; the next call does it.
        """
        if not self._is_mine():
            self._missed = _merged(self._missed, self._readable_later(snapshot))
            return
        if self._missed is not None:
            # Uploads are stopped one after the other: the last point of one may have been missed, that of the next not.
            is_ahead = self._missed.cumulative is not None and _is_ahead(self._missed.cumulative, self._log.progress)
            snapshot = _merged(self._missed if is_ahead else replace(self._missed, cumulative=None), snapshot)
            self._missed = None
        self._log.restart_if_removed()
        self._time_ns, self._deviation = snapshot.time_ns, snapshot.deviation
        if snapshot.cumulative is not None:
            self._write(*self._cumulative_batch(snapshot.cumulative))
        self._write_deviations(_STEPS_A_CALL)
        self._upload()

    def flush(self, timeout_seconds: float) -> None:
        """Write the deviations that a call left for the next one, and upload what waits for it.

        The last snapshot is written too if another process exported until just now.

        Args:
            timeout_seconds: About how long it may take.

        Raises:
            StorageError: It could not be uploaded; a later process on this host does it.
        """
        deadline = time.monotonic() + timeout_seconds
        if not self._is_mine_soon(min(_LONGEST_WAIT_TO_TAKE_OVER_SECONDS, timeout_seconds / 4)):
            return
        if self._missed is not None:
            missed, self._missed = self._missed, None
            self(missed)
        while self._write_deviations(_STEPS_A_BATCH) and time.monotonic() < deadline - timeout_seconds / 2:
            pass
        self._upload(deadline - time.monotonic())

    def close(self) -> None:
        """End the event file, and let another process take over; a later call starts again."""
        self._log.close()
        self._deviation = None

    def _is_mine(self) -> bool:
        """Return True if this process is the one that exports; from then on it knows what was exported before."""
        if self._log.take():
            return True
        log_once(
            logging.INFO,
            ("tensorboard stands by", self._target, self._job_name),
            "Another process on this host writes the goodput of %s to %s; this one stands by, and takes over when that "
            "one ends.",
            self._job_name,
            self._target,
        )
        return False

    def _is_mine_soon(self, timeout_seconds: float) -> bool:
        """Wait for `_is_mine`: the process of the trainer's last life may be about to end."""
        deadline = time.monotonic() + timeout_seconds
        while not self._is_mine():
            if time.monotonic() >= deadline:
                return False
            time.sleep(_TAKE_OVER_POLL_SECONDS)
        return True

    def _readable_later(self, snapshot: Snapshot) -> Snapshot:
        """Return it with its deviations in memory: they cannot be read any more once there is a newer snapshot."""
        if snapshot.deviation is None:
            return snapshot
        since_ns = self._log.saved_progress().deviations_until_ns
        steps = list(itertools.islice(snapshot.deviation.steps_since(since_ns), _STEPS_A_CALL))
        later = replace(snapshot.deviation, steps_since=lambda ns: (step for step in steps if step.start_ns > ns))
        return replace(snapshot, deviation=later)

    def _upload(self, timeout_seconds: float | None = None) -> None:
        """Upload new data; once all is uploaded, save the progress beside it."""
        if self._log.upload(timeout_seconds):
            self._note.write(self._log.progress, _NOTE_SECONDS)

    def _cumulative_batch(self, cumulative: Cumulative) -> tuple[bytes, Progress]:
        """Return records to write, and how far the export is with them."""
        step, progress = cumulative.max_productive_step, self._log.progress
        scalars = cumulative_scalars(cumulative, include_badput_breakdown=self._include_badput_breakdown)
        known = progress.values if progress.step == step else {}
        new = [scalar for scalar in scalars if known.get(scalar.tag) != scalar.value]
        values = {**known, **{scalar.tag: scalar.value for scalar in new}}
        return event_record(new, step=step, time_ns=self._time_ns), replace(progress, step=step, values=values)

    def _write_deviations(self, most: int) -> bool:
        """Write new steps of the last snapshot, at most so many; return True if there may be more."""
        if self._deviation is None:
            return False
        steps = itertools.islice(self._deviation.steps_since(self._log.progress.deviations_until_ns), most)
        written = 0
        while batch := list(itertools.islice(steps, _STEPS_A_BATCH)):
            progress = replace(self._log.progress, deviations_until_ns=batch[-1].start_ns)
            self._write(_deviation_records(batch), progress)
            written += len(batch)
        return written == most

    def _write(self, records: bytes, progress: Progress) -> None:
        """Append records to the event file; `progress` includes them."""
        self._log.append(records, progress, self._time_ns)


def _merged(earlier: Snapshot | None, later: Snapshot) -> Snapshot:
    """Return the last of each part; the time is that of the cumulative part."""
    if earlier is None:
        return later
    deviation = earlier.deviation if later.deviation is None else later.deviation
    if later.cumulative is None and earlier.cumulative is not None:
        return replace(earlier, deviation=deviation)
    return replace(later, deviation=deviation)


def _is_ahead(cumulative: Cumulative, progress: Progress) -> bool:
    """Return False if another process has exported a later step meanwhile."""
    return progress.step is None or cumulative.max_productive_step >= progress.step


def _deviation_records(steps: Sequence[DeviatingStep]) -> bytes:
    """Return an event for each step, at its start; deviations that are not finite are left out."""
    points = [(step.step, step.start_ns, single_precision(step.deviation_seconds)) for step in steps]
    return b"".join(
        event_record([Scalar(STEP_DEVIATION, "", deviation)], step=step, time_ns=start_ns)
        for step, start_ns, deviation in points
        if deviation is not None
    )
