"""A value that is recorded by mistake costs the job neither time nor memory, and no metric contains a secret."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest
from google_cloud_mldiagnostics._recording.values import exact_step
from google_cloud_mldiagnostics.exceptions import RecordingError
from google_cloud_mldiagnostics.metrics import record
from ml_diagnostics_common.guard import LOSSES

from .recorded_runs import active, metrics_of


def test_a_name_that_is_a_document_is_refused_and_not_kept(
    tmp_path: Path, in_production: None, caplog: pytest.LogCaptureFixture
) -> None:
    with active(tmp_path) as run:
        for number in range(3):
            record(f"{number}" + "x" * 1_000_000, 1.0)
        record("y" * 500, 2.0)
        assert list(run.log.averages.as_dict()) == ["y" * 500]
    assert [name for name, _ in metrics_of(tmp_path)] == ["y" * 500]
    assert LOSSES["metrics: expected a metric name of at most 500 characters, got a longer one"] == 3
    assert max(len(logged.getMessage()) for logged in caplog.records) < 1000


@pytest.mark.timing
@pytest.mark.parametrize("step", [Decimal("1E+999999"), Decimal("-1E+999999"), "9" * 10_000, 2**63, 1e300])
def test_a_step_beyond_64_bits_is_refused_before_it_is_made(step: object) -> None:
    started = time.process_time()
    with pytest.raises(RecordingError, match="at most 64 bits"):
        exact_step(step)
    refused = time.process_time() - started
    assert refused < _seconds(lambda: int(Decimal("1E+100000")))  # Quadratic: a hundredth of what it saved.


def _seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def test_secrets_in_labels_and_names_stay_home(tmp_path: Path) -> None:
    labels = {"password": "hunter2-1", "note": "token=hunter2-2", "api_key=hunter2-3": "x", "token_count": "17"}
    with active(tmp_path) as run:
        record("loss", 1.0, labels=labels)
        record("loss of https://bob:hunter2-4@host/", 1.0)
        assert "hunter2" not in str(run.log.averages.as_dict())
    assert "hunter2" not in "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    ((_, payload), _) = metrics_of(tmp_path)
    assert (payload["password"], payload["note"], payload["token_count"]) == ("[REDACTED]", "token=[REDACTED]", "17")


def test_a_child_that_is_forked_while_averages_change_records_in_memory_that_does_not_grow(tmp_path: Path) -> None:
    with active(tmp_path) as run:
        record("loss", 1.0)
        average = run.log.averages.of("loss")
        assert average._folding.acquire(blocking=False)  # Like a thread that does not exist in the child.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # JAX warns of any fork; this child uses no JAX.
            child = os.fork()
        if child == 0:
            try:
                for step in range(2000):
                    record("loss", 2.0, step=step)
                own = [metric.average for metric in _recorded_metrics()]  # type: ignore[attr-defined]
                os._exit(0 if own and all(len(one.pending) < 1000 for one in (*own, average)) else 1)
            finally:
                os._exit(2)
        average._folding.release()
        assert os.waitpid(child, 0)[1] == 0
        assert run.log.averages.as_dict()["loss"]["count"] == 1
    assert len(metrics_of(tmp_path)) == 2001


def _recorded_metrics() -> list[object]:
    from google_cloud_mldiagnostics import metrics

    recorded = metrics._recorded_run_of_this_process
    assert recorded is not None
    return list(recorded.metrics.values())


def test_a_forked_child_does_not_wait_for_its_parents_devices() -> None:
    program = """
        import os, sys, threading, time
        from google_cloud_mldiagnostics._recording import device_values

        ready = threading.Event()
        device_values._Values.__init__.__kwdefaults__["exit_seconds"] = 60.0  # Also in the child.
        device_values.later(ready.wait)
        if os.fork() == 0:
            started = time.monotonic()
            import atexit
            atexit._run_exitfuncs()
            os._exit(0 if time.monotonic() - started < 30.0 else 1)
        status = os.wait()[1]
        ready.set()
        sys.exit(os.waitstatus_to_exitcode(status))
    """
    subprocess.run([sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)], check=True, timeout=120)
