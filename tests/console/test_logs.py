"""`mldiagnostics logs`: what the processes of a job printed, whoever keeps it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from cloud_tpu_diagnostics._companion.log import EntryLog, console_entry
from cloud_tpu_diagnostics.entries import JOB_ENDED, STEP_SUMMARY, entry
from google_cloud_mldiagnostics.cli import main
from hypothesis import given
from hypothesis import strategies as st
from ml_diagnostics_common.command.console import Console
from ml_diagnostics_common.entry import format_timestamp
from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_console._facts.reading import JobReader, Question
from ml_diagnostics_console._logs.lines import Line, lines_of, merged, safe
from ml_diagnostics_console._logs.showing import Choice, Showing

from ..loopback.kubernetes import KubernetesServer
from ..waiting import Child, wait_until
from .made_clusters import pod, unscheduled

Captured = pytest.CaptureFixture[str]
_RUN = [sys.executable, "-m", "cloud_tpu_diagnostics", "run", "--"]
_SECOND_NS = 10**9
_JOB_SECONDS = 100
"""A job starts several processes one after the other."""


def logs(*arguments: str) -> int:
    return main(["logs", "--kubernetes", "off", *arguments])


# --- Jobs of `run` ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ended_job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The diagnostics folder of a job that has printed much and has failed."""
    folder = tmp_path_factory.mktemp("ended")
    program = "for n in $(seq 1000); do echo line $n; done; echo careful >&2; exit 3"
    environment = {**os.environ, "ML_DIAGNOSTICS_DIR": str(folder), "ML_DIAGNOSTICS_JOB": "digits"}
    command = [*_RUN, "sh", "-c", program]
    subprocess.run(command, env=environment, capture_output=True, check=False, timeout=_JOB_SECONDS)
    return folder


@pytest.fixture
def of_ended_job(ended_job: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ML_DIAGNOSTICS_DIR", str(ended_job))
    return ended_job


def test_the_last_4096_bytes_of_each_stream_are_shown(of_ended_job: Path, capsys: Captured) -> None:
    assert logs("digits") == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[-2:] == ["line 1000", "careful"]
    assert len("\n".join(lines[:-1])) + 1 == 4096
    assert "stdout, the last 4,096 bytes" in err
    assert "stderr, the last 4,096 bytes" in err


@pytest.mark.parametrize(("stream", "expected"), [("err", ["careful"]), ("out", ["line 1000"])])
def test_one_stream_is_shown(of_ended_job: Path, capsys: Captured, stream: str, expected: list[str]) -> None:
    assert logs("digits", "--stream", stream) == 0
    assert capsys.readouterr().out.splitlines()[-1:] == expected


def test_all_that_is_kept_is_shown(of_ended_job: Path, capsys: Captured) -> None:
    assert logs("digits", "--full", "--stream", "out") == 0
    assert capsys.readouterr().out.splitlines() == [f"line {number}" for number in range(1, 1001)]


def test_the_files_of_a_run_that_a_shell_has_started_are_found(capsys: Captured) -> None:
    """`run` knows the shell, and the run the program."""
    program = """
from google_cloud_mldiagnostics import machinelearning_run
with machinelearning_run("digits", gcs_path="", on_demand_xprof=False):
    print("step 1")
"""
    for _ in range(2):  # The files of an earlier job are not taken for those of the last.
        subprocess.run(
            [*_RUN, "sh", "-c", '"$@"; exit 3', "sh", sys.executable, "-c", program],
            capture_output=True, check=False, timeout=_JOB_SECONDS,
        )  # fmt: skip
    assert logs("last", "--full", "--stream", "out") == 0
    out, err = capsys.readouterr()
    assert out.count("step 1\n") == 1
    newest = max(diagnostics_directory().glob("console/*.out"), key=lambda path: path.stat().st_mtime_ns)
    assert f"(possibly of this process: {newest})" in err


def test_of_several_jobs_of_a_time_the_files_are_those_that_end_as_recorded_else_they_are_marked(
    capsys: Captured,
) -> None:
    """A program in a shell, and another job on the same host which has printed last."""
    host = os.uname().nodename
    labels = {"job": "llama", "run": "llama", "host": host, "pid": "7"}
    folder = diagnostics_directory() / "console"
    log, ended_ns = EntryLog(labels, is_shipped=False), time.time_ns()
    log.write(entry(JOB_ENDED, "ended", how="exit", exit_code=3, ended_ns=ended_ns))
    folder.mkdir(parents=True)
    (folder / f"{host}-5.out").write_text("password=hunter2secret\nstep 1\n")
    (folder / f"{host}-6.out").write_text("of another job\n")
    os.utime(folder / f"{host}-5.out", ns=(ended_ns + 2 * _SECOND_NS,) * 2)
    os.utime(folder / f"{host}-6.out", ns=(ended_ns + _SECOND_NS,) * 2)
    assert logs("llama") == 0
    assert f"(possibly of this process: {folder}/{host}-6.out)" in capsys.readouterr().err
    log.write(console_entry("out", b"password=hunter2secret\nstep 1\n", "end", start=0, marks=[]))
    log.close(1.0)
    assert logs("llama") == 0
    out, err = capsys.readouterr()
    assert out.endswith("step 1\n")
    assert f"({folder}/{host}-5.out)" in err


def test_without_the_files_the_last_lines_are_read_from_their_entries(
    of_ended_job: Path, capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(of_ended_job / "journal", tmp_path / "copy" / "journal")
    monkeypatch.setenv("ML_DIAGNOSTICS_DIR", str(tmp_path / "copy"))
    assert logs("digits", "--stream", "out") == 0
    out, err = capsys.readouterr()
    assert out.endswith("line 999\nline 1000\n")
    assert len(out) == 4096
    assert "recorded at its end" in err


def test_a_job_is_followed_to_its_end_and_no_line_is_shown_twice(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setenv("ML_DIAGNOSTICS_JOB", "digits")
    program = """
import sys
from google_cloud_mldiagnostics import machinelearning_run
with machinelearning_run("digits", gcs_path="", on_demand_xprof=False):
    for part in range(3):
        print(f"part {part}", flush=True)
        input()
"""
    job = Child([*_RUN, sys.executable, "-c", program])
    assert job.line() == "part 0"
    reader = JobReader(Question("last", kubernetes="off"), print)
    wait_until(lambda: any(diagnostics_directory().glob("console/*.out")) and "part 0" in _kept())

    parts = iter(range(1, 9))

    def pause(seconds: float) -> None:
        assert seconds == 10
        job.go_on()
        part = next(parts)
        if part < 3:
            assert job.line() == f"part {part}"
            wait_until(lambda: f"part {part}" in _kept())
        else:
            job.process.wait(_JOB_SECONDS)

    showing = Showing(reader.read(), Choice(stream="out"), diagnostics_directory(), Console())
    assert showing.follow(reader.read, pause) == 0
    assert capsys.readouterr().out == "part 0\npart 1\npart 2\n"
    job.end()


def _kept() -> str:
    return "".join(file.read_text() for file in diagnostics_directory().glob("console/*.out"))


def test_the_log_file_of_the_launcher_is_read_and_named(tmp_path: Path, capsys: Captured) -> None:
    program = """
from google_cloud_mldiagnostics import machinelearning_run
with machinelearning_run("digits", gcs_path="", on_demand_xprof=False):
    print("step 1", flush=True)
    input()
"""
    with (tmp_path / "slurm-7.out").open("w") as log:
        job = Child([sys.executable, "-c", program], stdout=log)
        wait_until(lambda: "step 1" in (tmp_path / "slurm-7.out").read_text())
        assert logs("last", "--stream", "out") == 0
        job.go_on()
        job.end()
    out, err = capsys.readouterr()
    assert "step 1\n" in out
    assert f"written to {tmp_path / 'slurm-7.out'}, not by us" in err


# --- Jobs of many hosts -------------------------------------------------------------------------------


class MadeJob:
    """Hosts with clocks of their own, which record what they printed."""

    def __init__(self, name: str = "llama", *, clocks: Mapping[int, float] | None = None) -> None:
        self.start_ns = time.time_ns() - 3600 * _SECOND_NS
        self._name, self._clocks = name, clocks or {}

    def time_ns(self, host: int, seconds: float) -> int:
        """Return a time after the start of the job by the clock of a host."""
        return self.start_ns + round((seconds + self._clocks.get(host, 0.0)) * _SECOND_NS)

    def host(self, host: int, printed: list[tuple[float, str]], how: str = "signal", **end: Any) -> None:
        labels = {"job": self._name, "run": self._name, "attempt": "1", "host": f"host-{host}", "pid": str(40 + host)}
        log = EntryLog({**labels, "process_index": str(host)}, is_shipped=False)
        seconds = {"sum": 10.0, "p50": 1.0, "p95": 1.0, "max": 1.0}
        for first in range(0, 60, 10):
            log.write(
                entry(
                    STEP_SUMMARY, "", first_step=first, last_step=first + 9, count=10, wall_seconds=seconds,
                    return_step=first + 9, return_ns=self.time_ns(host, first + 9),
                )
            )  # fmt: skip
        data, marks, position = "".join(f"{line}\n" for _, line in printed).encode(), [], 0
        for at, line in printed:
            position += len(f"{line}\n".encode())
            marks.append((position, self.time_ns(host, at)))
        log.write(console_entry("out", data, "end", start=0, marks=marks))
        fields = {"signal": "SIGABRT", "ended_ns": self.time_ns(host, 60), **end}
        log.write(entry(JOB_ENDED, f"host-{host} ended", how=how, **fields))
        log.close(1.0)


@pytest.fixture
def three_hosts() -> MadeJob:
    """Hosts that print each step; the clock of host 1 is a minute late, and that of host 2 a minute ahead."""
    job = MadeJob(clocks={1: -60.0, 2: 60.0})
    for host in range(3):
        lines = [(float(step), f"step {step}") for step in range(60)]
        lines.append((42.5 + host / 10, f"host {host} is here"))
        job.host(host, sorted(lines), signal="SIGKILL" if host == 1 else "SIGABRT")
    return job


def test_the_process_that_failed_first_is_shown(three_hosts: MadeJob, capsys: Captured) -> None:
    assert logs("llama") == 0
    out, err = capsys.readouterr()
    assert "host 1 is here" in out
    assert "host 0" not in out
    assert err.startswith("host-1, stdout")


@pytest.mark.parametrize("choice", [("--host", "host-2"), ("--process", "2")])
def test_a_chosen_process_is_shown(three_hosts: MadeJob, capsys: Captured, choice: tuple[str, str]) -> None:
    assert logs("llama", *choice) == 0
    assert "host 2 is here" in capsys.readouterr().out


def test_a_host_that_does_not_exist_is_an_error_with_those_that_do(three_hosts: MadeJob, capsys: Captured) -> None:
    assert logs("llama", "--host", "host-7") == 3
    assert "llama has no process with host 'host-7'; it has host-0, host-1, host-2" in capsys.readouterr().err


def test_around_a_step_the_lines_of_all_hosts_are_in_one_order_whatever_their_clocks(
    three_hosts: MadeJob, capsys: Captured
) -> None:
    assert logs("llama", "--around", "step 42", "--window", "3s") == 0
    out = capsys.readouterr().out
    lines = [line.partition(" ")[2] for line in out.splitlines()]
    assert lines == [
        "3 processes | step 41",
        "3 processes | step 42",
        "host-0 | host 0 is here",
        "host-1 | host 1 is here",
        "host-2 | host 2 is here",
        "3 processes | step 43",
    ]
    clock = time.strftime("%H:%M:%S", time.gmtime(three_hosts.time_ns(0, 42) // _SECOND_NS))
    assert f"\n{clock}.{three_hosts.time_ns(0, 42) // 10**8 % 10} 3 processes | step 42\n" in out


def test_around_a_time_lines_are_shown_by_the_clock_of_the_first_host(three_hosts: MadeJob, capsys: Captured) -> None:
    moment = format_timestamp(three_hosts.time_ns(0, 42))
    of_day = moment.partition("T")[2].rstrip("Z")
    shown = []
    for text in (moment, of_day, f"{of_day}Z"):
        assert logs("llama", "--around", text, "--window", "0.8s") == 0
        shown.append(capsys.readouterr().out)
    assert shown[0].count("\n") == 1
    assert "3 processes | step 42" in shown[0]
    assert shown == [shown[0]] * 3


def test_a_step_that_is_not_known_is_an_error_with_those_that_are(three_hosts: MadeJob, capsys: Captured) -> None:
    assert logs("llama", "--around", "step 99") == 3
    assert "the time of step 99 of attempt 1 is not known: its steps 0 to 59 are known" in capsys.readouterr().err


@pytest.mark.parametrize("moment", ["yesterday", "25:00:00", "step -1", "step", "42", "2026-11-21"])
def test_a_moment_that_is_not_valid_is_a_usage_error(three_hosts: MadeJob, capsys: Captured, moment: str) -> None:
    assert logs("llama", "--around", moment) == 2
    assert "give a step ('step 42')" in capsys.readouterr().err


def test_around_and_follow_exclude_each_other(three_hosts: MadeJob, capsys: Captured) -> None:
    assert logs("llama", "--around", "step 1", "--follow") == 2


def test_lines_without_times_are_not_placed_but_noted(capsys: Captured) -> None:
    job = MadeJob()
    job.host(0, [(5.0, "line")])
    log = EntryLog({"job": "llama", "run": "llama", "host": "old", "pid": "7", "process_index": "1"}, is_shipped=False)
    payload = console_entry("out", b"of an earlier version\n", "end", start=0, marks=())
    del payload["times"]
    log.write(payload)
    log.close(1.0)
    assert logs("llama", "--around", "step 5") == 0
    out, err = capsys.readouterr()
    assert out.endswith("host-0 | line\n")
    assert "it is not known when old printed its lines" in err


def test_a_run_that_does_not_exist_is_not_found(capsys: Captured) -> None:
    assert logs("nothing") == 3


def test_a_job_of_which_nothing_was_kept_shows_what_would_keep_it(capsys: Captured) -> None:
    log = EntryLog({"job": "llama", "run": "llama", "host": "h", "pid": "7", "process_index": "0"}, is_shipped=False)
    log.write(entry(JOB_ENDED, "ended", how="clean", exit_code=0))
    log.close(1.0)
    assert logs("llama") == 3
    assert "python -m cloud_tpu_diagnostics run -- COMMAND" in capsys.readouterr().err


# --- In a cluster -------------------------------------------------------------------------------------


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesServer]:
    if shutil.which("kubectl") is None:
        pytest.skip("there is no kubectl on this machine")
    with KubernetesServer() as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        yield server


def test_a_pod_that_waits_has_no_log_yet(cluster: KubernetesServer, capsys: Captured) -> None:
    cluster.put("pods", unscheduled("0/4 nodes are available: 4 Insufficient google.com/tpu."), "ml")
    assert main(["logs", "train"]) == 3
    err = capsys.readouterr().err
    assert re.search(r"No log yet: the pod train-0-\w+ is Pending; `mldiagnostics doctor train` shows why", err)


def test_the_log_of_a_pod_is_read_by_kubectl(cluster: KubernetesServer, capsys: Captured) -> None:
    _add_pod(cluster, 0, [f"line {number}" for number in range(500)])
    assert main(["logs", "train"]) == 0
    out, err = capsys.readouterr()
    assert out.endswith("line 498\nline 499\n")
    assert len(out) <= 4096
    assert "kubectl logs pod/train-0-" in err
    assert main(["logs", "train", "--full"]) == 0
    assert capsys.readouterr().out.splitlines() == [f"line {number}" for number in range(500)]


def test_around_a_time_the_logs_of_all_pods_are_merged(cluster: KubernetesServer, capsys: Captured) -> None:
    for index in range(3):
        _add_pod(cluster, index, [f"pod {index} waits", *(f"step {step}" for step in range(1, 60))])
    assert main(["logs", "train", "--around", "2026-11-21T05:00:01Z", "--window", "2s"]) == 0
    lines = [line.partition(" ")[2] for line in capsys.readouterr().out.splitlines()]
    assert [line.partition("| ")[2] for line in lines] == [
        "pod 0 waits", "pod 1 waits", "pod 2 waits", "step 1",
    ]  # fmt: skip
    assert lines[-1].startswith("3 processes | ")


def test_a_log_that_may_not_be_read_is_reported(cluster: KubernetesServer, capsys: Captured) -> None:
    _add_pod(cluster, 0, ["line"])
    cluster.denied = {"get pods/log"}
    assert main(["logs", "train"]) == 3
    assert "forbidden" in capsys.readouterr().err


def _add_pod(cluster: KubernetesServer, index: int, lines: list[str]) -> None:
    """Add a running pod that printed a line each second."""
    resource = pod(index)
    cluster.put("pods", resource, "ml")
    made = cluster.pod(resource["metadata"]["name"], "ml")
    made.log = "".join(f"{line}\n" for line in lines)
    made.log_times = [f"2026-11-21T05:{second // 60:02}:{second % 60:02}.500000000Z" for second in range(len(lines))]


# --- Lines --------------------------------------------------------------------------------------------


def test_a_progress_bar_is_shown_in_its_last_state_and_without_colors() -> None:
    printed = "\x1b[31mepoch\x1b[0m:   0%|   |\repoch:  50%|#  |\repoch: 100%|###|\x1b[K\r\nnext\n"
    assert [line.text for line in lines_of(printed, "p", "err")] == ["epoch: 100%|###|", "next"]


def test_what_could_control_a_terminal_or_turn_the_text_round_is_shown_as_its_code() -> None:
    assert safe("a\x1b]0;title\x07b") == "a\\x1b]0;title\\x07b"
    assert safe("user \u202egpj.exe") == "user \\u202egpj.exe"
    assert safe("tab\tstays, so do ü and 漢") == "tab\tstays, so do ü and 漢"


@given(st.text())
def test_no_line_has_characters_that_are_not_printed(text: str) -> None:
    for line in lines_of(text, "p", "out"):
        assert all(char.isprintable() or char == "\t" for char in line.text)


@given(st.lists(st.tuples(st.integers(0, 20), st.sampled_from("abc"), st.sampled_from(["x", "y"])), max_size=30))
def test_merged_lines_are_ordered_complete_and_one_of_each_process(drawn: list[tuple[int, str, str]]) -> None:
    lines = [Line(second * _SECOND_NS, process, "out", text) for second, process, text in drawn]
    shown = merged(lines)
    assert sum(len(each.processes) for each in shown) == len(lines)
    assert all(len(set(each.processes)) == len(each.processes) for each in shown)
    times = [each.time_ns or 0 for each in shown]
    assert times == sorted(times)


def test_two_thousand_hosts_with_equal_lines_are_shown_as_one() -> None:
    lines = [
        Line(step * _SECOND_NS, f"host-{host}", "out", f"step {step}") for host in range(2000) for step in range(20)
    ]
    shown = merged(lines)
    assert [(len(each.processes), each.text) for each in shown] == [(2000, f"step {step}") for step in range(20)]
