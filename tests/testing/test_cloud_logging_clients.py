"""Unmodified clients before the loopback Cloud Logging: google's, over REST and gRPC, and gcloud."""

import logging
import math
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import pytest
import requests
from google.api_core import exceptions
from google.cloud.logging_v2.handlers import CloudLoggingHandler
from google.cloud.logging_v2.handlers.transports import BackgroundThreadTransport
from google.cloud.logging_v2.services.logging_service_v2 import LoggingServiceV2Client
from google.cloud.logging_v2.services.logging_service_v2.transports import LoggingServiceV2GrpcTransport
from google.cloud.logging_v2.types import WriteLogEntriesPartialErrors
from google.rpc import error_details_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status  # type: ignore[import-untyped]
from ml_diagnostics_testing.cloud_logging import CloudLoggingServer
from ml_diagnostics_testing.faults import Delay, Ending, Hang, Reset, Status, Truncate

from ..waiting import LONG_SECONDS, wait_until

NOW = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)
PAYLOAD = {"job_name": "J", "step_count": 7, "step_start_time": 1763711431.25, "none": None, "list": [1, {"a": True}]}


def reference_filter(project: str, *, start: str) -> str:
    """Return the filter of ml-goodput-measurement 0.2.3, with its job name and end unchanged."""
    return (
        f'logName="projects/{project}/logs/goodput_run" AND severity=INFO AND jsonPayload.job_name="J" '
        f'AND timestamp<="2100-01-01T00:00:00+00:00" AND {start}'
    )


def test_what_is_written_is_read_back(google_client: Any, cloud_logging_server: CloudLoggingServer) -> None:
    google_client.logger("goodput_run").log_struct(
        PAYLOAD, severity="INFO", insert_id="w-1", timestamp=NOW, labels={"host": "h"}
    )
    (read,) = [
        item for item in google_client.list_entries(filter_=f'timestamp="{NOW.isoformat()}"') if item.insert_id == "w-1"
    ]
    assert read.payload == PAYLOAD
    assert (read.severity, read.timestamp, read.labels) == ("INFO", NOW, {"host": "h"})
    assert read.log_name == "projects/test-project/logs/goodput_run"
    assert read.resource.type == "global"
    assert cloud_logging_server.requests_for("write")[0].status == 200


def test_both_transports_see_one_store(google_client: Any, cloud_logging_server: CloudLoggingServer) -> None:
    cloud_logging_server.write(
        [{"jsonPayload": PAYLOAD, "trace": "t", "httpRequest": {"status": 200, "requestUrl": "/"}}], log_id="x"
    )
    (read,) = google_client.list_entries(filter_='timestamp>"2020-01-01T00:00:00Z"')
    assert read.payload == PAYLOAD
    assert read.trace == "t"
    assert int(read.http_request["status"]) == 200


def test_the_filter_of_the_last_day_that_the_client_adds_is_understood(
    google_client: Any, cloud_logging_server: CloudLoggingServer
) -> None:
    cloud_logging_server.write([{"textPayload": "new"}], log_id="x")
    old = (datetime.now(timezone.utc) - timedelta(hours=25)).isoformat()
    cloud_logging_server.write([{"textPayload": "old", "timestamp": old}], log_id="x")
    assert [item.payload for item in google_client.logger("x").list_entries()] == ["new"]


def test_the_references_queries_find_what_they_ask_for(
    google_client: Any, cloud_logging_server: CloudLoggingServer
) -> None:
    stamps = [NOW + timedelta(seconds=index // 2) for index in range(2500)]
    cloud_logging_server.preload(
        [
            {
                "timestamp": stamp.isoformat(),
                "insertId": f"w-{index:06}",
                "severity": "INFO" if index % 5 else "DEBUG",
                "jsonPayload": {"job_name": "J" if index % 3 else "K", "step_count": index},
            }
            for index, stamp in enumerate(stamps)
        ],
        log_id="goodput_run",
    )
    wanted = [index for index in range(2500) if index % 5 and index % 3]
    logger = google_client.logger("goodput_run")

    def steps(start: str, page_size: int = 1000) -> list[int]:
        filter_ = reference_filter(google_client.project, start=start)
        found = logger.list_entries(filter_=filter_, order_by="timestamp asc", page_size=page_size)
        return [int(item.payload["step_count"]) for item in found]

    assert steps('timestamp>"2020-01-01T00:00:00+00:00"') == wanted
    assert [record.entries for record in cloud_logging_server.requests_for("list")] == [1000, len(wanted) - 1000]
    cursor = stamps[1001].isoformat()
    incremental = f'(timestamp > "{cursor}" OR (timestamp = "{cursor}" AND insertId > "w-001000"))'
    assert steps(incremental) == [index for index in wanted if index > 1000]
    with pytest.raises(exceptions.BadRequest):
        steps('timestamp>"2020-01-01T00:00:00+00:00"', page_size=1_000_000)


def test_the_background_handler_of_the_standard_library_delivers(
    google_client: Any, cloud_logging_server: CloudLoggingServer
) -> None:
    handler = CloudLoggingHandler(google_client, name="app", transport=BackgroundThreadTransport)
    logger = logging.Logger("app", logging.INFO)
    logger.addHandler(handler)
    for index in range(120):
        logger.info("line %d", index)
    handler.transport.flush()
    handler.close()
    stored = cloud_logging_server.entries('log_id("app") AND jsonPayload.message:line')
    stored = stored or cloud_logging_server.entries('log_id("app") AND textPayload:line')
    assert len(stored) == 120


def test_the_request_log_names_the_transport(
    google_client: Any, cloud_logging_server: CloudLoggingServer, request: pytest.FixtureRequest
) -> None:
    list(google_client.list_entries())
    (record,) = cloud_logging_server.requests
    expected = {
        "rest": ("list", "POST", "/v2/entries:list?prettyPrint=false"),
        "grpc": ("list", "gRPC", "/google.logging.v2.LoggingServiceV2/ListLogEntries"),
    }
    assert (record.operation, record.method, record.path) == expected[request.node.callspec.params["google_client"]]
    assert (record.entries, record.status) == (0, 200)


@pytest.mark.parametrize(
    ("code", "error"),
    [(403, exceptions.Forbidden), (404, exceptions.NotFound), (429, exceptions.TooManyRequests)],
)
def test_a_scripted_status_is_the_clients_own_error(
    google_client: Any, cloud_logging_server: CloudLoggingServer, code: int, error: type[Exception]
) -> None:
    cloud_logging_server.faults.always(Status(code))
    with pytest.raises(error):
        list(google_client.list_entries())
    assert cloud_logging_server.requests[0].status == code


@pytest.mark.parametrize(("fields", "stored"), [({}, 2), ({"insert_id": "w-1", "timestamp": NOW}, 1)])
@pytest.mark.parametrize("lost", [Status(503, after_apply=True), Reset(after_apply=True)])
def test_a_dropped_answer_duplicates_entries_unless_their_insert_ids_are_stable(
    google_client: Any,
    cloud_logging_server: CloudLoggingServer,
    fields: dict[str, Any],
    stored: int,
    lost: Status | Reset,
) -> None:
    cloud_logging_server.faults.script([lost], on="write")
    logger = google_client.logger("x")
    try:
        logger.log_struct({"step": 1}, **fields)  # over gRPC the client itself tries again
    except (exceptions.ServiceUnavailable, requests.ConnectionError):
        logger.log_struct({"step": 1}, **fields)
    assert len(cloud_logging_server.requests_for("write")) == 2
    assert len(cloud_logging_server.entries("jsonPayload.step=1")) == stored


@pytest.fixture
def gapic(cloud_logging_server: CloudLoggingServer) -> Iterator[LoggingServiceV2Client]:
    """The client's generated layer over gRPC: one call, no retries."""
    with grpc.insecure_channel(cloud_logging_server.grpc_target) as channel:
        yield LoggingServiceV2Client(transport=LoggingServiceV2GrpcTransport(channel=channel))


def write(gapic: LoggingServiceV2Client, *entries: dict[str, Any], timeout: float = LONG_SECONDS) -> None:
    gapic.write_log_entries(
        request={
            "log_name": "projects/test-project/logs/x",
            "resource": {"type": "global"},
            "entries": entries,
            "partial_success": True,
        },
        retry=None,
        timeout=timeout,
    )


class TestFaultsOverGrpc:
    def test_a_429_carries_when_to_come_back(
        self, gapic: LoggingServiceV2Client, cloud_logging_server: CloudLoggingServer
    ) -> None:
        cloud_logging_server.faults.script([Status(429, retry_after=1.5)])
        with pytest.raises(exceptions.ResourceExhausted) as caught:
            write(gapic, {"text_payload": "a"})
        (retry_info,) = caught.value.details
        assert isinstance(retry_info, error_details_pb2.RetryInfo)
        assert retry_info.retry_delay.ToMilliseconds() == 1500
        assert cloud_logging_server.entries() == []

    @pytest.mark.parametrize(
        ("fault", "error", "stored"),
        [
            (Status(503), exceptions.ServiceUnavailable, 0),
            (Status(503, after_apply=True), exceptions.ServiceUnavailable, 1),
            (Status(418), exceptions.Unknown, 0),
            (Reset(), exceptions.ServiceUnavailable, 0),
            (Reset(after_apply=True), exceptions.ServiceUnavailable, 1),
            (Truncate(), exceptions.InternalServerError, 1),
            (Hang(), exceptions.DeadlineExceeded, 0),
            (Hang(after_apply=True), exceptions.DeadlineExceeded, 1),
            (Hang(0.01), exceptions.ServiceUnavailable, 0),
        ],
    )
    def test_a_fault_ends_the_call(
        self,
        gapic: LoggingServiceV2Client,
        cloud_logging_server: CloudLoggingServer,
        fault: Ending,
        error: type[Exception],
        stored: int,
    ) -> None:
        write(gapic, {"text_payload": "before"})
        cloud_logging_server.faults.script([fault])
        with pytest.raises(error):
            write(gapic, {"text_payload": "a"}, timeout=1 if error is exceptions.DeadlineExceeded else 30)
        wait_until(lambda: len(cloud_logging_server.entries('textPayload="a"')) == stored)
        write(gapic, {"text_payload": "after"})

    def test_a_delay_is_before_the_work(
        self, gapic: LoggingServiceV2Client, cloud_logging_server: CloudLoggingServer
    ) -> None:
        cloud_logging_server.faults.script([Delay(0.1)])
        started = time.monotonic()
        write(gapic, {"text_payload": "a"})
        assert time.monotonic() - started >= 0.1

    def test_calls_that_hang_do_not_stop_the_server_from_closing(self) -> None:
        server = CloudLoggingServer()
        server.faults.always(Hang())
        with grpc.insecure_channel(server.grpc_target) as channel:
            call = channel.unary_unary("/google.logging.v2.LoggingServiceV2/ListLogEntries").future(b"")
            wait_until(lambda: server.requests)
            server.close()
            assert call.exception() is not None
        server.close()


def test_partial_errors_over_grpc_name_the_entries(
    gapic: LoggingServiceV2Client, cloud_logging_server: CloudLoggingServer
) -> None:
    with pytest.raises(exceptions.InvalidArgument) as caught:
        write(gapic, {"text_payload": "good"}, {"text_payload": "x" * 262_144}, {"log_name": "bad"})
    (detail,) = rpc_status.from_call(caught.value.errors[0]).details
    errors = WriteLogEntriesPartialErrors.pb()()
    assert detail.Unpack(errors)
    assert sorted(errors.log_entry_errors) == [1, 2]
    assert "maximum size of 256.0K" in errors.log_entry_errors[1].message
    assert [item["textPayload"] for item in cloud_logging_server.entries()] == ["good"]


def test_more_than_10_mb_over_grpc_are_refused(
    gapic: LoggingServiceV2Client, cloud_logging_server: CloudLoggingServer
) -> None:
    with pytest.raises(exceptions.InvalidArgument, match="10485760 bytes"):
        write(gapic, *[{"text_payload": "x" * 250_000}] * 43)
    assert cloud_logging_server.entries() == []


def test_nan_over_grpc_is_refused(gapic: LoggingServiceV2Client) -> None:
    with pytest.raises(exceptions.InvalidArgument):
        write(gapic, {"json_payload": {"x": math.nan}})


def test_large_pages_fit_a_channel_with_grpcs_own_limit(
    gapic: LoggingServiceV2Client, cloud_logging_server: CloudLoggingServer
) -> None:
    cloud_logging_server.write([{"textPayload": "x" * 250_000} for _ in range(20)], log_id="x")
    listed = gapic.list_log_entries(request={"resource_names": ["projects/test-project"], "page_size": 1000})
    assert sum(len(item.text_payload) for item in listed) == 5_000_000


@pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed")
def test_gcloud_writes_and_reads(cloud_logging_server: CloudLoggingServer, tmp_path: Path) -> None:
    environment = {**os.environ, **cloud_logging_server.environment(), "CLOUDSDK_CONFIG": str(tmp_path)}

    def gcloud(*arguments: str) -> str:
        command = ["gcloud", "logging", *arguments]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    gcloud("write", "my-log", '{"q": "say \\"x\\""}', "--payload-type=json", "--severity=WARNING")
    assert gcloud("read", 'jsonPayload.q="say \\"x\\"" severity>INFO', "--format=value(severity)") == "WARNING\n"
