"""Cloud Logging as a part of a `LogSource`: searched for when it is read first, and paused when it fails."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ml_diagnostics_common.entry import LogEntry
from ml_diagnostics_common.environment import Backend, configured_backend
from ml_diagnostics_common.exceptions import CloudLoggingError, CredentialsError, MissingExtraError
from ml_diagnostics_common.guard import job_logger
from ml_diagnostics_common.reader import EntryReader

if TYPE_CHECKING:
    from ml_diagnostics_common.backoff import RequestBudget
    from ml_diagnostics_common.cloud_logging import LoggingTransport, PageReader
    from ml_diagnostics_common.credentials import CloudEnvironment

__all__ = ["PATIENCE_SECONDS", "Cloud", "CloudPart"]

_logger = job_logger("ml_diagnostics")

PATIENCE_SECONDS = 30.0
_REQUEST_SECONDS = 30.0


class Cloud:
    """Cloud Logging of one project, for all sources that read it.

    Args:
        environment: The project and credentials; None searches for them at the first read.
        patience_seconds: How long requests for one page may fail, and how long one may take, before the read gives up.
        logs_failures: True to log a warning when reads start to fail. Commands print `notes_of` instead.

    Attributes:
        pause_seconds: How long nothing is requested after a failure.
        project: The project's id; empty until it is found.
        absence: The reason why there is no cloud to read, if none was found.
        failure: The error of the last read, if it failed.
    """

    pause_seconds = 60.0

    def __init__(
        self,
        environment: CloudEnvironment | None = None,
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        logs_failures: bool = True,
    ) -> None:
        self.project = environment.project if environment is not None else ""
        self.absence: Exception | None = None
        self.failure: CloudLoggingError | None = None
        self._environment = environment
        self._patience_seconds = patience_seconds
        self._logs_failures, self._is_logged = logs_failures, False
        self._transport: LoggingTransport | None = None
        self._budget: RequestBudget | None = None
        self._paused_until = 0.0

    @classmethod
    def configured(cls, *, patience_seconds: float = PATIENCE_SECONDS, logs_failures: bool = True) -> Cloud | None:
        """Return the cloud that ML_DIAGNOSTICS_BACKEND asks for; None if it is `local`.

        Raises:
            ConfigurationError: ML_DIAGNOSTICS_BACKEND has another value.
            CredentialsError: It is `cloud`, and there is no project or no credentials.
        """
        backend = configured_backend()
        if backend is Backend.LOCAL:
            return None
        cloud = cls(patience_seconds=patience_seconds, logs_failures=logs_failures)
        if backend is Backend.CLOUD:
            cloud.connect()
        return cloud

    def connect(self) -> LoggingTransport:
        """Return the transport; finds project and credentials first, which may take a second.

        Raises:
            CredentialsError: There is no project, or there are no credentials.
            MissingExtraError: google-cloud-logging is not installed.
            ConfigurationError: An endpoint in the environment is not an address.
        """
        if self._transport is None:
            from ml_diagnostics_common.backoff import RequestBudget
            from ml_diagnostics_common.cloud_logging import make_transport
            from ml_diagnostics_common.credentials import find_cloud

            environment = self._environment or find_cloud(environ=os.environ)
            self._transport = make_transport(environment)
            self._budget = RequestBudget(50)  # A project's default quota is 60 a minute.
            self.project, self.absence = environment.project, None
        return self._transport

    def is_found(self) -> bool:
        """Return True if there is a cloud; searches for one at most once in `pause_seconds`."""
        if self._transport is None and not self.is_paused():
            try:
                self.connect()
            except (CredentialsError, MissingExtraError) as error:
                self.absence = error
                self._pause()
                _logger.info("logs are read from the journal alone: %s", error)
        return self._transport is not None

    def is_paused(self) -> bool:
        """Return True shortly after a failure."""
        return time.monotonic() < self._paused_until

    def page_reader(self) -> PageReader:
        """Return the object that requests pages; its requests count against the quota that all sources share."""
        from ml_diagnostics_common.cloud_logging import PageReader

        return PageReader(
            self.connect(),
            budget=self._budget,
            timeout_seconds=min(self._patience_seconds, _REQUEST_SECONDS),
            patience_seconds=self._patience_seconds,
        )

    def until_failure(self, batches: Iterator[list[LogEntry]]) -> Iterator[list[LogEntry]]:
        """Yield batches until Cloud Logging fails; then nothing is requested for `pause_seconds`."""
        try:
            yield from batches
            self._is_logged = False
        except CloudLoggingError as error:
            self.failure = error
            self._pause()
            if self._logs_failures and not self._is_logged:
                _logger.warning("Cloud Logging could not be read to the end: %s", error)
                self._is_logged = True

    def _pause(self) -> None:
        self._paused_until = time.monotonic() + self.pause_seconds


class CloudPart:
    """An `EntryReader` of Cloud Logging that yields nothing while Cloud Logging fails, or is not requested.

    Args:
        cloud: Cloud Logging.
        new_reader: Return a reader that starts at a position; called at the first read.
        position: The position of an earlier part.

    Attributes:
        is_requested: False to yield nothing.
    """

    def __init__(
        self, cloud: Cloud, new_reader: Callable[[Mapping[str, Any]], EntryReader], position: Mapping[str, Any]
    ) -> None:
        self.is_requested = True
        self._cloud, self._new_reader, self._position = cloud, new_reader, dict(position)
        self._reader: EntryReader | None = None

    def read_new(self) -> Iterator[list[LogEntry]]:
        """See `EntryReader`."""
        if self.is_requested and not self._cloud.is_paused():
            self._reader = self._reader or self._new_reader(self._position)
            yield from self._cloud.until_failure(self._reader.read_new())

    def position(self) -> dict[str, Any]:
        """See `EntryReader`; before the first read, where an earlier reader stopped."""
        return self._reader.position() if self._reader is not None else self._position
