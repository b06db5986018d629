"""The summary of the newest profile of a run, by `xprofiler summary`: it reads profiles with XProf's own converters.

Nothing of a profile is computed again here: XProf's conclusions and thresholds are its own. XProf is an extra, logs to
standard error and may crash on a damaged file, so the summary is made by a process of its own, within a deadline.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from google_cloud_mldiagnostics.reading import RunView, mappings, number
from ml_diagnostics_common.files import in_bucket
from ml_diagnostics_common.texts import format_bytes, format_percent, one_line

from ml_diagnostics_console._facts.facts import Fact, Unknown
from ml_diagnostics_console._facts.profile_facts import ProfileFacts
from ml_diagnostics_console.verdict import Ref

__all__ = ["read_profile", "run_xprofiler", "summary_of"]

_SUCCEEDED: Final = "SUCCEEDED"
_DEADLINE_SECONDS: Final = 20.0
"""A profile of 20 MB takes two seconds, the start of the process one."""
_END_SECONDS: Final = 5.0
_MOST_BYTES: Final = 200_000_000
"""XProf takes about ten times as much memory."""
_MOST_OUTPUT: Final = 64_000_000
_MOST_TEXT: Final = 300
_MOST_OPERATIONS: Final = 5
_EXTRA: Final = 'install XProf: pip install "ml-diagnostics-console[profile]"'


def read_profile(
    view: RunView, *, summarise: Callable[[str], Mapping[str, Any] | str] | None = None
) -> Fact[ProfileFacts] | Unknown:
    """Return the summary of the newest profile of a run, if its files are on this machine.

    Args:
        view: The run.
        summarise: Returns the summary of the session in a folder as `xprofiler summary --format json` prints it, or why
            there is none; None runs that command.
    """
    if not view.sessions:
        return Unknown(f"the run has no profile: take one with `mldiagnostics profile {view.run_id}`")
    session = next((each for each in reversed(view.sessions) if each.phase == _SUCCEEDED and each.folder), None)
    if session is None:
        return Unknown(f"no profile of the run has succeeded: `mldiagnostics show {view.run_id}` shows why")
    folder = session.folder
    if in_bucket(folder):
        return Unknown(f"the profile {session.session_id} is in a bucket: read it with `xprofiler summary {folder}`")
    try:
        sizes = [file.stat().st_size for file in Path(folder).glob("*.xplane.pb")]
    except OSError as error:
        return Unknown(f"the profile {session.session_id} cannot be read: {error.strerror or error}")
    if not sizes:
        return Unknown(f"the files of the profile {session.session_id} are not on this machine")
    if sum(sizes) > _MOST_BYTES:
        size = format_bytes(sum(sizes))
        return Unknown(f"the profile {session.session_id} has {size}: read it with `xprofiler summary {folder}`")
    found = (summarise or run_xprofiler)(folder)
    if isinstance(found, str):
        return Unknown(f"the profile {session.session_id} cannot be summarised: {found}")
    facts = summary_of(session.session_id, found)
    ref = Ref(folder, "profile", session.started_ns, "", _sentence(facts))
    return Fact(facts, (ref,), session.started_ns or 0)


def run_xprofiler(folder: str) -> Mapping[str, Any] | str:
    """Return the summary that the command prints, or why there is none."""
    if find_spec("xprofiler") is None or find_spec("xprof") is None:
        return _EXTRA
    # From the root folder: the current one may have modules of the same names.
    argv = [sys.executable, "-m", "xprofiler", "summary", "--format", "json", str(Path(folder).resolve())]
    try:
        with subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=os.sep
        ) as process:
            try:
                output, errors = process.communicate(timeout=_DEADLINE_SECONDS)
            except subprocess.TimeoutExpired:
                _end(process)
                return f"it takes longer than {_DEADLINE_SECONDS:.0f} s: use `xprofiler summary {folder}`"
    except OSError as error:
        return str(error.strerror or error)
    if process.returncode:
        lines = errors.decode("utf-8", "replace").strip().splitlines()
        return one_line(lines[-1], _MOST_TEXT) if lines else f"exit code {process.returncode}"
    if len(output) > _MOST_OUTPUT:
        return f"its summary has {format_bytes(len(output))}"
    try:
        summary = json.loads(output)
    except (ValueError, RecursionError):
        return "its summary is not JSON"
    return summary if isinstance(summary, dict) else "its summary is not an object"


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the command and, by its own handler of SIGTERM, the process in which XProf runs."""
    process.terminate()
    try:
        process.communicate(timeout=_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


def summary_of(session: str, summary: Mapping[str, Any]) -> ProfileFacts:
    """Return the facts in a summary; values of another form are left out.

    Args:
        session: The session's name.
        summary: The summary as `xprofiler summary --format json` prints it.
    """
    times = _mapping(summary.get("step_times"))
    mean_us = number(times.get("mean_us"))
    cause, slow, compiled = (_mapping(summary.get(key)) for key in ("cause", "slow_host", "compilations"))
    steps, notes = summary.get("steps"), summary.get("notes")
    return ProfileFacts(
        session=session,
        device=_text(summary.get("device")),
        steps=len(steps) if isinstance(steps, list) else 0,
        step_seconds=None if mean_us is None else mean_us / 1e6,
        idle_percent=number(summary.get("idle_percent")),
        input_percent=number(_mapping(summary.get("input")).get("waiting_percent")),
        cause=_text(cause.get("text")),
        slow_host=_text(slow.get("host")),
        compile_percent=number(compiled.get("percent")),
        operations={
            _text(each.get("name")): share
            for each in list(mappings(summary.get("operations")))[:_MOST_OPERATIONS]
            if (share := number(each.get("percent"))) is not None
        },
        notes=tuple(map(_text, notes)) if isinstance(notes, list) else (),
    )


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: object) -> str:
    return one_line(value, _MOST_TEXT) if isinstance(value, str) else ""


def _sentence(facts: ProfileFacts) -> str:
    """Return the sentence of a profile."""
    parts: Sequence[str] = [facts.cause]
    if facts.input_percent is not None:
        parts = [*parts, f"steps wait for input for {format_percent(facts.input_percent)}"]
    return f"profile {facts.session}: " + ("; ".join(filter(None, parts)) or "it does not show what limits the job")
