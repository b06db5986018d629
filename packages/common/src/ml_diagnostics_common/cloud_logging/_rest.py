"""Cloud Logging over REST, with the credentials of google-auth and pages decoded by `PageDecoder`.

The HTTP client of google-cloud-logging is not used: its writes wait a fixed minute, and its pages are slow to decode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ml_diagnostics_common._version import __version__
from ml_diagnostics_common.authorized_requests import LIST_BYTES, RESPONSE_BYTES, open_session
from ml_diagnostics_common.cloud_logging._decoding import UNREADABLE, PageDecoder
from ml_diagnostics_common.cloud_logging._transport import Page, TransportError, entry_error
from ml_diagnostics_common.credentials import CloudEnvironment
from ml_diagnostics_common.endpoints import universe_domain
from ml_diagnostics_common.exceptions import CredentialsError
from ml_diagnostics_common.failures import Kind, RemoteError, excerpt

if TYPE_CHECKING:
    import ssl

__all__ = ["RestTransport"]


class RestTransport:
    """A `LoggingTransport` over HTTP.

    Args:
        cloud: The project and credentials.
        url: The server in place of Google's, with or without `/v2`; None for Google's.

    Raises:
        MissingExtraError: google-auth or requests is not installed.
        CredentialsError: A client certificate is configured that cannot be used.
    """

    def __init__(self, cloud: CloudEnvironment, *, url: str | None = None) -> None:
        client_certificate = _client_certificate()
        self._session = open_session(cloud.credentials, "Cloud Logging", tls=client_certificate)
        self.project = cloud.project
        self.principal = cloud.principal
        base = (url or _google_url(cloud.credentials, client_certificate)).rstrip("/")
        self._api = base if base.endswith("/v2") else f"{base}/v2"
        self._headers = {
            "Content-Type": "application/json",
            "User-Agent": f"ml-diagnostics/{__version__} (gzip)",
        }
        self._encode = msgspec.json.Encoder().encode
        self._decoder = PageDecoder()

    def write(self, entries: Sequence[Mapping[str, Any]], *, timeout_seconds: float) -> None:
        """See `LoggingTransport.write`."""
        try:
            body = self._encode({"entries": entries, "partialSuccess": True})
        except (TypeError, ValueError, OverflowError) as error:
            raise TransportError("INVALID_ARGUMENT", f"JSON cannot encode an entry ({error})") from error
        answer = self._post("entries:write", body, timeout_seconds, RESPONSE_BYTES)
        if not _is_object(answer):
            # A proxy's page may have status 200, too: the entries may not be written.
            raise TransportError("UNAVAILABLE", f"expected a JSON object, got {excerpt(answer)}")

    def list_page(
        self, filter_: str, *, order_by: str, page_size: int, page_token: str = "", timeout_seconds: float
    ) -> Page:
        """See `LoggingTransport.list_page`."""
        request = {
            "resourceNames": [f"projects/{self.project}"],
            "filter": filter_,
            "orderBy": order_by,
            "pageSize": page_size,
        }
        if page_token:
            request["pageToken"] = page_token
        body = self._post("entries:list", self._encode(request), timeout_seconds, LIST_BYTES)
        try:
            return self._decoder.page(body)
        except UNREADABLE as error:
            raise TransportError("UNAVAILABLE", f"the page cannot be decoded: {error}") from error

    def close(self) -> None:
        """See `LoggingTransport.close`."""
        self._session.close()

    def _post(self, method: str, body: bytes, timeout_seconds: float, most_bytes: int) -> bytes:
        """Make one request, and return the body of the response."""
        url = f"{self._api}/{method}"
        try:
            answer = self._session.send(
                "POST", url, headers=self._headers, timeout_seconds=timeout_seconds, body=body, most_bytes=most_bytes
            )
        except RemoteError as failure:
            raise _error(failure) from failure
        return answer.body


def _client_certificate() -> ssl.SSLContext | None:
    """Return TLS with the client certificate that Google's clients present (mTLS), if one is configured."""
    try:
        # Not in older releases of google-auth: with them only gRPC presents one.
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.mtls import get_default_ssl_context
    except ImportError:
        return None
    try:
        return get_default_ssl_context()
    except GoogleAuthError as error:
        raise CredentialsError(
            f"the client certificate (mTLS) cannot be used: {error}; correct its configuration, or set "
            "GOOGLE_API_USE_CLIENT_CERTIFICATE=false"
        ) from error


def _google_url(credentials: Any, client_certificate: ssl.SSLContext | None) -> str:
    """Return Google's URL of Cloud Logging, chosen as its own clients do: https://google.aip.dev/auth/4114."""
    if client_certificate is not None:
        from google.auth.transport.mtls import should_use_mtls_endpoint

        if should_use_mtls_endpoint(True):
            return "https://logging.mtls.googleapis.com"
    return f"https://logging.{universe_domain(credentials)}"


# --- Errors -------------------------------------------------------------------------------------------


def _error(failure: RemoteError) -> TransportError:
    error = TransportError.of(failure)
    is_of_proxy = failure.status and not failure.is_from_api
    if is_of_proxy and (failure.access or failure.kind is Kind.CONFLICT or failure.status == 400):
        # A proxy does not know the entries, and Cloud Logging may accept them. It may know the limit of a request's
        # size (413): a smaller batch may pass.
        error.code = "UNAVAILABLE"
    for detail in failure.details:
        error.entry_errors.update(_entry_errors(detail.get("logEntryErrors"), failure.retry_after_seconds))
    return error


def _entry_errors(value: Any, retry_after_seconds: float | None) -> dict[int, TransportError]:
    """Decode the errors of single entries; an index that is not a number is decoded as one that was not sent."""
    refused = {}
    for index, error in value.items() if isinstance(value, dict) else ():
        described = error if isinstance(error, dict) else {}
        entry_number = int(index) if index.isascii() and index.isdecimal() and len(index) < 10 else -1
        refused[entry_number] = entry_error(described.get("code"), described.get("message"), retry_after_seconds)
    return refused


def _is_object(body: bytes) -> bool:
    try:
        return isinstance(msgspec.json.decode(body), dict)
    except UNREADABLE:
        return False
