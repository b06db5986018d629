"""Reading a run from Cloud Logging requests no more of the past than the run has."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from google_cloud_mldiagnostics._reading.run_source import RunEntries
from ml_diagnostics_common.cloud_logging import Page
from ml_diagnostics_common.entry import format_timestamp, parse_timestamp
from ml_diagnostics_common.log_source import Cloud
from ml_diagnostics_testing.cloud_logging import CloudLoggingServer

_DAY_NS = 86_400 * 10**9


@pytest.fixture
def cloud(cloud_logging_server: CloudLoggingServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    for name, value in cloud_logging_server.environment().items():
        monkeypatch.setenv(name, value)
    cloud = Cloud()
    yield cloud
    cloud.connect().close()


def days_requested(cloud: Cloud, root: Path, monkeypatch: pytest.MonkeyPatch, **run: str) -> float:
    """Return how far back all of a run is requested."""
    filters: list[str] = []
    transport = cloud.connect()
    list_page = transport.list_page

    def noted(filter_: str, **arguments: object) -> Page:
        filters.append(filter_)
        return list_page(filter_, **arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(transport, "list_page", noted)
    notes: list[str] = []
    entries = RunEntries(root, cloud, notes.append)
    assert list(entries.everything({"name": "run-1", **run})) == []
    assert notes == entries.notes() == []
    moments = [parse_timestamp(text) for text in re.findall(r'timestamp ?>=? ?"([^"]+)"', "\n".join(filters))]
    return (time.time_ns() - min(moments)) / _DAY_NS


def test_entries_of_a_run_are_requested_from_its_time_of_creation(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    created = format_timestamp(time.time_ns() - 2 * _DAY_NS)
    # `mldiagnostics sync` may have created it weeks after its entries were recorded.
    assert 2 < days_requested(cloud, tmp_path, monkeypatch, createTime=created) < 40


@pytest.mark.parametrize("run", [{}, {"createTime": "soon"}])
def test_a_run_with_an_unknown_time_of_creation_is_requested_without_a_start(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: dict[str, str]
) -> None:
    assert days_requested(cloud, tmp_path, monkeypatch, **run) > 365
