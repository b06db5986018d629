"""The doctor's verdict on a run, for its page: worked out beside the requests, and kept until the run changes."""

from __future__ import annotations

import logging
import re
import shlex
import threading
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from ml_diagnostics_common.entry import split_insert_id
from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_common.exceptions import DiagnosticsError
from ml_diagnostics_common.texts import one_line

from ml_diagnostics_console._web.answers import Answer, json_answer
from ml_diagnostics_console._web.queries import Query
from ml_diagnostics_console._web.sentences import marked, safe_line

if TYPE_CHECKING:
    from ml_diagnostics_console._facts.reading import JobReader
    from ml_diagnostics_console._web.run_data import RunData
    from ml_diagnostics_console.report import Report

__all__ = ["DOCTOR", "Doctor", "answer_of", "known_report", "known_verdict", "verdict"]

_logger = logging.getLogger(__name__)

_LEAST_SECONDS: Final = 30.0
"""A live run changes each second. Its verdict is worked out again after this time, or a hundred times what it took, so
that an open page costs little; at once if its state changes."""
_FACTOR: Final = 100.0
_MOST_PAUSES: Final = 2.0
"""A page that is opened long after another one was closed must not begin with what was true then."""
_READERS: Final = 4
"""The readers that are kept, so that a run that is asked about again costs only what is new."""
_PROOFS: Final = 5
_LONGEST_PROOF: Final = 400

_CLOUD_NAME: Final = re.compile(r"projects/([^/]+)/locations/([^/]+)/.+")
"""The names of runs that a project of Google Cloud keeps."""


def verdict(run: RunData, query: Query) -> Answer:
    """Answer the verdict if it is known, also of some seconds ago; else that it is being worked out."""
    of_cloud = _CLOUD_NAME.fullmatch(str(run.resource.get("name", "")))
    return json_answer(_ask_on_the_command_line(run.id, *of_cloud.groups()) if of_cloud else DOCTOR.ask(run))


def known_report(run: RunData) -> Report | None:
    """Return the last report on a run; None while there is none."""
    known = DOCTOR.known(run)
    return known.report if known is not None else None


def known_verdict(run: RunData) -> dict[str, Any] | None:
    """Return the last answer on a run that has a sentence, and is of its present state; None while there is none."""
    known = DOCTOR.known(run)
    return known.answer if known is not None and known.state == run.state and known.answer["sentence"] else None


class _Known(NamedTuple):
    """A verdict that was worked out.

    Attributes:
        version: The version of the run.
        state: Its state.
        at: When, by the monotonic clock.
        seconds: How long it took.
        report: The report; None if it failed.
        answer: The answer.
    """

    version: int
    state: str
    at: float
    seconds: float
    report: Report | None
    answer: dict[str, Any]


class Doctor:
    """Works out verdicts in a thread of its own, one after the other, the last one that was asked for first."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._known: WeakKeyDictionary[RunData, _Known] = WeakKeyDictionary()
        self._waiting: dict[str, RunData] = {}
        self._working = ""
        self._readers: dict[str, JobReader] = {}
        self._is_started = False

    def ask(self, run: RunData) -> dict[str, Any]:
        """Return the answer on a run, and have it worked out if it is not known, or old.

        One of another state, or of long ago, is none: "slow" is not why a run has ended.
        """
        with self._lock:
            known = self._known.get(run)
            if known is None or self._is_old(known, run):
                self._request(run)
                if known is None or known.state != run.state or _age(known) > _MOST_PAUSES * _pause(known):
                    return {"state": "working"}
            return known.answer

    def known(self, run: RunData) -> _Known | None:
        """Return what is known of a run."""
        with self._lock:
            return self._known.get(run)

    def wait(self, run: RunData, seconds: float) -> dict[str, Any]:
        """Return the answer on the run as it is, waiting for it so long at most; for exports and tests."""
        deadline, wanted = time.monotonic() + seconds, run.version
        with self._lock:
            while True:
                known = self._known.get(run)
                if known is not None and known.version >= wanted:
                    return known.answer
                self._request(run)
                left = deadline - time.monotonic()
                if left <= 0 or not self._lock.wait(left):
                    return known.answer if known is not None else {"state": "working"}

    def take(self, run: RunData, report: Report) -> None:
        """Take a report that was judged elsewhere, as of the run as it is."""
        with self._lock:
            self._known[run] = _Known(run.version, run.state, time.monotonic(), 0.0, report, answer_of(report))
            self._lock.notify_all()

    def _is_old(self, known: _Known, run: RunData) -> bool:
        if known.version == run.version:
            return False
        return not run.is_live or known.state != run.state or _age(known) > _pause(known)

    def _request(self, run: RunData) -> None:
        key = f"{diagnostics_directory()}/{run.id}"
        if key == self._working:
            return
        self._waiting.pop(key, None)
        self._waiting[key] = run
        if not self._is_started:
            self._is_started = True
            threading.Thread(target=self._work, name="doctor", daemon=True).start()
        self._lock.notify_all()

    def _work(self) -> None:
        while True:
            with self._lock:
                while not self._waiting:
                    self._lock.wait()
                key, run = self._waiting.popitem()
                self._working = key
            version, state, started = run.version, run.state, time.monotonic()
            report, answer = self._judged(key, run.id)
            with self._lock:
                ended = time.monotonic()
                self._known[run] = _Known(version, state, ended, ended - started, report, answer)
                self._working = ""
                self._lock.notify_all()
            del run

    def _judged(self, key: str, run_id: str) -> tuple[Report | None, dict[str, Any]]:
        from ml_diagnostics_console.doctor import judge

        try:
            report = judge(self._reader(key, run_id).read())
            return report, answer_of(report)
        except Exception as error:  # A page without a verdict is better than none.
            self._readers.pop(key, None)
            is_expected = isinstance(error, DiagnosticsError)  # As that the run was deleted meanwhile.
            _logger.warning("no verdict on %s: %s", run_id, error, exc_info=not is_expected)
            return None, _failed(error)

    def _reader(self, key: str, run_id: str) -> JobReader:
        """Return the reader of a run: it reads only what is new since it was used last."""
        from ml_diagnostics_console._facts.reading import JobReader, Question

        reader = self._readers.pop(key, None) or JobReader(Question(run_id, kubernetes="off"), _ignore)
        self._readers[key] = reader
        while len(self._readers) > _READERS:
            del self._readers[next(iter(self._readers))]
        return reader


def _age(known: _Known) -> float:
    return time.monotonic() - known.at


def _pause(known: _Known) -> float:
    """Return the time after which the verdict on a live run is worked out again, in seconds."""
    return max(_LEAST_SECONDS, _FACTOR * known.seconds)


DOCTOR: Final = Doctor()
"""The doctor of this process: it keeps the last verdict on each run."""


def answer_of(report: Report) -> dict[str, Any]:
    """Return a report of the doctor for the page.

    Args:
        report: The report.
    """
    from ml_diagnostics_console.report import BLAMES, format_cost, title_of
    from ml_diagnostics_console.verdict import Blame

    headline = report.headline
    title = title_of(headline, report.facts)
    text = safe_line(headline.sentence).rstrip(".")
    sentence = f"{title}: {text}." if title else f"{text[:1].upper()}{text[1:]}."
    hosts = {process.host for process in report.facts.processes} | set(headline.hosts)
    proofs: dict[str, str | None] = {}
    for number, ref in enumerate(headline.evidence, 1):
        shows = f"{ref.host}: {ref.shows}" if ref.host and ref.host not in ref.shows else ref.shows
        is_entry = split_insert_id(ref.id) is not None  # Else a file, an object of Kubernetes, or a sum.
        proofs.setdefault(safe_line(shows, _LONGEST_PROOF), f"proof:{number}" if is_entry else None)
    cost = headline.cost
    blame = headline.blame
    is_known = blame is not None and blame is not Blame.UNKNOWN
    return {
        "state": "ready",
        "sentence": sentence,
        "parts": marked(sentence, hosts),
        "class": headline.verdict_class.value,
        "confidence": headline.confidence.value,
        "rule": headline.rule,
        "proofs": [{"text": text, "explain": of} for text, of in list(proofs.items())[:_PROOFS]],
        "cost": safe_line(format_cost(cost)) if cost is not None and cost.seconds > 0 else None,
        "blame": BLAMES[blame] if is_known and blame is not None else None,
        "hosts": list(headline.hosts),
        "next": [{"command": command.command, "why": safe_line(command.why)} for command in headline.next],
        "also": [safe_line(each.sentence) for each in report.shown if each is not headline],
        "not_checked": _not_checked(report),
        "notes": [safe_line(text) for text in report.observations],
        "explain": f"mldiagnostics doctor explain {one_line(report.facts.name)}/1",
        "as_of": report.facts.now_ns / 1e9,
    }


def _not_checked(report: Report) -> list[str]:
    """Return what is missing for a verdict of the headline's kind, equal reasons once."""
    prefix = report.headline.rule[:1]
    found = [each for each in sorted(report.not_checked) if each.rule.startswith(prefix) and not each.is_by_choice]
    return [safe_line(why) for why in dict.fromkeys(each.why for each in found)]


_NO_VERDICT: Final[dict[str, Any]] = {
    "state": "ready",
    "sentence": None,
    "parts": [],
    "proofs": [],
    "next": [],
    "also": [],
    "not_checked": [],
}


def _failed(error: Exception) -> dict[str, Any]:
    text = f"The doctor could not judge this run: {type(error).__name__}: {error}"
    return {**_NO_VERDICT, "error": safe_line(text)}


def _ask_on_the_command_line(run_id: str, project: str, region: str) -> dict[str, Any]:
    """Return how to ask about a run of a cloud: a view of a page sends no request there."""
    command = shlex.join(["mldiagnostics", "doctor", run_id, "--project", project, "--region", region])
    return {**_NO_VERDICT, "next": [{"command": command, "why": "the page sends no requests to Cloud Logging"}]}


def _ignore(note: str) -> None:
    """The page has the same notes from its store."""
