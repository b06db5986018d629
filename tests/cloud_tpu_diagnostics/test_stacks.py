"""The recorded stacks of processes in one picture: `tpu-stacks show`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cloud_tpu_diagnostics._dumps.grouping import ThreadGroup
from cloud_tpu_diagnostics._dumps.parser import Frame
from cloud_tpu_diagnostics._dumps.snapshot import Snapshot
from cloud_tpu_diagnostics._stacks.cli import main
from cloud_tpu_diagnostics._stacks.trace_files import parse_name
from cloud_tpu_diagnostics.entries import DUMP, HANG_SUSPECTED, JOB_ENDED, LEFT_BLOCK, LOG_ID, SNAPSHOT, entry
from ml_diagnostics_common.entry import format_timestamp
from ml_diagnostics_common.journal import Journal

if TYPE_CHECKING:
    from ml_diagnostics_testing.cloud_logging import CloudLoggingServer
    from ml_diagnostics_testing.cloud_storage import CloudStorageServer

Show = Callable[..., tuple[int, str, str]]

PSUM = '  File "/job/collectives.py", line 88 in psum\n  File "/job/train.py", line 9 in <module>\n'
DATA = '  File "/job/dataset.py", line 12 in next_batch\n  File "/job/train.py", line 8 in <module>\n'
POOL = '  File "/usr/lib/python3.11/concurrent/futures/thread.py", line 81 in _worker\n'
HEADER = "INFO: Not a crash. cloud-tpu-diagnostics emits a stack trace snapshot every 60 seconds.\n"


def dump_text(main_stack: str = PSUM) -> str:
    pool = f"Thread 0x2 (most recent call first):\n{POOL}\n"
    return f"{HEADER}Timeout (0:01:00)!\n{pool}Thread 0x1 (most recent call first):\n{main_stack}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write the files of eight hosts: one has another stack, and one has been silent for 92 s more than the others."""
    folder = tmp_path / "traces"
    folder.mkdir()
    now = time.time()
    for number in range(8):
        text = "a line of another program\n" + dump_text() + dump_text(DATA if number == 3 else PSUM)
        path = folder / f"stack_trace_2026_11_21_15_04_05_host-{number}_{100 + number}.txt"
        path.write_text(text)
        os.utime(path, (now, now - (92 if number == 5 else 0)))
    return folder


def test_hosts_of_a_folder_that_differ_are_named(run: Show, folder: Path) -> None:
    code, out, err = run("show", str(folder))
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == (
        "6 of 8 wait in psum (collectives.py:88); host-3 is in next_batch (dataset.py:12); "
        "host-5 has sent nothing for 92 s"
    )
    assert "    psum (/job/collectives.py:88)\n    <module> (/job/train.py:9)\n" in out


def test_other_threads_are_shown_on_request(run: Show, folder: Path) -> None:
    assert "idle worker pool" not in run("show", str(folder))[1]
    assert "in host-0, 1 thread: idle worker pool" in run("show", str(folder), "--threads")[1]


def test_folded_stacks_are_what_flamegraph_and_speedscope_read(run: Show, folder: Path) -> None:
    code, out, _ = run("show", str(folder), "--format", "collapsed")
    assert code == 0
    assert "<module> (/job/train.py:9);psum (/job/collectives.py:88) 7\n" in out
    assert "_worker (/usr/lib/python3.11/concurrent/futures/thread.py:81) 8\n" in out
    assert all(re.fullmatch(r"[^;]+(;[^;]+)* \d+", line) for line in out.splitlines())


def test_json_has_every_process_and_stack(run: Show, folder: Path) -> None:
    picture = json.loads(run("show", str(folder), "--format", "json")[1])
    assert [len(group["processes"]) for group in picture["groups"]] == [6, 1]
    assert picture["groups"][1]["processes"][0]["host"] == "host-3"
    assert picture["groups"][0]["frames"][0] == {"file": "/job/collectives.py", "line": 88, "function": "psum"}
    assert [round(each["silent_seconds"]) for each in picture["silent"]] == [92]


def test_a_dump_that_is_being_written_does_not_count_yet(run: Show, tmp_path: Path) -> None:
    started = f"{HEADER}Timeout (0:01:00)!\nThread 0x3 (most recent call first):\n{POOL}"
    started += '  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap\n'
    (tmp_path / "stack_trace_2026_11_21_15_04_05_a_1.txt").write_text(dump_text() + started)
    assert run("show", str(tmp_path))[1].startswith("a waits in psum")


def test_a_crash_is_reported_with_its_location(run: Show, tmp_path: Path) -> None:
    crash = f"Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n{DATA}"
    (tmp_path / "stack_trace_2026_11_21_15_04_05_a_1.txt").write_text(dump_text() + crash)
    assert run("show", str(tmp_path))[1].startswith(
        "a crashed: Fatal Python error: Segmentation fault in next_batch (dataset.py:12)"
    )


def test_old_files_are_omitted_with_a_note(run: Show, folder: Path) -> None:
    old = folder / "stack_trace_2026_11_14_15_04_05_host-9_9.txt"
    old.write_text(dump_text())
    os.utime(old, (time.time(), time.time() - 7200))
    _, out, err = run("show", str(folder))
    assert "host-9" not in out
    assert "1 process with older stacks than --since not shown" in err
    assert "host-9 has sent nothing for 7200 s" in run("show", str(folder), "--since", "1d")[1]


def test_a_file_of_a_folder_that_cannot_be_read_is_a_note(run: Show, folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "link.txt").symlink_to("/etc/passwd")
    (folder / "binary").write_bytes(bytes(range(256)) * 100)
    assert run("show", str(folder))[0] == 0


def test_host_and_pid_are_read_from_names_of_files() -> None:
    assert parse_name("stack_trace_2026_11_21_15_04_05_host_a-17_4711.txt") == ("host_a-17", 4711)
    assert parse_name("stack_trace_2026_11_21_15_04_05_host-17_4711-2.txt") == ("host-17", 4711)
    assert parse_name("stack_trace_2026_11_21_15_04_05.txt") is None


def test_a_prefix_in_cloud_storage_is_read(
    run: Show, cloud_storage_server: CloudStorageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in cloud_storage_server.environment().items():
        monkeypatch.setenv(name, value)
    cloud_storage_server.create_bucket("bucket")
    for number in range(3):
        name = f"run-1/host-{number}/stack_trace_2026_11_21_15_04_05_host-{number}_1.txt"
        cloud_storage_server.write("bucket", name, dump_text(DATA if number == 2 else PSUM).encode())
    code, out, _ = run("show", "gs://bucket/run-1/")
    assert code == 0
    assert out.startswith("2 of 3 wait in psum (collectives.py:88); host-2 is in next_batch (dataset.py:12)")


# --- Of a job, by its entries ---


def snapshot(function: str) -> dict[str, Any]:
    group = ThreadGroup((Frame(f"/job/{function}.py", 5, function),), 1, ("MainThread",), True)
    idle = ThreadGroup((Frame("/usr/lib/python3.11/concurrent/futures/thread.py", 81, "_worker"),), 3, ("a",), False)
    taken = Snapshot((group, idle), 4, 0).to_json()
    return entry(
        SNAPSHOT, "for people", groups=taken["groups"], threads=4, step=4210, phase="step", interval_seconds=60.0
    )


def labels(number: int, job: str = "llama", attempt: str = "1") -> dict[str, str]:
    return {
        "job": job, "run": job, "attempt": attempt, "host": f"host-{number}", "process_index": str(number), "pid": "7"
    }  # fmt: skip


def write_journal(number: int, payloads: list[dict[str, Any]], *, age: float = 0, **of: str) -> None:
    root = Path(os.environ["ML_DIAGNOSTICS_DIR"])
    own = {**labels(number), **of}
    journal = Journal(
        LOG_ID,
        root=root,
        labels=own,
        about_pid=int(own["pid"]),
        clock_ns=lambda: time.time_ns() - round(age * 1e9),
    )
    for payload in payloads:
        journal.append(payload)
    journal.close()


def test_a_job_in_the_journal_is_shown_with_steps(run: Show) -> None:
    for number in range(4):
        write_journal(number, [snapshot("data"), snapshot("data" if number == 2 else "psum")], age=400 * (number == 3))
    write_journal(9, [snapshot("elsewhere")], job="another", run="another")
    code, out, _ = run("show", "--job", "llama")
    assert code == 0
    assert re.match(
        r"2 of 4 wait in psum \(psum.py:5\) at step 4210; host-2 is in data \(data.py:5\) at step 4210; "
        r"host-3 has sent nothing for 4\d\d s\n",
        out,
    )
    assert "another" not in out


def test_a_dump_after_the_last_snapshot_counts_and_its_parts_are_one(run: Show) -> None:
    lines = dump_text(DATA).splitlines(keepends=True)
    parts = [entry(DUMP, "".join(lines[at : at + 2]), part=at // 2 + 1, parts=9) for at in range(0, len(lines), 2)]
    hang = entry(HANG_SUSPECTED, "no progress", phase="step", step=77)
    write_journal(0, [snapshot("psum"), *parts, hang])
    assert run("show", "--job", "llama")[1].startswith("host-0 is in next_batch (dataset.py:12) at step 77\n")


def test_an_attempt_that_was_replaced_is_not_silent(run: Show) -> None:
    write_journal(0, [snapshot("data")], age=1000, pid="5")
    write_journal(0, [snapshot("psum")], pid="6")
    assert run("show", "--job", "llama")[1].startswith("host-0 waits in psum (psum.py:5) at step 4210\n")


def test_the_end_of_a_process_is_reported(run: Show) -> None:
    write_journal(0, [snapshot("psum"), entry(JOB_ENDED, "The job was ended by SIGKILL (a zombie)", how="signal")])
    write_journal(1, [snapshot("psum")])
    assert "; host-0: The job was ended by SIGKILL (a zombie)\n" in run("show", "--job", "llama")[1]


def test_a_process_that_learns_its_index_is_one_process(run: Show) -> None:
    for number in range(4):
        of = {"host": "node-7", "pid": str(100 + number)}
        write_journal(0, [snapshot("init")], age=2, **of)
        write_journal(number, [snapshot("data" if number == 3 else "psum")], age=1, **of)
    ended = entry(JOB_ENDED, "The job was ended by SIGKILL", how="signal", signal="SIGKILL")
    write_journal(0, [ended], host="node-7", pid="103")  # As `run` writes it, without the index.
    out = run("show", "--job", "llama")[1]
    assert out.startswith("3 of 4 wait in psum (psum.py:5) at step 4210; node-7/3: The job was ended by SIGKILL\n")


@pytest.mark.parametrize(("kind", "also"), [(LEFT_BLOCK, {}), (JOB_ENDED, {"goes_on": True})])
def test_a_process_that_writes_after_it_has_left_a_block_has_not_ended(
    run: Show, kind: str, also: dict[str, bool]
) -> None:
    left = entry(kind, "The job left the block well, and continues", how="clean", **also)
    write_journal(0, [snapshot("psum"), left])
    assert run("show", "--job", "llama")[1].startswith("host-0: The job left the block well, and continues\n")
    write_journal(0, [snapshot("data")])
    assert run("show", "--job", "llama")[1].startswith("host-0 is in data (data.py:5) at step 4210\n")
    write_journal(0, [left, entry(DUMP, dump_text())])
    assert run("show", "--job", "llama")[1].startswith("host-0 waits in psum (collectives.py:88) at step 4210\n")


def test_the_end_of_a_process_that_is_gone_stays_its_end_in_any_order_of_entries(run: Show) -> None:
    write_journal(
        0, [entry(JOB_ENDED, "The job exited with code 3", how="exit", exit_code=3), entry(DUMP, dump_text())]
    )
    assert "host-0: The job exited with code 3\n" in run("show", "--job", "llama")[1]


def test_entries_of_cloud_logging_and_the_journal_are_merged(
    run: Show, cloud_logging_server: CloudLoggingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in cloud_logging_server.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("ML_DIAGNOSTICS_BACKEND", "cloud")
    write_journal(0, [snapshot("psum")])
    stamp = format_timestamp(time.time_ns())
    hang = entry(HANG_SUSPECTED, "no progress", phase="step", step=4199)
    cloud_logging_server.write(
        [
            {"jsonPayload": snapshot("psum"), "labels": labels(1), "insertId": "a", "timestamp": stamp},
            {"jsonPayload": snapshot("data"), "labels": labels(2), "insertId": "b", "timestamp": stamp},
            {"jsonPayload": hang, "labels": labels(2), "insertId": "c", "timestamp": stamp, "severity": "ERROR"},
            {"jsonPayload": snapshot("data"), "labels": labels(3, "other"), "insertId": "d", "timestamp": stamp},
        ],
        log_id=LOG_ID,
    )
    code, out, err = run("show", "--job", "llama")
    assert (code, err) == (0, "")
    assert out.startswith("2 of 3 wait in psum (psum.py:5) at step 4210; host-2 is in data (data.py:5) at step 4199\n")


def test_a_cloud_that_fails_is_a_note_and_the_journal_is_shown(
    run: Show, cloud_logging_server: CloudLoggingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ml_diagnostics_testing.faults import Status

    for name, value in cloud_logging_server.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("ML_DIAGNOSTICS_BACKEND", "auto")
    cloud_logging_server.faults.always(Status(403))
    write_journal(0, [snapshot("psum")])
    code, out, err = run("show", "--job", "llama")
    assert code == 0
    assert out.startswith("host-0 waits in psum")
    assert "Cloud Logging could not be read to the end" in err


# --- What does not work ---


def test_nothing_found_is_one_sentence_and_exit_code_3(run: Show, tmp_path: Path) -> None:
    code, out, err = run("show", str(tmp_path))
    assert (code, out, err) == (3, "", f"tpu-stacks: no stacks in {tmp_path} were found\n")
    code, out, err = run("show", "--job", "llama")
    assert (code, out, err) == (3, "", "tpu-stacks: no stacks of the job 'llama' were found\n")


@pytest.mark.parametrize(
    ("path", "code", "message"),
    [
        ("/no/such/folder", 3, "/no/such/folder does not exist"),
        ("gs:/bucket/x", 2, "has one slash"),
        ("s3://bucket/x", 2, "s3:// is not supported"),
        ("a\0b", 3, "does not exist"),
    ],
)
def test_a_missing_path_is_exit_code_3_and_an_invalid_one_2(run: Show, path: str, code: int, message: str) -> None:
    found, out, err = run("show", path)
    assert (found, out) == (code, "")
    assert message in err


@pytest.mark.parametrize(
    "arguments",
    [[], ["show"], ["show", "a", "--job", "b"], ["show", "a", "--since", "soon"], ["dump", "-1"], ["dump", "x"]],
)
def test_a_command_that_is_not_understood_is_exit_code_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(arguments)
    assert raised.value.code == 2


def test_help_loads_nothing_that_is_slow() -> None:
    heavy = ["msgspec", "google", "json", "subprocess", "cloud_tpu_diagnostics._dumps.parser", "shtab"]
    code = (
        "import sys\nfrom cloud_tpu_diagnostics._stacks.cli import main\n"
        "try: main(['show', '--help'])\nexcept SystemExit: pass\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, text=True, check=True,
                          env={"PYTHONPATH": os.pathsep.join(sys.path)})  # fmt: skip
    assert done.stdout.splitlines()[-1] == "[]"


def test_names_of_files_and_functions_cannot_control_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = 'Thread 0x01 (most recent call first):\n  File "a\x1b]0;b\x07", line 1 in \x1b[31mred\r\x9b2J\n'
    (tmp_path / "forged\nlines.txt").write_text(text)
    for arguments in (["--format", "table", "--threads"], ["--format", "collapsed"]):
        assert main(["show", str(tmp_path), *arguments]) == 0
        out, _ = capsys.readouterr()
        assert "\\x1b[31mred" in out
        assert all(c == "\n" or c.isprintable() for c in out)
        assert "\nlines" not in out


@pytest.mark.parametrize(
    "headline",
    [
        f"Timeout ({'9' * 5000}:00:01)!",
        f"Timeout ({'9' * 9}:00:01)!",
        "INFO: Not a crash. cloud-tpu-diagnostics emits a stack trace snapshot every 1.2.3 seconds.",
        f"INFO: Not a crash. cloud-tpu-diagnostics emits a stack trace snapshot every {'9' * 500} seconds.",
    ],
    ids=range(4),
)
def test_an_impossible_interval_in_a_file_does_not_prevent_its_display(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], headline: str
) -> None:
    dump = 'Thread 0x01 (most recent call first):\n  File "data.py", line 1 in load\n'
    (tmp_path / "stack_trace_2026_11_21_15_04_05_a_1.txt").write_text(f"{headline}\n{dump}")
    assert main(["show", str(tmp_path)]) == 0
    assert "load (data.py:1)" in capsys.readouterr().out
