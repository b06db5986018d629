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
from dataclasses import replace
from pathlib import Path

from ml_diagnostics_common.exceptions import ConfigurationError
from ml_diagnostics_common.files import in_bucket, make_private_folder, native_path
from ml_diagnostics_common.guard import log_once
from ml_diagnostics_common.storage import storage_for

from ml_goodput_measurement._export.event_files import (
    EventFile,
    Uploader,
    UploadLimits,
    deviation_records,
    event_file_names,
    require_tensorboardx,
    scalar_records,
)
from ml_goodput_measurement._export.export_state import (
    ExportLock,
    ExportNote,
    ExportState,
    Progress,
    note_path,
    state_path,
)
from ml_goodput_measurement._export.scalars import cumulative_scalars
from ml_goodput_measurement.snapshot import Cumulative, Deviation, Snapshot

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
            MissingExtraError: tensorboardX is not installed.
        """
        require_tensorboardx()
        self._target = _target(os.fspath(tensorboard_dir))
        self._job_name = job_name
        self._include_badput_breakdown = include_badput_breakdown
        self._state_path = state_path("tensorboard", job_name, self._target)
        self._note = ExportNote(note_path("tensorboard", job_name, self._target.removesuffix("/goodput")))
        self._lock = ExportLock(self._state_path.with_suffix(".lock"))
        self._state: ExportState | None = None
        self._file: EventFile | None = None
        self._time_ns = 0
        self._deviation: Deviation | None = None
        """The deviation of the last snapshot."""
        self._missed: Snapshot | None = None
        """The last of each part of a snapshot, if another process exported when it was taken."""
        self._uploader: Uploader | None = None
        self._folder = Path(self._target)
        if in_bucket(self._target):
            self._folder = self._state_path.with_suffix("")
            self._uploader = Uploader(self._folder, self._target, upload_limits)

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
            is_ahead = self._missed.cumulative is not None and _is_ahead(self._missed.cumulative, self._known.progress)
            snapshot = _merged(self._missed if is_ahead else replace(self._missed, cumulative=None), snapshot)
            self._missed = None
        self._recheck_folder()
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
        if self._file is not None:
            self._file.close()
        if self._uploader is not None:
            self._uploader.close()
        self._file = self._state = self._deviation = None
        self._lock.release()

    def _is_mine(self) -> bool:
        """Return True if this process is the one that exports; from then on it knows what was exported before."""
        if not self._lock.take():
            log_once(
                logging.INFO,
                ("tensorboard stands by", self._target, self._job_name),
                "Another process on this host writes the goodput of %s to %s; this one stands by, and takes over when "
                "that one ends.",
                self._job_name,
                self._target,
            )
            return False
        if self._state is None:
            state = self._last_state().settled(self._folder)
            state.save(self._state_path)
            self._state = state
        return True

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
        since_ns = ExportState.load(self._state_path).progress.deviations_until_ns
        steps = list(itertools.islice(snapshot.deviation.steps_since(since_ns), _STEPS_A_CALL))
        later = replace(snapshot.deviation, steps_since=lambda ns: (step for step in steps if step.start_ns > ns))
        return replace(snapshot, deviation=later)

    def _last_state(self) -> ExportState:
        """Return the last progress: that of this host, else that another host has saved beside the points."""
        if self._state_path.exists():
            return ExportState.load(self._state_path)
        return ExportState(self._note.read(_NOTE_SECONDS))

    def _recheck_folder(self) -> None:
        """Start again if another process removed all files."""
        if self._uploader is None and self._known.progress != Progress() and not event_file_names(self._folder):
            self._state = ExportState()

    def _upload(self, timeout_seconds: float | None = None) -> None:
        """Upload new data; once all is uploaded, save the progress beside it."""
        if self._uploader is None or self._uploader.upload(self._file, timeout_seconds):
            self._note.write(self._known.progress, _NOTE_SECONDS)

    def _cumulative_batch(self, cumulative: Cumulative) -> tuple[bytes, Progress]:
        """Return records to write, and how far the export is with them."""
        step, progress = cumulative.max_productive_step, self._known.progress
        scalars = cumulative_scalars(cumulative, include_badput_breakdown=self._include_badput_breakdown)
        known = progress.values if progress.step == step else {}
        new = [scalar for scalar in scalars if known.get(scalar.tag) != scalar.value]
        values = {**known, **{scalar.tag: scalar.value for scalar in new}}
        return scalar_records(new, step=step, time_ns=self._time_ns), replace(progress, step=step, values=values)

    def _write_deviations(self, most: int) -> bool:
        """Write new steps of the last snapshot, at most so many; return True if there may be more."""
        if self._deviation is None:
            return False
        steps = itertools.islice(self._deviation.steps_since(self._known.progress.deviations_until_ns), most)
        written = 0
        while batch := list(itertools.islice(steps, _STEPS_A_BATCH)):
            progress = replace(self._known.progress, deviations_until_ns=batch[-1].start_ns)
            self._write(deviation_records(batch), progress)
            written += len(batch)
        return written == most

    def _write(self, records: bytes, progress: Progress) -> None:
        """Append records to the event file; `progress` includes them."""
        if not records:
            self._state = replace(self._known, progress=progress)
            return
        file = self._growing_file()
        name, length, next_length = file.path.name, file.length, file.length + len(records)
        ExportState(self._known.progress, name, length, progress, next_length).save(self._state_path)
        file.append(records)
        self._state = ExportState(progress, name, next_length)

    def _growing_file(self) -> EventFile:
        """Return the file to write to: a new one if there is none, or if it is full or removed."""
        if self._file is not None:
            is_full = self._uploader is not None and self._uploader.is_full(self._file)
            if is_full or not self._file.is_usable():
                self._file.close()
                self._file = None
        if self._file is None:
            if self._uploader is not None:
                make_private_folder(self._folder)
            mode = 0o666 if self._uploader is None else 0o600
            self._file = EventFile(self._folder, after=[self._known.file], time_ns=self._time_ns, mode=mode)
        return self._file

    @property
    def _known(self) -> ExportState:
        assert self._state is not None, "only asked after _is_mine"
        return self._state


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


def _target(tensorboard_dir: str) -> str:
    """Return the folder of the points, in one spelling."""
    if "\0" in tensorboard_dir:
        raise ConfigurationError(f"tensorboard_dir is {tensorboard_dir!r}: a path has no NUL bytes")
    storage_for(tensorboard_dir)  # Raises if it is neither.
    if not in_bucket(tensorboard_dir):
        return str(Path(native_path(tensorboard_dir)).resolve() / "goodput")
    if not tensorboard_dir.removeprefix("gs://").split("/")[0]:
        raise ConfigurationError(f"tensorboard_dir is {tensorboard_dir!r}: give gs://bucket/path")
    return tensorboard_dir.rstrip("/") + "/goodput"
