"""The clock of a job without a process stops at the last event; that of a hanging job does not."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ml_diagnostics_common.journal import Journal
from ml_goodput_measurement import cli
from ml_goodput_measurement._ledger import Ledger
from ml_goodput_measurement.goodput import GoodputCalculator
from ml_goodput_measurement.partition import AttemptEnd, JobReport

from .histories import BASE, JOB, History
from .lives import ledger_of

LOG = "goodput_job"
TRAINER = """
import sys, time
from ml_goodput_measurement import goodput

recorder = goodput.GoodputRecorder("job", "goodput_job", logging_enabled=True)
recorder.record_job_start_time()
for step in range(20):
    recorder.record_step_start_time(step)
    time.sleep(0.005)
print("trained", flush=True)
time.sleep(60)
"""


@pytest.fixture
def trainer() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", TRAINER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "trained\n"
        yield process
        process.kill()


def report(hours_later: float = 0.0) -> JobReport:
    return GoodputCalculator(JOB, LOG, _clock_ns=lambda: time.time_ns() + int(hours_later * 3600e9)).report()


def last_event_ns() -> int:
    ledger = GoodputCalculator(JOB, LOG)
    ledger.get_job_goodput()
    return ledger._ledger.facts.last_before(2**62)


def test_a_job_with_a_killed_process_ends_with_its_last_event(
    trainer: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert report().running
    trainer.send_signal(signal.SIGKILL)
    trainer.wait()
    found, later = report(), report(hours_later=5)
    assert not found.running
    assert found.attempts[-1].ended is AttemptEnd.LOST
    assert found.end_ns == later.end_ns == last_event_ns()
    assert later.buckets == found.buckets
    assert cli.main(["report", JOB]) == 0
    line = capsys.readouterr().out.splitlines()[2]
    assert line.endswith("(process gone))")
    assert "no events since " in line
    calculator = GoodputCalculator(JOB, LOG, _clock_ns=lambda: time.time_ns() + 5 * 3600 * 10**9)
    goodput = float(calculator.get_job_goodput())
    assert goodput == pytest.approx(found.goodput_percent)
    snapshot = calculator.snapshot(window_seconds=[3600])
    assert snapshot.windows[0].goodput_percent == pytest.approx(goodput)
    percent, _, _, seconds, _ = calculator.get_job_goodput_interval(found.start_ns / 1e9, found.end_ns / 1e9)
    assert (percent, seconds) == (pytest.approx(goodput), pytest.approx(found.wall_ns / 1e9))


def test_a_process_that_hangs_or_is_stopped_is_not_gone(trainer: subprocess.Popen[str]) -> None:
    trainer.send_signal(signal.SIGSTOP)
    later = report(hours_later=5)
    assert later.running
    assert later.wall_ns > 4 * 3600 * 10**9


def test_a_report_from_another_container_of_the_pod_knows_if_the_process_runs(trainer: subprocess.Popen[str]) -> None:
    container = ["unshare", "--pid", "--fork", "--mount-proc"]
    if shutil.which("unshare") is None or subprocess.run([*container, "true"], capture_output=True).returncode:
        pytest.skip("this user may not make a PID namespace")
    command = "import sys; from ml_goodput_measurement.cli import main; sys.exit(main())"
    ask = [*container, sys.executable, "-c", command, "report", JOB, "--format", "json"]
    running = subprocess.run(ask, capture_output=True, text=True, check=True)
    assert json.loads(running.stdout)["running"]
    trainer.kill()
    trainer.wait()
    gone = subprocess.run(ask, capture_output=True, text=True, check=True)
    assert not json.loads(gone.stdout)["running"]


def test_a_zombie_process_is_gone(trainer: subprocess.Popen[str]) -> None:
    trainer.kill()
    os.waitid(os.P_PID, trainer.pid, os.WEXITED | os.WNOWAIT)  # it is dead, and still listed
    assert not report().running


def test_a_job_continues_after_its_process_was_killed(trainer: subprocess.Popen[str]) -> None:
    trainer.kill()
    trainer.wait()
    assert not report().running
    with subprocess.Popen([sys.executable, "-c", TRAINER], stdout=subprocess.PIPE, text=True) as again:
        assert again.stdout is not None
        again.stdout.readline()
        found = report()
        again.kill()
    assert found.running
    assert [attempt.ended for attempt in found.attempts] == [AttemptEnd.LOST, AttemptEnd.RUNNING]


def relabel(**labels: str) -> None:
    """Change the journal to one of another process."""
    [segment] = (Path(os.environ["ML_DIAGNOSTICS_DIR"]) / "journal" / LOG).glob("*.jsonl")
    header, _, entries = segment.read_text().partition("\n")
    decoded = json.loads(header)
    decoded["labels"] |= labels
    writer = decoded["writer"]
    decoded["writer"] = labels.pop("writer", writer)
    segment.write_text(json.dumps(decoded) + "\n" + entries)
    segment.rename(segment.with_name(segment.name.replace(writer, decoded["writer"])))


def test_a_later_process_with_the_same_pid_is_another_one(trainer: subprocess.Popen[str]) -> None:
    """The pid of this very process, in the labels of a writer that started long before it."""
    trainer.kill()
    trainer.wait()
    earlier_ns = time.time_ns() - 30 * 86_400 * 10**9  # All tests together may take more than an hour.
    relabel(pid=str(os.getpid()), writer=f"host-{os.getpid()}-{earlier_ns}-0")
    assert not report().running


def test_a_process_of_another_host_is_gone_when_its_companion_reports_that(
    trainer: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]
) -> None:
    trainer.kill()
    trainer.wait()
    relabel(host="host-9")
    assert report().running, "nothing is known of it, and it was not silent for long"
    root = Path(os.environ["ML_DIAGNOSTICS_DIR"])
    companion = Journal(
        "tpu.googleapis.com/runtime_monitor",
        root=root,
        labels={"job": JOB, "host": "host-9", "pid": ""},
        about_pid=trainer.pid,
    )
    message = "The job was ended by SIGKILL (signal from the kernel)"
    companion.append({"kind": "job_ended", "how": "signal", "message": message, "goes_on": True})
    assert report().running, "it only left the block"
    companion.append({"kind": "job_ended", "how": "signal", "message": message})
    found = report(hours_later=5)
    assert found.end_ns == last_event_ns()
    assert found.notes == [f"host-9, pid {trainer.pid}: {message}"]
    assert cli.main(["report", JOB]) == 0
    assert f"Note: host-9, pid {trainer.pid}: {message}" in capsys.readouterr().out


def test_a_process_that_nothing_is_known_of_is_gone_after_the_silence_of_a_hang(
    trainer: subprocess.Popen[str],
) -> None:
    trainer.kill()
    trainer.wait()
    relabel(host="host-9")
    assert report(hours_later=0.1).running
    assert not report(hours_later=0.2).running
    assert report(hours_later=0.2).end_ns == last_event_ns()


def silent_after(history: History, seconds: float) -> bool:
    ledger: Ledger = ledger_of(history.payloads)
    return ledger.is_silent(int((BASE + history.last_moment() + seconds) * 1e9))


@pytest.mark.parametrize(
    ("history", "bound"),
    [
        (History().start(0), 1800),
        (History().start(0).steps(range(3), at=900), 2700),  # three times what it took to start
        (History().start(0).steps(range(30), at=10, each=1), 600),
        (History().start(0).steps(range(30), at=10, each=300), 900),
        (History().start(0).steps(range(15), at=10).steps(range(15, 30), at=1150), 3000),  # an evaluation of 1000 s
        (History().start(0).steps(range(30), at=10).start(900).steps(range(30, 32), at=1000), 1800),
        (History().start(0).steps(range(30), at=10).wait(310, 320), 600),
    ],
    ids=range(7),
)
def test_the_longest_silence_is_learned_from_the_job(history: History, bound: float) -> None:
    assert not silent_after(history, bound - 1)
    assert silent_after(history, bound + 1)


def test_a_job_that_waits_for_slices_may_be_silent_for_ever() -> None:
    history = History().start(0).steps(range(30), at=10)
    history.add(elastic_wait_event_type="slice_down", elastic_wait_start_time=BASE + 320)
    assert not silent_after(history, 1e6)


def test_a_job_that_was_killed_before_its_first_event_is_an_error_with_that_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    program = TRAINER.partition("for step")[0] + "import os; os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", program], check=False, timeout=60)
    assert cli.main(["report", JOB]) == 3
    assert "recorded nothing after its start, and its process is gone" in capsys.readouterr().err


@pytest.mark.timing
def test_asking_whether_a_process_runs_costs_little(trainer: subprocess.Popen[str]) -> None:
    calculator = GoodputCalculator(JOB, LOG)
    calculator.get_job_goodput()
    liveness, writer = calculator._reader._liveness, calculator._reader._recorders.last_writer()
    started = time.perf_counter()
    for _ in range(1000):
        liveness.state(writer)
    known = time.perf_counter() - started
    started = time.perf_counter()
    for _ in range(1000):
        Path("/proc/self/stat").read_bytes()
    assert known < 10 * (time.perf_counter() - started)
    shutil.rmtree(Path(os.environ["ML_DIAGNOSTICS_DIR"]) / "journal")
