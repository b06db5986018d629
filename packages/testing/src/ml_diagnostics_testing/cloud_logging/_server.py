"""The loopback Cloud Logging: its REST and gRPC APIs, and its interface for tests."""

import json
import time
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ml_diagnostics_testing._grpc_server import RestAndGrpcServer
from ml_diagnostics_testing.certificates import CertificateAuthority
from ml_diagnostics_testing.cloud_logging._entries import make_entry
from ml_diagnostics_testing.cloud_logging._grpc_methods import SERVICE, frame, methods
from ml_diagnostics_testing.cloud_logging._store import MAX_REQUEST_BYTES, EntryStore, Page
from ml_diagnostics_testing.http_server import (
    ApiError,
    Request,
    RequestRecord,
    Response,
    json_response,
)


class CloudLoggingServer(RestAndGrpcServer):
    """Serve Cloud Logging on 127.0.0.1: gRPC and REST with one store and the limits of the real service.

    It runs from construction until `close`, and is a context manager. The operations of its `faults` and `requests`
    are "write" and "list".

    Args:
        project: The project for `environment` and `write`. Requests may name any project.
        clock: Returns the time in seconds since the epoch.
        max_page_size: The largest pageSize that a listing may request.
        scan_limit: How many entries a listing scans before it answers with the matches so far, possibly none, and a
            token for the rest, as the real service does with long logs; None scans all.
        retention_seconds: Entries older than this, or more than a day in the future, are accepted but never listed,
            as by the real service; None keeps all entries.
        tls: Serves with TLS, with a certificate of this authority; None serves without.
        require_client_certificate: With TLS, refuse clients that present no certificate of the authority (mTLS).
    """

    def __init__(
        self,
        project: str = "test-project",
        *,
        clock: Callable[[], float] = time.time,
        max_page_size: int = 1000,
        scan_limit: int | None = None,
        retention_seconds: float | None = None,
        tls: CertificateAuthority | None = None,
        require_client_certificate: bool = False,
    ) -> None:
        self._store = EntryStore(
            clock=clock, max_page_size=max_page_size, scan_limit=scan_limit, retention_seconds=retention_seconds
        )
        super().__init__(
            project,
            "LOGGING",
            SERVICE,
            methods(write=self._write, list_=self._list),
            clock=clock,
            tls=tls,
            require_client_certificate=require_client_certificate,
        )

    @property
    def duplicates(self) -> int:
        """How many entries were dropped because their log had one with the same timestamp and insertId."""
        return self._store.duplicates

    @property
    def ingestion_delay_seconds(self) -> float:
        """The time from an entry's arrival until listings include it. Settable; initially 0."""
        return self._store.delay_seconds

    @ingestion_delay_seconds.setter
    def ingestion_delay_seconds(self, seconds: float) -> None:
        self._store.delay_seconds = seconds

    def log_name(self, log_id: str) -> str:
        """Return a log's full name in this server's project, `projects/PROJECT/logs/LOG_ID`, URL-encoded."""
        return f"projects/{self.project}/logs/{urllib.parse.quote(log_id, safe='')}"

    def write(self, entries: Iterable[Mapping[str, Any]], *, log_id: str | None = None) -> None:
        """Store entries as one write request would, without the limit of 10 MB.

        Args:
            entries: Entries in the form of REST's JSON. The default resource is "global".
            log_id: The log of entries without a logName.
        """
        now_ns = int(self.clock() * 1e9)
        self._store.write({**self._defaults(log_id), "entries": [dict(entry) for entry in entries]}, now_ns)

    def preload(self, entries: Iterable[Mapping[str, Any]], *, log_id: str | None = None) -> None:
        """Store entries as `write` does, and serialise them now, so that listings cost little."""
        now_ns = int(self.clock() * 1e9)
        defaults = self._defaults(log_id)
        made = [
            make_entry(dict(entry), defaults, now_ns, f"preloaded-{index:012}", offset_ns=index)
            for index, entry in enumerate(entries)
        ]
        for entry in made:
            frame(entry)
        self._store.add(made, now_ns)

    def entries(self, filter_: str = "") -> list[dict[str, Any]]:
        """Return all entries that a listing would, oldest first, in the form of REST's JSON."""
        return [json.loads(entry.json) for entry in self._store.select(filter_)]

    def hold(self, filter_: str = "") -> None:
        """Hide entries that pass the filter and are written from now on, until `release`."""
        self._store.hold(filter_)

    def release(self) -> int:
        """Show held and delayed entries in listings, and stop holding; return how many entries appeared."""
        return self._store.release()

    def clear(self) -> None:
        """Forget all entries."""
        self._store.clear()

    def operation(self, method: str, path: str) -> str:
        """Name the two operations "write" and "list"."""
        verb = urllib.parse.unquote(path).rpartition("entries:")[2]
        return verb if verb in ("write", "list") else "other"

    def handle(self, request: Request) -> Response:
        """Answer REST."""
        body = request.json()
        if not isinstance(body, dict):
            raise ApiError(400, "the request's body is not a JSON object")
        match request.method, urllib.parse.unquote(request.path):
            case "POST", "/v2/entries:write":
                if len(request.body) > MAX_REQUEST_BYTES:
                    raise ApiError(400, f"Request payload size exceeds the limit: {MAX_REQUEST_BYTES} bytes.")
                self._write(body, request.record, request.time)
                return json_response({})
            case "POST", "/v2/entries:list":
                return _rest_page(self._list(body, request.record, request.time))
        raise ApiError(404, f"the loopback Cloud Logging has no {request.method} {request.path}")

    def _defaults(self, log_id: str | None) -> dict[str, Any]:
        resource = {"type": "global", "labels": {"project_id": self.project}}
        return {"resource": resource, "logName": self.log_name(log_id) if log_id else ""}

    def _write(self, body: dict[str, Any], record: RequestRecord, now: float) -> None:
        record.entries = self._store.write(body, int(now * 1e9))

    def _list(self, body: dict[str, Any], record: RequestRecord, now: float) -> Page:
        page = self._store.list_page(body)
        record.entries = len(page.entries)
        return page


def _rest_page(page: Page) -> Response:
    parts = []
    if page.entries:
        parts.append(b'"entries":[%b]' % b",".join([entry.json for entry in page.entries]))
    if page.next_page_token:
        parts.append(b'"nextPageToken":"%b"' % page.next_page_token.encode())
    return Response(200, b"{%b}" % b",".join(parts), {"Content-Type": "application/json; charset=UTF-8"})
