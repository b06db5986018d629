"""CheckpointBadputCalculator: how long saves and restores of checkpoints blocked a job.

It reads the entries that Orbax logs for each save and restore (see `CheckpointLogger`). Every host logs the same save:
a step's time is the mean over its hosts, and the statistics are over these means. All times are in seconds.

    python -m ml_goodput_measurement.checkpoint_badput_calculator --job_name run7 --logger_name goodput_run7
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ml_diagnostics_common.exceptions import ConfigurationError
from ml_diagnostics_common.files import in_bucket
from ml_diagnostics_common.guard import job_logger

from ml_goodput_measurement._record.arguments import checked_name, shown

if TYPE_CHECKING:
    import google.cloud.logging
    from ml_diagnostics_common.log_source import LogSource

__all__ = [
    "OPERATION_TYPE_EMERGENCY_RESTORE",
    "OPERATION_TYPE_LOCAL",
    "OPERATION_TYPE_PERSISTENT",
    "OPERATION_TYPE_PERSISTENT_AND_LOCAL",
    "OPERATION_TYPE_RESTORE",
    "OPERATION_TYPE_SAVE",
    "CheckpointBadputCalculator",
    "CheckpointLoggerOptions",
    "RestoreCheckpointManagerVerticalStepStats",
    "RestoreProcessedStep",
    "SaveCheckpointManagerVerticalStepStats",
    "SaveProcessedStep",
]

_log = job_logger("ml_diagnostics.goodput")

OPERATION_TYPE_SAVE = "save"
OPERATION_TYPE_RESTORE = "restore"
OPERATION_TYPE_EMERGENCY_RESTORE = "emergency_restore"
OPERATION_TYPE_LOCAL = "local"
OPERATION_TYPE_PERSISTENT = "persistent"
OPERATION_TYPE_PERSISTENT_AND_LOCAL = "persistent_and_local"

_EVENT_TYPES = (OPERATION_TYPE_SAVE, OPERATION_TYPE_RESTORE, OPERATION_TYPE_EMERGENCY_RESTORE)
_TIERS = (OPERATION_TYPE_LOCAL, OPERATION_TYPE_PERSISTENT, OPERATION_TYPE_PERSISTENT_AND_LOCAL)

Entry = Mapping[str, Any]


@dataclass
class CheckpointLoggerOptions:
    """Select the log to read.

    Attributes:
        job_name: The job.
        logger_name: The log.
        client: A `google.cloud.logging.Client` to read it with. None: the journal of this machine, and Cloud Logging
            where a project and credentials are found.
        use_goodput_logger: Read nothing: you set `entries`.
    """

    job_name: str = "checkpoint_job"
    logger_name: str = "checkpoint_logger"
    client: google.cloud.logging.Client | None = None
    use_goodput_logger: bool = False


@dataclass
class SaveCheckpointManagerVerticalStepStats:
    """Statistics of all saves, in seconds; 0.0 without saves. Standard deviations are those of a sample."""

    total_checkpoint_manager_blocking_time: float = 0.0
    average_checkpoint_manager_blocking_time: float = 0.0
    minimum_checkpoint_manager_blocking_time: float = 0.0
    maximum_checkpoint_manager_blocking_time: float = 0.0
    standard_deviation_checkpoint_manager_blocking_time: float = 0.0

    total_checkpointer_blocking_time: float = 0.0
    average_checkpointer_blocking_time: float = 0.0
    minimum_checkpointer_blocking_time: float = 0.0
    maximum_checkpointer_blocking_time: float = 0.0
    standard_deviation_checkpointer_blocking_time: float = 0.0

    total_wait_for_prev_time: float = 0.0
    average_wait_for_prev_time: float = 0.0
    minimum_wait_for_prev_time: float = 0.0
    maximum_wait_for_prev_time: float = 0.0
    standard_deviation_wait_for_prev_time: float = 0.0

    total_get_old_steps_time: float = 0.0
    average_get_old_steps_time: float = 0.0
    minimum_get_old_steps_time: float = 0.0
    maximum_get_old_steps_time: float = 0.0
    standard_deviation_get_old_steps_time: float = 0.0


@dataclass
class RestoreCheckpointManagerVerticalStepStats:
    """Statistics of all restores, in seconds; 0.0 without restores. Standard deviations are those of a sample."""

    total_checkpoint_manager_time: float = 0.0
    average_checkpoint_manager_time: float = 0.0
    minimum_checkpoint_manager_time: float = 0.0
    maximum_checkpoint_manager_time: float = 0.0
    standard_deviation_checkpoint_manager_time: float = 0.0

    total_restore_time: float = 0.0
    average_restore_time: float = 0.0
    minimum_restore_time: float = 0.0
    maximum_restore_time: float = 0.0
    standard_deviation_restore_time: float = 0.0

    total_broadcast_time: float = 0.0
    average_broadcast_time: float = 0.0
    minimum_broadcast_time: float = 0.0
    maximum_broadcast_time: float = 0.0
    standard_deviation_broadcast_time: float = 0.0


@dataclass
class SaveProcessedStep:
    """The sums of one step's saves to one kind of storage over the `occurrence` hosts that reported one.

    A name of the public package that programs import; nothing here uses it.
    """

    step: str = ""
    total_checkpoint_manager_blocking_time: float = 0.0
    total_checkpointer_blocking_time: float = 0.0
    total_wait_for_prev_time: float = 0.0
    total_get_old_steps_time: float = 0.0
    occurrence: int = 0


@dataclass
class RestoreProcessedStep:
    """The sums of one step's restores from one kind of storage over the `occurrence` hosts that reported one.

    `broadcast_occurrence` of them also broadcast it to other slices. A name of the public package that programs
    import; nothing here uses it.
    """

    step: str = ""
    total_checkpoint_manager_time: float = 0.0
    total_restore_time: float = 0.0
    total_broadcast_time: float = 0.0
    broadcast_occurrence: int = 0
    occurrence: int = 0


class CheckpointBadputCalculator:
    """Compute statistics of the saves and restores of one job.

    Attributes:
        skipped: Counts, by reason, the entries of the last calculation that could not be read.
    """

    def __init__(self, options: CheckpointLoggerOptions | None = None) -> None:
        """Read nothing yet.

        Args:
            options: The log to read; None for a job and a log of the default names.

        Raises:
            ConfigurationError: A name is empty.
        """
        self._options = options or CheckpointLoggerOptions()
        checked_name("job_name", self._options.job_name)
        checked_name("logger_name", self._options.logger_name)
        self._source: LogSource | None = None
        self._read: list[dict[str, Any]] = []
        self._given: Sequence[Any] | None = None
        self.skipped: Counter[str] = Counter()

    @property
    def entries(self) -> Sequence[Any]:
        """The entries to compute from: those that you set, else those that were read last."""
        return self._read if self._given is None else self._given

    @entries.setter
    def entries(self, entries: Iterable[Any] | None) -> None:
        self._given = None if entries is None else list(entries)

    def read_entries(self) -> list[dict[str, Any]]:
        """Read the log, and return the job's entries of saves and restores.

        Raises:
            CredentialsError: ML_DIAGNOSTICS_BACKEND is `cloud` and no cloud is found.
        """
        if self._options.client is not None:
            payloads = _from_client(self._options.client, self._options.logger_name, self._options.job_name)
            self._read = [payload for payload in payloads if self._is_ours(payload)]
        else:
            for entries in self._log_source().read_new():
                self._read += [entry.payload for entry in entries if self._is_ours(entry.payload)]
        return list(self._read)

    def is_valid_save_stats(
        self, step_stats: Entry, operation_type: str | None = OPERATION_TYPE_PERSISTENT_AND_LOCAL
    ) -> bool:
        """Return True for an entry of a save to a bucket (`persistent`), to a disk (`local`), or to either."""
        if step_stats.get("event_type") != OPERATION_TYPE_SAVE:
            return False
        return _is_wanted(operation_type, is_local=_is_on_disk(step_stats))

    def is_valid_restore_stats(
        self, step_stats: Entry, operation_type: str | None = OPERATION_TYPE_PERSISTENT_AND_LOCAL
    ) -> bool:
        """Return True for an entry of a restore of this kind: a `local` one is an emergency restore."""
        if step_stats.get("event_type") not in (OPERATION_TYPE_RESTORE, OPERATION_TYPE_EMERGENCY_RESTORE):
            return False
        return _is_wanted(operation_type, is_local=_is_emergency(step_stats))

    def calculate_save_operation_checkpoint_manager_blocking_time(
        self, operation_type: str | None = OPERATION_TYPE_PERSISTENT_AND_LOCAL
    ) -> SaveCheckpointManagerVerticalStepStats:
        """Return how long saves blocked the job, by phase.

        Args:
            operation_type: `persistent`, `local`, or both. A step that is saved to both counts as two saves.

        Raises:
            ConfigurationError: The operation type is none of these.
            CredentialsError: See `read_entries`.
        """
        steps = _by_step(self._valid(self.is_valid_save_stats, operation_type, "checkpoint_manager_blocking"))
        phases = ("checkpoint_manager_blocking", "checkpointer_blocking", "wait_for_prev", "get_old_steps")
        return SaveCheckpointManagerVerticalStepStats(**_statistics({phase: _means(steps, phase) for phase in phases}))

    def calculate_restore_operation_checkpoint_manager_blocking_time(
        self, operation_type: str | None = OPERATION_TYPE_PERSISTENT_AND_LOCAL
    ) -> RestoreCheckpointManagerVerticalStepStats:
        """Return how long restores blocked the job, by phase.

        Args:
            operation_type: `persistent`, `local` (emergency restores), or both.

        Raises:
            ConfigurationError: The operation type is none of these.
            CredentialsError: See `read_entries`.
        """
        steps = _by_step(self._valid(self.is_valid_restore_stats, operation_type, "checkpoint_manager"))
        broadcasts = [[entry for entry in step if _is_emergency(entry)] for step in steps]
        means = {
            "checkpoint_manager": _means(steps, "checkpoint_manager"),
            "restore": _means(steps, "checkpointer"),
            "broadcast": _means(broadcasts, "broadcast"),
        }
        return RestoreCheckpointManagerVerticalStepStats(**_statistics(means))

    def _valid(
        self, is_valid: Callable[[Entry, str | None], bool], operation_type: str | None, whole: str
    ) -> list[Entry]:
        """Return the entries of a kind that have a step and a duration; count the others of that kind."""
        if operation_type not in (None, *_TIERS):
            raise ConfigurationError(
                f"expected operation_type to be one of {', '.join(_TIERS)}, got {shown(operation_type)}"
            )
        if self._given is None and not self._options.use_goodput_logger:
            self.read_entries()
        self.skipped = Counter()
        valid = []
        for entry in self.entries:
            if not isinstance(entry, Mapping):
                self.skipped["not a mapping"] += 1
            elif is_valid(entry, operation_type):
                if _is_number(entry.get("step")) and _is_number(entry.get(f"{whole}_duration_secs")):
                    valid.append(entry)
                else:
                    self.skipped["no step or no duration"] += 1
        if self.skipped:
            _log.warning("checkpoints of %s: skipped entries: %s", self._options.job_name, dict(self.skipped))
        return valid

    def _is_ours(self, payload: Any) -> bool:
        return (
            isinstance(payload, Mapping)
            and payload.get("job_name") == self._options.job_name
            and payload.get("event_type") in _EVENT_TYPES
        )

    def _log_source(self) -> LogSource:
        if self._source is None:
            from ml_diagnostics_common.log_source import Cloud

            from ml_goodput_measurement._query.sources import open_source

            options = self._options
            self._source = open_source(options.logger_name, cloud=Cloud.configured(), job_name=options.job_name)
        return self._source


def _from_client(client: google.cloud.logging.Client, logger_name: str, job_name: str) -> Iterable[Any]:
    from ml_diagnostics_common.cloud_logging import quoted

    kinds = " OR ".join(f'jsonPayload.event_type="{kind}"' for kind in _EVENT_TYPES)
    # The client limits a filter without a timestamp to the last day.
    wanted = f'jsonPayload.job_name={quoted(job_name)} AND ({kinds}) AND timestamp>="1970-01-01T00:00:00Z"'
    found = client.logger(logger_name).list_entries(filter_=wanted, order_by="timestamp asc", page_size=1000)
    return (entry.payload for entry in found)


def _is_wanted(operation_type: str | None, *, is_local: bool) -> bool:
    if operation_type == OPERATION_TYPE_LOCAL:
        return is_local
    return not (operation_type == OPERATION_TYPE_PERSISTENT and is_local)


def _is_on_disk(entry: Entry) -> bool:
    return not in_bucket(str(entry.get("directory")))


def _is_emergency(entry: Entry) -> bool:
    return entry.get("event_type") == OPERATION_TYPE_EMERGENCY_RESTORE


def _by_step(entries: Iterable[Entry]) -> list[list[Entry]]:
    """Group the entries of the hosts by step and kind of storage."""
    steps: dict[tuple[int, bool], list[Entry]] = {}
    for entry in entries:
        steps.setdefault((int(entry["step"]), _is_on_disk(entry)), []).append(entry)
    return list(steps.values())


def _means(steps: Iterable[Sequence[Entry]], phase: str) -> list[float]:
    """Return the mean duration of a phase over the hosts of each step that has any; 0.0 if Orbax did not measure it."""
    key = f"{phase}_duration_secs"
    return [
        statistics.fmean(entry[key] if _is_number(entry.get(key)) else 0.0 for entry in step) for step in steps if step
    ]


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e18


def _statistics(times: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the fields of statistics by name; without times, the defaults of the fields are right."""
    numbers: dict[str, float] = {}
    for name, values in times.items():
        if values:
            numbers[f"total_{name}_time"] = sum(values)
            numbers[f"average_{name}_time"] = statistics.fmean(values)
            numbers[f"minimum_{name}_time"] = min(values)
            numbers[f"maximum_{name}_time"] = max(values)
            numbers[f"standard_deviation_{name}_time"] = statistics.stdev(values) if len(values) > 1 else 0.0
    return numbers


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the statistics of a job's saves and restores, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="checkpoint_badput_calculator", description="How long checkpoints blocked a job, in seconds."
    )
    parser.add_argument("--job_name", default=CheckpointLoggerOptions.job_name, help="name of the job")
    parser.add_argument("--logger_name", default=CheckpointLoggerOptions.logger_name, help="name of its log")
    parser.add_argument("--client", metavar="PROJECT", help="read only the Cloud Logging of this project")
    parser.add_argument("--operation_type", choices=_TIERS, default=OPERATION_TYPE_PERSISTENT_AND_LOCAL)
    given = parser.parse_args(arguments)
    client = None
    if given.client:
        from google.cloud import logging as cloud_logging

        client = cloud_logging.Client(project=given.client)
    calculator = CheckpointBadputCalculator(CheckpointLoggerOptions(given.job_name, given.logger_name, client))
    _print("save", calculator.calculate_save_operation_checkpoint_manager_blocking_time(given.operation_type))
    _print("restore", calculator.calculate_restore_operation_checkpoint_manager_blocking_time(given.operation_type))
    return 0


def _print(operation: str, stats: Any) -> None:
    for name, seconds in asdict(stats).items():
        print(f"{operation} {name}: {seconds:.6f}")


if __name__ == "__main__":
    raise SystemExit(main())
