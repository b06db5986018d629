"""The process that reads a profile for `xprofiler summary`.

XProf's converters log to standard error, and may crash on damaged files, which becomes an error message here.
The request is JSON on standard input, the answer JSON on standard output.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from ml_diagnostics_common.command.console import Console
from ml_diagnostics_common.command.errors import CommandError

from xprofiler.summary.summary import Summary

__all__ = ["main", "summarized"]


@dataclass(frozen=True)
class _Request:
    session: str
    files: dict[str, str]


@dataclass(frozen=True)
class _Answer:
    summary: Summary | None = None
    error: str = ""


def summarized(session: str, files: Mapping[str, Path], console: Console) -> Summary:
    """Return the summary of a profile, read by another process: see `reading.summarize`.

    Raises:
        MissingExtraError: XProf is not installed.
        CommandError: XProf cannot read the files, or failed.
    """
    from ml_diagnostics_common.sidecar import python_argv

    from xprofiler.programs.processes import Programs
    from xprofiler.summary.converters import require_xprof

    require_xprof("a summary of a profile")
    request = msgspec.json.encode(_Request(session, {host: str(file) for host, file in files.items()}))
    with Programs(console) as programs:
        done = programs.run(python_argv(__name__), stdin=request)
    if done.exit_code != 0:
        raise CommandError(f"XProf failed on {session} ({done.exit_code}):\n{done.complaint}")
    for line in done.errors.decode("utf-8", "replace").splitlines():
        console.detail(line)
    answer = msgspec.json.decode(done.output, type=_Answer)
    if answer.summary is None:
        raise CommandError(answer.error)
    return answer.summary


def main() -> None:
    """Answer a request."""
    from ml_diagnostics_common.sidecar_parent import take_stdout

    from xprofiler.summary.reading import summarize

    request = msgspec.json.decode(sys.stdin.buffer.read(), type=_Request)
    messages = take_stdout()
    try:
        answer = _Answer(summarize(request.session, {host: Path(file) for host, file in request.files.items()}))
    except CommandError as error:
        answer = _Answer(error=str(error))
    with messages:
        messages.write(msgspec.json.encode(answer))
