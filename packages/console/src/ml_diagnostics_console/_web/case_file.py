"""The case file: one run as one HTML file, to send to others; `doctor` reads it back.

It has the page itself, the answers that its pages ask for, and the doctor's report. A first block lists what is inside
and what was left out. Secrets are removed; nothing in the file asks a server for anything.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from google_cloud_mldiagnostics.exceptions import RunNotFoundError
from ml_diagnostics_common.exceptions import DiagnosticsError

from ml_diagnostics_console._facts.reading import JobReader, Question
from ml_diagnostics_console._version import __version__
from ml_diagnostics_console._web.answers import Answer, NotThereError, json_answer
from ml_diagnostics_console._web.assets import Assets
from ml_diagnostics_console._web.case_answers import CaseAnswers, collect
from ml_diagnostics_console._web.case_page import case_page
from ml_diagnostics_console._web.case_report import encoded_reports, zipped
from ml_diagnostics_console._web.cloud_runs import cloud_run
from ml_diagnostics_console._web.doctor_process import DoctorLostError, DoctorProcess
from ml_diagnostics_console._web.modules import ModuleError
from ml_diagnostics_console._web.run_data import RunData
from ml_diagnostics_console._web.run_goodput import goodput_of
from ml_diagnostics_console._web.store import Store
from ml_diagnostics_console._web.verdict_answer import Judged, judged

__all__ = ["CaseFile", "case_answer", "judge_for_file", "make_case"]

_MOST_BYTES: Final = 3_000_000
_ABOUT_BYTES: Final = 8192
_GOODPUT_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class CaseFile:
    """A case file.

    Attributes:
        text: Its text.
        inside: Sentences on what is inside.
        left_out: Sentences on what was left out.
    """

    text: str
    inside: tuple[str, ...]
    left_out: tuple[str, ...]


def case_answer(store: Store, run_id: str, assets: Assets) -> Answer:
    """Answer a request for the case file of a run.

    Args:
        store: The runs.
        run_id: The run.
        assets: The static files of the page.
    """
    try:
        with store.lock:
            run = store.run(run_id)
            run_id, in_cloud = run.id, cloud_run(run)
        if in_cloud is not None:
            return json_answer({"error": in_cloud.no_case_file}, 409)
        store.source.find(run_id)  # The doctor's process would report that it was deleted as another failure.
        case = make_case(store, run_id, assets, _judged_elsewhere(store.doctor_for_files, run_id))
    except (NotThereError, RunNotFoundError) as error:
        return json_answer({"error": str(error)}, 404)
    except (ModuleError, DiagnosticsError, DoctorLostError) as error:
        return json_answer({"error": f"the case file could not be made: {error}"}, 500)
    headers = {"content-disposition": f"attachment; filename*=UTF-8''{quote(run_id, safe='')}.html"}
    return Answer(case.text.encode(), "text/html; charset=utf-8", headers=headers)


def _judged_elsewhere(process: DoctorProcess, run_id: str) -> Judged:
    """Return the verdict on a run, with the doctor's part of a file, from a process that is not the server.

    Raises:
        DoctorLostError: There is none.
    """
    try:
        found = process.judge(run_id, is_for_file=True)
    finally:
        process.end()
    if not found.reports:
        raise DoctorLostError(str(found.answer.get("error")))
    return found


def judge_for_file(question: Question, report: Callable[[str], None]) -> Judged:
    """Return the verdict on a run, with the doctor's part of a file, for a command.

    Args:
        question: The run as the doctor reads it.
        report: Prints a note for the user.

    Raises:
        DiagnosticsError: The doctor cannot read the run.
    """
    last, encoded = encoded_reports(JobReader(question, report))
    return judged(last, zipped(encoded))


def make_case(store: Store, run_id: str, assets: Assets, verdict: Judged) -> CaseFile:
    """Return the case file of a run.

    Args:
        store: The runs, read.
        run_id: The run.
        assets: The static files of the page.
        verdict: The doctor's verdict on it, with its part of the file.

    Raises:
        NotThereError: There is no such run.
        ModuleError: The page cannot be inlined.
    """
    with store.lock:
        run, cursor, source = store.run(run_id), store.cursor, store.place
    _read_goodput(store, run)
    store.doctor.take(run, verdict)
    page_bytes = len(case_page(assets, run_id, "").encode())
    answers = collect(store, run_id, _MOST_BYTES - page_bytes - len(verdict.reports) - _ABOUT_BYTES)
    inside = [*answers.inside, "the doctor's report, which `mldiagnostics doctor FILE` prints"]
    left_out = [*answers.left_out, "texts that resemble secrets", "values that are finer than a drawing shows"]
    about = {
        "run": run_id,
        "start": f"/runs/{quote(run_id, safe='')}",
        "made": time.time(),
        "version": __version__,
        "from": source,
        "cursor": cursor,
        "inside": inside,
        "left_out": left_out,
    }
    blocks = _blocks(about, verdict.reports, answers)
    return CaseFile(case_page(assets, run_id, blocks), tuple(inside), tuple(left_out))


def _read_goodput(store: Store, run: RunData) -> None:
    """Read a run's goodput to its end: a page shows a long log before it is read, a file cannot."""
    deadline, goodput = time.monotonic() + _GOODPUT_SECONDS, goodput_of(run)
    while time.monotonic() < deadline:
        with store.lock:  # One part of the log at a time, so that others are answered in between.
            goodput.refresh(run)
            if goodput.is_complete:
                run.version += 1  # Views that were made meanwhile show that it is still read.
                return


def _blocks(about: dict[str, Any], reports: str, answers: CaseAnswers) -> str:
    """Return the elements with the data: what is inside first."""
    lines = [f'<script type="application/json" data-about>{_in_script(about)}</script>']
    lines.append(f'<script type="text/plain" data-report>{reports}</script>')
    return "\n".join([*lines, *(block.markup for block in answers.blocks)])


def _in_script(value: Any) -> str:
    """Return JSON that no text in it can end the element of."""
    return json.dumps(value, ensure_ascii=True).replace("<", "\\u003c")
