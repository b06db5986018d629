"""Reading a job's entries from Cloud Logging, beside the google client's `Logger.list_entries` over gRPC.

The loopback server is a process of its own and has every entry serialised beforehand, so that what is compared is
what a reader costs.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

from benchmarks import process
from benchmarks.job import BASE, JOB, LOG
from benchmarks.results import Row, Table, seconds

_PROJECT = "project"


def read_ours() -> dict[str, Any]:
    """Read with our reader."""
    from ml_diagnostics_common.backoff import RequestBudget
    from ml_diagnostics_common.cloud_logging import CloudLoggingReader, PageReader, make_transport
    from ml_diagnostics_common.credentials import find_cloud

    pages = PageReader(make_transport(find_cloud()), budget=RequestBudget(10**6))
    reader = CloudLoggingReader(pages, LOG, job_name=JOB)
    started = time.perf_counter()
    entries = steps = 0
    for batch in reader.read_new():
        for entry in batch:
            entries += 1
            steps += entry.payload["step_count"]
    return {"seconds": time.perf_counter() - started, "entries": entries, "steps": steps}


def read_google(target: str) -> dict[str, Any]:
    """`google.cloud.logging.Client.logger(...).list_entries(...)`, over gRPC, as the reference calls it."""
    import google.cloud.logging
    import grpc  # type: ignore[import-untyped]
    from google.auth.credentials import AnonymousCredentials
    from google.cloud.logging_v2._gapic import _LoggingAPI
    from google.cloud.logging_v2.services.logging_service_v2 import LoggingServiceV2Client
    from google.cloud.logging_v2.services.logging_service_v2.transports import LoggingServiceV2GrpcTransport

    client = google.cloud.logging.Client(project=_PROJECT, credentials=AnonymousCredentials())
    # The client has no public option for a server without TLS.
    channel = grpc.insecure_channel(target, options=[("grpc.max_receive_message_length", -1)])
    transport = LoggingServiceV2GrpcTransport(channel=channel)
    client._logging_api = _LoggingAPI(LoggingServiceV2Client(transport=transport), client)
    filter_ = f'severity=INFO AND jsonPayload.job_name="{JOB}" AND timestamp>"2000-01-01T00:00:00Z"'
    started = time.perf_counter()
    entries = steps = 0
    for entry in client.logger(LOG).list_entries(filter_=filter_, order_by="timestamp asc", page_size=1000):
        entries += 1
        steps += int(entry.payload["step_count"])
    return {"seconds": time.perf_counter() - started, "entries": entries, "steps": steps}


def serve(count: int) -> None:
    """Serve `count` steps until stdin ends; print the address on stdout."""
    from ml_diagnostics_common.entry import EntryContext, LogEntry, encode_cloud
    from ml_diagnostics_testing.cloud_logging import CloudLoggingServer

    with CloudLoggingServer(_PROJECT) as server:
        writer = "host-812-1763710310123456789"
        labels = {"job": JOB, "run": JOB, "attempt": "1", "host": "host", "process_index": "0", "pid": "812"}
        context = EntryContext(LOG, server.log_name(LOG), {"type": "global"}, labels, writer=writer)
        server.preload(
            encode_cloud(
                LogEntry(
                    timestamp_ns=int((BASE + step) * 1e9),
                    sequence=10**11 + step,
                    payload={"job_name": JOB, "step_count": step, "step_start_time": BASE + step},
                    context=context,
                )
            )
            for step in range(count)
        )
        print(json.dumps({"environment": server.environment(), "grpc": server.grpc_target}), flush=True)
        sys.stdin.read()


def measure(*, quick: bool) -> list[Table]:
    count = 20_000 if quick else 100_000
    mine: list[float] = []
    google: list[float] = []
    with process.server(__name__, count) as (server, _):
        for _ in range(1 if quick else 5):
            run = process.ours(read_ours, environment={**server["environment"], "ML_DIAGNOSTICS_BACKEND": "cloud"})
            _check(run, count)
            mine.append(run["seconds"])
            run = process.ours(read_google, target=server["grpc"])
            _check(run, count)
            google.append(run["seconds"])
    ratio = statistics.median(theirs / ours for theirs, ours in zip(google, mine, strict=True))
    row = Row(
        f"{count:,} entries, over REST",
        seconds(statistics.median(mine)),
        f"gRPC list_entries {seconds(statistics.median(google))}",
        f"{ratio:.1f} times faster",
        ">= 8 times faster",
        ratio >= 8,
    )
    return [Table("Reading Cloud Logging", "From the loopback server, in pages of 1,000.", [row])]


def _check(run: dict[str, Any], count: int) -> None:
    assert (run["entries"], run["steps"]) == (count, count * (count - 1) // 2), run


if __name__ == "__main__":
    serve(int(sys.argv[1]))
