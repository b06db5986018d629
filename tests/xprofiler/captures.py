"""Helpers for tests of captures: the command, run in this process, and its files."""

from __future__ import annotations

import contextlib
import functools
import json
import queue
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from .typed_commands import Ended, in_this_process

Command: TypeAlias = "Callable[..., Ended]"


class SlowTunnel:
    """A port that forwards to another one, with a delay in both directions."""

    def __init__(self, port: int, seconds: float) -> None:
        self._to = port
        self._seconds = seconds
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = [self._listener]
        self.port: int = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> SlowTunnel:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
                self._open += [near, far]
                for source, target in ((near, far), (far, near)):
                    pieces: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
                    threading.Thread(target=self._take, args=(source, pieces), daemon=True).start()
                    threading.Thread(target=self._give, args=(target, pieces), daemon=True).start()

    def _take(self, source: socket.socket, pieces: queue.SimpleQueue[tuple[float, bytes]]) -> None:
        piece = b"-"
        while piece:
            try:
                piece = source.recv(1 << 16)
            except OSError:
                piece = b""
            pieces.put((time.monotonic() + self._seconds, piece))

    @staticmethod
    def _give(target: socket.socket, pieces: queue.SimpleQueue[tuple[float, bytes]]) -> None:
        with contextlib.suppress(OSError):
            while True:
                due, piece = pieces.get()
                time.sleep(max(0.0, due - time.monotonic()))
                if not piece:
                    target.shutdown(socket.SHUT_WR)
                    return
                target.sendall(piece)


def capture_command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Return a function that runs `xprofiler capture` in this process."""
    return functools.partial(in_this_process, capsys, "capture")


def session_of(ended: Ended) -> str:
    """Return the session's name from the output."""
    return ended.output.partition("session id is ")[2].partition(".")[0]


def records(ended: Ended) -> list[dict[str, Any]]:
    """Return the hosts from `--format json`."""
    shown = json.loads(ended.output)
    assert isinstance(shown, list)
    return shown


def files_below(folder: Path) -> list[str]:
    """Return the files below a folder by their relative paths."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


_CONVERTERS = """
import json, sys
from xprof.convert import raw_to_tool_data

overview, _ = raw_to_tool_data.xspace_to_tool_data(sys.argv[1:], "overview_page", {})
trace, _ = raw_to_tool_data.xspace_to_tool_data(sys.argv[1:2], "trace_viewer", {})
tables = {key: value for table in json.loads(overview) for key, value in (table.get("p") or {}).items()}
events = {event["name"] for event in json.loads(trace)["traceEvents"] if event.get("ph") == "X"}
print(json.dumps({"tasks": tables["task_count"], "device": tables["device_type"], "events": sorted(events)}))
"""


def opened_by_xprof(paths: Sequence[Path], scratch: Path) -> dict[str, Any]:
    """Return the results of XProf's own converters for copies of a session's files, since they write beside them."""
    pytest.importorskip("xprof")
    scratch.mkdir()
    copies = [str(shutil.copy(path, scratch)) for path in paths]
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _CONVERTERS, *copies], capture_output=True, text=True, check=True
    )
    seen: dict[str, Any] = json.loads(ran.stdout)
    return seen
