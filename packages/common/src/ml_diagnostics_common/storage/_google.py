"""Storage in Google Cloud Storage: see `storage.Storage`. Needs the extra `[gcs]`.

Retries are ours: google-cloud-storage retries some calls and not others, and cannot distinguish a refused write from
one that succeeded without an answer.
"""

from __future__ import annotations

import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ml_diagnostics_common.backoff import Backoff, Retries
from ml_diagnostics_common.exceptions import (
    ConfigurationError,
    CredentialsError,
    MissingExtraError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
)
from ml_diagnostics_common.failures import Kind, classify
from ml_diagnostics_common.files import in_bucket
from ml_diagnostics_common.process_hooks import import_clients

__all__ = ["GoogleCloudStorage", "split_path"]

_T = TypeVar("_T")
_MODULES = (
    "google.cloud.storage",
    "google.api_core.exceptions",
    "google_crc32c",
    "ml_diagnostics_common.endpoints",
    "ml_diagnostics_common.credentials",
)
_REQUEST_TIMEOUT_SECONDS = 20.0
_FIRST_PAUSE_SECONDS = 0.4
_LONGEST_PAUSE_SECONDS = 10.0
_WRITE_ID = "ml-diagnostics-write-id"


class GoogleCloudStorage:
    """Objects of Cloud Storage, at `gs://bucket/key`.

    `STORAGE_EMULATOR_HOST`, or else `CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE`, redirects it. Connects at the first use.

    Args:
        credentials: A `google.auth.credentials.Credentials`; None selects those that `find_cloud` finds. An emulator
            gets none.
        environ: The environment variables.
        deadline_seconds: No call is retried after this time. A single request times out after 20 s, or at the
            deadline.
        clock: Return monotonic seconds.
        sleep: Wait for a number of seconds.
    """

    def __init__(
        self,
        credentials: Any = None,
        *,
        environ: Mapping[str, str] = os.environ,
        deadline_seconds: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._credentials = credentials
        self._environ = environ
        self._deadline_seconds = deadline_seconds
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._client: Any = None
        self._principal: str | None = None

    def read(self, path: str) -> bytes:
        """Return the whole content."""
        return self.read_with_generation(path)[0]

    def read_with_generation(self, path: str, *, first_bytes: int | None = None) -> tuple[bytes, int]:
        """Return the content, or its first bytes, and its generation."""
        blob = self._blob(path)
        from google.api_core.exceptions import RequestRangeNotSatisfiable

        # The checksum in the response is that of the whole content.
        part = {} if first_bytes is None else {"end": first_bytes - 1, "checksum": None}

        def download(timeout: float, attempt: int) -> tuple[bytes, int]:
            try:
                data = blob.download_as_bytes(timeout=timeout, retry=None, **part)
            except RequestRangeNotSatisfiable:  # The object is empty.
                data = b""
                blob.reload(timeout=timeout, retry=None)
            return data, int(blob.generation)

        return self._call("read", path, download)

    def read_part(self, path: str, start: int, end: int) -> bytes:
        """Return the bytes of a range."""
        blob = self._blob(path)
        from google.api_core.exceptions import RequestRangeNotSatisfiable

        one_time: dict[str, Any] = {
            "retry": None,
            "checksum": None,
        }  # The checksum in the response is that of the whole content.

        def download(timeout: float, attempt: int) -> bytes:
            try:
                return bytes(blob.download_as_bytes(start=start, end=end - 1, timeout=timeout, **one_time))
            except RequestRangeNotSatisfiable:  # The content ends before the range.
                return b""

        return self._call("read", path, download) if start < end else b""

    def size(self, path: str) -> int:
        """Return the number of bytes."""
        blob = self._blob(path)

        def reload(timeout: float, attempt: int) -> int:
            blob.reload(timeout=timeout, retry=None)
            return int(blob.size)

        return self._call("read", path, reload)

    def write(
        self,
        path: str,
        data: bytes,
        *,
        if_generation: int | None = None,
        content_type: str = "application/octet-stream",
    ) -> int:
        """Replace the content as a whole."""
        blob = self._blob(path)
        from google.api_core.exceptions import PreconditionFailed

        write_id = uuid.uuid4().hex
        blob.metadata = {_WRITE_ID: write_id}

        def upload(timeout: float, attempt: int) -> int:
            try:
                blob.upload_from_string(
                    data,
                    content_type=content_type,
                    if_generation_match=if_generation,
                    timeout=timeout,
                    retry=None,
                )
            except PreconditionFailed:
                # Refused, or done by an earlier attempt without an answer.
                if attempt == 1 or not self._wrote(blob, write_id, timeout):
                    raise
            return int(blob.generation)

        return self._call("write", path, upload)

    def exists(self, path: str) -> bool:
        """Return True if the object exists."""
        blob = self._blob(path)
        return self._call("read", path, lambda timeout, _: bool(blob.exists(timeout=timeout, retry=None)))

    def delete(self, path: str) -> None:
        """Delete the object."""
        blob = self._blob(path)
        from google.api_core.exceptions import NotFound

        def remove(timeout: float, attempt: int) -> None:
            try:
                blob.delete(timeout=timeout, retry=None)
            except NotFound:
                if attempt == 1:  # Else an earlier attempt did it.
                    raise

        self._call("delete", path, remove)

    def list_prefix(self, path: str, *, after: str = "", limit: int | None = None) -> list[str]:
        """Return the paths of objects that start with this text."""
        bucket, prefix = split_path(path, key_required=False)
        client = self._connect()
        start = split_path(after, key_required=False)[1] if after else ""
        options: dict[str, Any] = {"prefix": prefix, "fields": "items(name),nextPageToken", "retry": None}
        if start:
            options["start_offset"] = start
        if limit is not None:
            options["max_results"] = limit + bool(start)  # The list starts with the offset itself.

        def list_all(timeout: float, attempt: int) -> list[str]:
            found = client.list_blobs(bucket, timeout=timeout, **options)
            return [f"gs://{bucket}/{blob.name}" for blob in found if blob.name != start][:limit]

        return self._call("list", path, list_all)

    def close(self) -> None:
        """Close the connections; the next call opens others."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _wrote(self, blob: Any, write_id: str, timeout: float) -> bool:
        from google.api_core.exceptions import NotFound

        try:
            blob.reload(timeout=timeout, retry=None)
        except NotFound:
            return False
        return bool((blob.metadata or {}).get(_WRITE_ID) == write_id)

    def _blob(self, path: str) -> Any:
        bucket, key = split_path(path)
        return self._connect().bucket(bucket).blob(key)

    def _connect(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = self._new_client()
            return self._client

    def _new_client(self) -> Any:
        import_clients(*_MODULES)
        from ml_diagnostics_common.credentials import find_cloud
        from ml_diagnostics_common.endpoints import endpoint

        try:
            import google.auth.credentials
            import google.cloud.storage as storage

            from ml_diagnostics_common._bounded_adapter import TimedHeadersAdapter
        except ImportError as error:
            raise MissingExtraError("a gs:// path", "ml-diagnostics-common", "gcs") from error

        url = endpoint("storage", self._environ)
        if self._environ.get("STORAGE_EMULATOR_HOST"):  # It may be any machine, without TLS: it gets no token.
            self._credentials, self._principal = google.auth.credentials.AnonymousCredentials(), "anonymous"
        # Objects need no project, so none is searched for.
        cloud = find_cloud("none", self._credentials, environ=self._environ)
        self._principal = self._principal or cloud.principal
        options = {"api_endpoint": url.removesuffix("/storage/v1")} if url else None
        client = storage.Client("none", credentials=cloud.credentials, client_options=options)
        client._bucket_metadata_cache = None  # Otherwise a thread of the client requests the bucket's metadata.
        for prefix in ("http://", "https://"):
            client._http.mount(prefix, TimedHeadersAdapter())
        _read_settings_once(client._http, client._connection.API_BASE_URL)
        return client

    def _call(self, verb: str, path: str, attempt_once: Callable[[float, int], _T]) -> _T:
        """Call until it succeeds, the failure is final, or the deadline has passed."""
        deadline = self._clock() + self._deadline_seconds
        retries = Retries(
            Backoff(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS),
            seconds_left=lambda: deadline - self._clock(),
            sleep=self._sleep,
        )

        def attempt() -> _T:
            timeout_seconds = min(_REQUEST_TIMEOUT_SECONDS, max(deadline - self._clock(), 0.1))
            return attempt_once(timeout_seconds, retries.failures + 1)

        try:
            return retries(attempt)
        except Exception as error:
            raise self._explained(error, f"cannot {verb} {path}", retries.failures) from error

    def _explained(self, error: Exception, problem: str, attempts: int) -> StorageError | CredentialsError:
        failure = classify(error)
        account = self._principal or "the account in use"
        why = f"{type(error).__name__}: {error}; try again, or choose another path"
        if failure.kind is Kind.MISSING:
            return ObjectNotFoundError(f"{problem}: there is no such object, or no such bucket")
        if failure.code == "FAILED_PRECONDITION":
            return PreconditionFailedError(
                f"{problem}: another process wrote it first; read it again and repeat the change"
            )
        if failure.is_quota_exhausted:
            why = f"the quota of {account} is exhausted ({error}); request more quota, or try again tomorrow"
        elif failure.is_temporary:
            why = (
                f"Cloud Storage did not answer well within {self._deadline_seconds:g} s, in {attempts} attempts "
                f"({error}); try again later, or check the network"
            )
        elif failure.kind is Kind.REFUSED and not failure.status:
            return CredentialsError(f"{problem}: the credentials were not accepted ({error}); renew them")
        elif failure.kind is Kind.REFUSED:
            why = f"{account} may not ({failure.message}); grant it roles/storage.objectUser on the bucket"
        elif failure.is_from_api:
            why = f"{failure.message}; check the bucket and the name"
        return StorageError(f"{problem}: {why}")


def _read_settings_once(http: Any, url: str) -> None:
    """Read the variables for proxies and authorities now, and ~/.netrc, with logins that replace tokens, never.

    A `requests.Session` does so for each request, which is a third of its cost.

    Args:
        http: The session.
        url: The URL of its only server.
    """
    settings = http.merge_environment_settings(url, {}, None, None, None)
    http.proxies, http.verify, http.cert = settings["proxies"], settings["verify"], settings["cert"]
    http.trust_env = False


def split_path(path: str, *, key_required: bool = True) -> tuple[str, str]:
    """Split gs://bucket/key into the bucket and the key.

    Raises:
        ConfigurationError: The path is not of that form.
    """
    bucket, _, key = path.removeprefix("gs://").partition("/")
    if not in_bucket(path) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", bucket):
        raise ConfigurationError(f"{path!r} is not of the form gs://bucket/key")
    if key_required and not key:
        raise ConfigurationError(f"{path!r} names a bucket and no object; give gs://{bucket}/key")
    if re.search(r"[\0\r\n\ud800-\udfff]", key) or len(key.encode()) > 1024:
        raise ConfigurationError(
            f"{path!r}: an object's name is valid text without NUL or line breaks, and 1024 bytes at most"
        )
    return bucket, key
