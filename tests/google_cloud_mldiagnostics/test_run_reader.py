"""Reading a run from Cloud Logging asks for no more of the past than the run has."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from google_cloud_mldiagnostics.reading.run_entries import CloudEntries
from ml_diagnostics_common.cloud_logging import LoggingTransport, Page, connect
from ml_diagnostics_common.entry import format_timestamp, parse_timestamp
from ml_diagnostics_testing.cloud_logging import CloudLoggingServer

_DAY_NS = 86_400 * 10**9


@pytest.fixture
def transport(cloud_logging_server: CloudLoggingServer) -> Iterator[LoggingTransport]:
    transport = connect(environ={**cloud_logging_server.environment(), "ML_DIAGNOSTICS_LOGGING_GRPC": ""})
    yield transport
    transport.close()


def days_asked(transport: LoggingTransport, root: Path, monkeypatch: pytest.MonkeyPatch, **run: str) -> float:
    """How far back all of a run is asked for."""
    filters: list[str] = []
    list_page = transport.list_page

    def noted(filter_: str, **arguments: object) -> Page:
        filters.append(filter_)
        return list_page(filter_, **arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(transport, "list_page", noted)
    notes: list[str] = []
    assert list(CloudEntries(transport, root, notes.append).everything({"name": "run-1", **run})) == []
    assert notes == []
    moments = [parse_timestamp(text) for text in re.findall(r'timestamp ?>=? ?"([^"]+)"', "\n".join(filters))]
    return (time.time_ns() - min(moments)) / _DAY_NS


def test_a_run_is_asked_for_since_it_was_created(
    transport: LoggingTransport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    created = format_timestamp(time.time_ns() - 2 * _DAY_NS)
    # `mldiagnostics sync` may have created it weeks after its entries were recorded.
    assert 2 < days_asked(transport, tmp_path, monkeypatch, createTime=created) < 40


@pytest.mark.parametrize("run", [{}, {"createTime": "soon"}])
def test_a_run_of_which_that_is_not_known_is_asked_for_since_ever(
    transport: LoggingTransport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: dict[str, str]
) -> None:
    assert days_asked(transport, tmp_path, monkeypatch, **run) > 365
