"""Clients of Google's APIs: with gcloud's settings, a deadline, and retries where those are safe.

They are clients of google-api-python-client, built from API descriptions in this package.
"""

from __future__ import annotations

import functools
import logging
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ml_diagnostics_common.backoff import Backoff, EndlessListError, PageTokens, Retries
from ml_diagnostics_common.command.console import Console
from ml_diagnostics_common.command.errors import CommandError
from ml_diagnostics_common.failures import Kind, RemoteError

from xprofiler._version import __version__
from xprofiler.gcloud.errors import as_xprofiler_error
from xprofiler.gcloud.settings import GcloudSettings

if TYPE_CHECKING:
    from ml_diagnostics_common.authorized_requests import Session
    from ml_diagnostics_common.credentials import CloudEnvironment
    from ml_diagnostics_common.storage import GoogleCloudStorage

__all__ = ["GoogleApi", "log_requests"]

_T = TypeVar("_T")
_MOST_TRIES: Final = 5
_CALL_SECONDS: Final = 60.0  # No retries after this time.
_LOGGER: Final = "urllib3.connectionpool"  # A line for each answer: http://host "GET /path HTTP/1.1" 200 123
_SECRET: Final = re.compile(r"(?<=upload_id=)[^&\s\"]+")  # It authorizes continuing the upload.


def _once(make: Callable[[GoogleApi], _T]) -> Callable[[GoogleApi], _T]:
    """Create a value once, for all threads; functools.cached_property has no lock since Python 3.12."""

    @functools.wraps(make)
    def made(api: GoogleApi) -> _T:
        with api._lock:
            if make.__name__ not in api._made:
                api._made[make.__name__] = make(api)
            thing: _T = api._made[make.__name__]
            return thing

    return made


class GoogleApi:
    """Google's APIs. Thread-safe. Imports and requests wait until the first use.

        api = GoogleApi(GcloudSettings.load(), console)
        request = api.compute.zones().get(project=api.project, zone="us-central1-a", fields="name")
        api.execute(request, "find the zone us-central1-a")

    Args:
        settings: gcloud's settings.
        console: Receives every request, with `--verbose`.
        role: The role on Compute to suggest if a permission is missing.
        request_seconds: The default timeout of a request.
        clock: Return monotonic seconds.
        sleep: Wait for a number of seconds.
    """

    def __init__(
        self,
        settings: GcloudSettings,
        console: Console,
        *,
        role: str = "roles/compute.instanceAdmin.v1",
        request_seconds: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.settings = settings
        self.console = console
        self._role = role
        self._request_seconds = request_seconds
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.RLock()  # One value may need another.
        self._made: dict[str, Any] = {}
        self._connections: list[Any] = []
        weakref.finalize(self, _close_all, self._connections)

    @property
    @_once
    def login(self) -> CloudEnvironment:
        """The project and the credentials, loaded at the first use.

        Raises:
            NotPermittedError: There are no credentials.
            UsageError: No project is set.
        """
        from xprofiler.gcloud.login import find_login

        return find_login(self.settings, self.console)

    @property
    def project(self) -> str:
        """The project's id. Raises as `login`."""
        return self.login.project

    @property
    def principal(self) -> str:
        """The account of the credentials, for messages."""
        return self.login.principal or getattr(self.login.credentials, "account", "") or "this login"

    @property
    @_once
    def _storage_login(self) -> CloudEnvironment:
        """The credentials for Cloud Storage. Objects belong to no project, so none needs to be set."""
        from xprofiler.gcloud.login import find_login

        if self.settings.project or "login" in self._made:
            return self.login
        environ = {**self.settings.environ, "CLOUDSDK_CORE_PROJECT": "none"}
        return find_login(replace(self.settings, environ=environ), self.console)

    @property
    @_once
    def compute(self) -> Any:
        """A client of Compute Engine's API, v1: the methods that are in `compute_api.json`."""
        return self._client("compute")

    @property
    @_once
    def tpu(self) -> Any:
        """A client of the Cloud TPU API, v2: the methods that are in `tpu_api.json`."""
        return self._client("tpu")

    @property
    @_once
    def hypercomputecluster(self) -> Any:
        """A client of the Cluster Director API, v1alpha: the methods that are in `hypercomputecluster_api.json`."""
        return self._client("hypercomputecluster")

    def _client(self, service: str) -> Any:
        """Return a client built from our excerpt of Google's description of a service.

        The full description of Compute Engine takes 50 ms and 17 MB to read. All descriptions take 111 MB on disk,
        and are removed from some container images.
        """
        from googleapiclient.discovery import build_from_document

        description = Path(__file__).with_name(f"{service}_api.json").read_text(encoding="utf-8")
        return build_from_document(
            description, http=_Http(self._session, self._request_seconds), client_options=self._at(service)
        )

    @property
    @_once
    def storage(self) -> GoogleCloudStorage:
        """Cloud Storage with the same credentials, including gcloud's login."""
        return self.storage_within(_CALL_SECONDS)

    def storage_within(self, seconds: float) -> GoogleCloudStorage:
        """Return Cloud Storage with a shorter deadline.

        Args:
            seconds: The deadline of a call, including retries.
        """
        from ml_diagnostics_common.storage import GoogleCloudStorage

        is_emulated = bool(self.settings.environ.get("STORAGE_EMULATOR_HOST"))  # Emulators have no login.
        credentials = None if is_emulated else self._storage_login.credentials
        storage = GoogleCloudStorage(credentials, environ=self.settings.environ, deadline_seconds=seconds)
        self._connections.append(storage)
        return storage

    def execute(
        self,
        request: Any,
        doing: str,
        *,
        timeout_seconds: float | None = None,
        is_repeatable: bool | None = None,
    ) -> dict[str, Any]:
        """Send a request, and return the answer. Retry temporary failures.

        Args:
            request: A request from a method of a client.
            doing: The purpose, for messages: "list the VMs".
            timeout_seconds: The timeout of one attempt; None selects `request_seconds`.
            is_repeatable: True if it is safe to retry. None: true for a GET, or with a requestId.

        Raises:
            NotFoundError: The resource does not exist.
            NotPermittedError: The credentials lack a permission.
            TimedOutError: There was no answer in time.
            CommandError: The request was rejected, or could not be sent.
        """
        if is_repeatable is None:
            is_repeatable = request.method == "GET" or "requestId=" in request.uri
        request.headers["user-agent"] = (
            f"xprofiler/{__version__} (gzip)"  # Google's servers compress only with this suffix.
        )
        deadline = self._clock() + _CALL_SECONDS
        retries = Retries(
            Backoff(0.2, 10.0),
            seconds_left=lambda: deadline - self._clock(),
            most_tries=_MOST_TRIES if is_repeatable else 1,
            # A timeout of ours is final, since it was long enough.
            retry_if=lambda failure: failure.is_temporary and (failure.kind is not Kind.TIMEOUT or failure.status > 0),
            sleep=self._sleep_before_retry,
        )
        try:
            return retries(lambda: self._execute_once(request, timeout_seconds))
        except (RemoteError, ValueError) as error:
            raise as_xprofiler_error(error, doing, request.uri, self.project, self.principal, self._role) from error

    def _execute_once(self, request: Any, timeout_seconds: float | None) -> dict[str, Any]:
        self.console.detail(f"{request.method} {request.uri}")
        try:
            answer = request.execute(http=_Http(self._session, timeout_seconds or self._request_seconds))
        except RemoteError as error:
            self.console.detail(f"  {error}")
            raise
        if not isinstance(answer, dict):  # A proxy's page may have status 200, but is text.
            raise ValueError(str(answer)[:100])
        return answer

    def _sleep_before_retry(self, seconds: float) -> None:
        self.console.detail(f"  retrying in {seconds:.1f} s")
        self._sleep(seconds)

    def pages(self, request: Any, following: Callable[[Any, Any], Any], doing: str) -> Iterator[dict[str, Any]]:
        """Yield the pages of a list.

        Args:
            request: The request for the first page.
            following: Return the request for the next page, or None, given a request and its page.
            doing: See `execute`.

        Raises:
            CommandError: See `execute`; also if the server repeats a page token, so the list would never end.
        """
        tokens = PageTokens()
        while request is not None:
            page = self.execute(request, doing)
            yield page
            try:
                tokens.next(str(page.get("nextPageToken") or ""), has_news=bool(page.get("items")))
            except EndlessListError as error:
                raise CommandError(f"could not {doing} in project {self.project}: {error}") from error
            request = following(request, page)

    def _at(self, service: str) -> dict[str, str]:
        """Return the client options for the endpoint of a service."""
        url = self.settings.endpoint(service)
        return {"api_endpoint": url} if url else {}

    @property
    @_once
    def _session(self) -> Session:
        from ml_diagnostics_common.authorized_requests import open_session

        ca_certs = self.settings.value("core", "custom_ca_certs_file") or None
        session = open_session(self.login.credentials, "Compute Engine", ca_certs=ca_certs)
        self._connections.append(session)
        return session


def _close_all(connections: list[Any]) -> None:
    for connection in connections:
        connection.close()


class _Http:
    """The part of an `httplib2.Http` that google-api-python-client needs: responses are bounded in size and time.

    Args:
        session: The connections, which several threads may use.
        timeout_seconds: The timeout of a request.
    """

    def __init__(self, session: Session, timeout_seconds: float) -> None:
        self._session = session
        self._timeout_seconds = timeout_seconds

    def request(
        self,
        uri: str,
        method: str = "GET",
        body: str | bytes | None = None,
        headers: Mapping[str, str] | None = None,
        **_: Any,
    ) -> tuple[Any, bytes]:
        """Make one request. Raises RemoteError."""
        import httplib2
        from ml_diagnostics_common.authorized_requests import LIST_BYTES

        # httplib2 and the session would both ask for gzip.
        sent = {name: value for name, value in (headers or {}).items() if name.lower() != "accept-encoding"}
        answer = self._session.send(
            method,
            uri,
            headers=sent,
            timeout_seconds=self._timeout_seconds,
            body=body.encode() if isinstance(body, str) else body,
            most_bytes=LIST_BYTES,
        )
        return httplib2.Response({"status": str(answer.status)}), answer.body

    def close(self) -> None:
        """Do nothing: the session is closed by its owner."""


class _ConsoleHandler(logging.Handler):
    """Prints log records to a console."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.DEBUG)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record of a response."""
        message = record.getMessage()
        if "HTTP/" in message:
            with suppress(OSError):  # A closed terminal must not fail the request; the next output raises.
                self._console.detail(_SECRET.sub("...", message))


@contextmanager
def log_requests(console: Console) -> Iterator[None]:
    """Print requests within the block, also of clients without a console: Cloud Storage, and requests for tokens."""
    logger, handler = logging.getLogger(_LOGGER), _ConsoleHandler(console)
    level = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
