"""Commands in a pseudo-terminal of a given width; all their output is read."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Shown(NamedTuple):
    """The result of a command: its exit code, and what the terminal received of its output and of its errors."""

    code: int
    output: str
    errors: str


def run_in_terminal(argv: Sequence[str], columns: int = 80, environ: Mapping[str, str] | None = None) -> Shown:
    """Run a command with terminals of a width as its standard output and standard error."""
    environ = {"TERM": "xterm", **(os.environ if environ is None else environ)}
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        if name in os.environ and environ.get(name) == os.environ[name]:
            del environ[name]
    pairs = [os.openpty(), os.openpty()]
    for _, terminal in pairs:
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=pairs[0][1], stderr=pairs[1][1], env=environ, close_fds=True
    )
    for _, terminal in pairs:
        os.close(terminal)
    texts = [_read_all(reader) for reader, _ in pairs]
    return Shown(process.wait(60), *texts)


def _read_all(reader: int) -> str:
    """Read until all writers have closed the terminal, which Linux reports as an error."""
    pieces = []
    try:
        while piece := os.read(reader, 65536):
            pieces.append(piece)
    except OSError:
        pass
    os.close(reader)
    return b"".join(pieces).decode().replace("\r\n", "\n")
