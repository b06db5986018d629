"""`tpu-stacks show` finds jobs by the names of their recorders and runs, and reports processes that are gone."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cloud_tpu_diagnostics._collect import trace_file
from cloud_tpu_diagnostics._stacks import log_entries
from cloud_tpu_diagnostics._stacks.log_entries import _Latest, dumps_of
from cloud_tpu_diagnostics.entries import DUMP, HANG_SUSPECTED, JOB_ENDED, LOG_ID, SNAPSHOT, entry
from ml_diagnostics_common.entry import EntryContext, LogEntry, format_timestamp
from ml_diagnostics_common.journal import Journal
from ml_diagnostics_common.reader import JournalReader

from ..damaged_cloud_logging import DamagedCloudLogging
from ..waiting import wait_until
from .diagnosed_jobs import Job, run
from .test_stacks import dump_text, snapshot

if not sys.platform.startswith("linux"):
    pytest.skip("needs /proc", allow_module_level=True)

Show = Callable[..., tuple[int, str, str]]
HOST = socket.gethostname()

COMPANION = """
from cloud_tpu_diagnostics._collect import blocks

def companion():
    while blocks._current._companion._process.pid is None:
        time.sleep(0.01)
    return blocks._current._companion._process.pid
"""


def _entries() -> list[LogEntry]:
    root = Path(os.environ["ML_DIAGNOSTICS_DIR"])
    return [entry for batch in JournalReader(LOG_ID, root=root).read_new() for entry in batch]


def _kinds() -> list[str]:
    return [entry.payload["kind"] for entry in _entries()]


NAMED = {
    "recorder": """
from ml_goodput_measurement.goodput import GoodputRecorder
GoodputRecorder("llama-7", "goodput_llama", logging_enabled=False)
""",
    "run": """
from google_cloud_mldiagnostics import machinelearning_run
machinelearning_run("llama-7", log_system_metrics=False)
""",
}


@pytest.mark.parametrize("named_by", NAMED)
def test_a_job_is_found_by_the_name_of_its_recorder_or_its_run(show: Show, tmp_path: Path, named_by: str) -> None:
    program = f"with diagnostic.diagnose(config(cloud=True)):\n{NAMED[named_by]}\nraise OSError('theirs')"
    program = program.replace("\n", "\n    ")
    assert run(program, tmp_path)[0] == 1
    wait_until(lambda: JOB_ENDED in _kinds())
    code, out, err = show("--job", "llama-7")
    assert (code, err) == (0, "")
    assert out.startswith(f"{HOST} raised OSError: theirs in <module> (<string>:")
    (end,) = [entry for entry in _entries() if entry.payload["kind"] == JOB_ENDED]
    assert end.context.labels["job"] == "llama-7"


def _write(log: str, pid: int, payloads: list[dict[str, object]], *, age: float, job: str = "") -> None:
    labels = {"job": job, "run": job, "attempt": "", "host": HOST, "process_index": "0", "pid": str(pid)}
    root = Path(os.environ["ML_DIAGNOSTICS_DIR"])
    now_ns = time.time_ns() - round(age * 1e9)
    real, time.time_ns = time.time_ns, lambda: now_ns  # A writer's name contains its start.
    try:
        journal = Journal(log, root=root, labels=labels, about_pid=pid, clock_ns=lambda: now_ns)
    finally:
        time.time_ns = real
    for payload in payloads:
        journal.append(payload)
    journal.close()


def test_entries_without_a_name_belong_to_the_job_of_the_recorder_in_that_process_only(show: Show) -> None:
    ended = entry(JOB_ENDED, "The job was ended by SIGSEGV", how="signal", signal="SIGSEGV")
    pid = 2**22 + 5  # Above any process id.
    _write(LOG_ID, pid, [snapshot("before"), entry(JOB_ENDED, "The job ended well", how="clean")], age=300)
    _write("goodput_a", pid, [{"job_name": "a"}], age=200, job="a")
    _write(LOG_ID, pid, [snapshot("of_a"), ended], age=100)
    _write("goodput_b", pid, [{"job_name": "b"}], age=50, job="b")
    _write(LOG_ID, pid, [snapshot("of_b")], age=20)
    _, out, _ = show("--job", "a")
    assert "SIGSEGV" in out
    assert "of_a" in out
    assert "of_b" not in out
    assert "before" not in out
    _, out, _ = show("--job", "b")
    assert "of_b" in out
    assert "of_a" not in out
    assert show("--job", "c")[0] == 3


def test_the_stack_of_a_job_that_has_just_crashed_is_waited_for(show: Show, tmp_path: Path) -> None:
    show("--job", "other")  # Nothing is to be imported afterwards: a companion takes a tenth of a second to record.
    program = f"with diagnostic.diagnose(config(cloud=True)):\n{NAMED['run']}\nraise OSError('theirs')"
    assert run(program.replace("\n", "\n    "), tmp_path)[0] == 1
    code, out, err = show("--job", "llama-7")
    assert (code, err) == (0, "")
    assert out.startswith(f"{HOST} raised OSError: theirs in <module> (<string>:")


def test_a_job_that_has_just_ended_without_stacks_is_not_waited_for_in_vain(
    show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run([sys.executable, "-c", NAMED["run"]], check=True, timeout=60)
    monkeypatch.setattr(log_entries, "_COMPANION_SECONDS", 0.3)
    assert show("--job", "llama-7")[0] == 3


def test_a_job_that_runs_is_not_waited_for(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_entries, "_COMPANION_SECONDS", 3_600.0)
    program = f"{NAMED['run']}\nprint('runs', flush=True)\ninput()"
    job = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert job.stdout is not None
    try:
        assert job.stdout.readline() == "runs\n"
        assert show("--job", "llama-7")[0] == 3
    finally:
        job.communicate("", timeout=60)


def test_last_is_the_job_that_started_last_unless_a_job_has_that_name(show: Show) -> None:
    code, _, err = show("--job", "last")
    assert (code, "no stacks of the job 'last'" in err) == (3, True)
    for number, job in enumerate(["a", "b"]):
        _write(LOG_ID, 2**22 + number, [snapshot(f"of_{job}")], age=100 - number, job=job)
    code, out, _ = show("--job", "last")
    assert (code, "of_b" in out, "of_a" in out) == (0, True, False)
    _write("goodput_c", 2**22 + 2, [{"job_name": "c"}], age=50, job="c")
    code, _, err = show("--job", "last")
    assert (code, "no stacks of the job 'c'" in err) == (3, True)
    _write(LOG_ID, 2**22 + 3, [snapshot("of_last")], age=90, job="last")
    code, out, _ = show("--job", "last")
    assert (code, "of_last" in out) == (0, True)


def test_a_process_of_this_host_that_is_gone_is_not_silent(show: Show, tmp_path: Path) -> None:
    os.environ["ML_DIAGNOSTICS_JOB"] = "llama"
    try:
        job = Job(
            COMPANION + "with diagnostic.diagnose(config(0.1, cloud=True)):\n    output(companion())\n    input()",
            tmp_path,
        )
    finally:
        del os.environ["ML_DIAGNOSTICS_JOB"]
    companion = int(job.line())
    wait_until(lambda: SNAPSHOT in _kinds())
    assert " waits in " in show("--job", "llama")[1] or " is in " in show("--job", "llama")[1]
    assert "gone" not in show(str(tmp_path))[1]
    os.kill(companion, signal.SIGKILL)  # No process is left to record the end of the job.
    job.kill()
    for arguments in (["--job", "llama"], [str(tmp_path)]):
        code, out, _ = show(*arguments)
        assert code == 0
        expected = f"{HOST}: gone: process {job.process.pid} exited without recording its end; last event at 20"
        assert out.startswith(expected)
        assert "has sent nothing" not in out


def test_the_exit_reason_of_a_process_of_this_host_is_shown_with_its_files(show: Show, tmp_path: Path) -> None:
    job = Job("with diagnostic.diagnose(config(0.1, cloud=True)):\n    input()", tmp_path)
    wait_until(lambda: SNAPSHOT in _kinds())
    job.kill()
    wait_until(lambda: JOB_ENDED in _kinds())
    assert show(str(tmp_path))[1].startswith(f"{HOST}: The job ")


def test_a_job_of_one_process_that_ended_well_is_one_sentence(show: Show) -> None:
    _write(LOG_ID, 2**22 + 1, [entry(JOB_ENDED, "The job ended well", how="clean")], age=20, job="llama")
    _, out, _ = show("--job", "llama")
    sentence, time_of_it = out.splitlines()
    assert sentence == f"{HOST}: The job ended well"
    assert time_of_it.startswith("(as of ")


def test_a_job_that_ended_well_is_not_mixed_into_the_crash_of_another(show: Show, tmp_path: Path) -> None:
    well = Job("with diagnostic.diagnose(config(0.1, cloud=True)):\n    input()", tmp_path)
    wait_until(lambda: SNAPSHOT in _kinds())
    well.go_on()
    assert well.end()[0] == 0
    wait_until(lambda: JOB_ENDED in _kinds())
    assert "The job ended well" in show(str(tmp_path))[1]  # There is nothing else.
    run("with diagnostic.diagnose(config(cloud=True)):\n    raise OSError('theirs')", tmp_path)
    code, out, err = show(str(tmp_path))
    assert code == 0
    assert re.match(rf"{HOST} raised OSError: theirs in <module>", out)
    assert "ended well" not in out
    assert "1 process that ended well not shown" in err


def test_a_crash_is_shown_without_the_previous_attempt_even_if_its_end_is_recorded_late(
    show: Show,
) -> None:
    _write(LOG_ID, 2**22 + 1, [snapshot("psum")], age=30, job="llama")
    exception = entry(
        DUMP,
        "Exception left diagnose(): OSError: theirs\nStack (most recent call first):\n" + '  File "a", line 1 in f\n',
    )
    _write(LOG_ID, 2**22 + 2, [exception], age=20, job="llama")
    _write(LOG_ID, 2**22 + 1, [entry(JOB_ENDED, "The job ended well", how="clean")], age=19, job="llama")
    _, out, _ = show("--job", "llama")
    assert out.startswith(f"{HOST} raised OSError: theirs in f (a:1)\n")
    assert "ended well" not in out


def test_copies_of_trace_files_from_other_hosts_are_not_judged_by_processes_of_this_one(
    show: Show, tmp_path: Path
) -> None:
    (tmp_path / "stack_trace_2026_11_21_15_04_05_elsewhere_1.txt").write_text(dump_text())
    (tmp_path / "stack_trace_2026_11_21_15_04_05_there_2.txt").write_text(dump_text())
    assert show(str(tmp_path))[1].startswith("all 2 wait in psum")


def test_a_process_in_another_container_is_known_to_live_by_its_lock(show: Show, tmp_path: Path) -> None:
    path = tmp_path / f"stack_trace_2026_11_21_15_04_05_{HOST}_{2**22 + 9}.txt"
    path.write_text(dump_text())
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import fcntl,time\nf=open({str(path)!r})\nfcntl.flock(f,2)\nprint(1,flush=True)\ntime.sleep(60)",
        ],
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    try:
        assert show(str(tmp_path))[1].startswith(f"{HOST} waits in psum")
    finally:
        holder.kill()
        holder.communicate()
    assert "gone: process" in show(str(tmp_path))[1]


def test_lines_of_the_journal_that_cannot_be_read_are_counted_in_one_note(show: Show, tmp_path: Path) -> None:
    pid = 2**22 + 1
    _write(LOG_ID, pid, [snapshot("psum")], age=30, job="llama")
    (segment,) = Path(os.environ["ML_DIAGNOSTICS_DIR"]).glob("journal/*/*.jsonl")
    with segment.open("a") as file:
        file.write('\n{"t": 1, "s":\n{"x": 1}\n')
    (tmp_path / f"stack_trace_2026_11_21_15_04_05_{trace_file.host_in_names()}_{pid}.txt").write_text(dump_text())
    for arguments in (["--job", "llama"], [str(tmp_path)], ["--job", "llama", "--format", "json"]):
        code, out, err = show(*arguments)
        assert (code, err) == (0, "tpu-stacks: 2 entries could not be read\n"), arguments
        assert "gone" in out


def test_entries_of_cloud_logging_that_cannot_be_read_are_counted_once(
    show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    with DamagedCloudLogging() as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("ML_DIAGNOSTICS_BACKEND", "cloud")
        labels = {"job": "llama", "host": "elsewhere", "pid": "7"}
        stamp = format_timestamp(time.time_ns())
        written = {"jsonPayload": snapshot("psum"), "labels": labels, "timestamp": stamp}
        server.write([{**written, "insertId": name} for name in ("a", "b", "c")], log_id=LOG_ID)
        code, out, err = show("--job", "llama")
    assert (code, err) == (0, "tpu-stacks: 1 entry could not be read\n")
    assert "psum" in out


def test_a_job_of_many_entries_needs_no_more_memory_than_one_of_few(tmp_path: Path) -> None:
    """All are of one job, and within the hour that is shown."""
    # The peak since exec: ru_maxrss includes that of the process that forked this one.
    program = (
        "import sys; from cloud_tpu_diagnostics._stacks.cli import main; main(['show', '--job', 'llama']);"
        "print(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0], file=sys.stderr)"
    )
    used_kib, shown = [], []
    for count in (1_000, 20_000):
        _write(LOG_ID, 2**22 + 1, [snapshot("psum") for _ in range(count)], age=30, job="llama")
        found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        used_kib.append(int(found.stderr))
        shown.append(found.stdout)
    assert all("psum.py:5" in text for text in shown)
    assert used_kib[1] < used_kib[0] + 20 * 1024


@pytest.mark.parametrize("seed", range(20))
def test_the_kept_entries_of_a_process_show_the_same_as_all_its_entries(seed: int) -> None:
    rng = random.Random(seed)
    entries = []
    for number in range(rng.choice([3, 30, 300])):
        labels = {"host": "a", "pid": str(rng.randint(1, 3)), "attempt": "", "process_index": str(rng.randint(0, 1))}
        kind = rng.choice([SNAPSHOT, SNAPSHOT, SNAPSHOT, DUMP, HANG_SUSPECTED, JOB_ENDED])
        fields = {"step": number, "phase": "TRAIN", "interval_seconds": number + 1}
        payload = entry(kind, dump_text(), **{name: value for name, value in fields.items() if rng.random() < 0.1})
        if kind == SNAPSHOT:
            payload |= {key: value for key, value in snapshot(f"f{number}").items() if key not in fields}
        if kind == JOB_ENDED:
            payload |= {"goes_on": rng.random() < 0.9, "how": "clean"}
        if kind == DUMP and rng.random() < 0.5:
            payload |= {"part": rng.randint(1, 3)}
        entries.append(LogEntry.make(number * 10**9, f"id{number}", payload, EntryContext(LOG_ID, "", {}, labels)))
    latest = _Latest()
    for one in entries:
        latest.add(one)
    kept = {one.insert_id: one for one in latest.entries(since_seconds=1e6)}
    assert len(kept) < 200
    assert dumps_of(kept.values()) == dumps_of(entries)
