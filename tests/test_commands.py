"""All commands agree: formats, exit codes, broken pipes, signals, colors and suggestions are the same everywhere."""

from __future__ import annotations

import csv
import datetime
import fcntl
import io
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from google_cloud_mldiagnostics import machinelearning_run
from ml_goodput_measurement.goodput import GoodputRecorder

from .loopback.compute import ComputeServer
from .terminals import run_in_terminal
from .xprofiler.viewer_vms import add_viewer

NAMES = ("goodput", "mldiagnostics", "tpu-stacks", "xprofiler")
INTERRUPTED = 130
_PACKAGES = Path(__file__).parent.parent / "packages"
_NO_LOGIN = {"NO_GCE_CHECK": "true", "CLOUDSDK_CONFIG": "none", "PATH": "", "HOME": "none"}


class Command(NamedTuple):
    """One command, with a command line that prints a table.

    Attributes:
        argv: The command.
        table: The arguments that print a table.
        column: A column of its CSV, and the value of the first row.
        unknown: Arguments that name an object that does not exist.
        no_login: Arguments that need a login, and variables for them.
        wide: More arguments that print tables, wider than a terminal where they are not cut; with their exit code.
        copied: The columns of paths, links, addresses, ids and names, which are not cut, so that people can copy them.
    """

    argv: tuple[str, ...]
    table: tuple[str, ...]
    column: tuple[str, str]
    unknown: tuple[str, ...]
    no_login: tuple[tuple[str, ...], dict[str, str]]
    wide: tuple[tuple[tuple[str, ...], int], ...] = ()
    copied: tuple[str, ...] = ()

    def run(self, *arguments: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, **(environ or {})}
        argv = [*self.argv, *arguments]
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, env=environ)


def command_of(name: str) -> str:
    path = shutil.which(name, path=str(Path(sys.executable).parent))
    assert path is not None, f"{name} is not installed beside {sys.executable}"
    return path


def run_in_shell(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = ["/bin/sh", "-c", script, "sh", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(params=NAMES)
def command(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Command]:
    """Each command, with data that it prints."""
    yield from {
        "goodput": _goodput,
        "mldiagnostics": _mldiagnostics,
        "tpu-stacks": _tpu_stacks,
        "xprofiler": _xprofiler,
    }[request.param](request, tmp_path)


def _goodput(request: pytest.FixtureRequest, folder: Path) -> Iterator[Command]:
    _record_attempts("job-1", 1)
    _record_attempts("job-6", 6)
    no_login = (("report", "job-1"), {"ML_DIAGNOSTICS_BACKEND": "cloud", **_NO_LOGIN})
    column = ("bucket", "PRODUCTIVE")
    yield Command((command_of("goodput"),), ("report", "job-1"), column, ("report", "job-2"), no_login,
        wide=((("report", "job-6"), 0), (("mirror", "status", "--mirror", str(folder / "mirror")), 0)),
        copied=("writer",),
    )  # fmt: skip


def _record_attempts(job: str, attempts: int) -> None:
    """Record attempts of half a day, each with all kinds of activities, steps of some hours and a long exception."""
    start = datetime.datetime(2026, 11, 21, 5, 36, 43, tzinfo=datetime.timezone.utc)
    for attempt in range(attempts):
        recorder = GoodputRecorder(job, f"goodput_{job}", logging_enabled=True)
        times = (start + datetime.timedelta(hours=12 * attempt, minutes=47.5 * count) for count in itertools.count())
        recorder.record_job_start_time(next(times))
        recorder.record_tpu_init_start_time(next(times))
        recorder.record_tpu_init_end_time(next(times))
        recorder.record_training_preparation_start_time(next(times))
        recorder.record_training_preparation_end_time(next(times))
        recorder.record_data_loading_start_time(next(times))
        recorder.record_data_loading_end_time(next(times))
        recorder.record_custom_badput_event_start_time(next(times), "evaluation on all of the held-out data")
        recorder.record_custom_badput_event_end_time(next(times), "evaluation on all of the held-out data")
        for step in range(3):
            recorder.record_step_start_time(100_000 + attempt + step, next(times))
    recorder.record_job_end_time(next(times))


def _mldiagnostics(request: pytest.FixtureRequest, folder: Path) -> Iterator[Command]:
    run = machinelearning_run(name="trained", gcs_path=str(folder))
    run.finish()
    no_login = (("runs", "--project", "test-project"), _NO_LOGIN)
    argv = (command_of("mldiagnostics"),)
    profile = ("profile", run.name, "--hosts", "localhost:1,localhost:2")
    yield Command(
        argv, ("runs",), ("run", run.name), ("show", "nothing"), no_login,
        wide=((profile, 1),), copied=("run", "process", "address"),
    )  # fmt: skip


def _tpu_stacks(request: pytest.FixtureRequest, folder: Path) -> Iterator[Command]:
    traces = folder / "traces"
    traces.mkdir()
    stack = 'Thread 0x1 (most recent call first):\n  File "/job/train.py", line 9 in <module>\n'
    (traces / "stack_trace_2026_11_21_15_04_05_host-1_100.txt").write_text(f"Timeout (0:01:00)!\n{stack}")
    no_login = (("show", "--job", "job-1"), {"ML_DIAGNOSTICS_BACKEND": "cloud", **_NO_LOGIN})
    argv = (command_of("tpu-stacks"),)
    yield Command(argv, ("show", str(traces)), ("process", "host-1"), ("show", str(folder / "none")), no_login)


def _xprofiler(request: pytest.FixtureRequest, folder: Path) -> Iterator[Command]:
    server: ComputeServer = request.getfixturevalue("compute_server")
    add_viewer(server, "xprof-a", "us-central1-a", logs="gs://bucket/run")
    for name, value in {**server.environment(), "CLOUDSDK_CONFIG": str(folder), "NO_GCE_CHECK": "true"}.items():
        request.getfixturevalue("monkeypatch").setenv(name, value)
    unknown = ("list", "-z", "us-nowhere1-a")
    no_login = (("list",), {"CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "", **_NO_LOGIN})
    argv = (command_of("xprofiler"),)
    copied = ("Log_Directory", "URL", "Name")
    yield Command(argv, ("list",), ("name", "xprof-a"), unknown, no_login, copied=copied)


def test_formats_have_the_same_data(command: Command) -> None:
    yaml = pytest.importorskip("yaml")
    table = command.run(*command.table)
    assert (table.returncode, table.stderr) == (0, "")
    found = {style: command.run(*command.table, "--format", style) for style in ("json", "yaml", "csv")}
    assert {style: (done.returncode, done.stderr) for style, done in found.items()} == dict.fromkeys(found, (0, ""))
    column, value = command.column
    assert json.loads(found["json"].stdout) == yaml.safe_load(found["yaml"].stdout)
    assert next(csv.DictReader(io.StringIO(found["csv"].stdout)))[column] == value


@pytest.mark.parametrize("arguments", [("--help",), ()])
def test_a_reader_that_closes_the_pipe_is_not_an_error(command: Command, arguments: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*command.argv, *(arguments or command.table)], stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("arguments", [("--help",), ()])
def test_a_closed_standard_output_is_not_an_error(command: Command, arguments: tuple[str, ...]) -> None:
    done = run_in_shell('exec "$@" >&-', *command.argv, *(arguments or command.table))
    assert (done.returncode, done.stderr) == (0, "")


def test_with_a_closed_standard_error_no_error_is_printed_as_data(command: Command) -> None:
    wrong = run_in_shell('exec "$@" 2>&-', *command.argv, "--nonsense")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    unknown = run_in_shell('exec "$@" 2>&-', *command.argv, *command.unknown)
    assert (unknown.returncode, unknown.stdout) == (command.run(*command.unknown).returncode, "")


@pytest.mark.skipif(not Path("/proc/self/syscall").exists(), reason="the state of a process is not visible here")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_ends_a_command_without_a_traceback(command: Command, name: str) -> None:
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    os.write(writing, b"x" * 4096)  # The command waits in its first write.
    with subprocess.Popen([*command.argv, *command.table], stdout=writing, stderr=subprocess.PIPE) as process:
        os.close(writing)
        while not _waits_in_write(process.pid):
            assert process.poll() is None, process.stderr and process.stderr.read()
            time.sleep(0.01)
        process.send_signal(getattr(signal, name))
        _, errors = process.communicate(timeout=30)
    os.close(reading)
    assert (process.returncode, errors) == (INTERRUPTED, b"interrupted\n")


def _waits_in_write(pid: int) -> bool:
    """Return True if a process waits in a system call on standard output, of any number."""
    try:
        return Path(f"/proc/{pid}/syscall").read_text().split()[1:2] == ["0x1"]
    except OSError:
        return False


_INTERRUPTED_IMPORT = """
import importlib, os, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[2]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
main = importlib.import_module(sys.argv[1]).main
sys.exit(main())
"""


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("module", ["typing", "argparse", "ml_diagnostics_common.command.program"])
def test_ctrl_c_during_imports_of_a_command_prints_no_traceback(name: str, module: str) -> None:
    projects = "".join(path.read_text() for path in _PACKAGES.glob("*/pyproject.toml"))
    (script,) = re.findall(rf'^{name} = "(.*):main"$', projects, re.MULTILINE)
    argv = [sys.executable, "-c", _INTERRUPTED_IMPORT, script, module]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (INTERRUPTED, "", "interrupted\n")


def test_an_unknown_option_is_reported_with_the_nearest_one(command: Command) -> None:
    done = command.run(command.table[0], "--formt=json", *command.table[1:])
    assert (done.returncode, done.stdout) == (2, "")
    assert "unknown option --formt=json: did you mean --format?" in done.stderr


def test_options_cannot_be_abbreviated(command: Command) -> None:
    assert command.run("--vers").returncode == 2


def test_a_missing_object_is_exit_code_3(command: Command) -> None:
    done = command.run(*command.unknown)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith(f"{Path(command.argv[0]).name}: ")
    assert "Traceback" not in done.stderr


def test_a_missing_login_is_exit_code_4(command: Command) -> None:
    arguments, environ = command.no_login
    done = command.run(*arguments, environ=environ)
    assert (done.returncode, done.stdout) == (4, ""), done.stderr
    assert "Traceback" not in done.stderr


def test_help_lists_the_exit_codes_and_common_options(command: Command) -> None:
    text = " ".join(command.run(command.table[0], "--help").stdout.split())
    for part in ("exit codes: 0 done, 1 failed, 2 usage error, 3 not found, 4 no credentials", "--quiet", "--no-color"):
        assert part in text


def test_quiet_prints_data_only(command: Command) -> None:
    done = command.run(*command.table, "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


@pytest.mark.parametrize("columns", [60, 80])
def test_a_table_is_not_wider_than_the_terminal_but_by_texts_to_copy(command: Command, columns: int) -> None:
    for arguments, code in ((command.table, 0), *command.wide):
        shown = run_in_terminal([*command.argv, *arguments, "--no-color"], columns=columns)
        assert shown.code == code, shown
        assert "\x1b" not in shown.output
        for table in _tables(shown.output):
            assert _width_without(table, command.copied) <= columns, "\n".join(table)


def _tables(page: str) -> list[list[str]]:
    """Return the lines of each table of a page: from the headers, above a line of dashes, to an empty line."""
    tables = [block.splitlines() for block in page.split("\n\n")]
    return [lines for lines in tables if len(lines) > 2 and re.fullmatch(r" *-+(  -+)*", lines[1])]


def _width_without(table: list[str], left_out: tuple[str, ...]) -> int:
    """Return the width of a table without some of its columns; lines beyond the last column count."""
    headers, dashes = table[:2]
    columns = [match.span() for match in re.finditer("-+", dashes)]
    assert max(map(len, table)) <= len(dashes), table
    left = [end - start for start, end in columns if headers[start:end].strip() not in left_out]
    return columns[0][0] + sum(left) + 2 * (len(left) - 1)


def test_colors_are_sent_to_terminals_only_and_not_with_no_color(command: Command) -> None:
    environ = dict(os.environ)
    argv = [*command.argv, *command.unknown]
    assert run_in_terminal(argv, environ=environ).errors.startswith("\x1b[31m")
    assert "\x1b" not in run_in_terminal(argv, environ={**environ, "NO_COLOR": "yes"}).errors
    assert "\x1b" not in run_in_terminal([*argv, "--no-color"], environ=environ).errors
    assert "\x1b" not in command.run(*command.unknown).stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "tcsh"])
def test_completion_is_printed_for_each_shell(command: Command, shell: str) -> None:
    done = command.run("--print-completion", shell)
    assert (done.returncode, done.stderr) == (0, "")
    assert command.table[0] in done.stdout
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=done.stdout, text=True, check=True, capture_output=True)


def test_the_exit_code_of_run_is_that_of_the_job() -> None:
    run = [sys.executable, "-m", "cloud_tpu_diagnostics", "run", "--no-upload"]
    assert subprocess.run([*run, "--", sys.executable, "-c", "raise SystemExit(7)"]).returncode == 7
    killed = subprocess.run([*run, "--", sys.executable, "-c", "import os; os.kill(os.getpid(), 15)"])
    assert killed.returncode == -signal.SIGTERM
    misspelled = subprocess.run([*run[:-1], "--no-uplaod", "--", "true"], capture_output=True, text=True)
    assert (misspelled.returncode, "did you mean --no-upload?" in misspelled.stderr) == (2, True)
