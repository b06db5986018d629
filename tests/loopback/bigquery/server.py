"""The parts of BigQuery's API that read: tables, query jobs, and the Storage Read API."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import grpc  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.compute as pc
from google.cloud.bigquery_storage_v1 import types
from ml_diagnostics_testing.http_server import ApiError, LoopbackServer, Request, Response, json_response

_SERVICE: Final = "google.cloud.bigquery.storage.v1.BigQueryRead"
_PATH = re.compile(r"/bigquery/v2/projects/(?P<project>[^/]+)/(?P<rest>.+)")
_TABLE = re.compile(r"datasets/([^/]+)/tables/([^/]+)")
_QUERY = re.compile(
    r"SELECT (?P<columns>`\w+`(?:, `\w+`)*) FROM `(?P<table>[\w.:-]+)`(?: WHERE (?P<condition>.+))?", re.ASCII
)
_BOUND = re.compile(r"timestamp (>=|<) TIMESTAMP '([^']+)'")
_CONDITION = re.compile(rf"\({_BOUND.pattern}(?: AND {_BOUND.pattern})?\) OR timestamp IS NULL")
_TYPES = {pa.string(): "STRING", pa.float64(): "FLOAT", pa.int64(): "INTEGER", pa.bool_(): "BOOLEAN"}


@dataclass(frozen=True)
class Break:
    """The way in which a stream of rows breaks."""

    after: int
    """The number of responses before that."""
    code: Any
    """A `grpc.StatusCode`."""
    message: str = "a scripted fault"


@dataclass(frozen=True)
class _Known:
    """A table or view."""

    table: pa.Table
    kind: str
    json: tuple[str, ...]


class BigQueryServer(LoopbackServer):
    """Serve BigQuery over HTTP, and its Storage Read API over gRPC, each on a port of 127.0.0.1.

    Attributes:
        streams: The number of streams of a session.
        rows: The number of rows of a response.
        breaks: The ways in which the next calls that read rows break; others do not.
        offsets: The first row of each call that read rows, by stream.
        restrictions: The row restrictions of the sessions.
        selected: The columns of the sessions.
        queries: The texts of the queries.
    """

    def __init__(self, project: str = "loop-project") -> None:
        super().__init__()
        self.project = project
        self.streams, self.rows = 3, 100
        self.breaks: deque[Break] = deque()
        self.session_breaks: deque[Break] = deque()
        self.offsets: list[tuple[str, int]] = []
        self.restrictions: list[str] = []
        self.selected: list[list[str]] = []
        self.queries: list[str] = []
        self._tables: dict[str, _Known] = {}
        self._jobs: dict[str, dict[str, Any]] = {}
        self._read: dict[str, pa.Table] = {}
        self._executor = futures.ThreadPoolExecutor(16, thread_name_prefix="loopback-bigquery")
        self._grpc = grpc.server(self._executor, options=[("grpc.so_reuseport", 0)])
        handlers = {
            "CreateReadSession": grpc.unary_unary_rpc_method_handler(self._create_session),
            "ReadRows": grpc.unary_stream_rpc_method_handler(self._read_rows),
        }
        self._grpc.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(_SERVICE, handlers)])
        self._grpc_port = self._grpc.add_insecure_port("127.0.0.1:0")
        self._grpc.start()

    def add(self, name: str, table: pa.Table, *, kind: str = "VIEW", json: tuple[str, ...] = ()) -> None:
        """Add a table or view.

        Args:
            name: DATASET.VIEW.
            table: Its rows.
            kind: VIEW, TABLE, ...
            json: The columns of text that have the type JSON.
        """
        self._tables[f"{self.project}.{name}"] = _Known(table, kind, json)

    def environment(self) -> dict[str, str]:
        return {
            **super().environment(),
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_BIGQUERY": self.url,
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_BIGQUERYSTORAGE": f"http://127.0.0.1:{self._grpc_port}",
            "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "1",
            "CLOUDSDK_CORE_PROJECT": self.project,
            "GOOGLE_CLOUD_PROJECT": self.project,
        }

    def close(self) -> None:
        self._grpc.stop(None).wait()
        self._executor.shutdown()
        super().close()

    # --- HTTP ---------------------------------------------------------------------------------------------------------

    def operation(self, method: str, path: str) -> str:
        found = _PATH.match(path.partition("?")[0])
        rest = found["rest"] if found else ""
        if rest.startswith("datasets/"):
            return "table"
        return "query" if method == "POST" and rest == "jobs" else rest.partition("/")[0]

    def handle(self, request: Request) -> Response:
        found = _PATH.fullmatch(request.path)
        if found is None:
            raise ApiError(404, f"no such path: {request.path}")
        project, rest = found["project"], found["rest"]
        table = _TABLE.fullmatch(rest)
        if table is not None and request.method == "GET":
            return json_response(self._description(project, *table.groups()))
        if request.method == "POST" and rest == "jobs":
            return json_response(self._insert(request.json()))
        if request.method == "GET" and rest.startswith(("jobs/", "queries/")):
            kind, _, job_id = rest.partition("/")
            if job_id not in self._jobs:
                raise ApiError(404, f"Not found: Job {project}:{job_id}", reason="notFound")
            return json_response(self._jobs[job_id] if kind == "jobs" else self._results(job_id))
        raise ApiError(404, f"no such path: {request.path}")

    def _description(self, project: str, dataset: str, name: str) -> dict[str, Any]:
        known = self._known(project, dataset, name)
        reference = {"projectId": project, "datasetId": dataset, "tableId": name}
        fields = [_field(field, known.json) for field in known.table.schema]
        return {
            "kind": "bigquery#table",
            "id": f"{project}:{dataset}.{name}",
            "tableReference": reference,
            "type": known.kind,
            "location": "US",
            "schema": {"fields": fields},
        }

    def _known(self, project: str, dataset: str, name: str) -> _Known:
        known = self._tables.get(f"{project}.{dataset}.{name}")
        if known is not None:
            return known
        if any(one.startswith(f"{project}.{dataset}.") for one in self._tables):
            raise ApiError(404, f"Not found: Table {project}:{dataset}.{name}", reason="notFound")
        raise ApiError(404, f"Not found: Dataset {project}:{dataset}", reason="notFound")

    def _insert(self, body: dict[str, Any]) -> dict[str, Any]:
        text = body["configuration"]["query"]["query"]
        self.queries.append(text)
        found = _QUERY.fullmatch(text)
        if found is None:
            raise ApiError(400, f"Syntax error: {text}", reason="invalidQuery")
        known = self._known(*found["table"].rsplit(".", 2))
        table = _restricted(known.table, found["condition"] or "")
        reference = {"projectId": self.project, "location": "US", **body["jobReference"]}
        job_id = reference["jobId"]
        result = f"anon{len(self._jobs):04d}"
        columns = [name.strip("`") for name in found["columns"].split(", ")]
        self._tables[f"{self.project}._results.{result}"] = _Known(table.select(columns), "TABLE", known.json)
        target = {"projectId": self.project, "datasetId": "_results", "tableId": result}
        self._jobs[job_id] = {
            "kind": "bigquery#job",
            "id": f"{self.project}:US.{job_id}",
            "jobReference": reference,
            "configuration": {"jobType": "QUERY", "query": {"query": text, "destinationTable": target}},
            "status": {"state": "DONE"},
            "statistics": {"query": {"statementType": "SELECT"}},
        }
        return {**self._jobs[job_id], "status": {"state": "RUNNING"}}

    def _results(self, job_id: str) -> dict[str, Any]:
        target = self._jobs[job_id]["configuration"]["query"]["destinationTable"]
        known = self._tables[f"{self.project}._results.{target['tableId']}"]
        return {
            "kind": "bigquery#getQueryResultsResponse",
            "jobReference": self._jobs[job_id]["jobReference"],
            "jobComplete": True,
            "totalRows": str(known.table.num_rows),
            "schema": {"fields": [_field(field, known.json) for field in known.table.schema]},
        }

    # --- gRPC ---------------------------------------------------------------------------------------------------------

    def _create_session(self, raw: bytes, context: Any) -> bytes:
        self.start_request("session", "gRPC", f"/{_SERVICE}/CreateReadSession", len(raw), context.invocation_metadata())
        if self.session_breaks:
            one = self.session_breaks.popleft()
            context.abort(one.code, one.message)
        request = types.CreateReadSessionRequest.deserialize(raw)
        options = request.read_session.read_options
        _, project, _, dataset, _, name = request.read_session.table.split("/")
        known = self._known(project, dataset, name)
        if known.kind not in ("TABLE", "SNAPSHOT"):
            context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                "request failed: non-table entities cannot be read with the storage API",
            )
        self.restrictions.append(options.row_restriction)
        self.selected.append(list(options.selected_fields))
        table = _restricted(known.table.select(list(options.selected_fields)), options.row_restriction)
        session = f"projects/{project}/locations/us/sessions/{len(self.restrictions)}"
        count = min(self.streams, request.max_stream_count or self.streams) if table.num_rows else 0
        streams = []
        for number in range(count):
            stream = f"{session}/streams/{number}"
            self._read[stream] = table.take(pa.array(range(number, table.num_rows, count), pa.int64()))
            streams.append(types.ReadStream(name=stream))
        schema = types.ArrowSchema(serialized_schema=table.schema.serialize().to_pybytes())
        answer = types.ReadSession(name=session, streams=streams, arrow_schema=schema)
        return bytes(types.ReadSession.serialize(answer))

    def _read_rows(self, raw: bytes, context: Any) -> Iterator[bytes]:
        self.start_request("read", "gRPC", f"/{_SERVICE}/ReadRows", len(raw), context.invocation_metadata())
        request = types.ReadRowsRequest.deserialize(raw)
        self.offsets.append((request.read_stream, request.offset))
        ends = self.breaks.popleft() if self.breaks else None
        table = self._read[request.read_stream].slice(request.offset)
        for number, start in enumerate(range(0, table.num_rows, self.rows)):
            if ends is not None and number == ends.after:
                context.abort(ends.code, ends.message)
            part = table.slice(start, self.rows).combine_chunks().to_batches()[0]
            batch = types.ArrowRecordBatch(serialized_record_batch=_compressed(part))
            answer = types.ReadRowsResponse(arrow_record_batch=batch, row_count=part.num_rows)
            yield bytes(types.ReadRowsResponse.serialize(answer))
        if ends is not None:
            context.abort(ends.code, ends.message)


def _compressed(batch: pa.RecordBatch) -> bytes:
    """Return a batch as its message of Arrow IPC, with buffers in LZ4 frames as sessions ask for them."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_batch(batch)
    messages = pa.ipc.MessageReader.open_stream(sink.getvalue())
    messages.read_next_message()  # The schema.
    data: bytes = messages.read_next_message().serialize().to_pybytes()
    return data


def _restricted(table: pa.Table, condition: str) -> pa.Table:
    """Return the rows of a range of times, and those without a time."""
    if not condition:
        return table
    if _CONDITION.fullmatch(condition) is None:
        raise ApiError(400, f"Syntax error: {condition}", reason="invalidQuery")
    times = table.column("timestamp")
    kept = pc.is_valid(times)
    for operator, text in _BOUND.findall(condition):
        moment = pa.scalar(datetime.strptime(text, "%Y-%m-%d %H:%M:%S.%f%z"), times.type)
        kept = pc.and_kleene(kept, (pc.greater_equal if operator == ">=" else pc.less)(times, moment))
    return table.filter(pc.or_kleene(kept, pc.is_null(times)))


def _field(field: pa.Field, json: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {"name": field.name, "mode": "NULLABLE"}
    kind = field.type
    if pa.types.is_list(kind):
        found["mode"], kind = "REPEATED", kind.value_type
    if pa.types.is_struct(kind):
        return {**found, "type": "RECORD", "fields": [_field(one, json) for one in kind]}
    if pa.types.is_timestamp(kind):
        return {**found, "type": "TIMESTAMP"}
    return {**found, "type": "JSON" if field.name in json else _TYPES.get(kind, "BYTES")}
