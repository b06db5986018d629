"""A table or view of BigQuery with the entries of logs, read as Arrow batches by Google's clients.

The Storage Read API reads tables in parallel streams, and no views: a view is queried, and the table that holds the
result of the query is read.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa
from ml_diagnostics_common.credentials import CloudEnvironment, find_cloud, known_project
from ml_diagnostics_common.endpoints import endpoint, universe_domain
from ml_diagnostics_common.exceptions import ConfigurationError, MissingExtraError
from ml_diagnostics_common.failures import Kind, RemoteError, access_advice, classify
from ml_diagnostics_common.grpc_clients import open_client

from ml_diagnostics_fleet._stream_readers import StreamReaders

__all__ = ["COLUMNS", "BigQueryError", "BigQueryView", "ViewName"]

COLUMNS: Final = ("log", "insert_id", "labels", "payload", "timestamp")
"""The columns of a batch. A view without times has no `timestamp`."""

_LOG_NAMES: Final = ("log_name", "logname")
_NAMES: Final = {
    "log": ("log_id", *_LOG_NAMES),
    "insert_id": ("insert_id", "insertid"),
    "labels": ("labels",),
    "payload": ("json_payload", "jsonpayload"),
    "timestamp": ("timestamp",),
}
"""Names in lower case, as BigQuery compares them: of a Log Analytics view, then of a table that a log sink writes."""
_SHOWN: Final = {
    "log": "log_id (or log_name, logName)",
    "insert_id": "insert_id (or insertId)",
    "labels": "labels",
    "payload": "json_payload (or jsonPayload)",
}
_TYPES: Final = {
    "log": ("STRING",),
    "insert_id": ("STRING",),
    "labels": ("JSON", "RECORD", "STRING", "STRUCT"),
    "payload": ("JSON", "RECORD", "STRING", "STRUCT"),
    "timestamp": ("TIMESTAMP",),
}
_READABLE: Final = ("TABLE", "SNAPSHOT", "CLONE")
"""The types of tables that the Storage Read API reads."""
_STREAMS: Final = 8
_REQUEST_SECONDS: Final = 60.0
_RETRY_SECONDS: Final = 600.0
_NAME: Final = re.compile(r"(?:(?P<project>[a-z][\w.:-]*)\.)?(?P<dataset>\w+)\.(?P<view>[\w-]+)", re.ASCII)
_READ_ROLES: Final = "roles/bigquery.readSessionUser"
_QUERY_ROLES: Final = "roles/bigquery.jobUser and roles/bigquery.readSessionUser"


class BigQueryError(RemoteError):
    """A table or view of BigQuery cannot be read.

    Attributes:
        view: Its name.
        advice: The remedy.
    """

    service = "BigQuery"
    view = ""
    advice = ""

    def __str__(self) -> str:
        advice = f"; {self.advice}" if self.advice else ""
        return f"cannot read {self.view}: {super().__str__()}{advice}"


class ViewName(NamedTuple):
    """The name of a table or view."""

    project: str | None
    """None for the project of the credentials."""
    dataset: str
    view: str

    @classmethod
    def parse(cls, text: str) -> ViewName:
        """Parse DATASET.VIEW or PROJECT.DATASET.VIEW.

        Raises:
            ConfigurationError: It is not the name of a table or view.
        """
        found = _NAME.fullmatch(text)
        if found is None:
            raise ConfigurationError(f"{text!r} is not a table or view: expected DATASET.VIEW or PROJECT.DATASET.VIEW")
        return cls(found["project"], found["dataset"], found["view"])


class _Source(NamedTuple):
    """A table or view to read, with its columns by our names."""

    columns: dict[str, str]
    is_table: bool
    location: str


class BigQueryView:
    """A table or view with the columns of a Log Analytics view, or of a table that a log sink writes.

    Args:
        name: DATASET.VIEW or PROJECT.DATASET.VIEW.
        cloud: Project and credentials; None finds them. The project pays for the query and has the read session.
        retry_seconds: How long a request is tried again while BigQuery cannot be reached.
        stall_seconds: How long a stream may send nothing.

    Raises:
        ConfigurationError: The name is not valid.
        CredentialsError: No project or credentials were found.
        MissingExtraError: Google's clients are not installed.
    """

    def __init__(
        self,
        name: str,
        *,
        cloud: CloudEnvironment | None = None,
        retry_seconds: float = _RETRY_SECONDS,
        stall_seconds: float = _RETRY_SECONDS,
    ) -> None:
        parsed = ViewName.parse(name)
        try:
            import google.cloud.bigquery
            import google.cloud.bigquery_storage  # noqa: F401
        except ImportError as error:
            raise MissingExtraError("reading BigQuery", "ml-diagnostics-fleet", "bigquery") from error
        # A project that is named pays itself if the environment names none.
        self._cloud = find_cloud(known_project() or parsed.project) if cloud is None else cloud
        self.name = parsed._replace(project=parsed.project or self._cloud.project)
        self._retry_seconds, self._stall_seconds = retry_seconds, stall_seconds
        self._known: _Source | None = None

    def __str__(self) -> str:
        return f"{self.name.project}.{self.name.dataset}.{self.name.view}"

    def has_times(self) -> bool:
        """Return True if it has a column of times.

        Raises:
            BigQueryError: It cannot be read.
            ConfigurationError: It lacks another column.
        """
        return "timestamp" in self._source().columns

    def batches(self, since_ns: int | None = None, until_ns: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yield its rows, in any order, with the columns of `COLUMNS`.

        Args:
            since_ns: Only entries from this time on, in ns since 1970; of a view without times, all.
            until_ns: Only entries before this time. Entries without a time are in all ranges.

        Raises:
            BigQueryError: It cannot be read.
            ConfigurationError: It lacks a column, or one has another type.
        """
        source = self._source()
        condition = _condition(since_ns, until_ns) if "timestamp" in source.columns else ""
        if source.is_table:
            table = f"projects/{self.name.project}/datasets/{self.name.dataset}/tables/{self.name.view}"
        else:
            table, condition = self._queried(source, condition), ""
        client = self._storage_client()
        try:
            session = self._session(client, table, source, condition)
            yield from self._rows(client, session, source)
        finally:
            client.transport.close()

    def _source(self) -> _Source:
        """Return its columns, from its description; it is asked for once."""
        if self._known is None:
            with self._errors(_READ_ROLES), self._client() as client:
                table = client.get_table(f"{self}", retry=self._rest_retry(), timeout=_REQUEST_SECONDS)
            columns = self._checked_columns(table.schema)
            self._known = _Source(columns, table.table_type in _READABLE, table.location or "")
        return self._known

    def _checked_columns(self, schema: Any) -> dict[str, str]:
        fields = {field.name.lower(): field for field in schema}
        found = {}
        for column, names in _NAMES.items():
            field = next((fields[name] for name in names if name in fields), None)
            if field is None:
                continue
            found[column] = field.name
            if field.field_type not in _TYPES[column] or field.mode == "REPEATED":
                kind = f"REPEATED {field.field_type}" if field.mode == "REPEATED" else field.field_type
                raise ConfigurationError(
                    f"column {field.name} of {self} has the type {kind}; expected {' or '.join(_TYPES[column])}"
                )
        lacking = [shown for column, shown in _SHOWN.items() if column not in found]
        if lacking:
            has = ", ".join(field.name for field in schema) or "none"
            raise ConfigurationError(f"{self} lacks the columns {', '.join(lacking)}; it has: {has}")
        return found

    def _queried(self, source: _Source, condition: str) -> str:
        """Query it; return the table of the result."""
        columns = ", ".join(f"`{name}`" for name in source.columns.values())
        text = f"SELECT {columns} FROM `{self}`" + (f" WHERE {condition}" if condition else "")
        with self._errors(_QUERY_ROLES), self._client() as client:
            job = client.query(
                text, location=source.location or None, retry=self._rest_retry(), timeout=_REQUEST_SECONDS
            )
            job.result(max_results=1, retry=self._rest_retry())
            found = job.destination
        return f"projects/{found.project}/datasets/{found.dataset_id}/tables/{found.table_id}"

    def _session(self, client: Any, table: str, source: _Source, condition: str) -> Any:
        from google.cloud.bigquery_storage_v1 import types

        options = types.ReadSession.TableReadOptions(
            selected_fields=list(source.columns.values()),
            row_restriction=condition,
            arrow_serialization_options=types.ArrowSerializationOptions(
                buffer_compression=types.ArrowSerializationOptions.CompressionCodec.LZ4_FRAME
            ),
        )
        with self._errors(_READ_ROLES):
            return client.create_read_session(
                parent=f"projects/{self._cloud.project}",
                read_session=types.ReadSession(table=table, data_format=types.DataFormat.ARROW, read_options=options),
                max_stream_count=_STREAMS,
                retry=self._stream_retry(),
                timeout=_REQUEST_SECONDS,
            )

    def _rows(self, client: Any, session: Any, source: _Source) -> Iterator[pa.RecordBatch]:
        if not session.streams:
            return
        schema = pa.ipc.read_schema(pa.py_buffer(session.arrow_schema.serialized_schema))
        positions = {name.lower(): position for position, name in enumerate(schema.names)}
        columns = {column: positions[name.lower()] for column, name in source.columns.items()}
        is_log_name = source.columns["log"].lower() in _LOG_NAMES
        names = deque(stream.name for stream in session.streams)
        with contextlib.closing(StreamReaders(lambda name: self._messages(client, name), names)) as readers:
            for data in readers.results():
                batch = pa.ipc.read_record_batch(pa.py_buffer(data), schema)
                found = {column: batch.column(position) for column, position in columns.items()}
                if is_log_name:
                    found["log"] = _log_ids(found["log"])
                yield pa.RecordBatch.from_arrays(list(found.values()), list(found))

    def _messages(self, client: Any, name: str) -> Iterator[bytes]:
        """Yield the batches of a stream; after an error that passes, from where it broke."""
        from google.api_core.exceptions import DeadlineExceeded

        offset = 0
        with self._errors(_READ_ROLES):
            while True:
                before = offset
                try:
                    for message in client.read_rows(
                        name, offset=offset, retry=self._stream_retry(), timeout=self._stall_seconds
                    ):
                        offset += message.row_count
                        yield message.arrow_record_batch.serialized_record_batch
                    return
                except DeadlineExceeded:  # The client itself continues after UNAVAILABLE.
                    if offset == before:
                        raise

    # --- Clients ------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _client(self) -> Iterator[Any]:
        from google.cloud.bigquery import Client

        options = {"universe_domain": universe_domain(self._cloud.credentials)}
        url = endpoint("bigquery")
        if url is not None:
            options["api_endpoint"] = url
        client = Client(project=self._cloud.project, credentials=self._cloud.credentials, client_options=options)
        try:
            yield client
        finally:
            client.close()

    def _storage_client(self) -> Any:
        from google.cloud.bigquery_storage_v1 import BigQueryReadClient
        from google.cloud.bigquery_storage_v1.services.big_query_read.transports import BigQueryReadGrpcTransport

        return open_client(
            BigQueryReadClient,
            BigQueryReadGrpcTransport,
            write="google.cloud.bigquery.storage.v1.BigQueryRead/CreateReadSession",
            url=endpoint("bigquerystorage"),
            credentials=self._cloud.credentials,
        )

    def _rest_retry(self) -> Any:
        from google.cloud.bigquery import DEFAULT_RETRY

        return DEFAULT_RETRY.with_timeout(self._retry_seconds)

    def _stream_retry(self) -> Any:
        from google.api_core.exceptions import ServiceUnavailable
        from google.api_core.retry import Retry, if_exception_type

        return Retry(
            predicate=if_exception_type(ServiceUnavailable), initial=0.2, maximum=30.0, timeout=self._retry_seconds
        )

    @contextlib.contextmanager
    def _errors(self, roles: str) -> Iterator[None]:
        """Raise an error of Google's clients as one that names the view and what to do."""
        from concurrent.futures import TimeoutError as LateError

        from google.api_core.exceptions import GoogleAPIError
        from google.auth.exceptions import GoogleAuthError
        from requests.exceptions import RequestException

        try:
            yield
        except (GoogleAPIError, GoogleAuthError, RequestException, LateError) as error:
            failure = BigQueryError.of(classify(error))
            vars(failure).update(view=str(self), advice=self._advice(failure, roles))
            raise failure from error

    def _advice(self, failure: RemoteError, roles: str) -> str:
        if failure.reason == "responseTooLarge":
            return "the result of a query is limited to 10 GB: read fewer days at a time, with --since and --as-of"
        if "expired" in failure.message and failure.code in ("FAILED_PRECONDITION", "INVALID_ARGUMENT", "NOT_FOUND"):
            return (
                "a read session ends after 6 hours, and nothing was added: read fewer days at a time, with --since "
                "and --as-of"
            )
        if failure.kind is Kind.REFUSED:
            dataset = f"{self.name.project}.{self.name.dataset}"
            return access_advice(
                failure,
                service="bigquery.googleapis.com bigquerystorage.googleapis.com",
                project=self._cloud.project,
                principal=self._cloud.principal or "this account",
                role=f"roles/bigquery.dataViewer on dataset {dataset}, and {roles}",
            )
        if failure.kind is Kind.MISSING:
            return f"check the name, and its project: {self.name.project}"
        return ""


def _condition(since_ns: int | None, until_ns: int | None) -> str:
    """Return the restriction by time, as SQL."""
    bounds = [
        f"timestamp {operator} TIMESTAMP '{_sql_time(ns)}'"
        for operator, ns in ((">=", since_ns), ("<", until_ns))
        if ns is not None
    ]
    return f"({' AND '.join(bounds)}) OR timestamp IS NULL" if bounds else ""


def _sql_time(ns: int) -> str:
    seconds, fraction = divmod(ns // 1000, 1_000_000)
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(seconds))}.{fraction:06d}+00:00"


def _log_ids(names: pa.Array) -> pa.Array:
    """Return the ids of logs from their full names, `projects/P/logs/ID` with the id percent-encoded."""
    from urllib.parse import unquote

    encoded = names.dictionary_encode()
    ids = [None if name is None else unquote(name.partition("/logs/")[2]) for name in encoded.dictionary.to_pylist()]
    return pa.array(ids, pa.string()).take(encoded.indices)
