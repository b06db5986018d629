"""Cloud Logging over REST: google.auth's own session, and JSON decoded straight into what we keep of it.

The google client's HTTP `logging_api` is not used: its writes wait a fixed minute, and no public means change
that. Its `list_entries` builds a wrapper object an entry, which is where 19 of 20 parts of its time go.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ml_diagnostics_common._version import __version__
from ml_diagnostics_common.authorized_requests import LIST_BYTES, RESPONSE_BYTES, open_session
from ml_diagnostics_common.cloud_logging.decoding import EntryDecoder, Origin, TimestampParser
from ml_diagnostics_common.cloud_logging.transport import Page, TransportError, entry_error
from ml_diagnostics_common.credentials import CloudEnvironment, universe_domain
from ml_diagnostics_common.entry import EntryContext, LogEntry
from ml_diagnostics_common.exceptions import CredentialsError
from ml_diagnostics_common.failures import Kind, RemoteError, excerpt

if TYPE_CHECKING:
    import ssl

__all__ = ["RestTransport"]

_UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError)


class _Entry(msgspec.Struct, gc=False):
    """The part of a LogEntry resource that we read; labels and resource stay text until someone asks."""

    timestamp: str = ""
    receiveTimestamp: str = ""  # noqa: N815  # The API's names.
    insertId: str = ""  # noqa: N815
    logName: str = ""  # noqa: N815
    severity: str = "DEFAULT"
    jsonPayload: dict[str, Any] = msgspec.field(default_factory=dict)  # noqa: N815
    labels: msgspec.Raw = msgspec.Raw(b"{}")
    resource: msgspec.Raw = msgspec.Raw(b"{}")


class _Listing(msgspec.Struct, gc=False):
    entries: list[_Entry] = msgspec.field(default_factory=list)
    nextPageToken: str = ""  # noqa: N815


class _LooseListing(msgspec.Struct, gc=False):
    """The same page, with entries that are decoded one by one."""

    entries: list[msgspec.Raw] = msgspec.field(default_factory=list)
    nextPageToken: str = ""  # noqa: N815


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
        self._decode = msgspec.json.Decoder(_Listing).decode
        self._decode_loosely = msgspec.json.Decoder(_LooseListing).decode
        self._decode_entry = msgspec.json.Decoder(_Entry).decode
        self._timestamp_ns = TimestampParser()
        self._decoder = EntryDecoder(_key, _resource_key, _origin)

    def write(self, entries: Sequence[Mapping[str, Any]], *, timeout_seconds: float) -> None:
        """See `LoggingTransport.write`."""
        try:
            body = self._encode({"entries": entries, "partialSuccess": True})
        except (TypeError, ValueError, OverflowError) as error:
            raise TransportError("INVALID_ARGUMENT", f"an entry that JSON does not take ({error})") from error
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
            try:
                listing = self._decode(body)
                return self._page(listing.entries, self._entries(listing.entries), listing.nextPageToken)
            except _UNREADABLE:
                return self._page_of_readable_entries(body)
        except _UNREADABLE as error:
            raise TransportError("UNAVAILABLE", f"the page cannot be decoded: {error}") from error

    def close(self) -> None:
        """Closes the connections."""
        self._session.close()

    def _entries(self, entries: list[_Entry]) -> list[LogEntry]:
        timestamp_ns, decode = self._timestamp_ns, self._decoder.entry
        decoded: list[LogEntry] = []
        # Most entries have the writer and the severity of the entry before them: theirs is its context.
        shared: EntryContext | None = None
        writer_dot, id_length, severity = "", 0, ""
        for entry in entries:
            insert_id = entry.insertId
            if (
                shared is not None
                and entry.severity == severity
                and len(insert_id) == id_length
                and insert_id.startswith(writer_dot)
                and (digits := insert_id[-12:]).isdecimal()
            ):
                decoded.append(LogEntry(timestamp_ns(entry.timestamp), int(digits), entry.jsonPayload, shared))
                continue
            found = decode(
                timestamp_ns(entry.timestamp), insert_id, entry.jsonPayload, entry.logName, entry.severity, entry
            )
            decoded.append(found)
            shared = self._decoder.shared_context(found)
            if shared is not None:
                writer_dot, severity = f"{shared.writer}.", entry.severity
                id_length = len(writer_dot) + 12
        return decoded

    def _page_of_readable_entries(self, body: bytes) -> Page:
        """Decode a page entry by entry, without those that cannot be decoded."""
        listing = self._decode_loosely(body)
        read: list[_Entry] = []
        entries: list[LogEntry] = []
        unreadable: list[int] = []
        for encoded in listing.entries:
            try:
                entry = self._decode_entry(encoded)
                entries += self._entries([entry])
                read.append(entry)
            except _UNREADABLE:
                unreadable.append(hash(bytes(encoded)))
        return self._page(read, entries, listing.nextPageToken, unreadable)

    def _page(self, read: list[_Entry], entries: list[LogEntry], token: str, unreadable: Sequence[int] = ()) -> Page:
        def received_ns(index: int) -> int:
            try:
                return self._timestamp_ns(read[index].receiveTimestamp)
            except ValueError:
                return entries[index].timestamp_ns

        return Page(entries, token, received_ns, unreadable)

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


def _key(entry: _Entry) -> Hashable:
    return bytes(entry.labels), bytes(entry.resource)


def _resource_key(entry: _Entry) -> Hashable:
    return bytes(entry.resource)


def _origin(entry: _Entry) -> Origin:
    labels, resource = msgspec.json.decode(entry.labels), msgspec.json.decode(entry.resource)
    if not isinstance(labels, dict) or not isinstance(resource, dict):
        raise ValueError("labels and resource of an entry must be objects")
    return labels, resource


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
    except _UNREADABLE:
        return False
