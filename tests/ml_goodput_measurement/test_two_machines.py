"""Two machines that share nothing but `gcs_path`: each continues from the other's state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from ml_diagnostics_testing.cloud_storage import CloudStorageServer
from ml_diagnostics_testing.faults import Hang
from ml_goodput_measurement._query import state_store
from ml_goodput_measurement.goodput import GoodputCalculator
from ml_goodput_measurement.partition import JobReport

from .histories import BASE
from .states import LIFE, calculator, record, wait_long_for_copies

GCS_PATH = "gs://bucket/runs/7"
SECOND = next(i for i, payload in enumerate(LIFE.payloads) if payload.get("job_start_time") == BASE + 300)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[CloudStorageServer]:
    with CloudStorageServer(buckets=["bucket"]) as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_long_for_copies(monkeypatch)


class Machines:
    """Each has a disk of its own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._monkeypatch = folder, monkeypatch

    def go_to(self, name: str) -> None:
        self._monkeypatch.setenv("ML_DIAGNOSTICS_DIR", str(self._folder / name))


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machines:
    return Machines(tmp_path, monkeypatch)


@pytest.fixture
def truth(machines: Machines) -> JobReport:
    machines.go_to("one that has seen it all")
    record(LIFE.payloads)
    return calculator().report()


def reported(subject: GoodputCalculator) -> JobReport:
    report = subject.report()
    subject.sync_to_gcs()
    return report


@pytest.mark.usefixtures("server")
def test_a_job_that_moves_to_another_machine_is_reported_whole(machines: Machines, truth: JobReport) -> None:
    machines.go_to("a")
    record(LIFE.payloads[:SECOND])
    reported(calculator(gcs_path=GCS_PATH))
    machines.go_to("b")
    record(LIFE.payloads[SECOND:])
    assert reported(calculator(gcs_path=GCS_PATH)) == truth
    machines.go_to("a")
    assert calculator(gcs_path=GCS_PATH).report() == truth
    machines.go_to("c")
    assert calculator(gcs_path=GCS_PATH).report() == truth


@pytest.mark.usefixtures("server")
def test_what_was_recorded_since_the_copy_was_made_is_not_missed(machines: Machines, truth: JobReport) -> None:
    machines.go_to("a")
    record(LIFE.payloads[: SECOND - 5])
    reported(calculator(gcs_path=GCS_PATH))
    machines.go_to("b")
    reported(calculator(gcs_path=GCS_PATH))
    record(LIFE.payloads[SECOND:])
    reported(calculator(gcs_path=GCS_PATH))
    machines.go_to("a")  # Its disk has the entries in between.
    record(LIFE.payloads[SECOND - 5 : SECOND])
    assert calculator(gcs_path=GCS_PATH).report() == truth


def test_without_an_answer_a_machine_reports_its_own_entries(
    server: CloudStorageServer,
    machines: Machines,
    truth: JobReport,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    machines.go_to("a")
    record(LIFE.payloads)
    server.faults.always(Hang())
    subject = calculator(gcs_path=GCS_PATH)
    with monkeypatch.context() as soon:
        soon.setattr(state_store, "_CHECK_PATIENCE_SECONDS", 0.5)
        assert subject.report() == truth
        assert subject.report() == truth
    assert len(caplog.messages) == 1
    server.faults.clear()
    server.faults.release()
    subject.sync_to_gcs()
    machines.go_to("b")
    assert calculator(gcs_path=GCS_PATH).report() == truth
