"""The HTTP client of all our REST clients: one authorized request, one response, within a time and a size.

A server is not trusted: `_bounded_adapter` limits its responses. google.auth and requests are imported by the first
session, in the thread that opens it.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ml_diagnostics_common.exceptions import MissingExtraError
from ml_diagnostics_common.failures import Kind, RemoteError, classify, response_error

if TYPE_CHECKING:
    import ssl

__all__ = ["LIST_BYTES", "RESPONSE_BYTES", "Answer", "Session", "open_session"]

RESPONSE_BYTES = 4 << 20
"""The limit of a response's body, after decompression."""

LIST_BYTES = 64 << 20
"""The limit of a page of a list: 1,000 entries of Cloud Logging's 256 KiB are unusual, and are split into pages."""


class Answer(NamedTuple):
    """A response with a status of 2xx.

    Attributes:
        status: The HTTP status.
        body: The whole body, decompressed.
    """

    status: int
    body: bytes


class Session:
    """Reused connections and renewed tokens. Made by `open_session`; thread-safe.

    For each request a `requests.Session` reads ~/.netrc, with logins that would replace a token, cookies, and the
    variables for proxies and authorities: half of a request's cost. Here the variables are read once for each server.

    Args:
        credentials: A `google.auth.credentials.Credentials`, which adds the token to each request.
        http: A `requests.Session` of `_bounded_adapter`.
        token_request: Requests for tokens: a `google.auth.transport.Request`.
        ca_certs: A file of the authorities to trust; None for those that requests trusts.
    """

    def __init__(self, credentials: Any, http: Any, token_request: Any, ca_certs: str | None = None) -> None:
        self._credentials = credentials
        self._http = http
        self._token_request = token_request
        self._ca_certs = ca_certs
        self._settings: dict[str, Mapping[str, Any]] = {}

    def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        timeout_seconds: float,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        most_bytes: int = RESPONSE_BYTES,
    ) -> Answer:
        """Make one request, once; again with a new token if the server does not accept the first. Follow no redirects.

        Args:
            method: GET, POST, PATCH, ...
            url: The URL without its query.
            headers: The headers, without a token.
            timeout_seconds: The limit for everything: a new token, headers and body.
            query: The query's parameters.
            body: The body to send.
            most_bytes: The limit of the response's body after decompression; beyond it the connection is closed.

        Raises:
            RemoteError: The status is not 2xx, or there was no whole response in time, or it is too large.
        """
        import requests

        from ml_diagnostics_common._bounded_adapter import Deadline

        deadline = Deadline(time.monotonic() + timeout_seconds)
        token_request = functools.partial(self._token_request, timeout=deadline)
        with _connection_errors(timeout_seconds):
            prepared = requests.PreparedRequest()
            prepared.prepare(method, url, headers={**headers, "Accept-Encoding": "gzip"}, params=query, data=body)
            for is_last in (False, True):
                self._authorize(token_request, method, url, prepared.headers)
                response = self._http.get_adapter(url).send(prepared, timeout=deadline, **self._settings_of(url))
                with contextlib.closing(response):
                    response.raw.most_bytes = most_bytes
                    received = response.raw.read_all()
                if response.status_code != 401 or is_last:
                    break
                self._credentials.refresh(token_request)
        if not 200 <= response.status_code < 300:
            raise response_error(response.status_code, received, response.headers.get("Retry-After"))
        return Answer(response.status_code, received)

    def close(self) -> None:
        """Close the connections; a later request opens others."""
        self._http.close()

    def _settings_of(self, url: str) -> Mapping[str, Any]:
        """Return the proxy and the authorities that the environment specifies for a server."""
        server = "/".join(url.split("/", 3)[:3])
        settings = self._settings.get(server)
        if settings is None:
            settings = self._http.merge_environment_settings(url, {}, True, self._ca_certs, None)
            self._settings[server] = settings
        return settings

    def _authorize(self, token_request: Any, method: str, url: str, headers: MutableMapping[str, str]) -> None:
        try:
            self._credentials.before_request(token_request, method, url, headers)
        except RuntimeError:
            # google-auth requests regional access boundaries, which are optional, in a thread of its own. Python 3.12
            # starts none once the program has ended (gh-104690), when the last requests are sent.
            if not self._credentials.valid:
                raise
            self._credentials.apply(headers)


def open_session(
    credentials: Any, feature: str, *, ca_certs: str | None = None, tls: ssl.SSLContext | None = None
) -> Session:
    """Return a session for an API that these credentials are for.

    Args:
        credentials: A `google.auth.credentials.Credentials`.
        feature: The feature that needs it, for the message if google-auth is missing.
        ca_certs: A file of the authorities to trust; None for those that `requests` trusts.
        tls: A context with a client certificate for the API (mTLS); None for connections without one.

    Raises:
        MissingExtraError: google-auth or requests is not installed.
    """
    try:
        from google.auth.transport.requests import Request

        from ml_diagnostics_common._bounded_adapter import bounded_http
    except ImportError as error:
        raise MissingExtraError(feature, "ml-diagnostics-common", "logging") from error
    # Requests for a token by an adapter of google.auth's own would try four times to connect, each its full time.
    return Session(credentials, bounded_http(0, tls), Request(session=bounded_http(RESPONSE_BYTES)), ca_certs)


@contextlib.contextmanager
def _connection_errors(timeout_seconds: float) -> Iterator[None]:
    import google.auth.exceptions
    import requests
    import urllib3.exceptions

    try:
        yield
    except (
        requests.RequestException,
        urllib3.exceptions.HTTPError,
        google.auth.exceptions.GoogleAuthError,
    ) as error:
        failure = classify(error)
        if failure.kind is Kind.TIMEOUT:
            failure = RemoteError(failure.code, f"no answer in {timeout_seconds:g} s")
        raise failure from error
