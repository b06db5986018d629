"""Programs of this machine: started by argv, printed, and ended with all their children."""

from __future__ import annotations

import io
import os
import shlex
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_diagnostics_common.command.console import Console
from ml_diagnostics_common.command.errors import CommandError, NotFoundError, NotPermittedError, TimedOutError
from ml_diagnostics_common.failures import Kind
from xprofiler.gcloud.kubectl import error_of
from xprofiler.gcloud.processes import Finished, Programs

from ..waiting import is_alive, wait_until

pytestmark = pytest.mark.skipif(os.name == "nt", reason="its programs are those of POSIX")

_PRINT_ARGUMENTS = "import json, sys; print(json.dumps(sys.argv[1:]))"


def _console() -> Console:
    return Console(is_verbose=True, err=io.StringIO())


def test_input_output_and_exit_code_of_a_program_are_passed() -> None:
    with Programs(_console()) as programs:
        ended = programs.run(["sh", "-c", "cat; echo no >&2; exit 3"], stdin=b"\x00yes")
    assert ended == (3, b"\x00yes", b"no\n")
    assert ended.complaint == "no"


def test_large_output_goes_to_a_file(tmp_path: Path) -> None:
    with Programs(_console()) as programs, (tmp_path / "out").open("wb") as file:
        ended = programs.run(["sh", "-c", "head -c 3000000 /dev/zero"], stdout=file)
    assert ended.output == b""
    assert (tmp_path / "out").stat().st_size == 3_000_000


@settings(max_examples=15, deadline=None)
@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20), max_size=5))
def test_arguments_are_passed_unchanged(arguments: list[str]) -> None:
    import json

    with Programs(Console(err=io.StringIO())) as programs:
        ended = programs.run([sys.executable, "-S", "-c", _PRINT_ARGUMENTS, *arguments])
    assert json.loads(ended.output) == arguments


def test_every_program_is_printed_in_shell_syntax() -> None:
    console = _console()
    with Programs(console) as programs:
        programs.run(["echo", "a b", "$(c)"])
    assert isinstance(console.err, io.StringIO)
    command_line = console.err.getvalue()
    assert shlex.split(command_line.removeprefix("$ ")) == ["echo", "a b", "$(c)"]


@pytest.mark.parametrize(("name", "todo"), [("gcloud", "cloud.google.com/sdk"), ("no-such", "install it")])
def test_a_missing_program_is_reported_with_an_install_hint(
    name: str, todo: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with (
        Programs(_console()) as programs,
        pytest.raises(NotFoundError, match=f"the program '{name}' is not installed.*{todo}"),
    ):
        programs.run([name])


def test_an_invalid_argument_is_refused() -> None:
    with Programs(_console()) as programs, pytest.raises(CommandError, match="cannot start echo"):
        programs.run(["echo", "a\0b"])


def test_a_program_that_takes_too_long_ends_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = _with_child(tmp_path)
    start = subprocess.Popen

    def start_with_its_child(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        process = start(*arguments, **options)
        wait_until((tmp_path / "child").exists)
        return process

    monkeypatch.setattr(subprocess, "Popen", start_with_its_child)
    with Programs(_console()) as programs, pytest.raises(TimedOutError, match=r"did not end within 0\.5 s"):
        programs.run(program, timeout_seconds=0.5)
    _assert_ended(tmp_path)


def test_programs_that_run_at_the_end_of_the_block_end_with_their_children(tmp_path: Path) -> None:
    with Programs(_console()) as programs:
        process = programs.start(_with_child(tmp_path))
        wait_until((tmp_path / "child").exists)
    assert process.returncode is not None
    _assert_ended(tmp_path)


def test_a_program_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    with Programs(_console()) as programs:
        programs.start(["sh", "-c", f"trap '' TERM; {_shell_of_child(tmp_path)}"])
        wait_until((tmp_path / "child").exists)
    _assert_ended(tmp_path)


def test_threads_that_wait_for_programs_end_with_the_block(tmp_path: Path) -> None:
    with ThreadPoolExecutor() as threads, Programs(_console()) as programs:
        argv = ["sh", "-c", f"mktemp -p {tmp_path} && exec sleep 60"]
        waiting = [threads.submit(programs.run, argv) for _ in range(4)]
        wait_until(lambda: len(list(tmp_path.iterdir())) == 4)
    assert all(future.result().exit_code < 0 for future in waiting)


def test_nothing_is_started_after_the_end() -> None:
    with Programs(_console()) as programs:
        pass
    with pytest.raises(CommandError, match="was not started: the command is ending"):
        programs.run(["true"])


def test_an_interrupt_ends_running_programs(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(
        "from ml_diagnostics_common.command.console import Console\nfrom xprofiler.gcloud.processes import Programs\n"
        f"with Programs(Console()) as programs: programs.run({_with_child(tmp_path)!r})\n"
    )
    process = subprocess.Popen([sys.executable, str(script)], stderr=subprocess.DEVNULL)
    wait_until((tmp_path / "child").exists)
    process.send_signal(2)
    process.wait(20)
    _assert_ended(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_a_program_starts_ends_it(tmp_path: Path, number: int) -> None:
    script = tmp_path / "run.py"
    script.write_text(
        "import signal, subprocess, sys\n"
        "from ml_diagnostics_common.command.console import Console\nfrom xprofiler.gcloud.processes import Programs\n"
        f"signal.signal({number}, signal.default_int_handler)\n"
        "class Interrupted(subprocess.Popen):\n"
        "    def __init__(self, *arguments, **options):\n"
        "        super().__init__(*arguments, **options)\n"
        f"        while not __import__('os').path.exists({str(tmp_path / 'child')!r}): pass\n"
        f"        signal.raise_signal({number})\n"
        "subprocess.Popen = Interrupted\n"
        f"with Programs(Console()) as programs: programs.run({_with_child(tmp_path)!r})\n"
    )
    ended = subprocess.run([sys.executable, str(script)], stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert "KeyboardInterrupt" in ended.stderr
    _assert_ended(tmp_path)


def test_output_without_a_terminal_is_forwarded_at_the_end() -> None:
    console = Console(err=io.StringIO())
    with Programs(console) as programs:
        assert programs.run_at_terminal(["sh", "-c", "echo out; echo err >&2; exit 4"]) == 4
    assert isinstance(console.err, io.StringIO)
    assert sorted(console.err.getvalue().split()) == ["err", "out"]


def test_background_processes_of_a_finished_program_keep_running(tmp_path: Path) -> None:
    with Programs(Console(err=io.StringIO())) as programs:
        programs.run_at_terminal(["sh", "-c", f"(sleep 0.3; touch {shlex.quote(str(tmp_path / 'late'))}) &"])
    wait_until((tmp_path / "late").exists)


def _shell_of_child(folder: Path) -> str:
    return f"sleep 60 & echo $! >{shlex.quote(str(folder / 'pid'))}; touch {shlex.quote(str(folder / 'child'))}; wait"


def _with_child(folder: Path) -> list[str]:
    return ["sh", "-c", _shell_of_child(folder)]


def _assert_ended(folder: Path) -> None:
    pid = int((folder / "pid").read_text())
    wait_until(lambda: not is_alive(pid))


@pytest.mark.parametrize(
    ("errors", "kind"),
    [
        ("error: open /etc/kubernetes/admin.conf: permission denied", CommandError),
        ('exec: "python3": permission denied', CommandError),
        ('Error from server (Forbidden): pods is forbidden: User "me" cannot list resource', NotPermittedError),
        ("error: You must be logged in to the server (Unauthorized)", NotPermittedError),
        ('Error from server (NotFound): pods "x" not found', NotFoundError),
    ],
)
def test_kubectl_without_access_to_a_file_is_not_refused_by_the_cluster(errors: str, kind: type[CommandError]) -> None:
    error = error_of(Finished(1, b"", errors.encode()), "find the pods")
    assert type(error) is kind
    assert ("kubectl auth whoami" in str(error)) is (kind is NotPermittedError)


@pytest.mark.parametrize(
    ("errors", "kind"),
    [
        ("ERROR: (gcloud) Required 'compute.instances.delete' permission for 'projects/p'", Kind.REFUSED),
        ("ERROR: (gcloud) You do not currently have an active account selected.", Kind.REFUSED),
        ("ERROR: (gcloud) Invalid value: name=*HERE*(", Kind.INVALID),
        ("ERROR: (gcloud) Some requests did not succeed", None),
    ],
)
def test_failures_of_gcloud_are_recognized_by_its_messages(errors: str, kind: Kind | None) -> None:
    assert Finished(1, b"", errors.encode()).failure("gcloud") is kind
