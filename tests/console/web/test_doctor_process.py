"""The doctor judges in a process of its own, which ends with the server, and may be lost at any time."""

from __future__ import annotations

import base64
import gzip
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from types import SimpleNamespace

import pytest
from ml_diagnostics_common.processes import has_ended
from ml_diagnostics_console._facts.reading import JobReader
from ml_diagnostics_console._web import doctor_process, judging
from ml_diagnostics_console._web.doctor_process import DoctorLostError, DoctorProcess
from ml_diagnostics_console._web.judging import Doctor
from ml_diagnostics_console._web.verdict_answer import Judged

from ...waiting import LONG_SECONDS, wait_until
from .browser import needs_browser, opened_browser
from .recorded import DOCTOR_SECONDS, Page
from .served import Served, served

if not sys.platform.startswith("linux"):
    pytest.skip("needs /proc", allow_module_level=True)


@pytest.fixture
def process(failed: Page, failed_folder: Path) -> Iterator[DoctorProcess]:
    process = DoctorProcess(failed_folder)
    yield process
    process.end()


def started_doctor(server: Served) -> int:
    """Return the id of the server's doctor once it runs its program: before that, it keeps the server waiting."""

    def doctors() -> list[int]:
        return [pid for pid in server.children() if b"doctor_process" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    return wait_until(doctors)[0]


def run_id(page: Page) -> str:
    assert page.run is not None
    return page.run.id


def test_one_process_answers_many_questions_at_a_low_priority(failed: Page, process: DoctorProcess) -> None:
    first = process.judge(run_id(failed))
    pid = process.pid
    assert pid is not None
    assert os.getpriority(os.PRIO_PROCESS, pid) > os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getsid(pid) == pid
    assert process.judge(run_id(failed)) == first
    assert process.pid == pid
    assert str(first.answer["sentence"]).startswith("Failed: ")
    assert len(first.evidence) >= len(first.answer["proofs"])


def test_the_process_reads_the_folder_of_its_store(
    failed: Page, process: DoctorProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ML_DIAGNOSTICS_DIR", str(tmp_path))
    assert process.judge(run_id(failed)).answer["sentence"]


def test_a_run_that_is_not_there_is_a_sentence_and_not_the_end(failed: Page, process: DoctorProcess) -> None:
    answer = process.judge("nope").answer
    assert answer["sentence"] is None
    assert str(answer["error"]).startswith("The doctor could not judge this run: RunNotFoundError: ")
    assert process.judge(run_id(failed)).answer["sentence"]


def test_a_process_that_is_killed_while_nothing_is_asked_is_replaced(failed: Page, process: DoctorProcess) -> None:
    first = process.judge(run_id(failed))
    pid = process.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: has_ended(pid), LONG_SECONDS)
    assert process.judge(run_id(failed)) == first
    assert process.pid not in (None, pid)


def test_a_process_that_has_grown_is_ended_after_its_answer(failed: Page, failed_folder: Path) -> None:
    process = DoctorProcess(failed_folder, most_bytes=1)
    assert process.judge(run_id(failed)).answer["sentence"]
    assert process.pid is None


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("raise SystemExit(3)", "ended with exit code 3"),
        ("import os; os.kill(os.getpid(), 9)", "was ended by signal 9"),
        ("input(); print('no answer')", "ended with exit code 0"),
    ],
)
def test_a_process_that_gives_no_answer_is_lost_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, expected: str
) -> None:
    monkeypatch.setattr(doctor_process, "_END_SECONDS", LONG_SECONDS)  # Its pipe is closed before it has ended.
    process = DoctorProcess(tmp_path, argv=[sys.executable, "-c", program])
    with pytest.raises(DoctorLostError, match=expected):
        process.judge("run")
    assert process.pid is None


def test_a_process_that_does_not_answer_in_time_is_ended(tmp_path: Path) -> None:
    process = DoctorProcess(tmp_path, argv=[sys.executable, "-c", "input(); input()"], deadline_seconds=0.5)
    with pytest.raises(DoctorLostError, match="it took longer than 0"):
        process.judge("run")
    assert process.pid is None


def test_a_process_that_stops_in_the_middle_of_its_answer_is_ended(tmp_path: Path) -> None:
    program = "import os, signal; input(); print('{' + 100_000 * ' ', end='', flush=True); os.kill(os.getpid(), 19)"
    process = DoctorProcess(tmp_path, argv=[sys.executable, "-c", program], deadline_seconds=1.0)
    with pytest.raises(DoctorLostError, match="it took longer than 1 s"):
        process.judge("run")
    assert process.pid is None


def test_a_process_that_cannot_be_started_is_lost(tmp_path: Path) -> None:
    process = DoctorProcess(tmp_path, argv=[str(tmp_path / "no-such-program")])
    with pytest.raises(DoctorLostError, match="cannot be started: No such file or directory"):
        process.judge("run")


def test_an_export_that_waits_for_a_stopped_doctor_does_not_keep_the_server(failed: Page, failed_folder: Path) -> None:
    with served(failed_folder) as server:
        server.json("/api/runs")
        path = f"/api/runs/{run_id(failed)}/case.html"

        def export() -> None:
            with suppress(OSError, HTTPException):  # The server ends before it answers.
                server.get(path)

        request = threading.Thread(target=export)
        request.start()
        child = started_doctor(server)
        os.kill(child, signal.SIGSTOP)
        code, _, _ = server.end()
        assert code == 0
        wait_until(lambda: has_ended(child), LONG_SECONDS)
        request.join(LONG_SECONDS)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_process_ends_with_the_server_however_that_ends(failed: Page, failed_folder: Path, number: int) -> None:
    server = Served(failed_folder, "--no-browser")
    path = f"/api/runs/{run_id(failed)}/verdict"
    wait_until(lambda: server.json(path)["state"] == "ready", DOCTOR_SECONDS)
    (child,) = server.children()
    server.process.send_signal(number)
    server.process.communicate(timeout=LONG_SECONDS)
    wait_until(lambda: has_ended(child), LONG_SECONDS)


@needs_browser
def test_a_page_shows_why_there_is_no_verdict(failed: Page, failed_folder: Path, tmp_path: Path) -> None:
    has_seen = threading.Event()
    with served(failed_folder) as server, opened_browser(tmp_path) as browser:

        def kill_doctors() -> None:
            while not has_seen.wait(0.005):
                for child in server.children():
                    with suppress(ProcessLookupError):
                        os.kill(child, signal.SIGKILL)

        killing = threading.Thread(target=kill_doctors)
        killing.start()
        try:
            browser.open(f"{server.url.rstrip('/')}/runs/{run_id(failed)}")
            browser.wait_for("document.querySelector('.diagnosis')?.textContent.includes('could not judge this run')")
        finally:
            has_seen.set()
            killing.join()
        assert browser.value("document.querySelector('.diagnosis').textContent.includes('was ended by signal 9')")
        assert browser.complaints() == []


def test_a_page_whose_doctor_was_killed_says_so_once_and_has_the_verdict_at_the_next_change(
    failed: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert failed.run is not None
    process = failed.store.doctor._judging
    assert isinstance(process, DoctorProcess)
    monkeypatch.setattr(process, "_argv", [sys.executable, "-c", "input(); import os; os.kill(os.getpid(), 9)"])
    assert failed.json("/verdict") == {"state": "working"}
    wait_until(lambda: failed.json("/verdict")["state"] == "ready", LONG_SECONDS)
    answer = failed.json("/verdict")
    assert answer["error"] == "The doctor could not judge this run: its process was ended by signal 9"
    monkeypatch.setattr(process, "_argv", None)
    failed.run.version += 1
    assert failed.json("/verdict") == {"state": "working"}
    wait_until(lambda: failed.json("/verdict")["state"] == "ready", DOCTOR_SECONDS)
    assert failed.json("/verdict")["sentence"]


def test_what_the_process_has_started_ends_with_it(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    program = f"import subprocess; open({str(pid)!r}, 'w').write(str(subprocess.Popen(['sleep', '60']).pid)); input()"
    process = DoctorProcess(tmp_path, argv=[sys.executable, "-c", f"{program}; input()"])

    def judge() -> None:
        with pytest.raises(DoctorLostError):
            process.judge("run")

    judging = threading.Thread(target=judge)
    judging.start()
    wait_until(lambda: pid.exists() and pid.read_text() != "", LONG_SECONDS)
    process.end()
    judging.join(LONG_SECONDS)
    wait_until(lambda: has_ended(int(pid.read_text())), LONG_SECONDS)


# --- In the process ---------------------------------------------------------------------------------------


def test_a_doctor_that_fails_is_a_reason_without_secrets(
    failed: Page, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def break_it(facts: object) -> None:
        raise RuntimeError("no facts\ntoken=hunter2secret")

    monkeypatch.setattr("ml_diagnostics_console.doctor.judge", break_it)
    readers: dict[str, JobReader] = {}
    answer = doctor_process._judged(doctor_process._Question(run_id(failed)), readers).answer
    assert (answer["sentence"], readers) == (None, {})
    assert str(answer["error"]).startswith("The doctor could not judge this run: RuntimeError: no facts")
    assert "hunter2secret" not in str(answer)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_the_readers_of_the_last_runs_are_kept(failed: Page) -> None:
    readers: dict[str, JobReader] = {}
    names = ["a", "b", "c", "d", "e"]
    kept = [doctor_process._reader(name, readers) for name in names]
    assert list(readers) == names[1:]
    assert doctor_process._reader("b", readers) is kept[1]
    assert list(readers) == ["c", "d", "e", "b"]


def test_the_memory_of_a_process_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    used = doctor_process._memory_bytes()
    assert 10 * 2**20 < used < 2**40

    def fail(path: str) -> bytes:
        raise OSError(path)

    monkeypatch.setattr(doctor_process, "read_system_file", fail)  # Without /proc: the most that it has used.
    assert used / 2 < doctor_process._memory_bytes() < 2**40


def test_the_answer_for_a_file_has_its_reports(failed: Page, process: DoctorProcess) -> None:
    judged = process.judge(run_id(failed), is_for_file=True)
    assert judged.answer == process.judge(run_id(failed)).answer
    assert b'"schema"' in gzip.decompress(base64.b64decode(judged.reports))


# --- Which run is judged, and when ------------------------------------------------------------------------


class Lost:
    """A doctor that is always lost."""

    def __init__(self) -> None:
        self.starts = 0

    def judge(self, run_id: str) -> Judged:
        self.starts += 1
        raise DoctorLostError("it has ended")

    def end(self) -> None:
        pass


def test_a_doctor_that_is_always_lost_is_not_started_again_and_again(
    failed: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    assert failed.run is not None
    lost = Lost()
    failed.store.doctor = Doctor(lost)
    for _ in range(2):
        failed.run.version += 1
        failed.store.doctor.wait(failed.run, LONG_SECONDS)
    for _ in range(200):
        failed.run.version += 1
        failed.json("/verdict")
        time.sleep(0.001)
    assert lost.starts == 2
    assert "it has ended" in failed.json("/verdict")["error"]


def test_a_run_that_was_not_asked_about_before_says_when_the_doctor_is_started_again(
    failed: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    assert failed.run is not None
    doctor = failed.store.doctor = Doctor(Lost())
    for _ in range(2):
        failed.run.version += 1
        doctor.wait(failed.run, LONG_SECONDS)
    failed.run.id = "another"
    assert doctor.ask(failed.run)["error"].endswith("has ended 2 times; it is started again in 20 s")


def test_a_lost_verdict_on_a_run_that_has_ended_is_asked_for_again_later(
    failed: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert failed.run is not None
    lost = Lost()
    doctor = failed.store.doctor = Doctor(lost)
    assert "it has ended" in doctor.wait(failed.run, LONG_SECONDS)["error"]
    monkeypatch.setattr(judging, "_LEAST_SECONDS", 0.0)
    assert doctor.ask(failed.run) == {"state": "working"}
    wait_until(lambda: lost.starts == 2, LONG_SECONDS)


class Slow:
    """A doctor that works until it is told, or ended."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.may_answer, self.has_started = threading.Event(), threading.Event()
        self.ends = 0

    def judge(self, run_id: str) -> Judged:
        self.asked.append(run_id)
        self.has_started.set()
        self.may_answer.wait(LONG_SECONDS)
        return Judged({"state": "ready", "sentence": run_id})

    def end(self) -> None:
        self.ends += 1
        self.may_answer.set()


def test_the_run_that_was_asked_about_last_is_judged_first_and_each_once(restarted: Page) -> None:
    slow = Slow()
    doctor = Doctor(slow)
    first, second = restarted.store.runs()
    third = restarted.store._data_of("third")
    doctor.ask(first)
    slow.has_started.wait(LONG_SECONDS)
    for run in (second, third, first, second):
        assert doctor.ask(run) == {"state": "working"}
    slow.may_answer.set()
    wait_until(lambda: doctor.known(third) is not None, LONG_SECONDS)
    assert slow.asked == [first.id, second.id, third.id]
    doctor.close()


def test_what_the_doctor_keeps_is_given_back_once_when_nothing_is_asked(restarted: Page) -> None:
    slow = Slow()
    slow.may_answer.set()
    doctor = Doctor(slow, idle_seconds=0.05)
    (first, *_) = restarted.store.runs()
    doctor.wait(first, LONG_SECONDS)
    wait_until(lambda: slow.ends > 0, LONG_SECONDS)
    time.sleep(0.3)
    assert slow.ends == 1
    first.version += 1
    assert doctor.wait(first, LONG_SECONDS)["sentence"] == first.id
    doctor.close()


def test_a_doctor_that_works_is_ended_by_the_end_of_its_store(restarted: Page) -> None:
    slow = Slow()
    doctor = Doctor(slow)
    (first, *_) = restarted.store.runs()
    doctor.ask(first)
    slow.has_started.wait(LONG_SECONDS)
    started = time.monotonic()
    doctor.close()
    assert time.monotonic() - started < LONG_SECONDS / 2
    assert doctor.ask(first)["state"] in ("ready", "working")
    assert slow.asked == [first.id]


def test_many_exports_that_wait_leave_the_page_its_threads(failed: Page, failed_folder: Path) -> None:
    with served(failed_folder) as server:
        server.json("/api/runs")

        def export() -> None:
            with suppress(OSError, HTTPException):  # The server ends before it answers.
                server.get(f"/api/runs/{run_id(failed)}/case.html")

        requests = [threading.Thread(target=export) for _ in range(40)]
        for request in requests:
            request.start()
        child = started_doctor(server)
        os.kill(child, signal.SIGSTOP)
        assert server.get("/api/runs").status == 200
        assert server.end()[0] == 0
        for request in requests:
            request.join(LONG_SECONDS)
