"""Processes that save one state at once, that hang while they do, and that die of it."""

from __future__ import annotations

import fcntl
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from ml_diagnostics_common.journal import Journal
from ml_goodput_measurement._query.saved_state import load_state, save_state
from ml_goodput_measurement.partition import JobReport

from .histories import JOB, History
from .states import LIFE, LOG, NOW_NS, calculator, record, recorders_of, root, save, saved_file


@pytest.fixture
def truth() -> JobReport:
    """The report of LIFE, which this fixture writes to the journal."""
    record(LIFE.payloads)
    return calculator().report()


SAVER = """
import sys
from pathlib import Path
from ml_goodput_measurement._ledger.recorders import Recorders
from ml_goodput_measurement._ledger.writers import Writer
from ml_goodput_measurement._query.saved_state import save_state
recorders = Recorders("job")
recorders.add(Writer(0), [{"job_name": "job", "step_count": i, "step_start_time": 1.7e9 + i} for i in range(200_000)])
path = Path(sys.argv[1])
print("ready", flush=True)
while True:
    recorders.add(Writer(0), [{"job_name": "job", "step_count": i, "step_start_time": 1.7e9 + i}])
    i += 1
    save_state(path, recorders, {"saved": len(recorders.ledger.facts)})
""".replace("while True:", "i = 200_000\nwhile True:")


def test_a_process_killed_while_it_saves_leaves_a_whole_state(tmp_path: Path) -> None:
    path = tmp_path / "state" / "job.goodput"
    known = 0
    draw = random.Random(7)
    for life in range(4):
        with subprocess.Popen([sys.executable, "-c", SAVER, str(path)], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            while life and not path.exists():  # On a slow machine the first save may take longer than a life.
                time.sleep(0.01)
            time.sleep(0.05 + draw.random() / 5)
            process.send_signal(signal.SIGKILL)
        loaded = load_state(path, JOB)
        if loaded is None:
            assert known == 0
            assert not path.exists()
            continue
        assert loaded.position["saved"] == len(loaded.recorders.ledger.facts) >= known
        known = loaded.position["saved"]
    assert known > 200_000
    leftovers = {file.name for file in path.parent.iterdir()} - {path.name, f".{path.name}.lock"}
    assert len(leftovers) <= 1  # Not one a death: they are as large as the state.
    recorders = recorders_of(History().steps(range(known + 1), at=0, each=1).payloads)
    assert save_state(path, recorders, {})
    assert {file.name for file in path.parent.iterdir()} == {path.name, f".{path.name}.lock"}


def test_an_older_state_never_replaces_one_that_knows_more(tmp_path: Path) -> None:
    path = tmp_path / "s"
    assert save_state(path, recorders_of(LIFE.payloads), {"is": "newer"})
    assert not save_state(path, recorders_of(LIFE.payloads[:-1]), {"is": "older"})
    loaded = load_state(path, JOB)
    assert loaded is not None
    assert loaded.position == {"is": "newer"}
    # As much is replaced: its position may be further on, behind entries of other jobs.
    assert save_state(path, recorders_of(LIFE.payloads), {"is": "newest"})


def test_a_process_that_hangs_while_it_saves_delays_no_other(
    truth: JobReport, caplog: pytest.LogCaptureFixture
) -> None:
    path = save()
    with path.with_name(f".{path.name}.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subject = calculator()
        subject.save_state()
        assert subject.report() == truth
        assert caplog.messages == []
        assert not save_state(path, recorders_of(LIFE.payloads), {})
    assert save_state(path, recorders_of(LIFE.payloads), {})


def test_two_that_query_and_save_at_once_are_both_right(truth: JobReport) -> None:
    """Two processes' worth of calculators, and a job that goes on meanwhile."""
    more = History().start(500).steps(range(20, 220), at=501, each=1).payloads
    failures: list[BaseException] = []
    stop = threading.Event()

    def monitor() -> None:
        try:
            while not stop.is_set():
                subject = calculator()
                kept = subject.report().steps_kept
                subject.save_state()
                assert subject.report().steps_kept >= kept >= truth.steps_kept
        except BaseException as error:
            failures.append(error)

    monitors = [threading.Thread(target=monitor) for _ in range(2)]
    for thread in monitors:
        thread.start()
    journal = Journal(LOG, root=root(), labels={"job": JOB, "process_index": "0"})
    for payload in more:
        journal.append(payload)
        time.sleep(0.001)
    stop.set()
    for thread in monitors:
        thread.join()
    assert failures == []
    resumed = calculator().report()
    saved_file().unlink()
    assert resumed == calculator().report()
    assert resumed.steps_kept == truth.steps_kept + 199


def test_two_processes_that_query_and_save_at_once_are_both_right(truth: JobReport) -> None:
    script = """
import sys
from ml_goodput_measurement.goodput import GoodputCalculator
kept = set()
for _ in range(20):
    subject = GoodputCalculator("job", "goodput_job", _clock_ns=lambda: int(sys.argv[1]))
    kept.add(subject.report().steps_kept)
    subject.save_state()
print(sorted(kept))
"""
    command = [sys.executable, "-c", script, str(NOW_NS)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    for process in processes:
        out, err = process.communicate(timeout=60)
        assert (out.decode().strip(), err.decode()) == (str([truth.steps_kept]), "")
    assert load_state(saved_file(), JOB) is not None
