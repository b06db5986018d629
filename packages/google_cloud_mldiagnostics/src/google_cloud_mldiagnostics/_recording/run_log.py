"""Write a run's entries to the journal and to Cloud Logging, and average its metrics."""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from ml_diagnostics_common.environment import configured_mirror, diagnostics_directory
from ml_diagnostics_common.guard import LOSSES, Counters, guarded
from ml_diagnostics_common.journal import Journal, JournalStatistics, encode_own_fields

from google_cloud_mldiagnostics._entries import LOG_ID, LOSSES_NAMESPACE, RESOURCE_TYPE, json_number
from google_cloud_mldiagnostics._recording import device_values

if TYPE_CHECKING:
    from ml_diagnostics_common.cloud_logging import LoggingTransport
    from ml_diagnostics_common.mirror.writer import Mirror
    from ml_diagnostics_common.shipper import Shipper, ShipperStatistics
__all__ = ["FOLD_AT", "Average", "Averages", "RunLog", "RunLogStatistics", "namespace_fields"]

FOLD_AT = 512
"""The limit of pending values; the caller that adds the last one folds them in."""

_MOST_NAMES = 10_000


class Average:
    """Mean, extremes and last value of one metric.

    `add` is called while recording, from any thread and in signal handlers: it takes no lock, since all it does is to
    append to a queue. The caller that appends the 512th value, or reads the result, folds them in.

    Attributes:
        pending: The queue: a hot path appends to it, and calls `fold` when it has `FOLD_AT`.
    """

    __slots__ = ("_count", "_folding", "_last", "_maximum", "_mean", "_minimum", "_not_finite", "pending")

    def __init__(self) -> None:
        self.pending: list[float] = []
        self._folding = Lock()
        self._count = self._not_finite = 0
        self._mean = 0.0
        self._minimum, self._maximum = math.inf, -math.inf
        self._last: float | None = None

    def add(self, value: float) -> None:
        """Add a value."""
        self.pending.append(value)
        if len(self.pending) >= FOLD_AT:
            self.fold()

    def as_dict(self) -> dict[str, float | int | str]:
        """Return mean, min, max, last, count, and the number of values that were not finite, if any.

        Values that are not finite are counted and may be the last; they do not affect mean and extremes.
        """
        self.fold()
        statistics: dict[str, float | int | str] = {"count": self._count + self._not_finite}
        if self._count:
            statistics |= {"mean": self._mean, "min": self._minimum, "max": self._maximum}
        if self._last is not None:
            statistics["last"] = json_number(self._last)
        if self._not_finite:
            statistics["not_finite"] = self._not_finite
        return statistics

    def fold(self) -> None:
        """Fold the pending values in, unless another thread does so now."""
        if not self._folding.acquire(blocking=False):
            return  # The thread that folds, perhaps this one further up the stack, or the next call also takes ours.
        try:
            while batch := self._take():
                self._fold_batch(batch)
        finally:
            self._folding.release()

    def _take(self) -> list[float]:
        pending = self.pending
        batch = pending[:FOLD_AT]
        del pending[: len(batch)]  # Values that other threads appended meanwhile follow these.
        return batch

    def _fold_batch(self, batch: list[float]) -> None:
        finite = [value for value in batch if math.isfinite(value)]
        self._last = batch[-1]
        self._not_finite += len(batch) - len(finite)
        if not finite:
            return
        count = self._count + len(finite)
        # Divide before adding, so that no sum is too large for a float.
        shares = (value / count for value in finite)
        self._mean = math.fsum(itertools.chain((self._mean * (self._count / count),), shares))
        self._count = count
        self._minimum = min(self._minimum, min(finite))
        self._maximum = max(self._maximum, max(finite))


class Averages:
    """The averages of all metrics of a run, by name; of the first 10,000 names."""

    def __init__(self) -> None:
        self._by_name: dict[str, Average] = {}

    def of(self, name: str) -> Average:
        """Return the average of a metric, a new one at its first value; a discarded one if there are too many."""
        known = self._by_name.get(name)
        if known is None:
            if len(self._by_name) >= _MOST_NAMES:
                return Average()
            known = self._by_name.setdefault(name, Average())
        return known

    def add(self, name: str, value: float) -> None:
        """Add a value of a metric, or the mean of several values."""
        self.of(name).add(value)

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Return the statistics of each metric: see `Average.as_dict`."""
        return {name: average.as_dict() for name, average in list(self._by_name.items())}


class RunLogStatistics(NamedTuple):
    """The counts of a run's entries in this process.

    Attributes:
        journal: Counts of entries: accepted, written, held in memory, dropped.
        shipper: Counts of sent entries; None if nothing is sent.
        lost_values: Counts of values that could not be recorded, by reason.
    """

    journal: JournalStatistics
    shipper: ShipperStatistics | None
    lost_values: dict[str, int]


def namespace_fields(namespace: str, severity: str | None = None) -> str:
    """Return the text that follows an entry's payload in its line: see `RunLog.write_text`."""
    return encode_own_fields(severity, {"namespace": namespace})


class RunLog:
    """The entries of one run that this process writes. No call raises, and none waits for a network.

    Attributes:
        run_id: The run's id.
        averages: The averages of the metrics that this process has recorded.
        lost_values: Counts of values that could not be recorded, by reason.
        writer: The writer of the entries of the process that has started the run.
        write_text: `write_text(now, text, timestamp=None)`, the hot path: `now` is `clock.now_ns()` as digits;
            `text` is the payload's JSON in one line, and `namespace_fields` behind it; `timestamp` is the entry's time
            as digits, where that is another. An error of the disk is not raised.
    """

    def __init__(
        self,
        run_id: str,
        *,
        location: str,
        project: str,
        labels: Mapping[str, str],
        is_shipped: bool,
        root: Path | None = None,
        connect: Callable[[], LoggingTransport] | None = None,
        grace_period_seconds: float = 5.0,
    ) -> None:
        """Open nothing and wait for nothing; a thread searches for a cloud if entries are shipped.

        Args:
            run_id: The run's id, the same on all its hosts.
            location: The region that stores the run.
            project: The project that the entries belong to; empty for the one that is found.
            labels: The labels of every entry: those of `identity().labels()`, and others that identify the process.
            is_shipped: True to send the entries to Cloud Logging if a cloud is found.
            root: The diagnostics folder; None for the usual one.
            connect: Finds a cloud, in the shipper's thread; None for the default.
            grace_period_seconds: The time that the end of the process waits for Cloud Logging.
        """
        root = root or diagnostics_directory()
        self.run_id = run_id
        self.averages = Averages()
        self.lost_values = Counters()
        resource_labels = {"location": location, "namespace": LOSSES_NAMESPACE, "node_id": run_id}
        if project:
            resource_labels["project_id"] = project
        self._labels = dict(labels)
        self._recorded_losses: dict[str, int] = {}
        self._journal = Journal(
            LOG_ID,
            root=root,
            labels=labels,
            resource={"type": RESOURCE_TYPE, "labels": resource_labels},
            shippable=is_shipped,
            project=project,
        )
        self.write_text = self._journal.append_text
        self.writer = self._journal.writer
        self._shipper: Shipper | None = None
        self._mirror: Mirror | None = None
        if configured_mirror():
            from ml_diagnostics_common.mirror.writer import start_mirror

            self._mirror = start_mirror(LOG_ID, root)
        if is_shipped:
            self._shipper = _started_shipper(root, project, connect, grace_period_seconds)

    @guarded
    def write(
        self,
        namespace: str,
        payload: Mapping[str, Any],
        *,
        severity: str | None = None,
        timestamp_ns: int | None = None,
    ) -> None:
        """Write an entry.

        Args:
            namespace: The kind of the entry: a metric's name, or one of `entries`.
            payload: Any mapping; values that JSON lacks are written as text.
            severity: The severity in Cloud Logging; None is INFO.
            timestamp_ns: The time of the entry in ns since 1970; None is now.
        """
        self._journal.append(
            payload, severity=severity, resource_labels={"namespace": namespace}, timestamp_ns=timestamp_ns
        )

    def lose(self, reason: str) -> None:
        """Count a value that could not be recorded; the next flush writes the count to the log."""
        self.lost_values.add(reason)
        LOSSES.add(f"metrics: {reason}")

    def recheck_file(self) -> None:
        """Check the journal's file before the next entry, which must not be lost."""
        self._journal.recheck_file()

    def sync(self, timeout_seconds: float = 0.0) -> bool:
        """Sync the journal to the disk, against a loss of power: `Journal.sync`."""
        return self._journal.sync(timeout_seconds)

    def write_pending(self, timeout_seconds: float) -> bool:
        """Write what waits for devices, or for the disk, to the journal.

        Args:
            timeout_seconds: The longest to wait.

        Returns:
            True if all entries so far are in the journal.
        """
        deadline = time.monotonic() + timeout_seconds
        is_complete = device_values.drain(timeout_seconds)
        self._record_losses()
        return self._journal.flush(max(0.0, deadline - time.monotonic())) and is_complete

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until all entries so far have arrived; the rest is shipped later.

        Args:
            timeout_seconds: The longest to wait.

        Returns:
            True if everything has arrived: in Cloud Logging and the mirror, or on this disk if there is neither.
        """
        deadline = time.monotonic() + timeout_seconds
        is_complete = self.write_pending(timeout_seconds)
        if self._shipper is not None:
            is_complete = self._shipper.flush(max(0.0, deadline - time.monotonic())) and is_complete
        if self._mirror is not None:
            is_complete = self._mirror.flush(max(0.0, deadline - time.monotonic())) and is_complete
        return is_complete

    def close(self, timeout_seconds: float) -> bool:
        """Flush, and end the thread that ships. Later entries go to the journal alone."""
        deadline = time.monotonic() + timeout_seconds
        is_complete = self.write_pending(timeout_seconds)
        if self._shipper is not None:
            is_complete = self._shipper.close(max(0.0, deadline - time.monotonic())) and is_complete
        if self._mirror is not None:  # It has all logs of this process, and ends with that.
            is_complete = self._mirror.flush(max(0.0, deadline - time.monotonic())) and is_complete
        return is_complete

    def statistics(self) -> RunLogStatistics:
        """Return the counts of entries so far."""
        shipper = self._shipper.statistics() if self._shipper is not None else None
        return RunLogStatistics(self._journal.statistics(), shipper, self.lost_values.as_dict())

    def _record_losses(self) -> None:
        """Write the counts of lost values to the log."""
        lost = self.lost_values.as_dict()
        new = {reason: count - self._recorded_losses.get(reason, 0) for reason, count in lost.items()}
        new = {reason: count for reason, count in new.items() if count > 0}
        if new:
            self._recorded_losses = lost
            host = {"hostname": self._labels.get("host", ""), "process_index": self._labels.get("process_index", "")}
            self.write(LOSSES_NAMESPACE, {"lost_values": new, **host})


def _started_shipper(
    root: Path, project: str, connect: Callable[[], LoggingTransport] | None, grace_period_seconds: float
) -> Shipper:
    from ml_diagnostics_common.shipper import Shipper, find_and_connect

    shipper = Shipper(
        LOG_ID,
        root=root,
        connect=connect or functools.partial(find_and_connect, project or None),
        grace_period_seconds=grace_period_seconds,
        announces_path=False,  # machinelearning_run logs the path of the run's folder.
    )
    shipper.start()
    return shipper
