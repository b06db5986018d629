"""The prompts of the README in a real terminal (of tmux), and the effects of the answers."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..loopback.compute import ComputeServer

TMUX = shutil.which("tmux")
pytestmark = pytest.mark.skipif(TMUX is None, reason="there is no tmux here")

COMMAND = str(Path(sys.executable).with_name("xprofiler"))
PATH = "gs://test-bucket/run/tensorboard"
_WAIT_SECONDS = 60


class Terminal:
    """A terminal of 200 columns in which a shell runs."""

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self._socket = str(folder / "tmux")
        environment = {**os.environ, **variables, "PS1": "$ ", "TERM": "xterm-256color"}
        environment.pop("TMUX", None)
        shell = ["sh", "-c", "exec env PS1='$ ' sh"]
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", "200", "-y", "60", shlex.join(shell), env=environment)

    def types(self, text: str) -> None:
        """Type a line."""
        self._tmux("send-keys", "-l", text)
        self._tmux("send-keys", "Enter")

    def shows(self, text: str, times: int = 1) -> str:
        """Wait until the screen shows a text `times` times, and return the screen."""
        end = time.monotonic() + _WAIT_SECONDS
        while (screen := self._tmux("capture-pane", "-p", "-J")).count(text) < times:
            assert time.monotonic() < end, f"{text!r} is not there:\n{screen}"
            time.sleep(0.05)
        return screen

    def close(self) -> None:
        self._tmux("kill-server")

    def _tmux(self, *arguments: str, env: dict[str, str] | None = None) -> str:
        assert TMUX is not None
        command = [TMUX, "-S", self._socket, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30, env=env).stdout


@pytest.fixture
def compute() -> Iterator[ComputeServer]:
    with ComputeServer() as server:
        for name in ("xprof-one", "xprof-two"):
            server.add_instance(
                name,
                "us-central1-a",
                labels={"xprofiler_version": "1-0-0", "tb_backend_id": "abc"},
                metadata={"xprofiler_log_directory": PATH},
            )
        yield server


@pytest.fixture
def terminal(compute: ComputeServer, tmp_path: Path) -> Iterator[Terminal]:
    found = Terminal(tmp_path, {**compute.environment(), "CLOUDSDK_CONFIG": str(tmp_path / "gcloud")})
    yield found
    found.close()


def names(compute: ComputeServer) -> list[str]:
    return [instance["name"] for instance in compute.instances()]


def test_delete_asks_for_each_vm_and_deletes_what_was_confirmed(terminal: Terminal, compute: ComputeServer) -> None:
    terminal.types(f"{COMMAND} delete -z us-central1-a -l {PATH}; echo exit $?")
    screen = terminal.shows("Enter y/n:")
    assert "Found 2 VM(s)" in screen
    assert "to delete." in screen
    assert "Do you want to continue to delete the VM `xprof-one`?" in screen
    terminal.types("n")
    terminal.shows("Enter y/n:", times=2)
    terminal.types("y")
    screen = terminal.shows("exit 0")
    assert "Keep VM `xprof-one`" in screen
    assert "Do you want to continue to delete the VM `xprof-two`?" in screen
    assert names(compute) == ["xprof-one"]


def test_delete_that_is_interrupted_at_its_question_deletes_nothing(terminal: Terminal, compute: ComputeServer) -> None:
    terminal.types(f"{COMMAND} delete -z us-central1-a -l {PATH}; echo exit $?")
    terminal.shows("Enter y/n:")
    terminal.types("\x03")
    terminal.shows("exit 130")
    assert names(compute) == ["xprof-one", "xprof-two"]


def test_create_shows_the_existing_vm_and_creates_none_for_a_no(terminal: Terminal, compute: ComputeServer) -> None:
    terminal.types(f"{COMMAND} create -z us-central1-a -l {PATH}; echo exit $?")
    question = "Do you want to continue to create another instance with the same log directory? (y/n)"
    screen = terminal.shows(question)
    assert f"Instance for {PATH} already exists." in screen
    assert "https://abc-dot-us-central1.notebooks.googleusercontent.com" in screen
    terminal.types("n")
    assert "Exiting..." in terminal.shows("exit 1")
    assert names(compute) == ["xprof-one", "xprof-two"]


def test_a_tunnel_in_the_foreground_may_ask_for_a_passphrase(
    compute: ComputeServer, terminal: Terminal, tmp_path: Path
) -> None:
    gcloud = tmp_path / "bin" / "gcloud"
    gcloud.parent.mkdir()
    gcloud.write_text('#!/bin/sh\nprintf "Passphrase: " >/dev/tty; read -r typed </dev/tty; echo "took $typed"\n')
    gcloud.chmod(0o700)
    command = [COMMAND, "connect", "-z", "us-central1-a", "-l", PATH, "--foreground"]
    terminal.types(f"PATH={shlex.quote(str(gcloud.parent))}:$PATH {shlex.join(command)}")
    terminal.shows("Passphrase:")
    terminal.types("open sesame")
    terminal.shows("took open sesame")
