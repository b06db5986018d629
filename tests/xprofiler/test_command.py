"""The command line itself: its help, its flags, its streams and exit codes."""

from __future__ import annotations

import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys

import pytest
from ml_diagnostics_common.command.console import Console
from ml_diagnostics_testing.faults import Delay, Hang
from xprofiler import __version__
from xprofiler.cli import COMMAND_NAMES, flags_for_gcloud, main, notify_if_slow, split_arguments

from ..loopback.compute import ComputeServer
from ..waiting import pipe_without_reader, wait_until
from .conftest import Run
from .viewer_vms import add_viewer

_LOADED = """
import sys
from xprofiler.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    print("loaded:", *sys.modules, sep="\\n")
"""
_HEAVY = ("google", "grpc", "httplib2", "json", "matplotlib", "requests", "subprocess", "tabulate", "urllib", "yaml")


# --- Help ----------------------------------------------------------------------------------------------


def test_without_a_command_there_is_help_which_is_not_a_failure(run: Run) -> None:
    ended = run()
    assert (ended.code, ended.errors) == (0, "")
    assert ended.output == run("--help").output
    assert all(name in ended.output for name in COMMAND_NAMES)
    assert "exit codes: 0 done, 1 failed" in ended.output


def test_the_version_is_printed(run: Run) -> None:
    assert run("--version") == (0, f"xprofiler {__version__}\n", "")


@pytest.mark.parametrize("name", COMMAND_NAMES)
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_every_command_has_help(run: Run, name: str, flag: str) -> None:
    ended = run(name, flag)
    assert (ended.code, ended.errors) == (0, "")
    assert ended.output.startswith(f"usage: xprofiler {name} ")
    assert "--verbose" in ended.output


@pytest.mark.parametrize("arguments", [["--help"], ["list", "--help"], ["capture", "--help"], ["serve", "--help"]])
def test_help_loads_nothing_that_it_does_not_need(arguments: list[str]) -> None:
    argv = [sys.executable, "-c", _LOADED, *arguments]
    shown = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    loaded = set(shown.partition("loaded:")[2].split())
    assert "xprofiler.commands.capture" in loaded
    assert sorted(loaded & set(_HEAVY)) == []


def test_it_runs_as_a_module() -> None:
    ended = subprocess.run([sys.executable, "-m", "xprofiler", "--version"], capture_output=True, text=True, check=True)
    assert ended.stdout == f"xprofiler {__version__}\n"


# --- Flags ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["-a", "--abbrev"])
def test_abbrev_is_accepted(run: Run, cloud: ComputeServer, flag: str) -> None:
    assert run(flag, "list").code == 0
    assert run(flag).code == 0


def test_there_are_no_abbreviations_that_a_later_release_could_break(run: Run) -> None:
    assert run("list", "--log", "gs://b").code != 0
    assert run("--vers").code == 2


def test_an_unknown_command_is_refused(run: Run) -> None:
    ended = run("lits")
    assert (ended.code, ended.output) == (2, "")


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["list", "--verbsoe"], "--verbose"),
        (["delete", "-z", "z", "--log-drectory=gs://b"], "--log-directory"),
        (["delete", "-z", "z", "-n", "x", "--queit"], "--quiet"),
        (["create", "-z", "z", "-l", "gs://b", "--machine_type=n2"], "--machine-type"),
        (["capture", "-l", "gs://b", "-n", "h", "-f", "jax", "--duratoin=1"], "--duration"),
        (["--versoin"], "--version"),
    ],
)
def test_the_nearest_flag_is_named(run: Run, arguments: list[str], meant: str) -> None:
    ended = run(*arguments)
    assert ended.code == 2
    assert f"did you mean {meant}?" in ended.errors


@pytest.mark.parametrize(
    "arguments", [["completion", "bash", "--project=p"], ["completion", "bash", "--", "--limit=1"]]
)
def test_a_command_without_gcloud_accepts_no_flags_for_it(run: Run, arguments: list[str]) -> None:
    ended = run(*arguments)
    assert (ended.code, ended.output) == (2, "")


@pytest.mark.parametrize(
    "words",
    [
        ["trainer"],
        ["-x"],
        ["--keep-disks", "all", "trainer"],
        ["--", "trainer"],
        ["--", "--keep-disks=all", "trainer"],
        ["--", "--", "trainer"],
        ["--", "--no-graceful-shutdown", "--", "trainer"],
        ["--", "--zone=us-east5-a"],
        ["--", "--zone", "us-east5-a"],
    ],
)
def test_gcloud_gets_flags_and_no_other_vm_or_zone(run: Run, cloud: ComputeServer, words: list[str]) -> None:
    for name, zone in (("xprof-a", "us-central1-a"), ("xprof-a", "us-east5-a"), ("trainer", "us-central1-a")):
        add_viewer(cloud, name, zone)
    ended = run("delete", "-n", "xprof-a", "-z", "us-central1-a", "-q", *words)
    assert (ended.code, ended.output) == (2, "")
    assert cloud.requests == []


@pytest.mark.parametrize("words", [["oops"], ["--filter=name:a", "--", "--filter=name:b"], ["--", "--zones=z"]])
def test_a_list_gets_flags_too(run: Run, cloud: ComputeServer, words: list[str]) -> None:
    assert run("list", *words).code == 2
    assert cloud.requests == []


@pytest.mark.parametrize("words", [["-m", "proxy", "--internal-ip"], ["-d", "--internal-ip"]])
def test_connect_takes_no_flags_that_do_nothing(run: Run, cloud: ComputeServer, words: list[str]) -> None:
    assert run("connect", "-z", "us-central1-a", "-l", "gs://bucket/run", *words).code == 2
    assert cloud.requests == []


def test_a_flag_and_its_value_are_one_word_for_gcloud() -> None:
    assert flags_for_gcloud(["--a", "b", "--c"], ["--d=e", "-q", "--f", ""], []) == [
        "--a=b",
        "--c",
        "--d=e",
        "-q",
        "--f=",
    ]


def test_arguments_after_two_dashes_are_not_checked() -> None:
    assert split_arguments(["list", "-v", "--", "--zone=a", "--", "x"]) == (["list", "-v"], ["--zone=a", "--", "x"])
    assert split_arguments(["list"]) == (["list"], [])


# --- Streams and exits ---------------------------------------------------------------------------------


def test_a_usage_error_prints_the_usage_and_no_data(run: Run, cloud: ComputeServer) -> None:
    ended = run("list", "-l", "bucket")
    assert (ended.code, ended.output) == (2, "")
    assert ended.errors.startswith("usage: xprofiler list ")


@pytest.mark.skipif(os.name == "nt", reason="there are no such signals to send")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_exits_with_130_without_a_traceback(cloud: ComputeServer, name: str) -> None:
    cloud.faults.always(Hang(), on="list")
    with subprocess.Popen([sys.executable, "-m", "xprofiler", "list"], stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: cloud.requests, running=process)
        process.send_signal(getattr(signal, name))
        _, errors = process.communicate(timeout=30)
    # On a busy machine the command may already have printed that it waits.
    assert (process.returncode, errors.removeprefix("Waiting for the list ...\n")) == (130, "interrupted\n")


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_a_closed_pipe_is_not_a_failure(cloud: ComputeServer) -> None:
    for number in range(600):
        add_viewer(cloud, f"xprof-{number:03d}", logs=f"gs://bucket/{'x' * 200}")
    # Quiet, since on a busy machine the command would print that it waits.
    command = f"set -o pipefail; {shlex.quote(sys.executable)} -m xprofiler list --quiet | head -n 1"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("Log_Directory")


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGHUP to send")
def test_a_command_that_ignores_hangups_continues(cloud: ComputeServer) -> None:
    ignoring = "import signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN)"
    program = f"{ignoring}; from xprofiler.cli import main; sys.exit(main())"
    cloud.faults.script([Delay(1.0)], on="list")
    with subprocess.Popen([sys.executable, "-c", program, "list"], stdout=subprocess.DEVNULL) as process:
        while not cloud.requests:
            assert process.poll() is None
        process.send_signal(signal.SIGHUP)
        assert process.wait(30) == 0


@pytest.mark.parametrize("arguments", ["list --verbose", "list -l bucket", "delete -n xprof-a -z us-central1-a"])
def test_a_closed_standard_error_is_a_failure(cloud: ComputeServer, arguments: str) -> None:
    add_viewer(cloud, "xprof-a")
    argv = [sys.executable, "-m", "xprofiler", *arguments.split()]
    nothing = subprocess.DEVNULL
    with pipe_without_reader() as errors:
        ended = subprocess.run(argv, stdin=nothing, stdout=nothing, stderr=errors, check=False)
    assert ended.returncode == (2 if "-l bucket" in arguments else 1)
    assert [vm["name"] for vm in cloud.instances()] == ["xprof-a"]


def test_names_that_the_terminal_cannot_encode_are_escaped(cloud: ComputeServer) -> None:
    add_viewer(cloud, "xprof-a", logs="gs://bucket/\u65e5\u672c")
    environ = {**os.environ, "PYTHONIOENCODING": "ascii"}
    argv = [sys.executable, "-m", "xprofiler", "list"]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False, env=environ)
    assert ended.returncode == 0, ended.stderr
    assert "gs://bucket/\\u65e5\\u672c" in ended.stdout


def test_nothing_warns(cloud: ComputeServer) -> None:
    add_viewer(cloud, "xprof-a")
    # On the oldest Python, google.api_core warns that it will soon drop support for it; other packages may, too.
    allowed = ["-W", "ignore:You are using a:FutureWarning"]
    argv = [sys.executable, "-W", "error", *allowed, "-m", "xprofiler", "list", "--format=json"]
    ended = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert ended.stderr == ""
    assert json.loads(ended.stdout)[0]["name"] == "xprof-a"


@pytest.mark.parametrize(
    "arguments",
    [
        ("serve", "-l", "logs", "-p", "70000"),
        ("connect", "-l", "gs://bucket/run", "-z", "zone", "-p", "0"),
        ("capture", "-o", "local", "-l", "logs", "-n", "localhost:1", "-d", "-1"),
        ("capture", "-o", "local", "-l", "logs", "-n", "localhost:1", "-p", "٣"),
    ],
)
def test_an_invalid_number_is_refused_with_a_message(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert f"{arguments[-1]!r} is not a whole number from " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "seconds"), [("90m", 5400), ("8h", 28800), ("2d", 172800), ("3600s", 3600), ("60", 60)]
)
def test_the_lifetime_of_a_vm_is_parsed(run: Run, cloud: ComputeServer, text: str, seconds: int) -> None:
    ended = run("create", "-l", "gs://bucket/run", "-z", "us-central1-a", "--dry-run", "--ttl", text)
    assert f"--max-run-duration={seconds}s" in ended.output.split()


@pytest.mark.parametrize("text", ["", "h", "-1h", "8 h", "1w", "٣h", "29s", "121d", "9999999999h"])
def test_an_invalid_lifetime_of_a_vm_is_refused(run: Run, text: str) -> None:
    ended = run("create", "-l", "gs://bucket/run", "-z", "us-central1-a", "--dry-run", f"--ttl={text}")
    assert (ended.code, ended.output) == (2, "")
    assert f"argument --ttl: {text!r}" in ended.errors


def test_a_slow_operation_is_reported_once_and_a_fast_one_never() -> None:
    terminal = io.StringIO()
    console = Console(err=terminal)
    with notify_if_slow(console, "waiting", after_seconds=60):
        pass
    assert terminal.getvalue() == ""
    with notify_if_slow(console, "waiting", after_seconds=0.01):
        wait_until(terminal.getvalue)
    assert terminal.getvalue() == "waiting\n"
