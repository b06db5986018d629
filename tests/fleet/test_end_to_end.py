"""A job's journal becomes rows through a mirror: in a folder, and in a bucket through Google's client."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ml_diagnostics_common.mirror.rest import push
from ml_diagnostics_common.storage import storage_for
from ml_diagnostics_fleet.compact import compact
from ml_diagnostics_fleet.job_rows import JobRows
from ml_diagnostics_fleet.local_engine import run_local
from ml_diagnostics_fleet.rows_files import read_table, row_paths
from ml_diagnostics_fleet.schemas import TABLES
from ml_diagnostics_testing.cloud_storage import CloudStorageServer
from ml_goodput_measurement.goodput import GoodputCalculator

from ..ml_goodput_measurement.histories import JOB, History
from .fleets import NOW_NS, assert_equals_report

LOG = "goodput_job"
DAY_NS = 86_400 * 10**9


@pytest.fixture
def cloud_storage_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[CloudStorageServer]:
    with CloudStorageServer(buckets=["bucket"]) as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        yield server
        storage_for("gs://bucket/x").close()  # type: ignore[attr-defined]


@pytest.fixture(params=["folder", "bucket"])
def mirror(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "folder":
        return str(tmp_path / "mirror")
    request.getfixturevalue("cloud_storage_server")
    return "gs://bucket/team/mirror"


_RECORD = """
import json, os, sys
from pathlib import Path
from ml_diagnostics_common.journal import Journal
log, labels, payloads = json.load(sys.stdin)
journal = Journal(log, root=Path(os.environ["ML_DIAGNOSTICS_DIR"]), labels=labels)
for payload in payloads:
    journal.append(payload)
journal.close()
"""


def record(history: History, **labels: str) -> None:
    """Record a job in a process of its own, which has ended then."""
    text = json.dumps([LOG, {"job": JOB, "host": "elsewhere", **labels}, history.payloads])
    subprocess.run([sys.executable, "-c", _RECORD], input=text, text=True, check=True)


def test_rows_equal_the_report_of_the_journal(mirror: str) -> None:
    first = History().start(0).init(1, 3).steps(range(40), at=5).save(9, 105, 108).custom(140, 150)
    record(first, process_index="0", attempt="1", chips="64", team="llm")
    record(History().start(1).steps(range(40), at=6), process_index="1", attempt="1")
    second = History().start(500).restore(9, 502, 505).steps(range(10, 60), at=510).step_end(59, 1005).end(1010)
    record(second, process_index="0", attempt="2", chips="128", team="llm")
    root = Path(os.environ["ML_DIAGNOSTICS_DIR"])
    entries = sum(pushed.entries for pushed in push(root, mirror))

    assert entries == len(first.payloads) + 41 + len(second.payloads)
    tomorrow = 2**61  # The journal's entries are of today.
    done = compact(mirror, now_ns=NOW_NS, through_ns=tomorrow)
    assert (done.events, done.gaps, done.damaged) == (entries, [], [])
    run = run_local(mirror, NOW_NS, processes=1)
    assert (run.jobs, run.events, run.errors) == (1, entries, [])

    report = GoodputCalculator(JOB, LOG, _clock_ns=lambda: NOW_NS).report()
    tables = {name: read_table(mirror, run.snapshot, name) for name in TABLES}
    rows = JobRows(*([tuple(row.values()) for row in tables[name].to_pylist()] for name in TABLES))
    assert_equals_report(rows, report)
    (job,) = tables["jobs"].to_pylist()
    assert (job["missing"], job["open_writers"], job["disruptions"]) == (0, 0, 1)
    assert '"team": "llm"' in job["labels"]
    assert all(path.startswith(mirror) for path in row_paths(mirror, run.snapshot, "jobs"))
    assert compact(mirror, now_ns=NOW_NS, through_ns=tomorrow).events == 0
