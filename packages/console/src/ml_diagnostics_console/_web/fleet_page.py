"""The page of a fleet: what the report's file shows, in the document of the page. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from html import escape, unescape
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

if TYPE_CHECKING:
    from ml_diagnostics_console._web.run_data import RunData

__all__ = ["FILES", "fleet_document", "problem_document", "runs_of_jobs"]

FILES: Final = ("fleet/fleet.css", "fleet/sorting.js")
"""The style sheet and the script of the report."""

_MAIN: Final = re.compile(r'<main class="fleet-page">\n(.*)\n</main>', re.DOTALL)
_JOB: Final = re.compile(r'<span class="job">([^<]*)</span>')
_HEAD_END: Final = "</head>"
_MAIN_END: Final = "</main>"


def fleet_document(shell: str, report: str, runs: Mapping[str, str], links: str = "") -> str:
    """Return the document of the page with a report, which the page's script moves to its place.

    Args:
        shell: The document of every page.
        report: The report's file.
        runs: The id of the run of each job that has one here: its name leads there.
        links: The elements that load `FILES`.

    Raises:
        ValueError: The file is not such a report.
    """
    found = _MAIN.search(report)
    if found is None:
        raise ValueError("the installed version of ml-diagnostics-fleet writes another form of page: update both")

    def linked(job: re.Match[str]) -> str:
        run = runs.get(unescape(job[1]))
        return job[0] if run is None else f'<a class="job" href="/runs/{quote(run, safe="")}">{job[1]}</a>'

    template = f'<template id="fleet">{_JOB.sub(linked, found[1])}</template>'
    return _with_template(shell.replace(_HEAD_END, f"{links}{_HEAD_END}", 1), template)


def problem_document(shell: str, sentence: str) -> str:
    """Return the document of the page with the sentence that says why there is no report."""
    return _with_template(shell, f'<template id="fleet" data-problem="{escape(sentence)}"></template>')


def runs_of_jobs(runs: Iterable[RunData]) -> dict[str, str]:
    """Return the id of the run of each job: the newest one of several, unless the job has the id of one.

    Args:
        runs: The runs, the newest first.
    """
    listed = list(runs)
    found: dict[str, str] = {}
    for run in listed:
        for name in (run.name, *run.job_names):
            found.setdefault(name, run.id)
    return {**found, **{run.id: run.id for run in listed}}


def _with_template(shell: str, template: str) -> str:
    head, end, rest = shell.partition(_MAIN_END)
    return f"{head}{end}\n{template}{rest}"
