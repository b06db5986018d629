"""Runs plans one after another, stores each as a history, and scores histories."""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from cloud_tpu_diagnostics.configuration.fast_fail_configuration import EXIT_CODE

from ml_diagnostics_console.faultbench._asking import Answer, Tool, ask_doctor, doctor
from ml_diagnostics_console.faultbench._baselines import BASELINES
from ml_diagnostics_console.faultbench._histories import History, hosts_of, read, shift_clocks, store
from ml_diagnostics_console.faultbench._kinds import At
from ml_diagnostics_console.faultbench._machine import missing
from ml_diagnostics_console.faultbench._plans import KINDS, Plan
from ml_diagnostics_console.faultbench._running import RunResult, run
from ml_diagnostics_console.faultbench._scoring import Case, is_right_class, is_right_culprit, score
from ml_diagnostics_console.faultbench._table import cases_json, markdown
from ml_diagnostics_console.verdict import VerdictClass

__all__ = ["DOCTOR", "first_cause_under_offsets", "run_all", "score_all", "write"]

DOCTOR: Final = "doctor"
"""The exit code of a process that fast-fail has ended: of a negative, a mistake."""
_FIRST_CAUSE_KINDS: Final = (
    "sigkill",
    "sigsegv",
    "sigabrt",
    "os_exit_0",
    "sys_exit_3",
    "exception_late",
    "exception_in_input",
    "memory_limit",
)
"""Eight faults of one process that end others: by time, clocks decide which process was the first."""


def run_all(
    plans: Iterable[Plan],
    target: Path,
    report: Callable[[str], None],
    *,
    is_resumed: bool = False,
    is_live: bool = True,
    environment: Mapping[str, str] | None = None,
) -> list[Path]:
    """Run plans, and return the archives of all that were not skipped.

    Args:
        plans: The plans.
        target: The folder for archives.
        report: Prints a line for each.
        is_resumed: True to leave out those that have an archive already.
        is_live: True to ask the doctor while jobs run, for the time to a verdict.
        environment: Further variables for the processes of all jobs.
    """
    archives = []
    for plan in plans:
        archive = target / f"{plan.name}.tar.xz"
        if is_resumed and archive.exists():
            archives.append(archive)
            continue
        if why := missing(KINDS[plan.kind].needs):
            report(f"{plan.name}: skipped: {why}")
            continue
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="faultbench-") as folder:
            job = Path(folder) / plan.name
            job.mkdir()
            result = run(plan, job, _ask_live if is_live else None, environment=environment)
            archives.append(store(result, job, target))
        report(_line(result, time.monotonic() - started))
    return archives


def _ask_live(diagnostics: Path, name: str) -> dict[str, Any]:
    try:
        return ask_doctor(diagnostics, name).to_json()
    except Exception as error:  # The run is worth more than one answer.
        return {"class": VerdictClass.UNKNOWN.value, "sentence": f"{type(error).__name__}: {error}"}


def _line(result: RunResult, seconds: float) -> str:
    plan = result.plan
    state = f"void: {result.void}" if result.void else f"ended with {result.exit_statuses}"
    return f"{plan.name}: {plan.processes} processes, culprit {plan.culprit}, {seconds:.0f} s, {state}"


# --- Scores -----------------------------------------------------------------------------------------------


def score_all(
    archives: Iterable[Path],
    title: str,
    *,
    tools: Mapping[str, Tool] | None = None,
    offset_seconds: float = 0.0,
    draws: int = 1,
) -> tuple[str, dict[str, Any]]:
    """Ask all tools about stored runs, and return a page in Markdown, and the results as JSON.

    Args:
        archives: The stored runs.
        title: The heading of the page.
        tools: Further tools beside the doctor and the baselines.
        offset_seconds: Each host's clock is changed by up to so much, either way; 0 changes none.
        draws: How often each run is asked about with other offsets.
    """
    asked: dict[str, Tool] = {DOCTOR: doctor, **BASELINES, **(tools or {})}
    cases: dict[str, list[Case]] = {name: [] for name in asked}
    voids: list[str] = []
    false_ends: list[str] = []
    ends: list[float] = []
    for archive in archives:
        for number in range(draws):
            with tempfile.TemporaryDirectory(prefix="faultbench-") as folder, read(archive, Path(folder)) as history:
                if not history.label.is_fault and EXIT_CODE in history.exit_statuses and number == 0:
                    false_ends.append(history.name)
                if history.void:
                    voids.append(f"{history.name} ({history.void})")
                    break
                if offset_seconds:
                    shift_clocks(history.diagnostics, _offsets(history, offset_seconds, number))
                for name, tool in asked.items():
                    seconds = _seconds_to_verdict(history) if name == DOCTOR else None
                    cases[name].append(Case(history.name, history.kind, history.label, _answer(tool, history), seconds))
            if number == 0:
                ends += _end_seconds(history)
    injected = {name: [case for case in known if not _is_replayed(case)] for name, known in cases.items()}
    scores = [score(name, injected[name]) for name in asked]
    replayed = score(DOCTOR, filter(_is_replayed, cases[DOCTOR]))
    notes = list(_notes(injected[DOCTOR], voids, ends, offset_seconds, draws))
    if false_ends:
        notes.append(f"**Healthy jobs that fast-fail has ended**: {', '.join(false_ends)}.")
    results = {
        "title": title,
        "scores": [each.to_json() for each in scores],
        "replayed": replayed.to_json(),
        "void": voids,
        "healthy_jobs_ended": false_ends,
        "seconds_to_end": sorted(ends),
        "runs": cases_json(cases[DOCTOR]),
    }
    return markdown(title, scores, cases[DOCTOR], notes, replayed), results


def _answer(tool: Tool, history: History) -> Answer:
    """Return a tool's answer; one that fails knows nothing, and that is in the list of wrong answers."""
    try:
        return tool(history)
    except Exception as error:
        return Answer(VerdictClass.UNKNOWN, sentence=f"{type(error).__name__}: {error}")


def _is_replayed(case: Case) -> bool:
    return KINDS[case.kind].at is At.REPLAYED


def first_cause_under_offsets(
    archives: Sequence[Path], *, most_seconds: float = 60.0, draws: int = 20, tool: Tool = doctor
) -> dict[str, tuple[int, int]]:
    """Return how often the culprit alone is the first cause when clocks are off, by kind: right, and of how many.

    Args:
        archives: Stored runs; of each of eight kinds the first one is taken in which each process has its own clock.
        most_seconds: Each host's clock is changed by up to so much, either way.
        draws: The number of draws of offsets for each kind.
        tool: The tool to ask.
    """
    found: dict[str, tuple[int, int]] = {}
    for kind in _FIRST_CAUSE_KINDS:
        for archive in archives:
            if kind not in found and archive.name.startswith(f"{kind.replace('_', '-')}-"):
                outcome = _draw(archive, kind, tool, most_seconds, draws)
                if outcome is not None:
                    found[kind] = outcome
    return found


def _draw(archive: Path, kind: str, tool: Tool, most_seconds: float, draws: int) -> tuple[int, int] | None:
    right = 0
    for number in range(draws):
        with tempfile.TemporaryDirectory(prefix="faultbench-") as folder, read(archive, Path(folder)) as history:
            if history.kind != kind or history.void or len(hosts_of(history.diagnostics)) < 2:
                return None
            shift_clocks(history.diagnostics, _offsets(history, most_seconds, number))
            answer = _answer(tool, history)
            right += is_right_class(history.label, answer) and is_right_culprit(history.label, answer)
    return right, draws


def _offsets(history: History, most_seconds: float, number: int) -> dict[str, float]:
    chosen = random.Random(f"clocks/{history.name}/{number}")
    return {host: chosen.uniform(-most_seconds, most_seconds) for host in hosts_of(history.diagnostics)}


def _seconds_to_verdict(history: History) -> float | None:
    """Return when the doctor first gave a right answer while the job ran; None for negatives, and if it never did."""
    if not history.label.is_fault:
        return None
    for live in history.about.get("live", ()):
        try:
            answer = Answer.from_json(live["answer"])
        except ValueError:
            continue
        if is_right_class(history.label, answer):
            return float(live["seconds"])
    return None


def _end_seconds(history: History) -> Iterator[float]:
    """Yield the time from the fault to the end of all processes, of a fault with an end."""
    seconds = history.about.get("all_ended_seconds")
    if KINDS[history.kind].is_ending and seconds is not None:
        yield float(seconds)


def _notes(
    cases: Sequence[Case], voids: Sequence[str], ends: Sequence[float], offset_seconds: float, draws: int
) -> Iterator[str]:
    faults = sum(case.label.counts_as_fault for case in cases)
    yield f"{faults} answers on runs with a fault, {len(cases) - faults} on negatives."
    if offset_seconds:
        yield f"Each host's clock was changed by up to {offset_seconds:g} s, {draws} times each."
    if ends:
        yield (
            f"From the fault to the end of all processes, in {len(ends)} jobs that ended by themselves: "
            f"median {statistics.median(ends):.1f} s, longest {max(ends):.1f} s."
        )
    if voids:
        yield f"Void, and not counted: {'; '.join(voids)}."


def write(folder: Path, page: str, results: Mapping[str, Any]) -> None:
    """Write results.md and results.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.md").write_text(page)
    (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n")
