"""Storage in Google Cloud Storage: see `storage.Storage`. Needs the extra `[gcs]`.

Retries are ours: google-cloud-storage retries some calls and not others, and cannot tell a refused write from one
whose first answer got lost.
"""

from __future__ import annotations

import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ml_diagnostics_common.backoff import Backoff
from ml_diagnostics_common.client_imports import import_clients
from ml_diagnostics_common.exceptions import (
    ConfigurationError,
    CredentialsError,
    MissingExtraError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
)

__all__ = ["GoogleCloudStorage", "is_transient", "refusal_of_quota", "split_path"]

_T = TypeVar("_T")
_MODULES = (
    "google.cloud.storage",
    "google.api_core.exceptions",
    "google_crc32c",
    "ml_diagnostics_common.environment",
    "ml_diagnostics_common.credentials",
)
_REQUEST_TIMEOUT_SECONDS = 20.0
_FIRST_PAUSE_SECONDS = 0.4
_LONGEST_PAUSE_SECONDS = 10.0
# Cloud Storage sends these with 403 or 429. https://cloud.google.com/storage/docs/json_api/v1/status-codes
_RATE_LIMITS = frozenset({"rateLimitExceeded", "userRateLimitExceeded", "RATE_LIMIT_EXCEEDED"})
_QUOTAS = frozenset({"quotaExceeded", "dailyLimitExceeded", "QUOTA_EXCEEDED"})
_WRITE_ID = "ml-diagnostics-write-id"


class GoogleCloudStorage:
    """Objects of Cloud Storage, at `gs://bucket/key`.

    `STORAGE_EMULATOR_HOST`, or else `CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE`, redirects it. Connects at first use.

    Args:
        credentials: A `google.auth.credentials.Credentials`; None finds them as `find_cloud` does.
        environ: The environment variables.
        deadline_seconds: After this long no call is tried again. A single request that gets no answer is given up
            after 20 s, or what is left of the deadline.
        clock: Returns monotonic seconds.
        sleep: Waits for some seconds.
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
        """The whole content."""
        return self.read_with_generation(path)[0]

    def read_with_generation(self, path: str, *, first_bytes: int | None = None) -> tuple[bytes, int]:
        """The content, or its first bytes, and its generation."""
        blob = self._blob(path)
        from google.api_core.exceptions import RequestRangeNotSatisfiable

        # The checksum that comes along is that of the whole.
        part = {} if first_bytes is None else {"end": first_bytes - 1, "checksum": None}

        def download(timeout: float, attempt: int) -> tuple[bytes, int]:
            try:
                data = blob.download_as_bytes(timeout=timeout, retry=None, **part)
            except RequestRangeNotSatisfiable:  # There is not even a first byte.
                data = b""
                blob.reload(timeout=timeout, retry=None)
            return data, int(blob.generation)

        return self._call("read", path, download)

    def read_part(self, path: str, start: int, end: int) -> bytes:
        """The bytes from one place to another."""
        blob = self._blob(path)
        from google.api_core.exceptions import RequestRangeNotSatisfiable

        one_time: dict[str, Any] = {"retry": None, "checksum": None}  # The checksum that comes along is of the whole.

        def download(timeout: float, attempt: int) -> bytes:
            try:
                return bytes(blob.download_as_bytes(start=start, end=end - 1, timeout=timeout, **one_time))
            except RequestRangeNotSatisfiable:  # The content ends before.
                return b""

        return self._call("read", path, download) if start < end else b""

    def size(self, path: str) -> int:
        """How many bytes there are."""
        blob = self._blob(path)

        def look(timeout: float, attempt: int) -> int:
            blob.reload(timeout=timeout, retry=None)
            return int(blob.size)

        return self._call("read", path, look)

    def write(self, path: str, data: bytes, *, if_generation: int | None = None) -> int:
        """Puts the content in place, whole."""
        blob = self._blob(path)
        from google.api_core.exceptions import PreconditionFailed

        write_id = uuid.uuid4().hex
        blob.metadata = {_WRITE_ID: write_id}

        def upload(timeout: float, attempt: int) -> int:
            try:
                blob.upload_from_string(
                    data,
                    content_type="application/octet-stream",
                    if_generation_match=if_generation,
                    timeout=timeout,
                    retry=None,
                )
            except PreconditionFailed:
                # Refused; or done by an earlier attempt, whose answer got lost.
                if attempt == 1 or not self._wrote(blob, write_id, timeout):
                    raise
            return int(blob.generation)

        return self._call("write", path, upload)

    def exists(self, path: str) -> bool:
        """Whether there is such an object."""
        blob = self._blob(path)
        return self._call("read", path, lambda timeout, _: bool(blob.exists(timeout=timeout, retry=None)))

    def delete(self, path: str) -> None:
        """Removes the object."""
        blob = self._blob(path)
        from google.api_core.exceptions import NotFound

        def remove(timeout: float, attempt: int) -> None:
            try:
                blob.delete(timeout=timeout, retry=None)
            except NotFound:
                if attempt == 1:  # Else an earlier attempt did it.
                    raise

        self._call("delete", path, remove)

    def list_prefix(self, path: str) -> list[str]:
        """The objects whose path begins with this text."""
        bucket, prefix = split_path(path, key_required=False)
        client = self._connect()

        def list_all(timeout: float, attempt: int) -> list[str]:
            fields = "items(name),nextPageToken"
            found = client.list_blobs(bucket, prefix=prefix, fields=fields, timeout=timeout, retry=None)
            return [f"gs://{bucket}/{blob.name}" for blob in found]

        return self._call("list", path, list_all)

    def close(self) -> None:
        """Ends the connections; the next call makes new ones."""
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
        from ml_diagnostics_common.environment import endpoint, find_cloud

        try:
            import google.auth.credentials
            import google.cloud.storage as storage

            from ml_diagnostics_common.bounded_adapter import TimedHeadersAdapter
        except ImportError as error:
            raise MissingExtraError("a gs:// path", "ml-diagnostics-common", "gcs") from error

        url = endpoint("storage", self._environ)
        if self._environ.get("STORAGE_EMULATOR_HOST") and self._credentials is None:
            self._credentials, self._principal = google.auth.credentials.AnonymousCredentials(), "anonymous"
        # Objects need no project, so none is looked for.
        cloud = find_cloud("none", self._credentials, environ=self._environ)
        self._principal = self._principal or cloud.principal
        options = {"api_endpoint": url.removesuffix("/storage/v1")} if url else None
        client = storage.Client("none", credentials=cloud.credentials, client_options=options)
        client._bucket_metadata_cache = None  # Else it asks for the bucket behind our back, from a thread.
        for prefix in ("http://", "https://"):
            client._http.mount(prefix, TimedHeadersAdapter())
        return client

    def _call(self, verb: str, path: str, attempt_once: Callable[[float, int], _T]) -> _T:
        """Tries until it works, the error is final or the deadline is over."""
        deadline = self._clock() + self._deadline_seconds
        backoff = Backoff(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
        attempt = 0
        while True:
            attempt += 1
            try:
                return attempt_once(min(_REQUEST_TIMEOUT_SECONDS, max(deadline - self._clock(), 0.1)), attempt)
            except Exception as error:
                pause = backoff.failed(_retry_after_seconds(error))
                if not is_transient(error) or self._clock() + pause >= deadline:
                    raise self._explained(error, verb, path, attempt) from error
            self._sleep(pause)

    def _explained(self, error: Exception, verb: str, path: str, attempts: int) -> Exception:
        from google.api_core import exceptions as api
        from google.auth.exceptions import GoogleAuthError

        problem = f"cannot {verb} {path}"
        if isinstance(error, api.NotFound):
            return ObjectNotFoundError(f"{problem}: there is no such object, or no such bucket")
        if isinstance(error, api.PreconditionFailed):
            return PreconditionFailedError(
                f"{problem}: somebody else wrote it first; read it again and repeat the change"
            )
        if refusal_of_quota(error):
            who = self._principal or "the account in use"
            return StorageError(
                f"{problem}: the quota of {who} is used up ({error}); ask for more, or try again tomorrow"
            )
        if isinstance(error, (api.Unauthorized, api.Forbidden)) and not is_transient(error):
            return StorageError(
                f"{problem}: {self._principal or 'the account in use'} may not ({error.message}); "
                "grant it roles/storage.objectUser on the bucket"
            )
        if is_transient(error):
            return StorageError(
                f"{problem}: Cloud Storage did not answer well within {self._deadline_seconds:g} s, in {attempts} "
                f"attempts ({error}); try again later, or look at the network"
            )
        if isinstance(error, GoogleAuthError):
            return CredentialsError(f"{problem}: the credentials were not accepted ({error}); renew them")
        if isinstance(error, api.GoogleAPICallError):
            return StorageError(f"{problem}: {error.message}; look at the bucket and the name")
        return StorageError(f"{problem}: {type(error).__name__}: {error}; try again, or choose another path")


def is_transient(error: Exception) -> bool:
    """Whether the same call may succeed later."""
    import requests
    from google.api_core.exceptions import GoogleAPICallError
    from google.auth.exceptions import TransportError

    if isinstance(error, GoogleAPICallError):
        return error.code in (408, 429) or (error.code or 0) >= 500 or bool(_reasons(error) & _RATE_LIMITS)
    corrupt = type(error).__name__ == "DataCorruption"  # It moved from one package to another.
    return corrupt or isinstance(error, (requests.RequestException, TransportError, ConnectionError))


def refusal_of_quota(error: BaseException | None) -> bool:
    """Return whether a 403 says that a quota is used up, and not that a permission is missing."""
    return getattr(error, "code", None) == 403 and bool(_reasons(error) & _QUOTAS)


def _reasons(error: Any) -> set[str]:
    listed = getattr(error, "errors", ())
    if not listed:  # Of a download, the client keeps the answer alone.
        try:
            listed = error.response.json()["error"]["errors"]
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError):
            return set()
    return {str(each.get("reason")) for each in listed if isinstance(each, Mapping)}


def _retry_after_seconds(error: Exception) -> float | None:
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    wanted = str(headers.get("Retry-After", ""))
    return float(wanted) if wanted.isdecimal() else None


def split_path(path: str, *, key_required: bool = True) -> tuple[str, str]:
    """Splits gs://bucket/key into the two.

    Raises:
        ConfigurationError: The path is not of that form.
    """
    bucket, _, key = path.removeprefix("gs://").partition("/")
    if not path.startswith("gs://") or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", bucket):
        raise ConfigurationError(f"{path!r} is not of the form gs://bucket/key")
    if key_required and not key:
        raise ConfigurationError(f"{path!r} names a bucket and no object; give gs://{bucket}/key")
    if re.search(r"[\0\r\n\ud800-\udfff]", key) or len(key.encode()) > 1024:
        raise ConfigurationError(
            f"{path!r}: an object's name is valid text without NUL or line breaks, and 1024 bytes at most"
        )
    return bucket, key
